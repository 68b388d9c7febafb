"""A run's stage: a private layer over its workspace, in which it edits and runs programs, and its changes as one."""
