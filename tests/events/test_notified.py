"""A person is notified: by a program of their own within two seconds of a question, in batches, and not at night."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, UNWATCHED, Place, rests, says, start_run
from support.page import served_page
from support.page_runs import writes
from support.stdio_server import StdioClient
from support.waiting import wait_until

from kairos_mcp.app import notifier
from kairos_mcp.app.app import App
from kairos_mcp.app.notifier import _is_quiet
from kairos_mcp.app.receivers import MAX_LINES, make_notification
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.schema import read_settings_file
from kairos_mcp.settings.table_values import NotifySetting
from kairos_mcp.store import events


class Told:
    """A program that appends what it is told to a file, as a setting, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "told.jsonl"
        self.command = ("sh", "-c", f"cat >> {self.file}; echo >> {self.file}")

    def setting(self, **more: Any) -> NotifySetting:
        return NotifySetting("command", self.command, **more)

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    @property
    def names(self) -> list[list[str]]:
        return [[event["name"] for event in each["events"]] for each in self.all]


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def settings_of(place: Place, told: Told, *lines: dict[str, Any], **more: Any) -> Any:
    return place.settings(*lines, flow=UNWATCHED, notify=(told.setting(**more),))


async def look(app: App) -> None:
    """Send what is to be sent now, as the notifier's task does."""
    await app.notifier._look()
    for task in list(app.notifier._sending.values()):
        await task


def test_away_from_the_machine_a_question_is_told_and_decided_on_the_page(place: Place, told: Told) -> None:
    """A real server, a real program and the page that the link leads to."""
    place.script.write_text("".join(json.dumps(line) + "\n" for line in (writes("new.txt", "new\n"), says("done"))))
    place.home.mkdir()
    (place.home / "kairos.toml").write_text(f'[[notify]]\nto = "command"\ncommand = {json.dumps(told.command)}\n')
    environ = {"KAIROS_SCRIPT": str(place.script)}
    with (
        served_page(place.home, "--workspace", str(place.workspace), environ=environ) as desk,
        StdioClient.start(place) as client,
    ):
        client.call("planner_run", goal="make it", tools=["write_file"], wait_s=0)
        wait_until(lambda: place.has_tables() and bool(place.rows("select 1 from approval")))
        wait_until(lambda: bool(told.all), within_s=2)
        (event,) = told.all[0]["events"]
        run_id, key = event["data"]["run_id"], event["data"]["key"]
        assert told.all[0]["link"] == event["data"]["link"] == f"{desk.url}#/runs/{run_id}"
        desk.does("approve", run=run_id, key=key, digest=desk.waiting(run_id)["digest"])
        wait_until((place.workspace / "new.txt").exists)
        wait_until(lambda: place.rows("select kind from event")[-1:] == [("run.ended",)])


@pytest.mark.usefixtures("by_hand")
async def test_what_happens_at_once_is_one_notification(place: Place, told: Told) -> None:
    async with App.open(settings_of(place, told, *[says("done")] * 3), via="mcp") as app:
        await look(app)
        for n in range(3):
            await start_run(app, f"goal {n}")
        await look(app)
        await look(app)
        assert told.names == [["run.ended"] * 3]


@pytest.mark.usefixtures("by_hand")
async def test_of_one_run_a_person_is_told_once_a_minute(
    place: Place, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with App.open(settings_of(place, told, writes("new.txt", "new\n"), says("done")), via="mcp") as app:
        await look(app)
        run_id = await start_run(app, tools=("write_file",))
        await look(app)
        await app.control.cancel(run_id, ME)
        await rests(app, run_id)
        await look(app)
        assert told.names == [["run.waiting"]]
        monkeypatch.setattr(notifier, "RUN_MS", 0)  # a minute later
        await look(app)
        await look(app)
        assert told.names == [["run.waiting"], ["run.ended"]]


@pytest.mark.usefixtures("by_hand")
async def test_what_waits_no_more_after_a_quiet_time_is_not_told(
    place: Place, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(place, told, writes("new.txt", "new\n"), says("done"), quiet=(0, 24 * 60))
    async with App.open(settings, via="mcp") as app:
        await look(app)
        run_id = await start_run(app, tools=("write_file",))
        await look(app)
        assert told.names == []
        await app.control.cancel(run_id, ME)
        await rests(app, run_id)
        monkeypatch.setattr(notifier, "_is_quiet", lambda *_: False)
        await look(app)
        assert told.names == [["run.ended"]]


@pytest.mark.usefixtures("by_hand")
async def test_what_was_not_taken_is_sent_again_and_of_two_servers_one_sends(place: Place, told: Told) -> None:
    failing = NotifySetting("command", ("sh", "-c", f"test -e {told.file} && cat >> {told.file}"))
    settings = place.settings(says("done"), flow=UNWATCHED, notify=(failing,))
    async with App.open(settings, via="mcp") as app, App.open(settings, via="mcp") as other:
        await look(app)
        await start_run(app)
        await look(app)
        assert place.rows("select tries, next_at > 0 from listener") == [(1, 1)]
        told.file.touch()
        place.rows("update listener set next_at = 0")
        await other.begin_sending()
        await look(other)  # the listener is the first server's, which lives
        assert told.file.read_text() == ""
        await look(app)
        assert json.loads(told.file.read_text())["events"][0]["name"] == "run.ended"


@pytest.mark.usefixtures("by_hand")
async def test_a_look_opens_no_store(place: Place, told: Told) -> None:
    """It would make a new one in the place of a file that is being put back just then."""
    settings = settings_of(place, told, says("done"))
    async with App.open(settings, via="mcp") as app:
        await start_run(app)
    async with App.open(settings, via="mcp") as other:
        await look(other)
        assert not other._store.is_open


async def test_where_nobody_listens_runs_cost_no_look(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one look in all, and nothing is written or watched for it."""
    looks = []
    really = events.list_listeners
    monkeypatch.setattr(events, "list_listeners", lambda *asked, **named: (looks.append(1), really(*asked, **named))[1])
    async with App.open(place.settings(*[says("done")] * 5), via="mcp") as app:
        for n in range(5):
            await start_run(app, f"goal {n}")
            await asyncio.sleep(0)  # the notifier's task has its turn
        assert (len(looks), app._context.pool.change_signal.is_awaited) == (1, False)
        assert place.rows("select count(*), (select count(*) from event) from listener") == [(0, 5)]


@pytest.mark.parametrize(
    ("quiet", "minute", "is_quiet"),
    [((60, 120), 90, True), ((60, 120), 120, False), ((1_320, 450), 30, True), ((1_320, 450), 720, False)],
)
def test_a_quiet_time_may_lie_around_midnight(quiet: tuple[int, int], minute: int, is_quiet: bool) -> None:
    assert _is_quiet(quiet, minute * 60_000, "UTC") == is_quiet


def test_a_long_batch_is_counted_and_links_to_the_page() -> None:
    events = [
        {"eventId": f"evt_{n}", "name": "run.ended", "data": {"text": f"run {n}", "link": f"http://here/#/runs/{n}"}}
        for n in range(MAX_LINES + 2)
    ]
    what = make_notification(events)
    assert (what.text.splitlines()[-1], what.link) == ("and 2 more things", "http://here/")


@pytest.mark.parametrize("text", ['to = "ntfy"', 'to = "command"', 'to = "webhook"\nsecret = "whsec_abc"'])
def test_a_receiver_without_what_it_needs_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kairos.toml"
    file.write_text(f"[[notify]]\n{text}\n")
    with pytest.raises(ConfigError, match="notify"):
        read_settings_file(file)
