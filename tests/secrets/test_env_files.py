"""Files like `.env`: reading one is asked about, none of its values reaches a model or a row, whatever its form."""

from __future__ import annotations

from typing import Any

import pytest
from support.app import ME, Place, rests, says

from kairos_mcp.app.app import App
from kairos_mcp.core.env_files import is_env_file
from kairos_mcp.core.masked_file import unify_marks
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.table_values import GateRule

TEXT = "# the shop\nNAME=plainword\nexport DB_PASSWORD='two\nlines'\nEMPTY=\n"
VALUES = ("plainword", "two", "lines'")
ALLOWED = (GateRule("*", "allow"), GateRule("*", "allow", effect="checked"))


def with_env(place: Place) -> Place:
    (place.workspace / "conf").mkdir(exist_ok=True)
    (place.workspace / "conf" / ".env.local").write_text(TEXT)
    (place.workspace / ".env.example").write_text("NAME=plainword\n")
    return place


async def run_call(app: App, name: str, **given: Any) -> dict[str, Any]:
    report = await rests(app, await app.runs.start_call(name, given, ME))
    if report.status == "input_required":
        return {"asked": report.waiting[0]}
    assert isinstance(report.output, dict)
    return report.output


def in_rows(place: Place) -> list[str]:
    """The values that stand in any file of the state folder."""
    files = [file.read_bytes() for file in place.home.rglob("*") if file.is_file()]
    return [value for value in VALUES if any(value.encode() in body for body in files)]


async def test_reading_a_file_of_settings_is_asked_about_and_its_example_is_not(place: Place) -> None:
    with_env(place)
    async with App.open(place.settings(), via="mcp") as app:
        assert "asked" in await run_call(app, "read_file", path="conf/.env.local")
        assert "asked" in await run_call(app, "search_files", pattern="x", path="conf/.env.local")
        edit = {"path": "conf/.env.local", "old_string": "plainword", "new_string": "x"}
        assert "asked" in await run_call(app, "plan_edits", edits=[edit])
        assert "plainword" in (await run_call(app, "read_file", path=".env.example"))["content"]
        assert ".env.local" in (await run_call(app, "list_files", path="conf"))["content"]
        assert ".env.local" in (await run_call(app, "file_tree"))["content"]
        found = (await run_call(app, "search_files", pattern="plainword"))["content"]
        assert ".env.example" in found
        assert ".env.local" not in found
        assert "1 that a rule of the gate keeps from this call" in found


async def test_where_a_rule_allows_it_no_value_is_shown_found_or_recorded(place: Place) -> None:
    with_env(place)
    async with App.open(place.settings(gate=ALLOWED), via="mcp") as app:
        read = (await run_call(app, "read_file", path="conf/.env.local"))["content"]
        assert read.startswith("# the shop\nNAME=[secret]\nexport DB_PASSWORD=[secret]\n[secret]\nEMPTY=\n")
        assert "of conf/.env.local are not shown" in read
        part = (await run_call(app, "read_file", path="conf/.env.local", start_line=4, end_line=4))["content"]
        assert part.startswith("[secret]\n")
        found = (await run_call(app, "search_files", pattern="NAME|plain|lines", path="conf"))["content"]
        assert found.splitlines()[0] == "conf/.env.local:2: NAME=[secret]"
        assert "No line matches" in (await run_call(app, "search_files", pattern="=pla", path="conf"))["content"]
        edited = await run_call(
            app, "edit_file", path="conf/.env.local", old_string="# the shop", new_string="# a shop"
        )
        assert not edited["is_error"]
    assert "# a shop\nNAME=plainword" in (place.workspace / "conf" / ".env.local").read_text()
    assert in_rows(place) == []


async def test_a_preview_says_that_a_value_changes_which_it_does_not_show(place: Place) -> None:
    (place.workspace / "settings.ini").write_text("# mine\npassword = plainword\n")
    text = "# ours\npassword = another\n"
    turn = {"tool_calls": [{"name": "write_file", "arguments": {"path": "settings.ini", "content": text}}]}
    async with App.open(place.settings(turn, says("done")), via="mcp") as app:
        request = PlannerRequest("write", tools=("write_file",))
        report = await rests(app, (await app.runs.start(request, ME)).run_id)
        shown = report.waiting[0]["preview"]
    assert "-# mine\n-password = [secret]\n+# ours\n+password = [secret]\n" in shown
    assert "a value that is not shown changes" in shown
    assert not any(value in shown for value in ("plainword", "another"))


@pytest.mark.parametrize("name", ["conf/.env.local", "settings.py"])
async def test_new_text_with_the_mark_where_a_value_stood_is_refused(place: Place, name: str) -> None:
    with_env(place)
    (place.workspace / "settings.py").write_text('A = 1\nDB_PASSWORD = "hunter"\n')
    before = (place.workspace / name).read_text()
    async with App.open(place.settings(gate=ALLOWED), via="mcp") as app:
        shown = (await run_call(app, "read_file", path=name))["content"].split("\n[")[0]
        assert "[secret]" in shown
        beside = "A = 1" if name == "settings.py" else "# the shop"
        for refused in (
            await run_call(app, "write_file", path=name, content=shown),
            await run_call(app, "edit_file", path=name, old_string=beside, new_string="[secret]"),
        ):
            assert refused["data"]["code"] == "bad_arguments"
            assert "is not shown" in refused["content"]
        assert (place.workspace / name).read_text() == before
        assert not (await run_call(app, "write_file", path="doc.md", content="shown as [secret]\n"))["is_error"]


async def test_a_run_that_may_read_everything_reads_no_file_of_settings_unasked(place: Place) -> None:
    with_env(place)
    turn = {"content": "look", "tool_calls": [{"name": "read_file", "arguments": {"path": "conf/.env.local"}}]}
    async with App.open(place.settings(turn, says("done")), via="mcp") as app:
        report = await rests(app, (await app.runs.start(PlannerRequest("look"), ME)).run_id)
    assert [item["name"] for item in report.waiting] == ["read_file"]


def test_another_tool_that_reads_such_a_file_is_asked_about_and_the_callers_own_is_not() -> None:
    gate = Gate([], Scopes().scope_of)
    schema = {"type": "object"}
    theirs = ToolSpec("x__read", "", schema, "read", source="mcp:x#1")
    for path in ("a/.env", "/etc/.ENV.local", "file:///x/.env", "~/x"):
        assert gate.judge(GatedCall(theirs, {"path": path})).decision == "ask", path
    assert gate.judge(GatedCall(theirs, {"path": "a/.env.example"})).decision == "allow"
    assert (
        gate.judge(GatedCall(ToolSpec("x", "", schema, "read", source="caller"), {"path": ".env"})).decision == "allow"
    )
    rule = Gate([GateRule("x__*", "allow", (".env",))], Scopes().scope_of)
    assert rule.judge(GatedCall(theirs, {"path": "a/.env"})).decision == "allow"


@pytest.mark.parametrize(
    ("name", "held"),
    [*((".env", True), ("a/.env.production", True), (".ENV", True), (".envrc", True)),
     *(("prod.env", True), ("conf/App.ENV", True), (".envs/prod", True), ("a/.envs/.local/.django", True)),
     *((".env.example", False), (".env.sample", False), (".env.prod.template", False)),
     *(("example.env", False), ("app.sample.env", False), (".envs/.local.example", False)),
     *(("env", False), ("a.env.py", False), (".env/readme.md", False), ("envs/prod", False))],
)  # fmt: skip
def test_such_a_file_is_known_by_its_name(name: str, held: bool) -> None:
    assert is_env_file(name) == held


def test_values_of_any_form_are_hidden_line_for_line() -> None:
    text = 'A=1\nB: x # y\nC = a\\\n b\n# D=comment\n\nE\nF="q\\"\n=z"\r\nG=`x`\njunk\n'
    masked = Redactor().mask_file(".env", text.encode())
    plain = masked.masked_content.decode()
    assert plain.count("\n") == text.count("\n")
    names = "A=[secret]\nB: [secret]\nC = [secret]\n [secret]\n# D=comment\n\nE\nF=[secret]\n[secret]\r\nG=[secret]\n"
    assert plain.startswith(names)
    env = Redactor().mask_file(".env", b"A=1\n")
    one, other = (env.comparable_text([name]) for name in ("old", "new"))
    assert one != other
    assert unify_marks(one) == unify_marks(other) == "A=[secret]\n"
