"""The tool that runs programs, and the sandbox in which they run."""
