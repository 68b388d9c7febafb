"""Follows a program to every file that takes part in its start: links, and the interpreters of scripts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

MAX_LINKS = 40  # as many as Linux follows
MAX_INTERPRETERS = 4  # of one another
FIRST_LINE_BYTES = 256  # that Linux reads of it


def follow_links(path: Path) -> list[Path]:
    """Return the path and, as long as the last one is a link, what it leads to."""
    paths = [path]
    while len(paths) <= MAX_LINKS and paths[-1].is_symlink():
        folder = Path(os.path.realpath(paths[-1].parent))
        paths.append(Path(os.path.normpath(folder / os.readlink(paths[-1]))))
    return paths


def read_first_line(program: Path) -> list[str]:
    """Return the words of a script's first line after `#!`; [""] for every other file, and one that can't be read."""
    try:
        with open(program, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            begins, _, line = file.read(FIRST_LINE_BYTES).partition(b"\n")[0].partition(b"#!")
    except OSError:
        return [""]
    return [""] if begins else re.split(r"[ \t]+", line.decode(errors="replace").strip(" \t"))


def list_interpreters(program: Path, search_path: str, whole_path: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of the interpreter that a script's first line names, of that one's, and so on.

    A name after `env` is looked for on the program's `search_path`, then on the server's `whole_path`; one that is
    nowhere has a file that does not exist.
    """
    for _ in range(MAX_INTERPRETERS):
        interpreter, *words = read_first_line(program)
        if not interpreter.startswith("/"):
            return
        program = Path(interpreter)
        if program.name == "env":
            word = next((word for word in words if not word.startswith("-") and "=" not in word), None)
            if word is None or "/" in word:
                return
            found = shutil.which(word, path=search_path) or shutil.which(word, path=whole_path)
            interpreter, program = word, Path(found or program.parent / word)
        yield interpreter, program
