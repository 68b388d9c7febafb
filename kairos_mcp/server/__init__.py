"""The MCP server: checks calls, passes them to the app and words the results. Nothing is decided here."""
