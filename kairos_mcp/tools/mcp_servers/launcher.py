"""Starts a server's sandbox with its leash as descriptor 3, and the server's stdout as descriptor 4.

Run as a script: `launcher.py FD PROGRAM ARGUMENT ...`. FD, the leash, is the reading end of a pipe that nobody writes
to. Our process holds the other end, which closes when it dies, by whatever signal. A shell inside the sandbox waits
for that, and gives the server its stdout: bubblewrap, which lives on as long as the server, must not hold it open. A
module of its own: what creates the child can pass descriptors on, but not change their numbers.
"""

import os
import sys

LEASH_FD, OUTPUT_FD = 3, 4  # a shell redirects only descriptors of one digit


def main(descriptor: str, *argv: str) -> None:
    """Move the leash and stdout to their numbers, and replace this process by the program. Never returns."""
    if int(descriptor) != LEASH_FD:
        os.dup2(int(descriptor), LEASH_FD)
        os.close(int(descriptor))
    os.dup2(sys.stdout.fileno(), OUTPUT_FD)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
