"""The state file: one SQLite database that says what was asked, answered, reserved and spent."""
