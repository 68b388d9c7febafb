"""A tool of one's own: an installed function that runs may call."""

from kairos_mcp.tools import tool


@tool(effect="read")
def word_count(text: str, at_least: int = 1) -> dict[str, int]:
    """Counts the words of a text, and those that have at least so many characters."""
    words = text.split()
    return {"words": len(words), "long_words": sum(len(word) >= at_least for word in words)}
