"""Runs told in files of their own: carried away, built again, compared."""
