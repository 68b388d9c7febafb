"""Apps in processes of their own, forked from one that has imported them already: each can be killed for real.

As a program it is that one: for each line `FOLDER SOCKET` on its stdin it forks an app, which connects to the socket
and does what it is told there, a JSON line for a JSON line. `Forks` and `Apart` are the other side.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WITHIN_S = 20.0


@dataclass
class Apart:
    """An app in a process of its own."""

    pid: int
    line: Any

    def __call__(self, do: str, **given: Any) -> dict[str, Any]:
        """What came of it: `{ok: ...}`, or `{code: ...}` where the app refused."""
        self.line.write(json.dumps({"do": do, **given}) + "\n")
        self.line.flush()
        reply = self.line.readline()
        assert reply, f"the app has died of {do}"
        found: dict[str, Any] = json.loads(reply)
        assert "bug" not in found, found["bug"]
        return found

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.line.read() == ""  # until the kernel has closed all that it held
        self.line.close()

    def end(self) -> None:
        """Close the app in order."""
        self.line.write(json.dumps({"do": "end"}) + "\n")
        self.line.flush()
        assert self.line.read() == ""
        self.line.close()


class Forks:
    """The process that apps are forked from, for one folder."""

    def __init__(self, root: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(root / "apps"))
        self._listening.listen()
        self._listening.settimeout(WITHIN_S)
        self._path = root / "apps"
        paths = (str(HERE.parent), os.environ.get("PYTHONPATH", ""))
        self._program = subprocess.Popen(
            [sys.executable, str(HERE / "forked_apps.py")],
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def app(self, place: Path) -> Apart:
        """Another app on the folder of this place."""
        self._program.stdin.write(f"{place}\t{self._path}\n")
        self._program.stdin.flush()
        connection, _ = self._listening.accept()
        with connection:
            connection.settimeout(WITHIN_S)
            line = connection.makefile("rw")
        return Apart(int(line.readline()), line)

    def close(self) -> None:
        self._program.stdin.close()
        self._program.wait(WITHIN_S)
        self._listening.close()


# -- the other side ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Fork an app for each line; the kernel reaps them."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for asked in sys.stdin:
        place, path = asked.rstrip("\n").split("\t")
        if os.fork() == 0:
            code = 1
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an app waits for its own children
                asyncio.run(host_app(Path(place), path))
                code = 0
            finally:
                os._exit(code)


async def host_app(root: Path, path: str) -> None:
    from kairos_mcp.app.app import App
    from kairos_mcp.core.errors import KairosError
    from kairos_mcp.settings.table_values import GateRule
    from support.app import UNWATCHED, Place

    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"{os.getpid()}\n".encode())
    place = Place(root)
    gate = (GateRule("run_command", "allow"),)
    line = {"content": "done", "finish": "stop", "delay_s": 0.1}
    settings = place.settings(line, gate=gate, commands="bare", flow=UNWATCHED)
    async with App.open(settings, via="mcp") as app:
        while asked := await reader.readline():
            given = json.loads(asked)
            if (do := given.pop("do")) == "end":
                break
            try:
                reply: dict[str, Any] = {"ok": await DEEDS[do](app, **given)}
            except KairosError as refused:
                reply = {"code": refused.code}
            except Exception as bug:
                reply = {"bug": f"{do} {given}: {bug!r}"}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
    writer.close()


async def _start(app: Any, goal: str, principal: str, key: str | None, route: str) -> str:
    from kairos_mcp.core.decision_rights import Caller
    from kairos_mcp.core.run_spec import PlannerRequest
    from support.app import ASK

    tools = ("read_file", "run_command")
    request = PlannerRequest(goal, key=key, route=route, tools=tools, caller_tools=(ASK,))
    started = await app.runs.start(request, Caller(principal))
    return str(started.run_id)


async def _answer(app: Any, run: str, principal: str, answers: dict[str, Any]) -> None:
    from kairos_mcp.core.decision_rights import Caller

    await app.answers.submit(run, answers, Caller(principal))


async def _control(app: Any, run: str, principal: str, action: str, route: str | None = None) -> None:
    from kairos_mcp.core.decision_rights import Caller
    from kairos_mcp.core.limits import Limits

    control, caller = app.control, Caller(principal)
    if action == "extend":
        await control.extend(run, Limits(rounds=2), caller)
    elif route is not None:
        await control.reroute(run, route, caller)
    elif action == "resume":
        await control.request(run, action, caller)
    else:
        await getattr(control, action)(run, caller)


async def _settle(app: Any, run: str, principal: str, key: str, settlement: str) -> None:
    from kairos_mcp.core.decision_rights import Caller

    await app.answers.settle(run, key, settlement, Caller(principal, via="command"))


async def _rest(app: Any, run: str, principal: str) -> dict[str, Any]:
    """The report, once nothing of the run moves."""
    from kairos_mcp.core.decision_rights import Caller

    await app.runs.wait([run], until="rest", wait_s=WITHIN_S, caller=Caller(principal))
    found: dict[str, Any] = (await app.runs.report(run, Caller(principal))).as_json()
    return found


async def _replay(app: Any, run: str, principal: str) -> str | None:
    """The first difference."""
    from kairos_mcp.core.decision_rights import Caller

    found: str | None = (await app.records.replay(run, Caller(principal))).first_difference
    return found


DEEDS = {
    "start": _start,
    "answer": _answer,
    "control": _control,
    "settle": _settle,
    "rest": _rest,
    "replay": _replay,
}

if __name__ == "__main__":
    import kairos_mcp.app.app  # noqa: F401 - likewise
    import support.app  # noqa: F401 - before the first fork: that is what makes a fork quick

    main()
