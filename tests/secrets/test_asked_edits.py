"""Of a file that may not be read unasked nothing is said before a person decides, to whoever calls, by whatever tool;
and of any file no edit finds out a secret."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.app import ME, PERSON, Place, rests, says
from support.interruptions import memory_in
from support.tools import WorkspaceTools

from kairos_mcp.app.app import App
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.store.approvals import read_waiting_items
from kairos_mcp.tools import builtin_tools
from kairos_mcp.tools.files.content_hash import keyed_hash
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.mandate_tools import check_file_tool
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.tool import call_tool
from kairos_mcp.views.run_report import RunReport

GUESS = "plainword"
EDIT = {"path": "conf/.env", "old_string": f"={GUESS}", "new_string": "=x"}
OTHER = {"path": "a.txt", "old_string": "alpha", "new_string": "beta"}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "an edit of a value": ("edit_file", EDIT),
    "an edit that changes nothing": ("edit_file", {**EDIT, "new_string": EDIT["old_string"]}),
    "an edit with the mark": ("edit_file", {**EDIT, "old_string": "# shop", "new_string": "[secret]"}),
    "an edit of a comment": ("edit_file", {**EDIT, "old_string": "# shop", "new_string": "# a shop"}),
    "an edit of all places": ("edit_file", {**EDIT, "replace_all": True}),
    "an edit of what was read": ("edit_file", {**EDIT, "base": {"conf/.env": "0" * 64}}),
    "a whole text": ("write_file", {"path": "conf/.env", "content": f"# shop\nNAME={GUESS}\n"}),
    "a plan": ("plan_edits", {"edits": [EDIT]}),
    "a plan with another file": ("plan_edits", {"edits": [OTHER, EDIT]}),
    "a read": ("read_file", {"path": "conf/.env"}),
    "a search": ("search_files", {"path": "conf/.env", "pattern": GUESS}),
    "a search of its folder": ("search_files", {"path": "conf", "pattern": GUESS}),
    "a list": ("list_files", {"path": "conf"}),
    "a tree": ("file_tree", {}),
}
CONTENTS = {
    "as guessed": f"# shop\nNAME={GUESS}\n".encode(),
    "another": b"# shop\nNAME=otherword\n",
    "twice": f"# shop\nNAME={GUESS}\nX={GUESS}\n".encode(),
    "nothing": b"",
    "no text": b"\0\1\2",
    "no UTF-8": b"NAME=\xff\n",
    "CRLF": f"# shop\r\nNAME={GUESS}\r\n".encode(),
    "too much": b"A=1\n" * 1_000_000,
}
EDITS_ALLOWED = (GateRule("edit_file", "allow"), GateRule("write_file", "allow"))


async def answer_of(place: Place, name: str, given: dict[str, Any], content: bytes, gate: tuple[GateRule, ...]) -> Any:
    """All that a caller is told of a call before anybody decides, but for what differs between any two runs."""
    folder = place.workspace / "conf"
    folder.mkdir(exist_ok=True)
    (place.workspace / "a.txt").write_text("alpha\n")
    (folder / ".env").write_bytes(content)
    turn = {"tool_calls": [{"name": name, "arguments": given}]}
    async with App.open(place.settings(turn, says("done"), gate=gate), via="mcp") as app:
        request = PlannerRequest(f"change {content[:40]!r}", tools=(name,))  # else it is the run that waits already
        report = await rests(app, (await app.runs.start(request, ME)).run_id)
        waiting = [item | {"digest": "", "expires_at": "", "command": ""} for item in report.waiting]
        calls = [call | {"ms": 0} for call in report.calls]
        texts = [text for (text,) in place.rows("select preview from approval where run = (select max(n) from run)")]
        return report.status, waiting, calls, texts


@pytest.mark.parametrize("gate", [(), EDITS_ALLOWED], ids=["by default", "edits allowed"])
@pytest.mark.parametrize("what", CALLS)
async def test_answers_before_a_decision_are_equal_whatever_the_file_holds(
    place: Place, what: str, gate: tuple[GateRule, ...]
) -> None:
    name, given = CALLS[what]
    if gate and name not in ("edit_file", "write_file"):
        pytest.skip("the rules are about edits")
    contents = CONTENTS if name == "edit_file" else dict(list(CONTENTS.items())[:5])
    answers = {key: await answer_of(place, name, given, content, gate) for key, content in contents.items()}
    first = answers["as guessed"]
    assert {key for key, answer in answers.items() if answer != first} == set()
    if "conf/.env" in str(given):
        assert first[0] == "input_required"


async def open_edit(app: App, **given: Any) -> RunReport:
    return await rests(app, await app.runs.start_call("edit_file", given, ME))


async def test_the_person_sees_the_masked_diff_and_the_caller_its_own_arguments(place: Place) -> None:
    (place.workspace / ".env").write_text(f"# shop\nNAME={GUESS}\n")
    given = {"path": ".env", "old_string": "# shop", "new_string": "# a shop"}
    async with App.open(place.settings(), via="mcp") as app:
        report = await open_edit(app, **given)
        (item,) = report.waiting
        assert "new_string" in item["preview"]
        assert "NAME" not in item["preview"]
        (shown,) = (await app.runs.report(report.run_id, PERSON)).waiting
        assert "-# shop\n+# a shop\n NAME=[secret]" in shown["preview"]
        assert shown["digest"] == item["digest"]
        run = await app.runs._context.find_run(report.run_id, ME)
        with app._store.read_session() as session:
            waits = read_waiting_items(session, run.n)
        assert await app.answers.open_questions(run, waits, ME, ()) == []
        await app.answers.decide(report.run_id, item["key"], "approve", None, PERSON, digest=item["digest"])
        done = await rests(app, report.run_id)
        assert isinstance(done.output, dict)
        assert not done.output["is_error"]
        assert GUESS not in done.output["content"]
    assert (place.workspace / ".env").read_text() == f"# a shop\nNAME={GUESS}\n"
    assert not any(GUESS.encode() in file.read_bytes() for file in place.home.rglob("*") if file.is_file())


async def test_whether_it_fits_is_said_after_the_decision(place: Place) -> None:
    (place.workspace / ".env").write_text(f"NAME={GUESS}\n")
    async with App.open(place.settings(), via="mcp") as app:
        for verdict, code in (("approve", "match_none"), ("deny", "denied")):
            report = await open_edit(app, path=".env", old_string=GUESS, new_string="x")
            (item,) = report.waiting
            (shown,) = (await app.runs.report(report.run_id, PERSON)).waiting
            assert "is not in .env" in shown["preview"]
            await app.answers.decide(report.run_id, item["key"], verdict, None, PERSON, digest=item["digest"])
            done = await rests(app, report.run_id)
            assert isinstance(done.output, dict)
            assert done.output["data"]["code"] == code
    assert (place.workspace / ".env").read_text() == f"NAME={GUESS}\n"


SECRET = "zebra-quagga"
KEYS = {
    "a.ini": f"[db]\npassword = {SECRET}\nhost = x\n",
    "b.py": f'DB_PASSWORD = "{SECRET}"\nhost = 1\n',
    ".npmrc": f"//r.example/:_authToken={SECRET}\nhost = x\n",
}
EDITS = ("password", "DB_PASSWORD", "DB_", "_authToken", f"{SECRET[:5]}", SECRET, "host", "[secret]", " = ", "=", '"')


@pytest.mark.parametrize("path", KEYS)
async def test_an_unasked_plan_returns_no_secret_and_its_match_finds_none(place: Place, path: str) -> None:
    (place.workspace / path).write_text(KEYS[path])
    said: dict[tuple[str, str], Any] = {}
    async with App.open(place.settings(), via="mcp") as app:
        for old in (*EDITS, "guess"):
            for new in ("x", "", "x y", f"{SECRET}"):
                edit = {"path": path, "old_string": old, "new_string": new, "replace_all": True}
                report = await rests(app, await app.runs.start_call("plan_edits", {"edits": [edit]}, ME))
                assert isinstance(report.output, dict), report
                said[old, new] = report.output
                if SECRET not in new:
                    assert SECRET not in str(report.output).replace(repr(old), ""), (old, new)
    for new in ("x", "", "x y"):
        right, wrong = said[SECRET[:5], new], said["guess", new]
        assert (right["is_error"], right["content"]) == (True, wrong["content"])
    assert (place.workspace / path).read_text() == KEYS[path]


async def test_a_whole_text_that_guesses_a_secret_is_answered_like_any_other(place: Place) -> None:
    """As the diff of a plan: only a line that holds a secret is shown as changed, whether it is or not."""
    said = []
    for guess in (SECRET, "otherword"):
        (place.workspace / "a.ini").write_text(KEYS["a.ini"])
        turn = {
            "tool_calls": [
                {"name": "write_file", "arguments": {"path": "a.ini", "content": KEYS["a.ini"].replace(SECRET, guess)}}
            ]
        }
        async with App.open(place.settings(turn, says("done")), via="mcp") as app:
            request = PlannerRequest(f"write {guess}", tools=("write_file",))
            report = await rests(app, (await app.runs.start(request, ME)).run_id)
            said.append(report.waiting[0]["preview"])
    assert said[0] == said[1]


async def test_the_hashes_that_a_model_sees_are_not_those_of_the_content_alone(place: Place) -> None:
    (place.workspace / "a.ini").write_text(KEYS["a.ini"])
    plain = sha256(KEYS["a.ini"].encode()).hexdigest()
    async with App.open(place.settings(), via="mcp") as app:
        report = await rests(app, await app.runs.start_call("read_file", {"path": "a.ini"}, ME))
        assert isinstance(report.output, dict)
        seen = report.output["data"]["sha256"]
        edit = {"path": "a.ini", "old_string": "host", "new_string": "hosts"}
        planned = await rests(app, await app.runs.start_call("plan_edits", {"edits": [edit]}, ME))
    assert seen != plain
    assert plain[:12] not in str(planned.output)
    assert seen in str(planned.output)


HELD = f"a: 1\npassword: {SECRET}\nb: 2\n"
GUESSING: dict[str, Callable[[str], list[tuple[str, str, str]]]] = {
    "another file comes to hold the same": lambda guess: [
        ("README.md", "one ", "a: 1\npass"),
        ("README.md", "two", f"word: {guess}\nb: 2\n"),
    ],
    "the same line before": lambda guess: [("c.yaml", "a:", "a: 1\npass"), ("c.yaml", " 1\n", f"word: {guess}\n")],
    "the same line behind": lambda guess: [("c.yaml", "b:", "pass"), ("c.yaml", " 2\n", f"word: {guess}\nb: 2\n")],
    "the same line far away": lambda guess: [
        ("d.yaml", "e: 3", "pass"),
        ("d.yaml", "\n" + "x: 1\n" * 12, f"word: {guess}\n"),
    ],
    "the same line between two": lambda guess: [("e.yaml", "# a\n", f"password: {guess}\n")],
    "a file of its kind": lambda guess: [("README.md", "one two", f"a: 1\nsecret: {guess}\n")],
}


def keyed_tools(folder: Path) -> WorkspaceTools:
    """The tools for files as a server has them, whose hashes are keyed."""
    keyed = keyed_hash(lambda: b"key")
    tools = WorkspaceTools(folder, ToolRegistry(builtin_tools(folder, read_bytes=1 << 20, hash_content=keyed)))
    tools.memory = memory_in(folder.parent / "memory")
    return tools


@pytest.mark.parametrize("how", GUESSING)
def test_law_a_plan_answers_a_right_guess_of_a_secret_as_a_wrong_one(tmp_path: Path, how: str) -> None:
    """No hash is one that a secret's file has, and no line of a diff is taken for one that holds a secret."""
    line = f"password: {SECRET}\n"
    tools = keyed_tools(tmp_path)
    files = {"README.md": "one two", "c.yaml": HELD, "d.yaml": HELD + "e: 3\n" + "x: 1\n" * 12}
    tools.write(files | {"e.yaml": f"{line}# a\n{line}"})
    hashes = {tools.call("read_file", path=path).data["sha256"] for path in (*files, "e.yaml")}
    said = {}
    for guess in (SECRET, SECRET[::-1], SECRET[:-1] + "x", SECRET + "x"):
        edits = [{"path": path, "old_string": old, "new_string": new} for path, old, new in GUESSING[how](guess)]
        planned = tools.call("plan_edits", edits=edits)
        assert not planned.is_error, planned
        known = {file["before"] for file in planned.data["files"]}
        assert not [each for each in hashes - known if each in str(planned)]
        plan_id = planned.data["plan_id"]
        said[guess] = planned.content.replace(plan_id, "").rstrip(), planned.data | {"plan_id": ""}
        shown = tools.preview("apply_edit_plan", plan_id=plan_id)
        said[guess] += (shown.text, shown.base_hashes)
    assert {guess for guess, answer in said.items() if answer != said[SECRET[::-1]]} == set()


def test_a_plan_is_applied_and_its_files_edited_on_by_hashes_where_they_hold_secrets(tmp_path: Path) -> None:
    tools = keyed_tools(tmp_path)
    tools.write({"c.yaml": HELD})
    planned = tools.call("plan_edits", edits=[{"path": "c.yaml", "old_string": "b: 2", "new_string": "b: 3"}])
    applied = tools.call("apply_edit_plan", plan_id=planned.data["plan_id"])
    seen = tools.call("read_file", path="c.yaml").data["sha256"]
    assert (planned.data["files"][0]["after"], applied.data["files"][0]["after"]) == (None, seen)
    for base, code in ((planned.data["files"][0]["before"], "stale_file"), (seen, None)):
        call = {"path": "c.yaml", "old_string": "b: 3", "new_string": "b: 4", "base": {"c.yaml": base}}
        assert tools.call("edit_file", **call).code == code
    assert (tmp_path / "c.yaml").read_text() == HELD.replace("b: 2", "b: 4")


async def test_a_change_right_beside_a_secret_is_answered_like_one_of_what_is_not_there(place: Place) -> None:
    """Put before it, a text could make the value one that is shown."""
    (place.workspace / "a.ini").write_text(KEYS["a.ini"])
    async with App.open(place.settings(), via="mcp") as app:
        for old, new in (("password = ", "password = ${x"), ("\nhost", "}\nhost"), ("rd = ", "rd")):
            edit = {"path": "a.ini", "old_string": old, "new_string": new}
            report = await rests(app, await app.runs.start_call("plan_edits", {"edits": [edit]}, ME))
            assert isinstance(report.output, dict)
            assert report.output["data"]["code"] == "match_none", (old, new)


def test_a_check_of_a_mandate_does_not_find_out_what_a_file_hides(tmp_path: Path) -> None:
    (tmp_path / "a.ini").write_text(KEYS["a.ini"])
    with Workspace(tmp_path) as workspace:
        tool = check_file_tool(workspace, Redactor())
        found = [
            call_tool(
                tool, {"path": "a.ini", "text": text}, ToolContext("run-1", time.monotonic() + 60, lambda _: None)
            )
            for text in ("password = ", SECRET, SECRET[:3])
        ]
    assert [each.data["contains"] for each in found] == [True, False, False]


def test_of_a_file_that_is_too_large_for_one_call_each_part_is_masked(tmp_path: Path) -> None:
    (tmp_path / "a.ini").write_text("x = 1\n" * 1_000 + KEYS["a.ini"] + "y = 2\n" * 1_000)
    tools = WorkspaceTools(tmp_path, ToolRegistry(builtin_tools(tmp_path, read_bytes=2_048)))
    for first in (990, 1_000, 1_001, 1_002, 1_003):
        shown = tools.call("read_file", path="a.ini", start_line=first)
        assert "y = 2" in shown.content
        assert SECRET[:5] not in shown.content
    assert "password = [secret]" in tools.call("read_file", path="a.ini", start_line=1_002).content


def test_the_hash_of_a_file_is_that_of_no_other_of_the_same_content(tmp_path: Path) -> None:
    """A text that a caller writes elsewhere, and of which nothing is masked there, would tell whether it is right."""
    tools = keyed_tools(tmp_path)
    tools.write({"c.yaml": HELD, "d.yaml": HELD})
    hashes = {path: tools.call("read_file", path=path).data["sha256"] for path in ("c.yaml", "d.yaml")}
    assert hashes["c.yaml"] != hashes["d.yaml"]


@pytest.mark.parametrize("content", [HELD, "a: 1\nb: 2\n"], ids=["with a secret", "without"])
def test_an_edit_of_the_mark_is_told_what_it_stands_for_whatever_the_file_holds(tmp_path: Path, content: str) -> None:
    tools = keyed_tools(tmp_path)
    tools.write({"c.yaml": content})
    edit = {"path": "c.yaml", "old_string": "password: [secret]", "new_string": "password: x"}
    for name, given in (("edit_file", edit), ("plan_edits", {"edits": [edit]})):
        answer = tools.call(name, **given)
        assert answer.code == "match_none"
        assert "stands for a value that is not shown. Edit around it" in answer.content
        assert "own text" not in answer.content
