"""The MCP door: it takes calls apart, passes them on, words the answers. Nothing is decided here."""
