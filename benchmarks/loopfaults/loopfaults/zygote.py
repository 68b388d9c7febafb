"""`python -P zygote.py MODULE [FOLDER]`: imports a subject once, then forks a process for each line on stdin.

    line in: {"folder", "socket", ...}        line out: the process's id

A child serves its socket: it is told verbs, and answers each when the system is quiet. A subject that has `run` serves
the socket by itself, as a server on stdio does. This file runs in the subject's Python and imports nothing else.
"""

import importlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


def serve(subject: ModuleType, asked: dict[str, Any]) -> None:
    control = socket.socket(socket.AF_UNIX)
    control.connect(asked["socket"])
    if hasattr(subject, "run"):
        subject.run(asked, control)
        return
    with control.makefile("rw") as lines:
        system = subject.System(Path(asked["folder"]), asked["url"], *asked["options"])
        for line in lines:
            words = json.loads(line)
            try:
                told = getattr(system, words.pop("verb"))(**words)
            except Exception as error:  # the child lives on: a failure is a state like any other
                traceback.print_exc()
                told = {"status": "failed", "error": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps(told or {"status": "idle"}), file=lines, flush=True)


def run_child(subject: ModuleType, asked: dict[str, Any]) -> None:
    """Serve a case, with the subject's own output in the folder's log, and end without a word to the parent's."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(Path(asked["folder"]) / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 0
    try:
        serve(subject, asked)
    except BaseException:  # whatever ends it is written to the log
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def main(name: str, folder: str | None = None) -> None:
    if folder:
        sys.path.insert(0, folder)
    subject = importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if pid := os.fork():
            print(pid, flush=True)
        else:
            run_child(subject, asked)


if __name__ == "__main__":
    main(*sys.argv[1:])
