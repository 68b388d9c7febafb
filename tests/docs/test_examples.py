"""Each example does what its page says: the commands of its executed blocks are run, in a copy of its folder."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from http.server import HTTPServer
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from readme import EXAMPLES
from support.commands import Said, command
from support.environment import plain_environ

from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.tools.entry_points import EntryPointSource

NAMES = sorted(page.parent.name for page in EXAMPLES.glob("*/README.md"))
EXECUTED = re.compile(r"<!-- executed -->\n```sh\n(.*?)```", re.DOTALL)


def executed_lines(page: Path) -> list[str]:
    return [line for block in EXECUTED.findall(page.read_text()) for line in block.strip().splitlines()]


def run_lines(folder: Path, lines: list[str], state: Path) -> list[Said]:
    """Run commands of a page one after another; RUN and KEY are those that the command before named."""
    environ = plain_environ("XDG_") | {"KAIROS_HOME": str(state), "HOME": str(state.parent), "NO_COLOR": "1"}
    if (folder / "kairos.toml").exists():
        environ["KAIROS_CONFIG"] = str(folder / "kairos.toml")
    said: list[Said] = []
    for line in lines:
        named = re.findall(r" (run-\w+) (\S+/approval)\n", said[-1].out + "\n") if said else []
        run, key = named[-1] if named else ("RUN", "KEY")
        words = [{"RUN": run, "KEY": key}.get(word, word) for word in shlex.split(line, comments=True)[1:]]
        target = words[-1] if words[-2:-1] == [">"] else None
        said.append(command(*(words[:-2] if target else words), folder=folder, environ=environ))
        if target is not None:
            (folder / target).write_text(said[-1].out)
        expected = re.search(r"# exits with (\d+)", line)
        assert said[-1].code == int(expected[1] if expected else 0), said[-1].out + said[-1].err
    return said


@pytest.fixture
def tried(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, list[Said]]:
    """A copy of the example that the test names, after its commands."""
    folder = tmp_path / request.param
    shutil.copytree(EXAMPLES / request.param, folder)
    return folder, run_lines(folder, executed_lines(EXAMPLES / request.param / "README.md"), tmp_path / "state")


def an_example(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("tried", [name], indirect=True, ids=[name])


def test_there_are_ten_and_the_index_names_each() -> None:
    assert len(NAMES) == 10
    assert sorted(re.findall(r"\[([a-z-]+)\]\(\1/README\.md\)", (EXAMPLES / "README.md").read_text())) == NAMES


@an_example("fix-with-approval")
def test_a_change_is_made_only_after_it_was_approved(tried: tuple[Path, list[Said]]) -> None:
    folder, said = tried
    assert "+ Start with [the installation](install.md)." in said[1].out
    assert "(install.md)" in (folder / "docs" / "guide.md").read_text()


@an_example("limits")
def test_a_limit_ends_with_the_summary_that_was_set_aside(tried: tuple[Path, list[Said]]) -> None:
    assert "the comparison is missing" in tried[1][0].out
    assert "rounds" in tried[1][1].out


@an_example("gate-rules")
def test_a_rule_allows_and_another_denies(tried: tuple[Path, list[Said]]) -> None:
    assert "Version 2" in (tried[0] / "docs" / "guide.md").read_text()
    assert "Version 1" in (tried[0] / "docs" / "legal.md").read_text()


@pytest.mark.slow
@pytest.mark.sandbox
@an_example("stage-rename")
def test_a_stage_is_applied_after_one_question(tried: tuple[Path, list[Said]]) -> None:
    assert "checked" in tried[1][0].err
    assert "def amount(" in (tried[0] / "shop.py").read_text()


@pytest.mark.slow
@an_example("nightly-links")
def test_a_mandate_ends_when_its_check_holds(tried: tuple[Path, list[Said]]) -> None:
    assert "goal_achieved" in tried[1][-2].out
    assert "(install.md)" in (tried[0] / "docs" / "guide.md").read_text()


@pytest.mark.slow
@an_example("team-audit")
def test_a_team_carries_out_its_plan(tried: tuple[Path, list[Said]]) -> None:
    assert "2/2 tasks" in tried[1][1].out


def test_an_installed_function_is_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = EXAMPLES / "own-tool"
    monkeypatch.syspath_prepend(str(folder))
    (group,) = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"].items()
    points = [EntryPoint(name, value, group[0]) for name, value in group[1].items()]
    source = EntryPointSource(find_entry_points=lambda: points)
    source.wait_ready(time.monotonic() + 20)
    assert not source.notes()
    (tool,) = source.tools()
    assert (tool.spec.name, tool.spec.effect, sorted(tool.spec.input_schema["properties"])) == (
        "word_count",
        "read",
        ["at_least", "text"],
    )


def test_an_endpoint_is_a_tool(tmp_path: Path) -> None:
    folder = tmp_path / "http-tool"
    shutil.copytree(EXAMPLES / "http-tool", folder)
    warehouse = runpy.run_path(str(folder / "warehouse.py"))["Warehouse"]
    warehouse.log_message = lambda *_: None
    with HTTPServer(("127.0.0.1", 0), warehouse) as server:  # the page's own port may be in use here
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = (folder / "kairos.toml").read_text()
        (folder / "kairos.toml").write_text(config.replace("8899", str(server.server_port)))
        said = run_lines(folder, executed_lines(folder / "README.md"), tmp_path / "state")
        server.shutdown()
    assert "1200" in said[1].out


def test_the_settings_of_the_servers_example_fit_its_file() -> None:
    folder = EXAMPLES / "mcp-server"
    (server,) = load_settings(Flags(str(folder), config=str(folder / "kairos.toml")), {}).servers
    assert (server.name, (folder / server.command[-1]).exists()) == ("notes", True)


@pytest.mark.slow
def test_a_server_of_the_sdk_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "mcp-server"
    shutil.copytree(EXAMPLES / "mcp-server", folder)
    config = (folder / "kairos.toml").read_text()
    (folder / "kairos.toml").write_text(config.replace('"python3"', f'"{sys.executable}"'))
    said = run_lines(folder, ["kairos-mcp tools call notes__list_notes '{}'"], tmp_path / "state")
    assert "Water the plants." in said[0].out


@pytest.mark.slow
def test_a_client_answers_its_rounds_itself(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("kairos-mcp")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "calling-agent" / "agent.py", program, EXAMPLES / "site"],
        env={**os.environ, "KAIROS_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("completed ")
    assert "links.toml" in done.stdout
