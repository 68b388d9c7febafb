"""Makes overlay mounts for the server, and hands over a descriptor of each.

Run as a script: `mounter.py SOCKET`. A process of its own, since only one without threads can enter a namespace of
users. Each request is a JSON object {lowers: [path], upper?, work?}; the answer is {} with the descriptor of the
mount's root, or {errno, at, log}. A mount is attached nowhere: it lasts as long as somebody holds a descriptor in it.
Ends when the socket is closed, and so when its server dies.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import socket
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same on every architecture of Linux but alpha
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_CLOSE_ON_EXEC, _NO_SUID, _NO_DEVICES = 1, 0x2, 0x4
_REQUEST_BYTES = 64 * 1024
_LOG_BYTES = 200


class MountFailed(OSError):
    """A call that failed (`strerror` names it), with what the kernel says of it in `log`."""

    log = ""


def _check(result: int, at: str) -> int:
    if result < 0:
        raise MountFailed(ctypes.get_errno(), at)
    return result


def enter_namespaces() -> None:
    """Enter namespaces of users and of mounts, in which this user may mount. Raises OSError."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(_NEW_USERS | _NEW_MOUNTS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def mount(lowers: list[str], upper: str | None = None, work: str | None = None) -> int:
    """Mount layers, the topmost of `lowers` first; return a descriptor of the root. Raises MountFailed."""
    context = _check(_LIBC.syscall(_FSOPEN, b"overlay", _CLOSE_ON_EXEC), "fsopen")

    def configure(command: int, key: str | None, value: str | None = None) -> None:
        texts = [None if text is None else os.fsencode(text) for text in (key, value)]
        _check(_LIBC.syscall(_FSCONFIG, context, command, *texts, 0), key or "create")

    try:
        try:
            for lower in lowers:
                configure(_SET_STRING, "lowerdir+", lower)
        except MountFailed:  # before Linux 6.8
            escaped = [lower.replace("\\", "\\\\").replace(":", "\\:") for lower in lowers]
            configure(_SET_STRING, "lowerdir", ":".join(escaped))
        if upper is not None:
            configure(_SET_STRING, "upperdir", upper)
            configure(_SET_STRING, "workdir", work)
        configure(_SET_FLAG, "userxattr")
        configure(_CREATE, None)
        mounted = _check(_LIBC.syscall(_FSMOUNT, context, _CLOSE_ON_EXEC, _NO_SUID | _NO_DEVICES), "fsmount")
        try:  # that descriptor only names the root: files are opened below one that is open for reading
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mounted)
        finally:
            os.close(mounted)
    except MountFailed as error:
        try:
            error.log = os.read(context, _LOG_BYTES).decode(errors="replace").strip()
        except OSError:
            error.log = ""
        raise
    finally:
        os.close(context)


def serve(channel: socket.socket) -> None:
    """Answer requests until the other end is closed."""
    while data := channel.recv(_REQUEST_BYTES):
        descriptors, answer = list[int](), {}
        try:
            descriptors = [mount(**json.loads(data))]
        except OSError as error:
            answer = {"errno": error.errno, "at": error.strerror, "log": getattr(error, "log", "")}
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        channel.sendmsg([json.dumps(answer).encode()], passed)
        for descriptor in descriptors:
            os.close(descriptor)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        enter_namespaces()
    except OSError as error:
        channel.send(json.dumps({"errno": error.errno, "at": error.strerror, "log": ""}).encode())
        return
    channel.send(b"{}")
    serve(channel)


if __name__ == "__main__":
    main()
