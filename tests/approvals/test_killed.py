"""A server killed while a run waits for approval: whoever comes next makes the change, once."""

from __future__ import annotations

import json

from support.app import says
from support.sampling_clients import LEGACY
from support.sampling_lines import Lines

from approvals.test_commands import kairos

EDIT = {
    "tool_calls": [{"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha", "new_string": "alpha!"}}]
}


def test_killed_while_it_waits_then_approved_it_is_applied_once(place):
    place.settings(EDIT, says("done"))
    place.home.mkdir(exist_ok=True)
    (place.home / "kairos.toml").write_text(f"script = {json.dumps(str(place.script))}\n")
    server = Lines.start(place, LEGACY)
    run = server.came("planner_run", {"goal": "change it", "tools": ["*"]})
    assert [item["kind"] for item in run["waiting"]] == ["approval"]
    server.stop()  # by SIGKILL
    key = run["waiting"][0]["key"]
    assert (place.workspace / "a.txt").read_text() == "alpha\n"
    assert kairos(place, "approve", run["run_id"], key).returncode == 0
    assert kairos(place, "approve", run["run_id"], key).returncode == 0  # the same word again
    assert (place.workspace / "a.txt").read_text() == "alpha!\n"
    assert place.rows("select count(*) from attempt") == [(1,)]
    assert json.loads(kairos(place, "show", run["run_id"], "--json").stdout)["status"] == "completed"
