"""Tools that make HTTP requests, each checked against the addresses that are allowed."""
