"""Sets limits on this process, then replaces it by a program.

Run as a script: `launcher.py LEASH:3 STATUS:4 KEEP LIMIT=N ... [GROUP] -- PROGRAM ARGUMENT ...`. A script of its own,
since a process with threads must do nothing between fork and exec. If memory runs out, the kernel kills this process
first. If the program can't be executed, `errno N` is written to STATUS.

KEEP 1 (in a sandbox): the program inherits both descriptors under the numbers after the colon, and watches the leash
itself. KEEP 0: the program runs as the child of a supervisor, which kills it with all that it started when the leash
is closed.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys

PARKED_FD = 10  # descriptors are first moved here and above, so that no move overwrites another


def set_limits(limits: dict[str, int]) -> None:
    """Set resource limits, given by their names in `resource` in lower case; a hard limit is never raised."""
    for name, most in limits.items():
        resource_id = getattr(resource, f"RLIMIT_{name.upper()}", None)
        if resource_id is not None:
            _, hard = resource.getrlimit(resource_id)
            value = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource_id, (value, value))


def join_group(procs_file: str) -> None:
    """Join a control group. If it is gone, there is no limit by it; the server counts the tasks too."""
    try:
        with open(procs_file, "w", encoding="ascii") as members:
            members.write("0")
    except OSError:
        return


def move_descriptors(moves: list[str], inheritable: bool) -> None:
    """Move descriptors, given as `old:new`, to the numbers at which the program expects them."""
    parked: list[tuple[int, int]] = []
    for pair in moves:
        old, new = (int(number) for number in pair.split(":"))
        parked.append((fcntl.fcntl(old, fcntl.F_DUPFD_CLOEXEC, PARKED_FD), new))
        os.close(old)
    for old, new in parked:
        os.dup2(old, new, inheritable=inheritable)


def exec_program(leash: str, status: str, keep: str, *rest: str) -> None:
    """Set all limits and replace this process by the program. Returns only if that fails, after writing to STATUS."""
    separator = rest.index("--")
    argv = list(rest[separator + 1 :])
    if sys.platform.startswith("linux"):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")
    os.nice(10)  # the server, and people at this machine, go first
    move_descriptors([leash, status] if keep == "1" else [status], keep == "1")
    settings = rest[:separator]
    for group in (text for text in settings if text.startswith("/")):
        join_group(group)
    set_limits({name: int(most) for name, _, most in (text.partition("=") for text in settings) if most})
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(int(status.rpartition(":")[2]), f"errno {error.errno}".encode())


def main(leash: str, status: str, keep: str, *rest: str) -> None:
    """Run the program as KEEP says. Never returns."""
    if keep == "1":
        exec_program(leash, status, keep, *rest)
        os._exit(127)
    # Last, so that it hides no module of the standard library.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from supervisor import supervise  # type: ignore[import-not-found]  # found beside this script, not as a package's

    supervise(int(leash.partition(":")[0]), lambda: exec_program(leash, status, keep, *rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
