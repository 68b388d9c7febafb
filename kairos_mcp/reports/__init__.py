"""What a run looks like from outside, told from its rows."""
