"""Diffs on a real repository, approved and denied by processes and in dialogs, over kills; judged by git and rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from approvals.test_commands import kairos
from support.app import Place, empty_place_in
from support.cycles import Person, accepts
from support.repository import INSTALL, LINKS, about, change, changed_files, dead_links, lines_changed, repository_in
from support.reviewers import UNHURRIED, connect_person, verdicts
from support.stdio_server import Gone, StdioClient

from kairos_mcp.app.app import App

WRONG = change("docs/usage.md", "(refrence.md)", "(guide.md)")
RIGHT = change("docs/usage.md", "(refrence.md)", "(reference.md)")
FEEDBACK = "Not the guide: the page is called reference.md."
ACT = "cycle-{}/act/call-1"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = empty_place_in(tmp_path)
    place.home.mkdir()
    repository_in(place.workspace)
    return place


def write_script(place: Place, *lines: dict[str, Any]) -> None:
    """Every process thinks by this script: it stands in the configuration."""
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (place.home / "kairos.toml").write_text(f"script = {json.dumps(str(place.script))}\n")


def times(place: Place, number: int) -> tuple[int, int]:
    """How often the act of this cycle was begun, and how often it has an answer."""
    of = "from {} join step on step.id = {}.step where path = ?"
    return tuple(  # type: ignore[return-value]  # of two
        place.rows(f"select count(*) {of.format(table, table)}", ACT.format(number))[0][0]
        for table in ("attempt", "answer")
    )


def test_killed_while_it_waits_then_approved_denied_and_approved_by_processes(place):
    write_script(
        place, *about("docs/guide.md", INSTALL), *about("docs/usage.md", WRONG), *about("docs/usage.md", RIGHT)
    )
    with StdioClient.start(place, script=False) as client:
        waits = client.call("ooda_run", mandate=LINKS, wait_s=15)
        os.kill(client.pid, signal.SIGKILL)
        client.ends()
    run_id, first, second, third = waits["run_id"], *(f"{ACT.format(n)}/approval" for n in (1, 2, 3))
    assert ([item["key"] for item in waits["waiting"]], changed_files(place.workspace)) == ([first], [])
    assert "+ Install it as [told here](install.md)" in kairos(place, "show", run_id).stdout
    assert kairos(place, "approve", run_id, first).returncode == 3  # and the next one waits
    assert (changed_files(place.workspace), lines_changed(place.workspace, "docs/guide.md")) == (
        ["docs/guide.md"],
        (1, 1),
    )
    assert kairos(place, "deny", run_id, second, "--feedback", FEEDBACK).returncode == 3
    assert kairos(place, "approve", run_id, first).returncode == 3  # the same word again: nothing happens
    assert changed_files(place.workspace) == ["docs/guide.md"]
    assert kairos(place, "approve", run_id, third).returncode == 4
    assert changed_files(place.workspace) == ["docs/guide.md", "docs/usage.md"]
    assert dead_links(place.workspace) == ["reference.md: ../usage.md"]
    assert [times(place, n) for n in (1, 2, 3)] == [(1, 1), (0, 1), (1, 1)]
    assert [verdict for verdict, *_ in verdicts(place)] == ["approve", "deny", "approve"]
    report = json.loads(kairos(place, "show", run_id, "--json").stdout)
    assert [each["status"] for each in report["output"]["cycles"]] == ["applied", "denied", "applied"]


async def test_a_denial_in_a_dialog_is_read_by_the_model_which_proposes_another_edit(place, era):
    """The caller thinks, so that what it is shown can be seen; its user decides."""
    person = Person([accepts(decision="deny", feedback=FEEDBACK), accepts(decision="approve")])
    async with (
        App.open(place.settings(), via="mcp") as app,
        connect_person(app, era, person, patience=UNHURRIED) as client,
    ):
        run = await client.ask("ooda_run", {"mandate": {**LINKS, "max_cycles": 2}, "route": "caller"})
        for turn in about("docs/usage.md", WRONG):
            run = await answer_completion(client, run, turn)
        assert changed_files(place.workspace) == []
        orient, decide, reflect = about("docs/usage.md", RIGHT)
        assert FEEDBACK in waiting_messages(run)
        run = await answer_completion(client, run, orient)
        assert FEEDBACK in waiting_messages(run)
        run = await answer_completion(client, run, decide)
        run = await answer_completion(client, run, reflect)
    assert [each["status"] for each in run["output"]["cycles"]] == ["denied", "applied"]
    assert changed_files(place.workspace) == ["docs/usage.md"]
    assert [(verdict, through) for verdict, _, through, _ in verdicts(place)] == [
        ("deny", "elicitation"),
        ("approve", "elicitation"),
    ]
    denied, approved = (shown.message.splitlines()[-1] for shown in person.seen)  # around what differs
    assert ("eference](guide.md)" in denied, "ference](reference.md)" in approved) == (True, True)


async def answer_completion(client: Any, run: dict[str, Any], turn: dict[str, Any]) -> dict[str, Any]:
    (item,) = run["waiting"]
    assert item["kind"] == "completion"
    return await client.ask("run_continue", {"run_id": run["run_id"], "answers": {item["key"]: turn}})


def waiting_messages(run: dict[str, Any]) -> str:
    (item,) = run["waiting"]
    return str(item["messages"])


def _listen(client: StdioClient) -> None:
    while True:
        client.read()


@pytest.mark.slow  # no user has to have strace
@pytest.mark.skipif(shutil.which("strace") is None, reason="the points are found by strace, which is missing here")
@pytest.mark.parametrize("point", ["unlinkat", "renameat", "renameat2", "fsync"])
def test_killed_while_an_approved_edit_is_made_it_is_made_once_and_never_half(place, tmp_path, point):
    """The server dies at the first such call on the folder of the page: before the exchange, in it, after it."""
    page, whole = place.workspace / "docs" / "guide.md", "(install.md)"
    before = page.read_text()
    after = before.replace("(instal.md)", whole)
    write_script(place, *about("docs/guide.md", INSTALL))
    strike = ["-P", str(page.parent), "-e", f"trace={point}", "-e", f"inject={point}:signal=KILL:when=1"]
    with StdioClient.start(place, script=False, under=["strace", "-f", "-qq", "-o", os.devnull, *strike]) as client:
        waits = client.call("ooda_run", mandate={**LINKS, "max_cycles": 1}, wait_s=15)
        run_id, key = waits["run_id"], waits["waiting"][0]["key"]
        client.begin("tools/call", {"name": "run_status", "arguments": {"run_ids": [run_id], "until": "done"}})
        assert kairos(place, "approve", run_id, key, "--no-drive").returncode == 0
        with pytest.raises(Gone):
            _listen(client)
        client.ends()
    assert page.read_text() == (before if point.startswith("rename") else after)
    assert times(place, 1) == (1, 0)  # it was begun, and its end is known to nobody
    with StdioClient.start(place, script=False) as fresh:
        (report,) = fresh.call("run_status", run_ids=[run_id], until="done", wait_s=15)["runs"]
    assert [each["status"] for each in report["output"]["cycles"]] == ["applied"]
    assert page.read_text() == after
    assert changed_files(place.workspace) == ["docs/guide.md"]  # and no file of ours is left
    assert times(place, 1)[1] == 1
    assert verdicts(place)[0][:1] == ("approve",)
