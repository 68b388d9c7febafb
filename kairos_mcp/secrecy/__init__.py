"""Secrets are taken out of a text once, before it becomes a row, a log line or an error."""
