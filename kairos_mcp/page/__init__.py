"""The page for people: every run as it moves, what waits for them, and what they decide."""
