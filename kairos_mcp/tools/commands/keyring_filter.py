"""Denies a sandbox the keys that the kernel keeps for a person: the calls for them fail as if the kernel had none.

A sandbox inherits the session's keyring, and no namespace hides it: what stands there, such as a password of a network
share, could be read, and a key planted for the person's other programs. A new session keyring would not be enough,
since those of the user stay within reach by their numbers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from kairos_mcp.tools.commands.protected_paths import MIN_HELD_FD

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
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_IF_EQUAL, _JUMP_IF_ABOVE, _JUMP_IF_FROM = 0x15, 0x25, 0x35
_CALL_NUMBER, _ARCHITECTURE = 0, 4  # where they stand in the kernel's description of a call
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.ENOSYS
_WITHOUT_X32 = 0xBFFFFFFF  # the bit that tells calls of x32 from those of x86_64


def build_filter() -> bytes:
    """Build the filter, in the kernel's classic BPF: each instruction a code, two jump distances and a value."""
    instructions = [(_LOAD, 0, 0, _ARCHITECTURE)]
    for architecture, add_key in _ADD_KEY.items():
        instructions += [
            (_JUMP_IF_EQUAL, 0, 6, architecture),  # else to the next architecture
            (_LOAD, 0, 0, _CALL_NUMBER),
            (_AND, 0, 0, _WITHOUT_X32),
            (_JUMP_IF_FROM, 0, 2, add_key),
            (_JUMP_IF_ABOVE, 1, 0, add_key + 2),
            (_RETURN, 0, 0, _FAIL),
            (_RETURN, 0, 0, _ALLOW),
        ]
    instructions.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


@contextmanager
def open_filter() -> Iterator[int]:
    """Yield a descriptor of the filter. bubblewrap reads it once, so each start needs its own."""
    written = os.memfd_create("keyring-filter")
    try:
        os.write(written, build_filter())
        os.lseek(written, 0, os.SEEK_SET)
        descriptor = fcntl.fcntl(written, fcntl.F_DUPFD_CLOEXEC, MIN_HELD_FD)
    finally:
        os.close(written)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
