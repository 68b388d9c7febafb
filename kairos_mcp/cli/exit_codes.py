"""What a command's exit code means."""

COMPLETED, FAILED, USAGE, WAITING, CANCELLED = 0, 1, 2, 3, 130
