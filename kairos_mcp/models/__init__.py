"""Models: where completions come from."""
