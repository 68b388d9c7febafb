"""Make docs/terminal.md and the pictures of a terminal again, by tmux: `python tests/docs/terminal_session.py`.

The commands are typed in a real shell; a script of examples/site stands in for the model.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "terminal.md"
PICTURES = ROOT / "docs" / "pictures"
WIDTHS = (100, 60)
ROWS, PATIENCE_S = 400, 60.0
QUESTION = "later [l]? "
GOAL = 'kairos-mcp run "Mend the link in docs/guide.md" --tools read_file --tools edit_file'

INTRODUCTION = """# In the terminal

Made by `python tests/docs/terminal_session.py`, with tmux; do not edit. A script stands in for the model; the loop, the
tools, the questions and the record are real. What was typed stands after a `$` or a question.
"""


class Shell:
    """A shell in tmux, of this width, in a copy of examples/site."""

    def __init__(self, root: Path, width: int) -> None:
        self._socket = f"kairos-{os.getpid()}-{width}"
        home = root / "me"
        shutil.copytree(ROOT / "examples" / "site", home / "site")
        environ = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "KAIROS_HOME": str(root / "state"),
            "KAIROS_SCRIPT": "run.jsonl",
            "PS1": "$ ",
            "HISTFILE": "",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
        }
        words = ["new-session", "-d", "-x", str(width), "-y", str(ROWS), "-c", str(home / "site")]
        assigned = [f"{name}={value}" for name, value in environ.items()]
        self._tmux(*words, "env", "-i", *assigned, "bash", "--norc", "--noprofile")
        self._seen = 0

    def _tmux(self, *words: str) -> str:
        words = ("tmux", "-L", self._socket, "-f", "/dev/null", *words)
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout

    def screen(self, *, colours: bool = False) -> str:
        return self._tmux("capture-pane", "-p", "-S", "-", *(["-e"] if colours else [])).rstrip("\n ")

    def types(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def shows(self, ending: str) -> None:
        """Wait until the screen has grown and ends so."""
        until = time.monotonic() + PATIENCE_S
        while True:
            screen = self.screen()
            if len(screen) > self._seen and f"{screen} ".endswith(ending):
                self._seen = len(screen)
                return self._wait_for_echo(until) if ending == QUESTION else None
            assert time.monotonic() < until, screen
            time.sleep(0.05)  # tmux doesn't tell when a pane has changed

    def _wait_for_echo(self, until: float) -> None:
        """Wait until a question takes an answer: in its first moment what is typed is not shown, and dropped."""
        terminal = os.open(self._tmux("display-message", "-p", "#{pane_tty}").strip(), os.O_RDONLY | os.O_NOCTTY)
        try:
            while not termios.tcgetattr(terminal)[3] & termios.ECHO:
                assert time.monotonic() < until
                time.sleep(0.05)
        finally:
            os.close(terminal)

    def close(self) -> None:
        self._tmux("kill-server")


@contextmanager
def shell(width: int) -> Iterator[Shell]:
    with tempfile.TemporaryDirectory() as folder:
        opened = Shell(Path(folder).resolve(), width)
        try:
            opened.shows("$ ")
            yield opened
        finally:
            opened.close()


def session(width: int) -> tuple[str, dict[str, str]]:
    """What the terminal shows in the end, and its coloured parts of which pictures are made, by name."""
    with shell(width) as person:
        person.types(GOAL)
        person.shows(QUESTION)
        asked = person.screen(colours=True)
        person.types("y")
        person.shows("$ ")
        person.types("sed -i s/install.md/instal.md/ docs/guide.md")
        person.shows("$ ")
        for what in ("Mend the link.", "Look again at the link."):
            person.types(GOAL.replace("Mend the link in docs/guide.md", what))
            person.shows(QUESTION)
            person.types("l")
            person.shows("$ ")
        before = len(person.screen(colours=True))
        person.types("kairos-mcp inbox")
        person.shows(QUESTION)
        inbox = person.screen(colours=True)[before:]
        person.types("y")
        person.shows(QUESTION)
        person.types("w")
        person.shows("? ")
        person.types("The link is right by now.")
        person.shows("$ ")
        return person.screen(), {"run": asked, "inbox": inbox}


def picture(name: str, coloured: str) -> str:
    """An SVG of what a terminal shows."""
    text = Text.from_ansi(coloured.strip("\n"))
    width = max(len(line) for line in text.plain.splitlines()) + 1
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(text, soft_wrap=True)
    return console.export_svg(title=f"kairos-mcp {name}", unique_id=f"kairos-{name}")


def make_files() -> dict[Path, str]:
    """Make all files that come of a session; by path, their texts."""
    parts, files = [INTRODUCTION], dict[Path, str]()
    for width in WIDTHS:
        screen, pictures = session(width)
        lines = "\n".join(line.rstrip() for line in screen.splitlines())
        parts.append(f"## {width} columns\n```console\n{lines}\n```\n")
        if width == WIDTHS[0]:
            files |= {PICTURES / f"{name}.svg": picture(name, coloured) for name, coloured in pictures.items()}
    return {PAGE: "\n".join(parts), **files}


def normalise(text: str) -> str:
    """The text without what differs from run to run, and without the line breaks that follow from it."""
    text = text.replace("\n", "")  # a narrow terminal breaks lines anywhere
    for pattern, replacement in (
        (r"run-[0-9a-f]{4,12}", "run-ID"),
        (r"digest[▌ ]*[0-9a-f]{16}", "digest"),
        (r"before [0-9a-f]{12}, after [0-9a-f]{12}", "before, after"),  # made with the key of the state folder
        (r"until ?(\w+|[\d-]+) ?\d\d:\d\d", "until THEN"),
        (r"[\d.]+ m?s", "N s"),
        (r"\s+", " "),
    ):
        text = re.sub(pattern, replacement, text)
    return text


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for path, text in make_files().items():
        path.write_text(text, encoding="utf-8")
