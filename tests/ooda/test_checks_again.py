"""A command that judges was approved for a program as it was: another one is asked about, and never run instead."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from support.app import Place, outcome_of
from support.cycles import (
    EDITS_ALLOWED,
    MANDATE,
    Person,
    accepts,
    cycle,
    judgement_line,
    noop,
    open_scripted_client,
    orientation_line,
)
from support.sampling_clients import MODERN
from support.stdio_server import StdioClient

from kairos_mcp.settings.table_values import ClientSetting

ARGV = ["./check.sh"]
JUDGED = {**MANDATE, "max_cycles": 1, "acceptance": [{"check": "command_succeeds", "argv": ARGV}]}
ROOMY = ClientSetting("a client", lines=20, width=200, url=False)  # the path of the program fits into its dialog
BARE = {"commands": "bare", "gate": EDITS_ALLOWED, "clients": (ROOMY,)}
CHECK = "cycle-1/reflect/check-1"


def program(place: Place, text: str) -> Path:
    file = place.workspace / "check.sh"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def approvals(place: Place) -> list[tuple[Any, ...]]:
    return place.rows("select verdict, by, through, base from approval order by rowid")


async def test_approval_of_before_is_recorded_with_what_it_stands_on_and_a_changed_program_is_asked_about(place):
    program(place, "exit 1")
    person = Person([accepts(decision="approve")] * 2)
    lines = cycle(noop())
    async with open_scripted_client(place, MODERN, *lines, person=person, **BARE) as client:
        first = await client.ask("ooda_run", {"mandate": JUDGED})
    async with open_scripted_client(place, MODERN, *lines, person=person, **BARE) as client:
        again = await client.ask("ooda_run", {"mandate": JUDGED, "cycles": 1})
        assert again["run_id"] != first["run_id"]
        assert len(person.seen) == 1
    (asked, *let_through) = approvals(place)
    assert (asked[0], asked[2]) == ("approve", "elicitation")
    assert [row[:3] for row in let_through] == [("approve", asked[1], "before")] * 3  # a run checks first and last
    assert all(json.loads(row[3]) == json.loads(asked[3]) for row in let_through)
    assert list(json.loads(asked[3])) == ["check.sh"]
    assert place.rows("select client from approval where through = 'before'") == [(first["run_id"],)] * 3
    program(place, "touch other.txt; exit 0")
    async with open_scripted_client(place, MODERN, *lines, person=person, **BARE) as client:
        await client.ask("ooda_run", {"mandate": JUDGED, "cycles": 1, "limits": {"model_calls": 9}})
        assert len(person.seen) == 2


def test_a_program_that_changed_after_it_was_let_through_is_not_run(place: Place) -> None:
    file = program(place, "echo began >> began.txt; test $(wc -l < began.txt) -lt 4 && exit 1; sleep 60")
    (place.home).mkdir(parents=True, exist_ok=True)
    (place.home / "kairos.toml").write_text('approvals = "host"\ncommands = "bare"\n')
    lines = [*cycle(noop()), *cycle(noop())]
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with StdioClient.start(place) as first:
        run = first.call("ooda_run", mandate=JUDGED, wait_s=20)
        (item,) = run["waiting"]
        said = {"decision": "approve", "digest": item["digest"]}
        first.call("run_continue", run_id=run["run_id"], answers={item["key"]: said}, wait_s=20)
        second = first.call("ooda_run", mandate=JUDGED, cycles=1, wait_s=0)
        until = time.monotonic() + 30
        while (place.workspace / "began.txt").read_text().count("began") < 4:
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(first.pid, signal.SIGKILL)
        first.ends()
    program(place, "touch other.txt; exit 0")
    with StdioClient.start(place) as later:
        report = later.call("run_status", run_ids=[second["run_id"]], until="attention", wait_s=20)["runs"][0]
        (item,) = report["waiting"]
        assert item["kind"] == "settle"
        said = {"key": item["key"], "settlement": "reattempt", "digest": item["digest"]}
        later.call("run_control", run_id=second["run_id"], action="settle", **said)
        done = later.call("run_status", run_ids=[second["run_id"]], until="done", wait_s=20)["runs"][0]
    (check,) = done["output"]["cycles"][0]["reflection"]["checks"]
    assert (check["holds"], "has changed since this call was approved" in check["why"]) == (False, True)
    assert not (place.workspace / "other.txt").exists()
    assert file.exists()


async def test_approval_of_a_check_is_for_its_mandates_text_alone(place):
    program(place, "exit 1")
    person = Person([accepts(decision="approve")] * 2)
    async with open_scripted_client(
        place, MODERN, orientation_line(), noop(), judgement_line(), person=person, **BARE
    ) as client:
        done = await client.ask("ooda_run", {"mandate": JUDGED})
        assert outcome_of(place, done["run_id"])["stop_reason"] == "nothing_to_do"
    async with open_scripted_client(
        place, MODERN, orientation_line(), noop(), judgement_line(), person=person, **BARE
    ) as client:
        await client.ask("ooda_run", {"mandate": {**JUDGED, "risk_budget": "medium"}})
    assert len(person.seen) == 2
    assert [row[2] for row in approvals(place)] == ["elicitation", "before", "elicitation", "before"]
