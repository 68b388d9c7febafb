"""The server's object and its operations: start runs, look at them, answer them, keep mandates."""
