"""What a server writes to stderr is one line for each record, text or JSON, whoever logged it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from support.forked_program import NAMES, Forked, start

from kairos_mcp.server.log_lines import LineFormatter, LogFormat, write_log_lines

SECONDS = 30
TEXT_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warning|error|critical) [\w.]+: .+")
KEY = "sk-canary-0123456789abcdef"
RULES = '[[gate]]\ntools = "edit_fiel"\nverdict = "deny"\n'  # fits no tool, which the server says at its start


@pytest.fixture
def record() -> logging.LogRecord:
    """One with a key, line ends, and a traceback."""
    try:
        int(f"refused\n{KEY}")
    except ValueError:
        info = sys.exc_info()
    return logging.LogRecord("uvicorn.error", logging.ERROR, "f.py", 1, "it failed\r\nwith %s\x1b[31m", (KEY,), info)


def test_text_is_one_line_that_hides_keys(record: logging.LogRecord) -> None:
    line = LineFormatter({"CANARY_API_KEY": KEY}, "text").format(record)
    assert TEXT_LINE.fullmatch(line)
    assert line.isprintable()
    assert "Traceback" in line
    assert KEY not in line


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "character", ["\u202e", "\u2066", "\u200f", "\u061c", "\u2028", "\x85", "\x9b", "\ufeff", "\U000e0041", "\x7f"]
)
def test_no_foreign_text_turns_or_hides_a_part_of_a_line(character: str, form: LogFormat) -> None:
    """Whoever logs it, and wherever in the record it stands: the message, its arguments, an error's words."""
    text = f"vendor=a{character}b"
    info = (ValueError, ValueError(text), None)
    logged = logging.LogRecord("opentelemetry", logging.WARNING, "f.py", 1, f"{text}: %r, %s", ([text], text), info)
    line = LineFormatter({}, form).format(logged)
    assert character not in line
    assert line.count("b") >= 4  # what is not hidden is there
    assert "é" in LineFormatter({}, "text").format(logging.LogRecord("a", 30, "f.py", 1, "café", (), None))


def test_json_is_one_object_that_hides_keys(record: logging.LogRecord) -> None:
    line = LineFormatter({"CANARY_API_KEY": KEY}, "json").format(record)
    found = json.loads(line)
    assert "\n" not in line
    assert KEY not in line
    assert found.keys() == {"at", "level", "logger", "message", "traceback"}
    assert (found["level"], found["logger"]) == ("error", "uvicorn.error")
    assert found["message"].startswith("it failed\r\nwith ")
    assert "Traceback" in found["traceback"]


@pytest.mark.parametrize(
    ("logger", "error", "lines"),
    [
        ("mcp.server.streamable_http", anyio.ClosedResourceError(), 0),
        ("mcp.server.streamable_http", anyio.BrokenResourceError(), 1),
        ("mcp.server.streamable_http", ValueError("no"), 1),
        ("kairos_mcp.server.http", anyio.ClosedResourceError(), 1),
    ],
)
def test_a_session_that_its_client_ended_meanwhile_is_no_error(
    logger: str, error: Exception, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, ours = logging.getLogger(), logging.getLogger("kairos_mcp")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(sys, "stderr", written := io.StringIO())
    levels = root.level, ours.level
    try:
        write_log_lines({}, "text")
        logging.getLogger(logger).error("Error handling POST request", exc_info=error)
    finally:
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
    assert written.getvalue().count("\n") == lines


def start_server(place: Path, form: LogFormat, *words: str) -> Forked | subprocess.Popen[bytes]:
    (place / "home").mkdir(mode=0o700, exist_ok=True)
    (place / "home" / "kairos.toml").write_text(f'log_format = "{form}"\n{RULES}')
    streams = dict.fromkeys(NAMES, subprocess.PIPE)
    environ = {**os.environ, "KAIROS_WORKSPACES": "x"}
    return start(["serve", "--home", str(place / "home"), *words], env=environ, **streams)


HTTP = ("--transport", "http", "--port", "0")


@pytest.mark.parametrize(("form", "words"), [("json", ()), ("text", HTTP)], ids=["stdio, json", "http, text"])
def test_all_that_a_server_says_at_its_start_is_such_a_line(
    tmp_path: Path, form: LogFormat, words: tuple[str, ...]
) -> None:
    server = start_server(tmp_path, form, *words)
    wanted = {"is not a setting", "no --workspace", "edit_fiel", *({"listening on"} if words else ())}
    lines: list[str] = []
    try:
        while wanted:
            line = server.stderr.readline().decode().rstrip("\n")
            assert line, lines
            lines.append(line)
            wanted = {each for each in wanted if each not in line}
    finally:
        server.kill()
        printed = server.stdout.read()
        server.wait(SECONDS)
        for name in NAMES:
            getattr(server, name).close()
    assert printed == b""
    for line in lines:
        if form == "text":
            assert TEXT_LINE.fullmatch(line), line
        else:
            assert json.loads(line).keys() == {"at", "level", "logger", "message"}
