"""A change of a file that is cut short, by a cancel or by its time: the record and the file say the same.

The thread that makes the change is stopped before a line of it, as a slow disk would, until the test lets it go on.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest
from support.app import ME, WITHIN_S, Place, open_checked_app, place_in, rests, says

from kairos_mcp.core.limits import UNLIMITED, Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools.files import atomic_write
from kairos_mcp.views.run_report import RunReport

EDIT = {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha", "new_string": "omega"}}
EXCHANGED, NOT_YET = "_drop_displaced", "_stage"  # functions of atomic_write.py: after the exchange, before it
RECORDED_S = 0.5  # in which a record that does not wait for the change has long been made


@dataclass
class SlowDisk:
    """Holds a change back before the first line of a function of atomic_write.py; `reached` is set when it is there."""

    before: str
    reached: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        code = frame.f_code
        if event == "call" and (code.co_name, code.co_filename) == (self.before, str(atomic_write.__file__)):
            self.reached.set()
            assert self.go.wait(WITHIN_S)

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, WITHIN_S)


@pytest.fixture
def place(tmp_path) -> Place:
    return place_in(tmp_path)


@pytest.fixture(params=[NOT_YET, EXCHANGED])
def disk(request) -> Iterator[SlowDisk]:
    slow = SlowDisk(request.param)
    threading.settrace(slow)  # of threads that are yet to be started: those of the app that the test opens
    yield slow
    slow.go.set()
    threading.settrace(None)


async def cut_short(place: Place, disk: SlowDisk, limits: Limits = UNLIMITED, *, cancel: bool) -> RunReport:
    """The report of a run whose change was held back until it was cancelled, or its time was over."""
    configured = place.settings({"tool_calls": [EDIT]}, says("done"), gate=(GateRule("edit_file", "allow"),))
    async with open_checked_app(configured) as app:
        asked = PlannerRequest("edit", tools=("edit_file",), limits=limits)
        run_id = (await app.runs.start(asked, ME)).run_id
        await disk.is_reached()
        cancels = [app.control.cancel(run_id, ME) for _ in range(2 * cancel)]  # by somebody impatient
        all_cancels = asyncio.gather(*cancels)
        await app.runs.wait([run_id], until="rest", wait_s=RECORDED_S, caller=ME)
        disk.go.set()
        await all_cancels
        report = await rests(app, run_id)
    assert [path.name for path in place.workspace.iterdir() if ".kairos-" in path.name] == []
    return report


def recorded_answer(place: Place) -> dict[str, Any]:
    ((body,),) = place.rows("select body from answer join step on step.id = step where path = 'round-1/call-1'")
    return dict(json.loads(body))


async def test_PROTOCOL_032_a_change_that_a_cancel_meets_is_recorded_as_it_ended(place, disk):
    report = await cut_short(place, disk, cancel=True)
    assert report.status == "cancelled"
    assert (place.workspace / "a.txt").read_text() == "omega\n"
    assert recorded_answer(place)["data"]["files"][0]["path"] == "a.txt"


async def test_a_change_whose_time_is_over_is_recorded_as_it_ended(place, disk):
    await cut_short(place, disk, Limits(milliseconds=200), cancel=False)
    assert (place.workspace / "a.txt").read_text() == "omega\n"
    assert recorded_answer(place)["data"]["files"][0]["path"] == "a.txt"
