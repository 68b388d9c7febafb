"""The law of long secrets: one of any length is masked to its end, wherever a piece of a large file ends within it."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kairos_mcp.core.masked_file import PIECE_BYTES, WINDOW_BYTES
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.tools.files.read_tools import read_masked
from kairos_mcp.tools.files.workspace import OpenedFile

KEY_HEAD = base64.b64encode(bytes.fromhex("308204a40201000282010100")).decode()
WORD = re.compile(r"Zq7k\d{6}")
Lines = list[str]  # of a value: words that occur nowhere else


def _pem(lines: Lines) -> Lines:
    return [line.replace(" ", "") * 3 for line in lines]


FORMS: dict[str, tuple[str, Callable[[Lines], str]]] = {
    "a line": ("a.properties", lambda lines: "db.password=" + "".join(lines) + "\n"),
    "a line of YAML": ("a.yaml", lambda lines: "password: " + " ".join(lines) + "\n"),
    "a folded line": ("a.yaml", lambda lines: "db:\n  password: " + "\n    ".join(lines) + "\n"),
    "lines below": ("a.yaml", lambda lines: "db:\n  password:\n    " + "\n    ".join(lines) + "\n"),
    "a block": ("a.yaml", lambda lines: "db:\n  password: |\n    " + "\n    ".join(lines) + "\n"),
    "a block of one line": ("a.yaml", lambda lines: "password: >\n  " + " ".join(lines) + "\n"),
    "a list": ("a.yaml", lambda lines: "passwords:\n  - " + "\n  - ".join(lines) + "\n"),
    "a quoted text": ("a.json", lambda lines: '{"password": "' + "\\n".join(lines) + '"}\n'),
    "a quoted text of lines": ("run.sh", lambda lines: "export DB_PASSWORD='" + "\n".join(lines) + "'\n"),
    "three quotes": ("a.toml", lambda lines: 'password = """\n' + "\n".join(lines) + '"""\n'),
    "three quotes in code": ("a.py", lambda lines: 'DB_PASSWORD = """\n' + "\n".join(lines) + '"""\n'),
    "a quoted line in code": ("a.js", lambda lines: 'const api_key = "' + "".join(lines) + '";\n'),
    "pieces in code": ("a.js", lambda lines: 'DB_PASSWORD = "' + '" +\n  "'.join(lines) + '";\n'),
    "a header": ("a.md", lambda lines: "Authorization: Bearer " + "".join(lines).replace(" ", "") + "\n"),
    "a bearer": ("a.md", lambda lines: "a bearer " + "".join(lines).replace(" ", "") + "\n"),
    "a cookie": ("a.md", lambda lines: "Cookie: a=" + "; b=".join(lines) + "\n"),
    "a shape": ("a.md", lambda lines: "of sk-" + "".join(lines).replace(" ", "") + "\n"),
    "a word in prose": ("a.md", lambda lines: "use token=" + "".join(lines).replace(" ", "") + " now\n"),
    "a variable in prose": ("a.md", lambda lines: "DB_PASSWORD=" + "".join(lines).replace(" ", "") + "\n"),
    "an option": ("run.sh", lambda lines: "x --token " + "".join(lines).replace(" ", "") + " y\n"),
    "an argument of a command": ("a.md", lambda lines: "sshpass -p " + "".join(lines).replace(" ", "") + " y\n"),
    "a parameter": ("a.md", lambda lines: "https://h/?token=" + "".join(lines).replace(" ", "") + "&a=b\n"),
    "an element": ("a.xml", lambda lines: "<a>\n<password>" + "\n".join(lines) + "</password>\n</a>\n"),
    "continued lines": ("a.properties", lambda lines: "password = " + "\\\n  ".join(lines) + "\n"),
    "a file like .env": (".env", lambda lines: 'A="' + "\n".join(lines) + '"\n'),
    "a cell": ("a.csv", lambda lines: 'id,password\n1,"' + "\n".join(lines) + '"\n'),
    "a key": (
        "a.md",
        lambda lines: (
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n"
            + "\n".join(_pem(lines))
            + "\n-----END PGP PRIVATE KEY BLOCK-----\n"
        ),
    ),
    "a key without its end": ("a.md", lambda lines: "-----BEGIN PRIVATE KEY-----\n" + "\n".join(_pem(lines)) + "\n\n"),
    "a key in one line": (
        "a.py",
        lambda lines: "\\n".join(['x = "-----BEGIN PRIVATE KEY-----', *_pem(lines), '-----END PRIVATE KEY-----\\n"\n']),
    ),
    "a key without its lines": (
        "a.md",
        lambda lines: "\n".join([KEY_HEAD + "A" * (64 - len(KEY_HEAD)), *_pem(lines)]) + "\n\n",
    ),
}
SIZES = (200, 20_000, 70_000, 600_000)
BORDERS = (-1, 0, 1, 9, 500, 16_000, 17_000, 40_000, 250_000, 599_000)  # bytes of the secret in the piece before


def write_long_secret(form: str, size: int, begins: int) -> bytes:
    """Write a file with a secret of about so many bytes, which begins near a byte."""
    path, write = FORMS[form]
    count = size // (30 if "key" in form and "api" not in form else 22)
    text = write([f"Zq7k{n:06d} Zq7k{n:06d}" if path != "a.md" else f"Zq7k{n:06d}" for n in range(count)])
    head = "id,password\n" if form == "a cell" else ""
    filler = max(0, begins - len(head))
    lines = "1,\n" if form == "a cell" else "x\n"
    return (
        head + lines * (filler // len(lines)) + "\n" * (filler % len(lines)) + text.removeprefix(head) + "y\n"
    ).encode()


def check_long_secret(form: str, size: int, before: int) -> None:
    path, content = FORMS[form][0], write_long_secret(form, size, PIECE_BYTES - before)
    masked = Redactor().mask_file(path, content)
    shown = masked.masked_content.decode()
    assert WORD.search(shown) is None, (form, size, before)
    assert shown.count("\n") == content.count(b"\n")
    assert shown.endswith("y\n") or form.startswith("a cell"), "what follows is shown"


@pytest.mark.parametrize("form", FORMS)
def test_a_long_secret_is_masked_to_its_end(form: str) -> None:
    chance = random.Random(form)
    check_long_secret(form, 70_000, chance.choice((9, 500)))
    check_long_secret(form, 70_000, chance.choice((17_000, 40_000)))
    check_long_secret(form, 20_000, 250_000)


IN_WINDOWS = sorted(FORMS.keys() - {"a cell", "a file like .env"})  # those files are read whole, or not at all


def check_secret_across_windows(folder: Path, form: str, size: int, before: int) -> None:
    file = folder / FORMS[form][0]
    file.write_bytes(write_long_secret(form, size, WINDOW_BYTES - before) + b"y\n" * 600_000)
    with file.open("rb") as opened:
        large = OpenedFile(opened.fileno(), file.name, file.stat().st_size)
        shown = read_masked(large, 0, large.size, Redactor()).decode()
    assert WORD.search(shown) is None, (form, size, before)


@pytest.mark.parametrize(
    "form", ["a block", "a quoted text of lines", "a key", "a header", "an element", "pieces in code"]
)
def test_a_long_secret_that_crosses_the_border_of_two_windows_is_masked(tmp_path: Path, form: str) -> None:
    check_secret_across_windows(tmp_path, form, 70_000, random.Random(form).choice((9, 17_000, 40_000)))


@pytest.mark.slow
def test_a_secret_of_a_mebibyte_is_masked_wherever_a_window_ends(tmp_path: Path) -> None:
    for form in IN_WINDOWS:
        for before in (1, 17_000, 500_000, 940_000):
            check_secret_across_windows(tmp_path, form, 950_000, before)


@pytest.mark.slow
def test_a_secret_of_any_length_is_masked_wherever_a_piece_ends() -> None:
    for form in FORMS:
        for size in SIZES:
            for before in BORDERS:
                if before < size:
                    check_long_secret(form, size, before)
