"""When a team's plan is read, which takes all rows of its run: for who is shown it, and for nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.app import Place
from support.sampling_clients import open_client
from support.team_on_source import GOAL, LINES, line_for, place_with_source

from kairos_mcp.app import teams

START = {"goal": GOAL, "limits": {"rounds": 40}}
LOOK = {"content": "", "tool_calls": [{"name": "list_files", "arguments": {}}]}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The runs whose plan was read, in order."""
    made: list[int] = []
    read_team = teams.read_team

    def count(session: Any, number: int, loaded: Any) -> Any:
        made.append(number)
        return read_team(session, number, loaded)

    monkeypatch.setattr(teams, "read_team", count)
    return made


@pytest.fixture
def source(tmp_path: Path) -> Place:
    return place_with_source(tmp_path)


async def test_an_answer_of_the_caller_reads_no_plan_and_a_look_at_the_run_does(
    source: Place, reads: list[int]
) -> None:
    async with open_client(source.settings()) as client:
        run = await client.ask("team_run", START | {"route": "caller"})
        run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": {"plan": line_for("plan")}})
        (busy, idle) = (item["key"] for item in run["waiting"])
        reads.clear()
        for number in range(1, 4):
            run = await client.ask("run_continue", {"run_id": run["run_id"], "answers": {busy: LOOK}})
            assert "plan" not in run
            busy = next(item["key"] for item in run["waiting"] if item["key"] != idle)
            assert busy.endswith(f"round-{number + 1}")
        assert reads == []
        (run,) = (await client.ask("run_status", {"run_ids": [run["run_id"]], "view": "full"}))["runs"]
        assert len(run["plan"]) == 4
        assert len(reads) == 1


@pytest.mark.parametrize("wants_progress", [True, False])
async def test_progress_of_a_team_is_read_for_a_client_that_asked_for_it(
    source: Place, reads: list[int], wants_progress: bool
) -> None:
    messages: list[str | None] = []

    async def note(_done: float, _total: float | None, message: str | None) -> None:
        messages.append(message)

    first, *others = LINES
    async with open_client(source.settings({**first, "delay_s": 0.1}, *others)) as client:
        ended = await client.ask("team_run", START, progress_callback=note if wants_progress else None)
    assert ended["status"] == "input_required"  # it asks a person whether it may write
    assert (len(reads) > 1, bool(messages)) == (wants_progress, wants_progress)
