"""What callers and people see of a run, read from its rows."""
