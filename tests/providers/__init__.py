"""Providers that stand on loopback: what they reply is scripted, what they are asked is kept."""
