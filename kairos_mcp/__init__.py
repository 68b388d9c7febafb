"""Kairos: the agent loop for any MCP host. Planned, bounded, crash-safe, replayable."""

__version__ = "0.1.0"
