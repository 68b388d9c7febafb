"""The SDK's client of 2025 gives up on each call before its model has answered: where what it was asked outlives the
call, its run gets to the end, and nothing is asked twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.foreign.cells import OPENAI_AGENTS, PYTHON_1
from tests.foreign.driving import drive
from tests.foreign.environs import Environ
from tests.foreign.records import Records
from tests.foreign.served import Place, Transport
from tests.foreign.sessions import GIVES_UP, GIVES_UP_AFTER_5_S, Session

pytestmark = pytest.mark.foreign

CALL_S, MODEL_S = 1.0, 2.5
LONGER_THAN_PATIENCE_S = 7


def drive_impatient_client(
    environment: Callable[[Environ], Path], place: Place, transport: Transport, model_calls: int
) -> dict:
    client = replace(PYTHON_1, script="mcp_1_gives_up.py")
    more = {"limits": {"model_calls": model_calls}}
    folder = environment(client.environ)
    return dict(drive(client, folder, place, transport, call_s=CALL_S, model_s=MODEL_S, more=more))


@pytest.mark.parametrize("session", GIVES_UP.places, ids=str)
def test_a_slow_model_with_an_impatient_client_gets_to_the_end_and_is_asked_once_a_round(
    session: Session, environment: Callable[[Environ], Path], records: Records, tmp_path: Path
) -> None:
    """Over HTTP too: this client tells nobody that it gave up, so its call stays open, and what was asked with it."""
    place = Place(tmp_path / "place").lay()
    with records.record(session, GIVES_UP.name):
        result = drive_impatient_client(environment, place, session.transport, 6)
        assert result["gave_up"] >= 3
        assert (result["result"]["status"], result["result"]["summary"]) == ("completed", place.word)
        assert result["asked"] == result["result"]["usage"]["model_calls"] == 3
        assert place.replays(result["result"]["run_id"])


@pytest.mark.parametrize("transport", ["stdio", "sse", "http"])
def test_no_more_is_asked_than_model_calls_are_left(
    transport: Transport, environment: Callable[[Environ], Path], tmp_path: Path
) -> None:
    place = Place(tmp_path / "place").lay()
    result = drive_impatient_client(environment, place, transport, 2)
    assert place.rows("select outcome ->> 'status', outcome ->> 'stop_reason' from run") == [("stopped", "budget")]
    assert result["asked"] == result["result"]["usage"]["model_calls"] == 2


def test_an_agent_that_gave_up_finds_its_run_again(
    environment: Callable[[Environ], Path], records: Records, tmp_path: Path
) -> None:
    place = Place(tmp_path / "place").lay()
    script = tmp_path / "script.jsonl"
    look = {"tool_calls": [{"id": "c1", "name": "list_files", "arguments": {}}]}
    lines = [look | {"delay_s": LONGER_THAN_PATIENCE_S}, {"content": "done", "finish": "stop"}]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    client = replace(OPENAI_AGENTS, script="openai_agents_gives_up.py")
    (session,) = GIVES_UP_AFTER_5_S.places
    with records.record(session, GIVES_UP_AFTER_5_S.name):
        result = drive(client, environment(client.environ), place, session.transport, script=str(script))
        assert result["gave_up"] >= 1
        ((run_id, status),) = place.rows("select id, outcome ->> 'status' from run")
        assert (result["result"]["run_id"], status) == (run_id, "completed")
        assert place.rows("select count(*) from step where path = 'round-1'") == [(1,)]
