"""Denies a sandbox some calls of the kernel: they fail as if the kernel had none of them.

For all sandboxes these are the calls for the keys that the kernel keeps for a person.

A sandbox inherits the session's keyring, and no namespace hides it: what stands there, such as a password of a network
share, could be read, and a key planted for the person's other programs. A new session keyring would not be enough,
since those of the user stay within reach by their numbers.

For one that is paused between its calls (tools/mcp_servers/server_processes.py) they are also those by which a stopped
process could arrange to be continued: an alarm, or the arrival of data, that sends the signal for it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kairos_mcp.tools.commands.held_paths import MIN_HELD_FD

# By the kernel's number of an architecture (AUDIT_ARCH_*), that of add_key; request_key and keyctl come right after it.
# A machine may run programs of a second one. On any other architecture nothing is denied.
_ADD_KEY = {
    0xC000003E: 248,  # x86_64
    0x40000003: 286,  # i386
    0xC00000B7: 217,  # aarch64
    0x40000028: 309,  # arm
    0xC00000F3: 217,  # riscv64
    0xC0000102: 217,  # loongarch64
    0xC0000015: 269,  # ppc64le
    0x80000015: 269,  # ppc64
    0x80000016: 278,  # s390x
}
# By architecture: timer_create, where timers can send any signal (also by its number in x32), and fcntl and fcntl64.
_TIMER_CREATE = {
    0xC000003E: (222, 526),
    0x40000003: (259,),
    0xC00000B7: (107,),
    0x40000028: (257,),
    0xC00000F3: (107,),
    0xC0000102: (107,),
    0xC0000015: (240,),
    0x80000015: (240,),
    0x80000016: (254,),
}
_FCNTL = {
    0xC000003E: (72,),
    0x40000003: (55, 221),
    0xC00000B7: (25,),
    0x40000028: (55, 221),
    0xC00000F3: (25,),
    0xC0000102: (25,),
    0xC0000015: (55,),
    0x80000015: (55,),
    0x80000016: (55,),
}
_SET_SIGNAL = 10  # F_SETSIG of fcntl: which signal says that there is data
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_IF_EQUAL, _JUMP_IF_ABOVE, _JUMP_IF_FROM = 0x15, 0x25, 0x35
# The low half of the second argument: where it stands by the order of bytes.
_SECOND_ARGUMENT = 24 if sys.byteorder == "little" else 28
_CALL_NUMBER, _ARCHITECTURE = 0, 4  # where they stand in the kernel's description of a call
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.ENOSYS
_WITHOUT_X32 = 0xBFFFFFFF  # the bit that tells calls of x32 from those of x86_64


def build_filter(*, is_paused: bool = False) -> bytes:
    """Build the filter, in the kernel's classic BPF: each instruction a code, two jump distances and a value.

    `is_paused`: for a program that is paused now and then.
    """
    instructions = [(_LOAD, 0, 0, _ARCHITECTURE)]
    for architecture, add_key in _ADD_KEY.items():
        checks = [(_JUMP_IF_FROM, 0, 2, add_key), (_JUMP_IF_ABOVE, 1, 0, add_key + 2), (_RETURN, 0, 0, _FAIL)]
        checks += _deny_alarms(architecture) if is_paused else []
        instructions += [
            (_JUMP_IF_EQUAL, 0, len(checks) + 3, architecture),  # else to the next architecture
            (_LOAD, 0, 0, _CALL_NUMBER),
            (_AND, 0, 0, _WITHOUT_X32),
            *checks,
            (_RETURN, 0, 0, _ALLOW),
        ]
    instructions.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _deny_alarms(architecture: int) -> list[tuple[int, int, int, int]]:
    checks: list[tuple[int, int, int, int]] = []
    for number in _TIMER_CREATE[architecture]:
        checks += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL)]
    for number in _FCNTL[architecture]:
        checks += [
            (_JUMP_IF_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _SECOND_ARGUMENT),
            (_JUMP_IF_EQUAL, 0, 1, _SET_SIGNAL),
            (_RETURN, 0, 0, _FAIL),
            (_RETURN, 0, 0, _ALLOW),
        ]
    return checks


@contextmanager
def open_filter(*, is_paused: bool = False) -> Iterator[int]:
    """Yield a descriptor of the filter. bubblewrap reads it once, so each start needs its own."""
    written = os.memfd_create("call-filter")
    try:
        os.write(written, build_filter(is_paused=is_paused))
        os.lseek(written, 0, os.SEEK_SET)
        descriptor = fcntl.fcntl(written, fcntl.F_DUPFD_CLOEXEC, MIN_HELD_FD)
    finally:
        os.close(written)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
