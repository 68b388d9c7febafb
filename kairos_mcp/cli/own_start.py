"""Find the words that start this program from any folder: its own script, else this Python without the current folder.

`python -m` and `python -c` put the current folder first on Python's path. A host starts us in whatever folder a person
opens, so a `json.py` there would run with the host's environment, outside any sandbox. A script puts its own folder
there instead, and `-P` none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.views.command_text import PROGRAM_NAME

_MODULE = "kairos_mcp"
_MAIN = "kairos_mcp.cli.main:main"
_TRY_S = 60.0
_SAFE_OPTION = re.compile(r"-[A-Za-z]*[IP][A-Za-z]*")  # options of Python may be joined, as `-IS`


def installed_words() -> tuple[str, ...]:
    """Return the words that start what is installed here. Raises ConfigError if nothing would start in another folder.

    Links are not resolved: a virtual environment needs them.
    """
    script = _find_script()
    if script is not None:
        return (str(script),)
    words = (os.path.abspath(sys.executable), "-P", "-m", _MODULE)
    if subprocess.run([*words, "--version"], cwd=os.sep, capture_output=True, timeout=_TRY_S, check=False).returncode:
        raise ConfigError(
            "This program is not installed: it runs only from its source folder, and a host starts it in another.",
            "Install it, as by `uv tool install .` in that folder, and run the installed program.",
        )
    return words


def find_distribution() -> metadata.Distribution | None:
    """Return the distribution that this program was installed as; None if its sources were never installed."""
    scripts = metadata.entry_points(group="console_scripts", name=PROGRAM_NAME)
    return next((script.dist for script in scripts if script.value == _MAIN), None)


def _find_script() -> Path | None:
    """Find the script where the installer recorded it, which is not beside Python after `pip install --user`, else
    beside Python."""
    file = f"{PROGRAM_NAME}.exe" if os.name == "nt" else PROGRAM_NAME
    distribution = find_distribution()
    recorded = [] if distribution is None else distribution.files or []
    places = [Path(os.path.abspath(path.locate())) for path in recorded if path.name == file]
    places.append(Path(os.path.abspath(sys.executable)).with_name(file))
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def find_unsafe_start(words: Sequence[str]) -> int | None:
    """Return where `-m` stands in words that start this program with the current folder on Python's path, else None."""
    for at, pair in enumerate(pairwise(words)):
        if pair == ("-m", _MODULE) and not any(_SAFE_OPTION.fullmatch(word) for word in words[:at]):
            return at
    return None


def takes_modules_here(words: Sequence[str]) -> bool:
    """Whether words start Python by `-m` or `-c`, whatever the module, with the current folder on its path."""
    if not Path(words[0]).name.startswith("python"):
        return False
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            return False
        for at, letter in enumerate(word[1:], 2):  # options of Python may be joined, as `-um`
            if letter in "IP":
                return False
            if letter in "mc":
                return True
            if letter in "XW":
                if at == len(word):
                    next(rest, None)  # its value
                break
    return False


def correct_start(words: Sequence[str], program: Sequence[str]) -> list[str] | None:
    """Return words that start this program by `program`, or by `-P` behind a wrapper such as `env`; None if the words
    need no correction."""
    at = find_unsafe_start(words)
    if at is None:
        return None
    if Path(words[0]).name.startswith("python"):
        return [*program, *words[at + 2 :]]
    return [*words[:at], "-P", *words[at:]]
