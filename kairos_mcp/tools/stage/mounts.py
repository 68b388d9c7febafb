"""The process that mounts layers for this server: started at the first mount, and anew where it has died."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from threading import Lock

from kairos_mcp.core.errors import CommandDenied

MOUNTER = Path(__file__).with_name("mounter.py")
ANSWER_S = 10.0
_ANSWER_BYTES = 4096
_HINT = "`kairos-mcp doctor` says what a stage lacks here; without one, stage = false in the settings."


class Mounts:
    """Mounts layers over each other. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def mount(self, lowers: list[Path], upper: Path | None = None, work: Path | None = None) -> int:
        """Mount layers, the topmost of `lowers` first; return a descriptor of the root, which the caller closes.

        Raises CommandDenied.
        """
        layers = {"lowers": [str(lower) for lower in lowers]}
        request = json.dumps(layers if upper is None else {**layers, "upper": str(upper), "work": str(work)}).encode()
        with self._lock:
            try:
                return self._ask(request)
            except OSError:  # it was killed: a new one mounts just as well
                self._end()
                try:
                    return self._ask(request)
                except OSError as error:
                    self._end()
                    raise CommandDenied(f"Layers can't be mounted: {error.strerror or error}.", _HINT) from None

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, request: bytes) -> int:
        channel = self._channel or self._start()
        channel.send(request)
        data, passed, _, _ = channel.recvmsg(_ANSWER_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        _refuse(data)
        if not passed:
            raise ConnectionResetError("no answer")
        descriptors = array.array("i")
        descriptors.frombytes(passed[0][2])
        return descriptors[0]

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._channel = ours
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(MOUNTER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.settimeout(ANSWER_S)
        _refuse(ours.recv(_ANSWER_BYTES))
        return ours

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.wait()
        self._channel = self._process = None


def _refuse(answer: bytes) -> None:
    """Raise CommandDenied for an answer that says why there is no mount, ConnectionResetError for none."""
    if not answer:
        raise ConnectionResetError("no answer")
    if failed := json.loads(answer):
        why = f"{os.strerror(failed['errno'])} at {failed['at']}" + (f", {failed['log']}" if failed["log"] else "")
        raise CommandDenied(f"Layers can't be mounted: {why}.", _HINT)
