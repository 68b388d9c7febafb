"""Runs as files of their own: exported, replayed, compared."""
