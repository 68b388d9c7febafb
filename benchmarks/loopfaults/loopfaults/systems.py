"""What is put to the test: seven verbs on one folder.

Each verb returns once the system is quiet, with how the job stands:

    ended    it is done                             waiting  a person has to approve
    unsure   a person has to say what became of     idle     nothing moves, and nobody is asked
             an effect (`step`)                     failed   it gave up (`error` says why)
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

STATUSES = ("ended", "waiting", "unsure", "idle", "failed")
LINE_LIMIT = 2**24
_NUMBERS = itertools.count()


class Died(Exception):
    """The process ended in the middle of a verb."""


@dataclass(frozen=True, slots=True)
class State:
    """How the job stands. `step`: of the effect that a person has to settle."""

    status: str
    step: int = 0
    error: str = ""


class System(Protocol):
    """One system on its folder. `pid`: the process that faults happen to."""

    pid: int

    async def open(self) -> State:
        """Bring it up, as after a boot."""

    async def start(self) -> State:
        """Begin the job."""

    async def look(self) -> State:
        """Ask how it stands. Whether a look moves it is the system's own affair, and counted."""

    async def resume(self) -> State:
        """Make the documented call to go on."""

    async def answer(self, decision: str) -> State:
        """Tell it what a person decided: `approve` or `deny`."""

    async def settle(self, happened: bool) -> State:
        """Tell it what became of an effect of which it is unsure."""

    async def close(self) -> None:
        """End it by force, where it still lives."""


def end_process(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Zygote:
    """A Python that imports a subject once and forks a process for each case: 50 ms in place of its imports' seconds.

    Nothing of the subject has run before the fork, so a child is what a fresh process would be.
    """

    def __init__(self, python: Path, subject: str, env: Mapping[str, str], path: Path | None = None) -> None:
        """`subject`: the module's name; `path`: the folder that it is in."""
        program = Path(__file__).with_name("zygote.py")
        self._words = [str(python), "-P", str(program), subject, *([str(path)] if path else [])]
        self._env = dict(env)

    async def open(self) -> None:
        """Raises RuntimeError where the subject can't be imported."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._words, stdin=pipe, stdout=pipe, env=self._env)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        if await self._stdout.readline() != b"ready\n":
            raise RuntimeError(f"{' '.join(self._words)} could not import its subject")

    async def fork(self, folder: Path, asked: dict[str, Any]) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
        """Fork a process for a folder. Returns its id and the two ends of the socket that it serves."""
        came: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )
        path = f"\0loopfaults-{os.getpid()}-{next(_NUMBERS)}"  # Linux: a name that is no file, as long as it likes
        listening = await asyncio.start_unix_server(
            lambda reader, writer: came.set_result((reader, writer)), path, limit=LINE_LIMIT
        )
        self._stdin.write(json.dumps({"folder": str(folder), "socket": path, **asked}).encode() + b"\n")
        await self._stdin.drain()
        pid = int(await self._stdout.readline())
        try:
            return pid, *await asyncio.wait_for(came, 30)
        except TimeoutError:
            raise Died from None
        finally:
            listening.close()

    async def close(self) -> None:
        self._stdin.close()
        await self._process.wait()


class Forked:
    """A system that is a class in Python: `System(folder, url, *options)` of the zygote's subject.

    Its methods are the verbs; each returns a dict with a `status`, or None for `idle`.
    """

    def __init__(self, zygote: Zygote, folder: Path, url: str, options: tuple[str, ...] = ()) -> None:
        self._zygote, self._folder, self._url, self._options = zygote, folder, url, options
        self.pid = 0

    async def open(self) -> State:
        asked = {"url": self._url, "options": self._options}
        self.pid, self._reader, self._writer = await self._zygote.fork(self._folder, asked)
        return await self._ask("open")

    async def start(self) -> State:
        return await self._ask("start")

    async def look(self) -> State:
        return await self._ask("look")

    async def resume(self) -> State:
        return await self._ask("resume")

    async def answer(self, decision: str) -> State:
        return await self._ask("answer", decision=decision)

    async def settle(self, happened: bool) -> State:
        return await self._ask("settle", happened=happened)

    async def close(self) -> None:
        if self.pid:
            end_process(self.pid)
            self._writer.close()

    async def _ask(self, verb: str, **words: Any) -> State:
        try:
            self._writer.write(json.dumps({"verb": verb, **words}).encode() + b"\n")
            await self._writer.drain()
            line = await self._reader.readline()
        except ConnectionError:
            raise Died from None
        if not line:
            raise Died
        return State(**json.loads(line))
