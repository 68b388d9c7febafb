"""A key is planted where keys lie: it is found in no row, no log, no error and no export of a real server."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.app import Place
from support.stdio_server import StdioClient

from kairos_mcp.core.redaction import MASK

VALUE = "kq-4711/zX9+pLm=c0ffee"  # in the environment, so known by its value alone
SHAPE = "sk-canary-0123456789abcdef"  # known by its shape alone
NAMED = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEX"  # known by the name beside it
ENVIRON = {"CANARY_API_KEY": VALUE, "KAIROS_CANARY": SHAPE}
FORMS = [
    *(
        form
        for key in (VALUE, SHAPE, NAMED)
        for form in (key, quote(key, safe=""), base64.b64encode(key.encode()).decode())
    ),
    VALUE[:-2],
]
FILES = {
    ".env": f"AWS_SECRET_ACCESS_KEY={NAMED}\nCANARY={VALUE}\nOTHER={SHAPE}\n",
    "long.txt": f"{'line ' * 4_000}\n{VALUE}\n{'line ' * 4_000}",
    "encoded.txt": f"{quote(VALUE, safe='')} {base64.b64encode(VALUE.encode()).decode()}\n",
}
READS = [{"name": "read_file", "arguments": {"path": path}} for path in FILES]


@pytest.fixture
def planted_place(place: Place) -> Place:
    for name, text in FILES.items():
        (place.workspace / name).write_text(text)
    lines = [
        {"content": "look", "tool_calls": [*READS, {"name": "search_files", "arguments": {"pattern": "CANARY|AWS"}}]},
        {"content": f"I saw {VALUE}", "tool_calls": [{"name": "read_file", "arguments": {"path": f"{VALUE}.txt"}}]},
        {"tool_calls": [{"name": "ask_person", "arguments": {"question": f"is it {VALUE}?"}}]},
        {"content": f"It is {VALUE}.", "finish": "stop"},
    ]
    place.home.mkdir(mode=0o700)
    (place.home / "kairos.toml").write_text('[[gate]]\ntools = "*"\nverdict = "allow"\neffect = "read"\n')
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def hits(place: Place, *texts: bytes) -> list[tuple[str, str]]:
    """Where a form of a key is found: in any file of the state folder, byte by byte, or in what was said."""
    found = []
    said = [("said", text) for text in texts]
    files = [(file.name, file.read_bytes()) for file in place.home.rglob("*") if file.is_file()]
    for name, content in (*files, *said):
        found += [(name, form) for form in FORMS if form.encode() in content]
    return found


def spoken(stdio_client: StdioClient) -> Iterator[dict[str, Any]]:
    """A run whose goal, context, answers and arguments hold keys; all that the server says of it."""
    tool = {"name": "ask_person", "description": "Asks.", "input_schema": {"type": "object"}}
    report = stdio_client.call(
        "planner_run",
        goal=f"Use {VALUE} and {SHAPE}",
        context=f"password: {NAMED}",
        messages=[
            {"role": "user", "content": f"Authorization: Bearer {NAMED}"},
            {"role": "assistant", "content": "ok"},
        ],
        caller_tools=[tool],
        tools=["*"],
        wait_s=15,
    )
    yield report
    while report["status"] == "input_required":
        answer = {"content": f"it is {VALUE}, {SHAPE}", "data": {"api_key": NAMED}}
        answers = {item["key"]: answer for item in report["waiting"]}
        report = stdio_client.call("run_continue", run_id=report["run_id"], answers=answers, wait_s=15)
        yield report
        again = stdio_client.call("run_continue", run_id=report["run_id"], answers=answers, wait_s=1)
        assert again.get("code") is None  # the same answer once more is the same answer
        yield again
    assert (report["status"], report["summary"]) == ("completed", f"It is {MASK}.")
    for view in ("events", "messages", "calls"):
        yield stdio_client.call("run_trace", run_id=report["run_id"], view=view, max_chars=100_000)
    yield stdio_client.call("registry_call", name="read_file", arguments={"path": ".env"}, wait_s=15)
    yield stdio_client.call("registry_call", name="read_file", arguments={"path": f"{VALUE}"}, wait_s=15)
    yield stdio_client.call("registry_search", query=VALUE)
    yield stdio_client.call("run_status", run_ids=[VALUE])  # errors name what they were given


def test_001_a_planted_key_is_found_in_no_row_log_error_or_export(planted_place: Place, tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    with log.open("wb") as stderr, _server(planted_place, stderr) as stdio_client:
        said = [json.dumps(each).encode() for each in spoken(stdio_client)]
        ((run_id,),) = planted_place.rows("select id from run where flow = 'planner'")
        stdio_client.server.stdin.close()
        stdio_client.ends()
    command = [sys.executable, "-m", "kairos_mcp"]
    environ = {**os.environ, **ENVIRON, "KAIROS_HOME": str(planted_place.home)}
    outputs = []
    for words in (
        ["export", run_id],
        ["show", run_id],
        ["show", run_id, "--view", "messages"],
        ["show", VALUE],
        ["doctor"],
    ):
        done = subprocess.run([*command, *words], env=environ, capture_output=True, timeout=60, check=False)
        assert b"Traceback" not in done.stderr
        outputs += [done.stdout, done.stderr]
    assert hits(planted_place, *said, log.read_bytes(), *outputs) == []
    rows = "".join(body for (body,) in planted_place.rows("select body from answer union all select body from text"))
    assert rows.count(MASK) >= 6
    notes = [text for (text,) in planted_place.rows("select text from note")]
    assert any("taken out" in note for note in notes)  # nothing is masked in silence


def test_a_key_in_what_a_client_calls_itself_is_in_no_row_also_where_the_name_is_cut(planted_place: Place) -> None:
    for name in (f"host of {VALUE}", f"{'x' * (200 - 10)} {VALUE}", SHAPE):
        with _server(planted_place, subprocess.DEVNULL, called=name) as stdio_client:
            stdio_client.call("registry_call", name="read_file", arguments={"path": "a.txt"}, wait_s=15)
    names = [client for (client,) in planted_place.rows("select client from run order by n")]
    assert names[0] == f"host of {MASK} 1"
    assert len(names) == 3
    assert hits(planted_place) == []
    assert not any(VALUE[:8] in name for name in names)


def _server(place: Place, stderr: Any, called: str = "client") -> StdioClient:
    before = {name: os.environ.get(name) for name in ENVIRON}
    os.environ.update(ENVIRON)  # StdioClient hands its own environment on
    try:
        return StdioClient.start(place, stderr=stderr, called=called)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


LOGS = """
import logging, os, sys
from kairos_mcp.cli.hardening import protect_secrets
protect_secrets(os.environ)
logging.getLogger().setLevel(logging.DEBUG)
key = os.environ["CANARY_API_KEY"]
logging.getLogger("httpx2").debug("sent headers %s", {"Authorization": f"Bearer {key}"})
logging.getLogger("httpcore2").debug("send_request_headers.started request=%r", [(b"x-api-key", key.encode())])
class Refused(Exception):
    pass
try:
    raise Refused({"headers": {"authorization": "Bearer 4711-abcdef-4711", "x": key}})
except Refused:
    logging.getLogger("kairos_mcp").exception("it failed with %s", key)
raise Refused(f"the last word {key}")
"""


def test_002_003_no_log_and_no_traceback_shows_a_key() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGS], env={**os.environ, **ENVIRON}, capture_output=True, timeout=60, check=False
    )
    said = done.stdout + done.stderr
    assert said.count(b"Refused") >= 2  # the log is there
    assert said.count(MASK.encode()) >= 5
    assert VALUE.encode() not in said
    assert b"4711-abcdef-4711" not in said


def _without_ptrace() -> None:
    """The tests may run as root, who reads every process; both sides do without that right."""
    for capability in (1, 2, 19, 21, 38):  # DAC_OVERRIDE, DAC_READ_SEARCH, SYS_PTRACE, SYS_ADMIN, PERFMON
        ctypes.CDLL(None).prctl(24, capability)  # PR_CAPBSET_DROP


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such switch")
def test_another_process_of_the_user_can_not_read_a_server_s_environment(place: Place) -> None:
    look = "import sys; print('PATH=' in open(f'/proc/{sys.argv[1]}/environ', errors='replace').read())"

    def read(pid: int) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-c", look, str(pid)],
            preexec_fn=_without_ptrace,
            capture_output=True,
            timeout=60,
            check=False,
        )

    waits = [sys.executable, "-c", "input()"]
    sleeps = subprocess.Popen(waits, stdin=subprocess.PIPE, preexec_fn=_without_ptrace)  # noqa: PLW1509 - no threads yet
    try:
        assert read(sleeps.pid).stdout == b"True\n"  # any process of one's own is open
    finally:
        sleeps.communicate(b"\n", timeout=20)
    with StdioClient.start(place, script=False, preexec_fn=_without_ptrace) as stdio_client:
        refused = read(stdio_client.pid)
        assert refused.stdout == b""
        assert b"PermissionError" in refused.stderr
