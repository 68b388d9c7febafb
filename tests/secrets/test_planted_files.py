"""Secrets in files, in every form of the grammar, through every tool for files: nothing that a run is told, records,
exports or shows has one."""

from __future__ import annotations

import json
import random
from typing import Any
from urllib.parse import quote

import pytest
from support import forked_program
from support.app import ME, PERSON, Place, rests, says
from support.page import Visitor, served_page
from support.planted_secrets import Planted, list_planted

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.table_values import GateRule

TOOLS = (
    "read_file",
    "search_files",
    "plan_edits",
    "edit_file",
    "write_file",
    "apply_edit_plan",
    "list_files",
    "file_tree",
)
ALLOWED = (GateRule("*", "allow"), GateRule("*", "allow", effect="checked"))
MARK = "first_line = 1\n"  # of each file, to be edited
PLANTED = [planted for _, planted in list_planted() if not planted.alone]
SAMPLE = random.Random(5).sample(PLANTED, 6)
MANY = random.Random(6).sample(PLANTED, 90)  # test_grammar masks each of them


def plant(place: Place, files: list[Planted]) -> list[str]:
    """Write each into a folder of its own, twice, so that one file is edited and one is written anew."""
    paths = []
    for n, planted in enumerate(files):
        folder = place.workspace / f"f{n}"
        folder.mkdir()
        (folder / planted.path).parent.mkdir(exist_ok=True)
        (folder / planted.path).write_text(MARK + planted.text)
        paths.append(f"f{n}/{planted.path}")
    return paths


def calls_about(path: str, planted: Planted) -> list[dict[str, Any]]:
    """Calls that read a file as a whole, by lines, by patterns; and that change what stands around the secret."""
    lines = planted.text.count("\n") + 1
    edit = {"path": path, "old_string": MARK, "new_string": "first_line = 2\n"}
    names = [word for word in ("password", "PASSWORD", "token", "KEY") if word in planted.text][:1]
    unnamed = [{"path": path, "old_string": name, "new_string": "x", "replace_all": True} for name in names]
    return [
        {"name": "read_file", "arguments": {"path": path}},
        {"name": "read_file", "arguments": {"path": path, "line_numbers": True, "start_line": 2}},
        *(
            {"name": "read_file", "arguments": {"path": path, "start_line": n, "end_line": n}}
            for n in range(2, min(lines, 5) + 2)
        ),
        {"name": "search_files", "arguments": {"path": path, "pattern": ".*"}},
        {"name": "search_files", "arguments": {"pattern": "(?i)qu[a]gga|z[e]bra|[A-Za-z0-9+/]{20,}", "path": path}},
        {"name": "plan_edits", "arguments": {"edits": [edit]}},
        *({"name": "plan_edits", "arguments": {"edits": [each]}} for each in unnamed),
        {"name": "edit_file", "arguments": edit},
        {"name": "write_file", "arguments": {"path": path, "content": "x = 1\n"}},
    ]


def find_traces(files: list[Planted], texts: list[tuple[str, bytes]]) -> list[tuple[str, str, str]]:
    return [
        (name, planted.path, trace)
        for planted in files
        for trace in planted.traces
        if len(trace) > 4
        for name, text in texts
        if trace.encode() in text
    ]


async def told_of(place: Place, files: list[Planted]) -> list[tuple[str, bytes]]:
    """All that is said and kept of a run that reads and changes these files."""
    paths = plant(place, files)
    calls = [call for path, planted in zip(paths, files, strict=True) for call in calls_about(path, planted)]
    turns = [{"tool_calls": calls[at : at + 20]} for at in range(0, len(calls), 20)]
    whole = {"tool_calls": [{"name": "list_files", "arguments": {}}, {"name": "file_tree", "arguments": {}}]}
    said: list[Any] = []
    settings = place.settings(*turns, whole, says("done"), gate=ALLOWED)
    async with App.open(settings, via="mcp") as app:
        request = PlannerRequest("look", tools=TOOLS, limits=Limits(rounds=len(turns) + 2))
        run_id = (await app.runs.start(request, ME)).run_id
        report = await rests(app, run_id)
        said += [report.as_json(), (await app.runs.report(run_id, PERSON)).as_json()]
        assert report.stop_reason == "assistant_stop", (report.stop_reason, report.summary)
    for path, planted in zip(paths, files, strict=True):
        (place.workspace / path).write_text(MARK + planted.text)
    asked = await ask_to_edit(place, paths)
    environ = {"KAIROS_HOME": str(place.home), "KAIROS_WORKSPACE": str(place.workspace), "NO_COLOR": "1"}
    shown = [
        forked_program.run_program(words, env=environ).stdout
        for words in (("export", run_id), ("show", run_id, "--view", "messages"))
    ]
    with served_page(place.home, "--workspace", str(place.workspace)) as page:
        shown += read_page(page, run_id, asked)
    kept = [(file.name, file.read_bytes()) for file in place.home.rglob("*") if file.is_file()]
    done = place.rows("select count(*) from answer")
    assert done[0][0] > len(calls)
    return [
        ("said", json.dumps(said, ensure_ascii=False).encode()),
        *(("shown", each.encode()) for each in shown),
        *kept,
    ]


async def ask_to_edit(place: Place, paths: list[str]) -> list[str]:
    """Calls that wait for a person, whom the page shows what they would change; return their runs."""
    async with App.open(place.settings(), via="mcp") as app:
        runs = [
            await app.runs.start_call(
                "edit_file", {"path": path, "old_string": MARK, "new_string": "first_line = 3\n"}, ME
            )
            for path in paths
        ]
        reports = [await rests(app, run_id) for run_id in runs]
        return [report.run_id for report in reports if report.status == "input_required"]


def read_page(page: Visitor, run_id: str, asked: list[str]) -> list[str]:
    """All that the page reads of a run, and of those that ask a person."""
    texts = [page.get(f"api/{name}").text for name in ("runs", "waits", "budget", "search?q=first_line", "rules")]
    of_run = page.get(f"api/run?run={run_id}")
    refs = [step["path"] for step in of_run.json()["steps"]]
    assert len(refs) > 10
    texts += [of_run.text, page.get(f"api/export?run={run_id}").text]
    texts += [page.get(f"api/text?run={run_id}&ref={quote(ref)}").text for ref in refs]
    with page.line(run_id) as events:
        texts.append(str(next(events)))
    assert asked, "an edit waits for a person"
    items = [page.waiting(each) for each in asked]
    assert any("first_line" in str(item) for item in items)
    return [*texts, *map(str, items), *(page.get(f"api/run?run={each}").text for each in asked)]


async def test_no_secret_in_a_file_is_told_or_kept(place: Place) -> None:
    assert find_traces(SAMPLE, await told_of(place, SAMPLE)) == []


@pytest.mark.slow
async def test_no_secret_of_many_forms_in_a_file_is_told_or_kept(place: Place) -> None:
    place.workspace.mkdir(exist_ok=True)
    for at in range(0, len(MANY), 30):
        files = MANY[at : at + 30]
        part = Place(place.root / str(at))
        part.workspace.mkdir(parents=True)
        assert find_traces(files, await told_of(part, files)) == []
