"""Recorded histories replay: whoever changes what a flow asks raises its version, and records it anew."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from record import SCENARIOS, file_of, record_history

from kairos_mcp.core.errors import Stale
from kairos_mcp.history.format import read_lines
from kairos_mcp.history.verify import verify
from kairos_mcp.specs.kinds import KINDS, kind_of

HISTORIES = sorted(Path(__file__).parent.glob("*.jsonl"), key=lambda file: file.name)


def lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda file: file.stem)
def test_a_history_replays_or_says_how_to_go_on(history: Path) -> None:
    carried = read_lines(lines_of(history))
    if kind_of(carried.run.flow).specs.version == carried.run.version:
        report = verify(lines_of(history))
        assert report.identical, f"raise the flow's VERSION, then run record.py: {report.first_difference}"
        assert report.steps == len(carried.steps) > 0
    else:
        with pytest.raises(Stale, match=f'continues="{carried.run.id}"'):
            verify(lines_of(history))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_a_history_of_the_flow_s_version_of_today(name: str) -> None:
    assert file_of(name).exists(), "run `python tests/histories/record.py`"


def test_every_flow_has_histories() -> None:
    assert {flow for flow, _ in SCENARIOS.values()} == set(KINDS)


@pytest.mark.parametrize("name", ["tools", "closing"])
async def test_a_scenario_asks_today_what_it_asked_when_it_was_recorded(name: str, tmp_path: Path) -> None:
    """The prompts and the tools may have changed since, and so digests; paths and kinds may not."""
    now = read_lines((await record_history(name, tmp_path)).splitlines(keepends=True))
    then = read_lines(lines_of(file_of(name)))
    assert [(mark.path, mark.kind) for mark in now.steps] == [(mark.path, mark.kind) for mark in then.steps]


def test_the_flow_of_an_older_version_is_refused_and_still_read(tmp_path: Path) -> None:
    carried = read_lines(lines_of(file_of("tools")))
    older = [json.loads(line) for line in lines_of(file_of("tools"))]
    older[1]["version"] = 0
    with pytest.raises(Stale, match="planner_run continues"):
        verify(_with_end(older))
    assert read_lines(_with_end(older)).steps == carried.steps


def _with_end(lines: list[dict]) -> list[bytes]:
    """The lines with an end that is theirs."""
    body = [json.dumps(line).encode() + b"\n" for line in lines[:-1]]
    end = {"line": "end", "lines": len(body), "sha256": sha256(b"".join(body)).hexdigest()}
    return [*body, json.dumps(end).encode() + b"\n"]
