"""Tools that a person defines, as values."""
