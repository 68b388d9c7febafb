"""Starts a server's sandbox with its leash as descriptor 3.

Run as a script: `launcher.py FD PROGRAM ARGUMENT ...`. FD, the leash, is the reading end of a pipe that nobody writes
to. Our process holds the other end, which closes when it dies, by whatever signal. A shell inside the sandbox waits
for that. A module of its own: what creates the child can pass descriptors on, but not change their numbers.
"""

import os
import sys

LEASH_FD = 3  # a shell redirects only descriptors of one digit


def main(descriptor: str, *argv: str) -> None:
    """Move the leash to LEASH_FD and replace this process by the program. Never returns."""
    if int(descriptor) != LEASH_FD:
        os.dup2(int(descriptor), LEASH_FD)
        os.close(int(descriptor))
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
