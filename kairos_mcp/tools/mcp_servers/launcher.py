"""Hands a leash on to a server's sandbox and becomes it: `leashed.py FD PROGRAM ARGUMENT...`.

Run as a script of its own. The leash is the reading end of a pipe that nobody writes to: its other end closes when the
process that holds it dies, by whatever signal. A shell inside the sandbox reads it, as descriptor 3.
"""

import os
import sys

LEASH_FD = 3  # a shell redirects from one digit alone


def main(descriptor: str, *argv: str) -> None:
    """Never returns: this is the program then. Its environment and descriptors are those that it was to have."""
    if int(descriptor) != LEASH_FD:
        os.dup2(int(descriptor), LEASH_FD)
        os.close(int(descriptor))
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
