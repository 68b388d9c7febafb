"""An absolute path below the workspace names the file that the relative one does: for tool, gate and person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.app import ME, PERSON, Place, rests

from kairos_mcp.app.app import App
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.views.run_report import RunReport


async def called(app: App, name: str, **arguments: Any) -> RunReport:
    return await rests(app, await app.runs.start_call(name, arguments, ME))


def code(report: RunReport) -> str | None:
    return (report.output.get("data") or {}).get("code") if report.output["is_error"] else None


@pytest.mark.parametrize(
    ("name", "arguments", "shows"),
    [
        ("read_file", {"path": "{}/a.txt"}, "alpha"),
        ("read_file", {"path": "{}//a.txt"}, "alpha"),
        ("list_files", {"path": "{}"}, "a.txt"),
        ("file_tree", {"path": "{}/"}, "a.txt"),
        ("search_files", {"path": "{}/a.txt", "pattern": "alp"}, "alpha"),
    ],
)
async def test_what_reads_takes_it(place: Place, name: str, arguments: Mapping[str, str], shows: str) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        given = {key: value.format(place.workspace) for key, value in arguments.items()}
        assert shows in (await called(app, name, **given)).output["content"]


@pytest.mark.parametrize("path", ["{}-secret/f.txt", "{}/../secret.txt", "/etc/passwd", "/{}/a.txt", "{}/./../x"])
async def test_one_that_leads_elsewhere_is_denied(place: Place, path: str) -> None:
    for secret in (place.root / "secret.txt", place.root / "workspace-secret" / "f.txt"):
        secret.parent.mkdir(exist_ok=True)
        secret.write_text("SECRET")
    async with App.open(place.settings(), via="mcp") as app:
        report = await called(app, "read_file", path=path.format(place.workspace))
        assert code(report) == "path_denied"
        assert "SECRET" not in str(report.output)


async def test_the_gate_judges_it_as_the_relative_one(place: Place) -> None:
    (place.workspace / ".env").write_text("TOKEN=abcdefgh\n")
    (place.workspace / "docs").mkdir()
    (place.workspace / "docs" / "x.md").write_text("words\n")
    rules = (GateRule("read_file", "deny", paths=("docs/*",)), GateRule("edit_file", "allow", paths=("a.txt",)))
    async with App.open(place.settings(gate=rules), via="mcp") as app:
        assert code(await called(app, "read_file", path=f"{place.workspace}/docs/x.md")) == "denied"
        asks = await called(app, "read_file", path=f"{place.workspace}/.env")
        assert [item["kind"] for item in asks.waiting] == ["approval"]
        given = {"old_string": "alpha", "new_string": "omega"}
        assert (await called(app, "edit_file", path=f"{place.workspace}/a.txt", **given)).status == "completed"
        assert (await called(app, "write_file", path=f"{place.workspace}/.git/hooks/x", content="")).output["is_error"]
    assert (place.workspace / "a.txt").read_text() == "omega\n"


async def test_a_person_is_asked_about_the_same_change_and_it_is_made(place: Place) -> None:
    edit = {"old_string": "alpha", "new_string": "omega"}
    several = {
        "edits": [
            {"path": f"{place.workspace}/b.txt", "old_string": "beta", "new_string": "gamma", "replace_all": True}
        ]
    }
    async with App.open(place.settings(), via="mcp") as app:
        by_name = await called(app, "edit_file", path="a.txt", **edit)
        by_path = await called(app, "edit_file", path=f"{place.workspace}/a.txt", **edit)
        (asked,), (same,) = by_name.waiting, by_path.waiting
        assert (same["preview"], same["digest"]) == (asked["preview"], asked["digest"])
        await app.answers.decide(by_path.run_id, same["key"], "approve", "", PERSON)
        assert (await rests(app, by_path.run_id)).output["is_error"] is False
        planned = await called(app, "plan_edits", **several)
        assert planned.output["is_error"] is False, planned.output
    assert (place.workspace / "a.txt").read_text() == "omega\n"


async def test_a_program_is_started_in_it(place: Place) -> None:
    (place.workspace / "docs").mkdir()
    settings = place.settings(commands="bare", gate=(GateRule("run_command", "allow"),))
    async with App.open(settings, via="mcp") as app:
        report = await called(app, "run_command", argv=["pwd"], cwd=f"{place.workspace}/docs")
        assert f"{place.workspace}/docs" in report.output["content"]
