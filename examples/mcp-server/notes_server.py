"""An MCP server with two tools, by the official SDK: `pip install mcp`."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
NOTES = ["Water the plants."]


@server.tool()
def list_notes() -> list[str]:
    """List all notes."""
    return NOTES


@server.tool()
def add_note(text: str) -> str:
    """Add a note."""
    NOTES.append(text)
    return f"There are {len(NOTES)} notes."


if __name__ == "__main__":
    server.run()
