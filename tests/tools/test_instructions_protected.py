"""What instructs agents and their hosts, and programs: what is there is read-only, what is made is undone."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from support.waiting import wait_until
from test_command import WITHIN_S, CommandRunner, body

from kairos_mcp.core.instruction_files import INSTRUCTION_GLOBS
from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import Preview, ToolContext, ToolMemory
from kairos_mcp.store.tool_intents import intent_name
from kairos_mcp.tools.commands import protected_paths
from kairos_mcp.tools.commands.held_paths import MAX_HELD
from kairos_mcp.tools.files.content_hash import plain_hash
from kairos_mcp.tools.files.edit_tools import EditRules, make_tools
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.tool import call_tool, preview_call

pytestmark = pytest.mark.sandbox
NAMES = sorted(glob for glob in INSTRUCTION_GLOBS if not set("/*?[") & set(glob))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    inside = tmp_path / "W"
    (inside / "sub").mkdir(parents=True)
    return inside


@pytest.fixture
def runner(workspace: Path) -> CommandRunner:
    return CommandRunner(workspace)


def files(workspace: Path) -> set[str]:
    return {path.relative_to(workspace).as_posix() for path in workspace.rglob("*")}


def run_and_record(runner: CommandRunner, script: str, *known: str) -> tuple[ToolResult, list[dict[str, object]]]:
    """Run a shell's script; returns the result, and what was moved into the record, where these secrets are known."""
    kept: dict[str, str] = {}
    memory = ToolMemory(kept.__setitem__, kept.get, redactor=Redactor(known))
    ctx = ToolContext("run-1", time.monotonic() + 60, lambda _: None, "round-1/call-1", memory)
    result = call_tool(runner.tool, {"argv": ["sh", "-c", script]}, ctx)
    assert kept.pop(intent_name("round-1/call-1"))
    assert all(name.startswith("round-1/call-1/taken-out") for name in kept)
    return result, [json.loads(text) for text in kept.values()]


def test_what_is_there_is_read_only_at_any_depth(runner: CommandRunner) -> None:
    (runner.workspace / "AGENTS.md").write_text("ours")
    (runner.workspace / ".vscode").mkdir()
    (runner.workspace / ".vscode" / "tasks.json").write_text("ours")
    deep = runner.workspace / "sub" / "inner"
    (deep / ".claude").mkdir(parents=True)
    (deep / ".claude" / "settings.json").write_text("ours")
    (deep / "CLAUDE.md").write_text("ours")
    (runner.workspace / "skills").mkdir()
    before = files(runner.workspace)
    assert body(runner.run("cat", "AGENTS.md", "sub/inner/.claude/settings.json")) == "oursours"
    for attack in (
        "echo x > AGENTS.md",
        "rm AGENTS.md",
        "echo x > new && mv new AGENTS.md",
        "echo x > .vscode/tasks.json",
        "echo x > .vscode/launch.json",
        "mv .vscode v",
        "echo x > sub/inner/.claude/settings.json",
        "echo x > sub/inner/CLAUDE.md",
        "mv sub/inner/CLAUDE.md sub",
        "ln sub/inner/CLAUDE.md sub/hard && echo x > sub/hard",
        "mv sub/inner sub/other && echo x > sub/other/CLAUDE.md",
        "mv sub s && mkdir -p sub/inner && echo x > sub/inner/CLAUDE.md",
        "mkdir skills/x",
    ):
        assert runner.run("sh", "-c", attack).is_error, attack
        (runner.workspace / "new").unlink(missing_ok=True)
    assert files(runner.workspace) == before
    assert {(runner.workspace / path).read_text() for path in before if (runner.workspace / path).is_file()} == {"ours"}
    assert not runner.run("sh", "-c", "echo fine > sub/inner/code.c").is_error


def test_what_is_made_at_the_top_is_gone_when_the_call_has_ended(runner: CommandRunner) -> None:
    for attempt in ("echo x > $each", "mkdir -p $each/x", "ln -sfT /etc $each"):
        made = runner.run("sh", "-c", f"for each; do {attempt}; done", "sh", *NAMES)
        assert (made.code, files(runner.workspace)) == ("path_denied", {"sub"}), attempt
        assert all(f"[{name} was created" in made.content for name in NAMES)


def test_no_name_is_made_in_the_workspace_to_protect_it(runner: CommandRunner) -> None:
    (runner.workspace / "AGENTS.md").write_text("ours")
    assert body(runner.run("ls", "-A")).split() == ["AGENTS.md", "sub"]
    assert files(runner.workspace) == {"AGENTS.md", "sub"}


def test_names_of_hosts_are_protected_in_any_case(runner: CommandRunner) -> None:
    for name in ("agents.md", ".Mcp.json"):  # hosts on other systems read these too
        assert run_and_record(runner, f"echo x > {name}")[0].code == "path_denied"
    assert files(runner.workspace) == {"sub"}


def test_what_is_made_deeper_is_moved_into_the_record_and_the_call_has_failed(runner: CommandRunner) -> None:
    made, record = run_and_record(
        runner, "mkdir -p sub/a/.github && echo obey > sub/a/AGENTS.md && cp sub/a/A* sub/a/.github"
    )
    assert (made.is_error, made.code, made.data) == (True, "path_denied", {"exit_code": 0})
    assert "sub/a/AGENTS.md" in made.content
    assert "command_writes" in made.content
    assert record == [
        {"path": "sub/a/.github", "texts": {"AGENTS.md": "obey\n"}},
        {"path": "sub/a/AGENTS.md", "texts": {"": "obey\n"}},
    ]
    assert files(runner.workspace) == {"sub", "sub/a"}
    assert not run_and_record(runner, "echo x > sub/a/code")[0].is_error


def test_the_record_has_no_secret_of_what_is_moved_into_it(runner: CommandRunner) -> None:
    (runner.workspace / "settings.yaml").write_text("db_password: okapi-plainword\nhost: here\n")
    (runner.workspace / "key.txt").write_text("zebra-quagga-5577\n")
    made, record = run_and_record(
        runner,
        "cp settings.yaml AGENTS.md; (echo NAME=plainword; cat key.txt) > .envrc; mkdir -p x/.git/hooks; cd x/.git; "
        "echo ref: refs/heads/main > HEAD; mkdir objects refs; cp ../../key.txt hooks/pre-commit",
        "zebra-quagga-5577",
    )
    assert made.code == "path_denied"
    texts = {(each["path"], part): text for each in record for part, text in {**each["texts"]}.items()}  # type: ignore[arg-type,dict-item]
    assert texts["AGENTS.md", ""] == "db_password: [secret]\nhost: here\n"
    assert texts[".envrc", ""].startswith("NAME=[secret]\n")
    assert not [value for value in ("plainword", "zebra-quagga") if value in str(record) + made.content]
    assert "x/.git" in str(record)


def test_skills_that_were_not_there_are_moved_as_well(runner: CommandRunner) -> None:
    made, record = run_and_record(runner, "mkdir -p skills/x && echo obey > skills/x/SKILL.md")
    assert made.code == "path_denied"
    assert record == [{"path": "skills", "texts": {"x/SKILL.md": "obey\n"}}]
    assert files(runner.workspace) == {"sub"}


@pytest.mark.parametrize("path", [".zed/settings.json", "sub/.idea/workspace.xml", "x.code-workspace", "mise.toml"])
def test_what_an_editor_or_a_shell_starts_by_itself_is_read_only_or_moved_as_well(
    runner: CommandRunner, path: str
) -> None:
    made, record = run_and_record(runner, f"mkdir -p $(dirname {path}) && echo obey > {path}")
    assert made.code == "path_denied"
    assert [{**each["texts"]}.popitem()[1] for each in record] == ["obey\n"]
    file = runner.workspace / path
    assert not file.exists()
    file.parent.mkdir(exist_ok=True)
    file.write_text("ours")
    assert runner.run("sh", "-c", f"echo obey > {path}").is_error
    assert file.read_text() == "ours"


@pytest.mark.parametrize("content", ["head -c 400000 /dev/zero | tr '\\0' x", "printf '\\377'"])
def test_what_no_record_takes_is_put_aside_under_a_name_that_instructs_nobody(
    runner: CommandRunner, content: str
) -> None:
    made, record = run_and_record(runner, f"{content} > sub/AGENTS.md")
    assert (made.code, record) == ("path_denied", [])
    (aside,) = (runner.workspace / "sub").iterdir()
    assert aside.name.startswith(".kairos-aside-")
    assert aside.name in made.content


def test_a_link_is_put_back_and_what_it_leads_to_is_read_only(runner: CommandRunner) -> None:
    (runner.workspace / "docs.md").write_text("ours")
    (runner.workspace / "CLAUDE.md").symlink_to("docs.md")
    (runner.workspace / "sub" / "AGENTS.md").symlink_to("../made.md")
    assert run_and_record(runner, "echo x > docs.md")[0].is_error
    swapped, record = run_and_record(
        runner, "rm CLAUDE.md && echo obey > CLAUDE.md; rm sub/AGENTS.md; echo obey > made.md"
    )
    assert swapped.code == "path_denied"
    assert {each["path"] for each in record} == {"CLAUDE.md", "made.md"}  # the link that is back leads to it
    assert os.readlink(runner.workspace / "CLAUDE.md") == "docs.md"
    assert os.readlink(runner.workspace / "sub" / "AGENTS.md") == "../made.md"
    assert (runner.workspace / "docs.md").read_text() == "ours"
    made, record = run_and_record(runner, "echo obey > made.md")
    assert (made.code, [each["path"] for each in record]) == ("path_denied", ["made.md"])
    assert not (runner.workspace / "made.md").exists()


def test_what_a_person_named_may_be_written_and_nothing_beside_it(workspace: Path) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode" / "tasks.json").write_text("ours")
    runner = CommandRunner(workspace, writes=("GEMINI.md", ".github/workflows/*", ".vscode/settings.json"))
    allowed, _ = run_and_record(
        runner,
        "mkdir -p .github/workflows; for x in GEMINI.md sub/GEMINI.md .github/workflows/a .vscode/settings.json;"
        "do echo x > $x; done",
    )  # fmt: skip
    assert not allowed.is_error, allowed.content
    assert {"GEMINI.md", "sub/GEMINI.md", ".github/workflows/a", ".vscode/settings.json"} <= files(workspace)
    assert runner.run("sh", "-c", "echo x > .vscode/tasks.json").is_error
    assert runner.run("sh", "-c", "echo x > AGENTS.md").is_error
    made, record = run_and_record(runner, "echo x > .github/CODEOWNERS; echo y > .github/workflows/b")
    assert (made.code, [each["path"] for each in record]) == ("path_denied", [".github/CODEOWNERS"])
    assert (workspace / ".github" / "workflows" / "b").exists()
    assert (workspace / ".vscode" / "tasks.json").read_text() == "ours"


def test_dependencies_may_hold_what_they_like(runner: CommandRunner) -> None:
    places = "node_modules .venv lib/site-packages sub/vendor"
    script = f"for x in {places}; do mkdir -p $x/p/.github; echo x > $x/p/AGENTS.md; done"
    for _ in range(2):
        assert not run_and_record(runner, script)[0].is_error
    assert (runner.workspace / "sub" / "vendor" / "p" / "AGENTS.md").exists()


@pytest.mark.parametrize("path", ["AGENTS.md", "sub/AGENTS.md"])
def test_what_a_person_lets_a_run_write_waits_for_programs_and_stays(runner: CommandRunner, path: str) -> None:
    tools = make_tools(
        EditRules(runner.open_workspace, build_scopes(runner.workspace), 1 << 20, Redactor(), plain_hash)
    )
    write = next(tool for tool in tools if tool.spec.name == "write_file")
    wanted = {"path": path, "content": "approved"}
    results: list[ToolResult] = []
    waits = "touch begun; while ! [ -e go ]; do sleep 0.01; done"
    program = threading.Thread(target=lambda: results.append(runner.run("sh", "-c", waits)))
    program.start()
    wait_until((runner.workspace / "begun").exists, WITHIN_S)
    assert isinstance(preview_call(write, wanted, ToolContext("run-1", time.monotonic() + 60, lambda _: None)), Preview)
    busy = call_tool(write, wanted, ToolContext("run-1", time.monotonic() + 0.2, lambda _: None))
    assert (busy.code, not (runner.workspace / path).is_file()) == ("busy", True)
    ctx = ToolContext("run-1", time.monotonic() + 60, lambda _: None, "round-2/call-1")
    writer = threading.Thread(target=lambda: results.append(call_tool(write, wanted, ctx)))
    writer.start()
    (runner.workspace / "go").touch()
    for each in (program, writer):
        each.join(WITHIN_S)
    (ended,) = [each for each in results if each.content.startswith("[exit")]
    (written,) = [each for each in results if each is not ended]
    assert ended.code is None, ended.content
    assert not written.is_error, written.content
    assert (runner.workspace / path).read_text() == "approved"


def test_what_was_there_beyond_all_bounds_is_left_and_a_change_of_it_is_a_failure(runner: CommandRunner) -> None:
    for number in range(MAX_HELD + 20):
        (runner.workspace / "sub" / f"{number:03}").mkdir()
        (runner.workspace / "sub" / f"{number:03}" / "AGENTS.md").write_text("ours")
    quiet, _ = run_and_record(runner, "true")
    assert not quiet.is_error
    assert "could write" in quiet.content
    changed, record = run_and_record(runner, "for x in sub/*; do echo x > $x/AGENTS.md; done; true")
    assert (changed.code, record) == ("path_denied", [])
    assert (runner.workspace / "sub" / "000" / "AGENTS.md").read_text() == "ours"
    assert f"sub/{MAX_HELD + 19:03}/AGENTS.md was changed" in changed.content


def test_what_was_there_and_was_not_seen_before_is_not_taken_for_new(
    runner: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protected_paths, "MAX_FOLDERS", 50)
    for number in range(50):
        (runner.workspace / "many" / str(number)).mkdir(parents=True)
    (runner.workspace / "zeal" / "deep").mkdir(parents=True)
    (runner.workspace / "zeal" / "deep" / "AGENTS.md").write_text("somebody's")
    result, record = run_and_record(runner, "rm -r many")
    assert (result.is_error, record) == (False, [])
    assert (runner.workspace / "zeal" / "deep" / "AGENTS.md").read_text() == "somebody's"
