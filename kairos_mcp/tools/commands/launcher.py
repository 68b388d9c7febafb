"""Bounds this process and becomes a program: `limited.py LEASH:3 STATUS:4 KEEP LIMIT=N [GROUP] -- PROGRAM ...`.

Run as a script of its own, so that nothing is done between a fork and an exec in a process with threads. It is the
first that the kernel ends when memory runs out, and tells STATUS `errno N` where it can't begin. With KEEP 1 the
program has both descriptors, under the second numbers, and ends by the leash; with 0 it is a supervised child, which
ends by the leash with all that it started.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys

ABOVE = 10  # where descriptors stay out of each other's way


def bound(limits: dict[str, int]) -> None:
    """Set the limits, by their names in `resource`; none is raised."""
    for name, most in limits.items():
        which = getattr(resource, f"RLIMIT_{name.upper()}", None)
        if which is not None:
            _, hard = resource.getrlimit(which)
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(which, (least, least))


def join(group: str) -> None:
    """Be a member of a control group. One that is gone bounds nobody, and whoever starts this looks as well."""
    try:
        with open(group, "w", encoding="ascii") as members:
            members.write("0")
    except OSError:
        return


def move(pairs: list[str], keep: bool) -> None:
    """Descriptors to where the program expects them, and nowhere else."""
    apart: list[tuple[int, int]] = []
    for pair in pairs:
        old, new = (int(number) for number in pair.split(":"))
        apart.append((fcntl.fcntl(old, fcntl.F_DUPFD_CLOEXEC, ABOVE), new))
        os.close(old)
    for old, new in apart:
        os.dup2(old, new, inheritable=keep)


def become(leash: str, status: str, keep: str, *rest: str) -> None:
    """This is the program then; returns where it can't be begun, which STATUS was told."""
    split = rest.index("--")
    argv = list(rest[split + 1 :])
    if sys.platform.startswith("linux"):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")
    os.nice(10)  # the server, and whoever works here, go first
    move([leash, status] if keep == "1" else [status], keep == "1")
    for group in (each for each in rest[:split] if each.startswith("/")):
        join(group)
    bound({name: int(most) for name, _, most in (each.partition("=") for each in rest[:split]) if most})
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        os.write(int(status.rpartition(":")[2]), f"errno {error.errno}".encode())


def main(leash: str, status: str, keep: str, *rest: str) -> None:
    """Never returns."""
    if keep == "1":
        become(leash, status, keep, *rest)
        os._exit(127)
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # last: nothing of the standard library is hidden
    from supervisor import supervise  # type: ignore[import-not-found]  # found beside this script, not as a package's

    supervise(int(leash.partition(":")[0]), lambda: become(leash, status, keep, *rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
