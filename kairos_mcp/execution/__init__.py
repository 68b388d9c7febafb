"""Drives runs: replays what is stored, executes the step that comes next, commits its result."""
