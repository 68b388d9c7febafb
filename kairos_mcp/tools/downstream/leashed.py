"""Puts a leash on a server and becomes it: `leashed.py FD inside|outside PROGRAM ARGUMENT...`.

Run as a script of its own. The leash is the reading end of a pipe that nobody writes to: its other end closes when the
process that holds it dies, by whatever signal. `inside`: a sandbox hands it on to a shell that reads it there, as
descriptor 3. `outside`: a shell beside the program reads it, and ends the group that the program leads.
"""

import os
import sys

LEASH_FD = 3  # a shell redirects from one digit alone
_WATCH = f"read -r _ <&{LEASH_FD}; kill -9 -$0"


def main(descriptor: str, where: str, *argv: str) -> None:
    """Never returns: this is the program then. Its environment and descriptors are those that it was to have."""
    if int(descriptor) != LEASH_FD:
        os.dup2(int(descriptor), LEASH_FD)
        os.close(int(descriptor))
    if where == "outside":
        _watched()
        os.close(LEASH_FD)
    os.execvp(argv[0], argv)


def _watched() -> None:
    """Leave a shell behind that reads the leash: of this group, and nobody's child that the program could meet."""
    leader = os.getpid()
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    if not os.fork():
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        os.set_inheritable(LEASH_FD, True)
        os.execv("/bin/sh", ["/bin/sh", "-c", _WATCH, str(leader)])
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
