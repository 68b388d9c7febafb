"""Standing orders as values: what they say, and when they are due."""
