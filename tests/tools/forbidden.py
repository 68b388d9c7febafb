"""Becomes a program for which the kernel makes no user namespace: `forbidden.py PROGRAM ARGUMENT ...`.

A namespace of its own, in which the limit of further ones is 0; where none can be made it is as forbidden already.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWUSER = 0x10000000


def main(argv: list[str]) -> None:
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0:
        me = Path("/proc/self")
        (me / "setgroups").write_text("deny")
        (me / "uid_map").write_text(f"{user} {user} 1")
        (me / "gid_map").write_text(f"{group} {group} 1")
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1:])
