"""Kill what runs an agent's loop, at points that a witness outside sees, and count what was lost or done twice."""

__version__ = "0.1.0"
