"""What a person has decided, and where it was read from."""
