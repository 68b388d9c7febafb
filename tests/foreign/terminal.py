"""Hosts at a terminal, in a network namespace with nothing but loopback: what their person sees there, and types."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.waiting import wait_until

from tests.foreign.driving import ALONE
from tests.foreign.environs import Missing
from tests.foreign.served import environ

Call = tuple[str, dict[str, Any]]
PATIENCE_S = 90.0
COMMAND_S = 20
MODEL = Path(__file__).with_name("clients") / "typed_model.py"
MODEL_PORT = 18077  # in a namespace of our own
MODEL_URL = f"http://127.0.0.1:{MODEL_PORT}"
LOOK_S, LOOKS = 0.12, 4  # a screen that looked the same so often in a row is drawn


class Terminal:
    """A terminal of this size, a tmux server: each program has a window of it. Beside them, in the first window, runs
    the model of all hosts, which makes the calls that are typed by name (`DO name`)."""

    def __init__(self, folder: Path, columns: int, rows: int) -> None:
        self._folder, self._size, self._window = folder, ("-x", str(columns), "-y", str(rows)), "model"
        self._calls: dict[str, Sequence[Call]] = {}
        self._requests = 0  # before what was typed last

    def open(self) -> None:
        """Open it. Raises Missing."""
        for program in ("tmux", "unshare", "ip"):
            if shutil.which(program) is None:
                raise Missing(program)
        model = shlex.join([sys.executable, str(MODEL), str(MODEL_PORT), "calls.json", "asked.jsonl"])
        first = ("-n", "model", "sh", "-c", f"exec {model} 2>model.log")
        self._tmux("new-session", "-d", *self._size, *first, alone=ALONE)

    def close(self) -> None:
        """End all that runs in it; some programs outlive their terminal."""
        leaders = self._tmux("list-panes", "-s", "-F", "#{pane_pid}").split()
        self._tmux("kill-server")
        for leader in leaders:
            with suppress(ProcessLookupError):
                os.killpg(int(leader), signal.SIGKILL)

    def start(self, window: str, command: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        """Start a program in a window, with these variables alone; what is typed goes there from now on."""
        self.beside(window, command, variables, folder)
        self._window = window

    def beside(self, window: str, command: Sequence[str], variables: Mapping[str, str], folder: Path) -> None:
        """Start a program in a window that nobody looks at."""
        given = [f"{name}={value}" for name, value in variables.items()]
        self._tmux("new-window", "-d", "-n", window, "-c", str(folder), "env", "-i", *given, *command)

    def pid(self) -> int:
        """The process of the window's program."""
        return int(self._tmux("display-message", "-p", "-t", f":{self._window}", "#{pane_pid}"))

    def windows(self) -> set[str]:
        """The windows whose programs run."""
        return set(self._tmux("list-windows", "-F", "#{window_name}").split())

    def screen(self) -> str:
        """What is on the screen now."""
        shown = self._tmux("capture-pane", "-p", "-t", f":{self._window}")
        return "\n".join(line.rstrip() for line in shown.split("\n")).rstrip("\n")

    def shows(self, *words: str, without: str | None = None, within_s: float = PATIENCE_S) -> str:
        """Wait until one of these words is on the screen, and it is drawn; return it."""

        def seen() -> str:
            screen = self.drawn()
            return (
                screen if any(word in screen for word in words) and (without is None or without not in screen) else ""
            )

        return wait_until(seen, within_s, lambda: f"{words} never came:\n{self.screen()}")

    def drawn(self) -> str:
        """The screen once it stays as it is, or as it is after a while: some programs never rest."""
        last, same, until = self.screen(), 0, time.monotonic() + 3
        while same < LOOKS and time.monotonic() < until:
            time.sleep(LOOK_S)  # tmux doesn't tell when a pane has changed
            now = self.screen()
            last, same = now, same + 1 if now == last else 0
        return last

    def does(self, name: str, *calls: Call) -> None:
        """Have the model make these calls in one turn, under a name that is new."""
        self.knows(name, *calls)
        self.types(f"DO {name}")

    def knows(self, name: str, *calls: Call) -> None:
        """Tell the model which calls a name stands for."""
        self._calls[name] = calls
        (self._folder / "calls.json").write_text(json.dumps(self._calls))

    def types(self, text: str) -> None:
        """Type a text, and Enter once it is seen."""
        self._requests = len(self.asked())
        self._tmux("send-keys", "-t", f":{self._window}", "-l", text)
        self.shows(text[-20:])
        self._tmux("send-keys", "-t", f":{self._window}", "Enter")

    def press(self, *keys: str) -> str:
        """Press keys, each of which changes what is shown; return the screen."""
        screen = self.screen()
        for key in keys:
            before = screen
            self._tmux("send-keys", "-t", f":{self._window}", key)
            wait_until(lambda before=before: self.screen() != before, describe=self.screen)
            screen = self.drawn()
        return screen

    def asked(self) -> list[dict[str, Any]]:
        """What the model was asked, and answered, request by request."""
        log = self._folder / "asked.jsonl"
        whole, _, _ = log.read_text().rpartition("\n") if log.exists() else ("", "", "")
        return [json.loads(line) for line in whole.splitlines()]

    def rests(self) -> dict[str, Any]:
        """Wait until the model has no more to call for what was typed last, and return what it was asked last."""

        def said() -> dict[str, Any] | None:
            asked = self.asked()[self._requests :]
            return asked[-1] if asked and "tool_calls" not in asked[-1]["answer"] else None

        return wait_until(said, PATIENCE_S, self.screen)

    def results(self) -> list[str]:
        """The results that the model was shown, in their order."""
        return [result for line in self.asked() for result in line["results"]]

    def _tmux(self, *words: str, alone: Sequence[str] = ()) -> str:
        command = [*alone, "tmux", "-S", str(self._folder / "tmux"), "-f", "/dev/null", *words]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
            env=environ() | {"LANG": "C.UTF-8"},
            cwd=self._folder,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def terminal(folder: Path, size: tuple[int, int]) -> Iterator[Terminal]:
    """A terminal until the block ends; what runs in it is ended then."""
    folder.mkdir(parents=True)
    opened = Terminal(folder, *size)
    opened.open()
    try:
        yield opened
    finally:
        opened.close()
