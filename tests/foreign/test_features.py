"""What each client does beside a run of its own model: approvals, OODA cycles, teams, tasks, prompts, resources and
completion, all in one session with the real server.

A script stands in for the model on the server, so that a client is what it is in a host: the one that calls, shows
dialogs, and reads. Each feature is a test of its own, on what that session left in rows, in files, and with the client.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.driving import drive
from tests.foreign.environs import Environ, version
from tests.foreign.records import Records
from tests.foreign.served import Place
from tests.foreign.sessions import SESSIONS, Session
from tests.foreign.steps import STEPS, lay_site

pytestmark = pytest.mark.foreign


@dataclass(frozen=True)
class Played:
    """What a session came to: its place, and what the client was left with of each feature."""

    place: Place
    values: dict[str, Any]

    def outcomes(self, flow: str) -> list[tuple[Any, ...]]:
        """Id, status and stop reason of each run of a flow."""
        asked = "select id, outcome ->> 'status', outcome ->> 'stop_reason' from run where flow = ? order by n"
        return self.place.rows(asked, flow)

    def decisions(self, run_id: str) -> list[tuple[Any, ...]]:
        """Each verdict on a run's calls, and the way it came."""
        return self.place.rows(
            "select verdict, through from approval join run on run.n = approval.run where id = ?", run_id
        )


@pytest.fixture(scope="module")
def play(
    environment: Callable[[Environ], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Session], Played]:
    """A session, played once for all of its features."""
    played: dict[Session, Played | BaseException] = {}

    def play_once(session: Session) -> Played:
        if session not in played:
            try:
                played[session] = play_session(session, environment(session.client.environ), tmp_path_factory)
            except Exception as failure:
                played[session] = failure
        match played[session]:
            case Played() as found:
                return found
            case failure:
                raise failure

    return play_once


def play_session(session: Session, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    place = lay_site(tmp_path_factory.mktemp("session") / "place")
    steps = [STEPS[name] for name in session.features]
    result = drive(session.client, folder, place, session.transport, era=session.era, way="steps", steps=steps)
    if "protocol" in result:
        assert (result["protocol"] == "2026-07-28") == (session.era == "modern")
    return Played(place, dict(zip(session.features, result["result"]["steps"], strict=True)))


@pytest.mark.parametrize(
    ("session", "feature"), [(session, name) for session in SESSIONS for name in session.features], ids=str
)
def test_a_feature(
    session: Session,
    feature: str,
    play: Callable[[Session], Played],
    environment: Callable[[Environ], Path],
    records: Records,
) -> None:
    package = version(session.client.environ, environment(session.client.environ), session.client.package)
    with records.record(session, feature, version=package) as record:
        played = play(session)
        found = played.values[feature]
        assert "value" in found, found["error"]
        record["how"] = CHECKS[feature](played, found["value"])


def check_approval(played: Played, _value: Any) -> str:
    ((run_id, *ending),) = played.outcomes("planner")
    assert ending == ["completed", "assistant_stop"]
    assert (played.place.workspace / "made.txt").read_text() == "made\n"
    ((verdict, through),) = played.decisions(run_id)
    assert verdict == "approve"
    assert played.place.replays(run_id)
    return str(through)


def check_cycle(played: Played, _value: Any) -> str:
    ((run_id, *ending),) = played.outcomes("ooda_run")
    assert ending == ["completed", "goal_achieved"]
    assert "(install.md)" in (played.place.workspace / "docs" / "guide.md").read_text()
    ((verdict, through),) = played.decisions(run_id)
    assert verdict == "approve"
    assert played.place.replays(run_id)
    return str(through)


def check_team(played: Played, _value: Any) -> str:
    ((run_id, *ending),) = played.outcomes("team")
    assert ending == ["completed", "team_done"]
    assert played.place.replays(run_id)
    return ""


def check_task(played: Played, value: Any) -> str:
    """The call went on after its reply, and the client was left with what the task came to."""
    endings = "select run.id, ending from task join run on run.n = task.run where flow = 'plan'"
    ((run_id, ending),) = played.place.rows(endings)
    assert (ending, value["run_id"], value["status"]) == ("completed", run_id, "completed")
    return ""


def check_prompt(_played: Played, value: Any) -> str:
    assert "planner_plan" in value
    assert "Two things." in value
    return ""


def check_resource(played: Played, value: Any) -> str:
    """The list that was read names runs that there were."""
    listed = set(re.findall(r"run-[0-9a-f]{12}", value))
    assert listed
    assert listed <= {run_id for (run_id,) in played.place.rows("select id from run")}
    return ""


def check_completion(_played: Played, value: Any) -> str:
    assert value == ["caller"]
    return ""


CHECKS: dict[str, Callable[[Played, Any], str]] = {
    "approval": check_approval,
    "OODA cycle": check_cycle,
    "team run": check_team,
    "task": check_task,
    "prompt": check_prompt,
    "resource": check_resource,
    "completion": check_completion,
}
