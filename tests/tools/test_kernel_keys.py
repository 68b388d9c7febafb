"""A program in a sandbox reaches none of the keys that the kernel keeps for a person, and plants none."""

from __future__ import annotations

import ctypes
import errno
import json
import platform
import threading
from pathlib import Path

import pytest
from test_command import CommandRunner, body

pytestmark = pytest.mark.sandbox
ADD_KEY = {"x86_64": 248, "aarch64": 217}.get(platform.machine(), 0)
SESSION, USER, JOIN, SEARCH = -3, -4, 1, 10
NAME, SECRET = b"kairos-of-the-test", b"a password of a share"
IN_THE_SANDBOX = """
import ctypes, json
call, results = ctypes.CDLL(None, use_errno=True).syscall, []
for arguments in (({key}, b"user", b"planted", b"x", 1, {session}), ({key} + 1, b"user", {name}, None, 0),
                  ({key} + 2, 0, {session}, 0), ({key} + 2, 0, {user}, 0), ({key} + 2, 1, None)):
    ctypes.set_errno(0)
    results.append([call(*arguments), ctypes.get_errno()])
print(json.dumps(results))
"""


def test_the_kernel_s_keys_are_neither_read_nor_planted(tmp_path: Path) -> None:
    if not ADD_KEY:
        pytest.skip("the numbers of these calls are known to the test for two kinds of machine")
    kernel = ctypes.CDLL(None, use_errno=True).syscall
    seen: list[str] = []
    planted: list[int] = []

    def run() -> None:  # a thread's session keyring is its own; what it starts inherits that
        if kernel(ADD_KEY + 2, JOIN, None) < 0 or kernel(ADD_KEY, b"user", NAME, SECRET, len(SECRET), SESSION) < 0:
            return
        script = IN_THE_SANDBOX.format(key=ADD_KEY, session=SESSION, user=USER, name=NAME)
        seen.append(body(CommandRunner(tmp_path).python(script)))
        planted.append(kernel(ADD_KEY + 2, SEARCH, SESSION, b"user", b"planted", 0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if not seen:
        pytest.skip("this machine forbids keys to the test itself")
    assert json.loads(seen[0]) == [[-1, errno.ENOSYS]] * 5
    assert planted == [-1]
