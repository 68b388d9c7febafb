"""The MCP server: validates calls, hands them to the app and words the results. Nothing is decided here."""
