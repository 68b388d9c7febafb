"""What a person has configured, and where each setting was read from."""
