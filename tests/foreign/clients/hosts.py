"""Hosts with an agent of their own, started as a person does: in a terminal, with a provider on loopback in place of
theirs."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from host_model import Call
from scripted_model import GOAL, Json, job, report
from standin import READS, Standin, serve_standin

JOB = job()
GIVE_UP_S = 150
Start = Callable[[Standin, str], tuple[list[str], dict[str, str]]]
"""From the provider and what the person types to a command and variables."""


def talk(start: Start, calls: Sequence[Call] = (), typed: str = "Make the calls.") -> Standin:
    """Have the host's agent make these calls and follow their results, or give up; what its provider saw."""
    folder = Path(JOB["folder"], "host")
    folder.mkdir(exist_ok=True)
    with serve_standin(calls) as standin:
        words, environ = start(standin, typed)
        ours, theirs = pty.openpty()
        shown: list[bytes] = []
        whole = {**os.environ, "HOME": str(folder), "TERM": "xterm", **environ}
        with subprocess.Popen(
            words, env=whole, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        ) as host:
            os.close(theirs)
            Thread(target=_drain, args=(ours, shown), daemon=True).start()
            ended = standin.done.wait(GIVE_UP_S)
            os.killpg(host.pid, signal.SIGKILL)  # the command may be a loader: the program is its child
    if not ended:
        raise TimeoutError(b"".join(shown)[-2000:].decode(errors="replace") + repr(standin.results[-1:]))
    return standin


def serve_job(start: Start, **ways: Callable[..., Any]) -> None:
    """Do what the job asks for: its steps, each with a host of its own, or a run; where nothing but loopback is."""
    _, *routes = Path("/proc/self/net/route").read_text().splitlines()
    assert routes == []
    if JOB["way"] != "steps":
        standin = talk(
            start, [("planner_run", {"goal": GOAL, "route": "caller" if JOB["way"] == "caller" else "sampling"})]
        )
        report(standin.results[-1], asked=[each for each in standin.asked if each != "host"])
        return

    def call(name: str, arguments: Json) -> Any:
        return talk(start, [(name, arguments)]).results[-1]

    def read(uri: str) -> Any:
        return talk(start, [(READS, {"server": "kairos", "uri": uri})]).results[-1]["text"]

    ways = {"call": call, "read": read, **ways}
    results: list[Json] = []
    for way, *given in JOB["steps"]:
        try:
            results.append({"value": ways[way](*given)})
        except Exception as error:
            results.append({"error": repr(error)})
    report({"steps": results})


def server_entry(**types: str) -> Json:
    """The server as most hosts' settings name it; `types`: the host's words for transports."""
    if JOB["transport"] == "stdio":
        command, *words = JOB["command"]
        return {"command": command, "args": words, **({"type": types["stdio"]} if "stdio" in types else {})}
    return {"url": JOB["url"], **({"type": types[JOB["transport"]]} if JOB["transport"] in types else {})}


def _drain(terminal: int, kept: list[bytes]) -> None:
    """Read what is shown: a terminal that nobody reads blocks its program."""
    try:
        while shown := os.read(terminal, 65536):
            kept.append(shown)
    except OSError:
        pass  # the program has left
