"""The command line: every command of `kairos-mcp`, and what it prints."""
