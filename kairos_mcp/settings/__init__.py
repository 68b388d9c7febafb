"""What a person has configured, and where each setting comes from."""
