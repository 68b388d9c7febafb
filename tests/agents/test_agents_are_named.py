"""A person sees which agents there are and what is wrong with one: by the command, by doctor, at a server's start; a
caller by the error of its call."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from support.app import Place, reads, says
from support.forked_program import run_program, start
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.server.mcp_server import build_server

SECRET = "sk-ant-api03-" + "a1B2" * 20
NAMED = "The agent broken (config/agents/broken.md) is disabled: No tool matches 'red_file'."


@pytest.fixture
def words(place: Place) -> list[str]:
    """The options of a command, with one agent of the user's that names a tool which is not there."""
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "broken.md").write_text("---\nname: broken\ndescription: x\ntools: [red_file]\n---\nDo.\n")
    (folder / "mine.md").write_text(
        "---\nname: mine\ndescription: Mine.\ntools: [read_file]\nmax_rounds: 4\n---\nDo.\n"
    )
    return ["--home", str(place.home), "--workspace", str(place.workspace)]


def kairos(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_program(words, env={**os.environ, **environ})


def test_the_command_lists_them_with_those_that_are_disabled(words: list[str], place: Place) -> None:
    found = json.loads(kairos("agents", "--json", *words).stdout)
    assert [each["name"] for each in found["agents"]][-2:] == ["general", "mine"]
    assert {name: found["agents"][-1][name] for name in ("description", "tools", "model", "max_rounds", "from")} == {
        "description": "Mine.",
        "tools": ["read_file"],
        "model": None,
        "max_rounds": 4,
        "from": "user",
    }
    assert [(each["name"], each["problem"]) for each in found["disabled"]] == [
        ("broken", "No tool matches 'red_file'.")
    ]
    text = kairos("agents", *words).stdout
    assert "broken              disabled: No tool matches 'red_file'." in text
    assert not place.db.exists()  # nothing is made for a look


def test_doctor_names_the_one_that_is_disabled_and_only_that(words: list[str]) -> None:
    found = json.loads(kairos("doctor", "--json", *words).stdout)["findings"]
    about = [(each["state"], each["text"].split(":")[0]) for each in found if each["matter"] == "agents"]
    assert [state for state, _ in about] == ["ok", "note"]
    assert about[1][1] == "broken is disabled (config/agents/broken.md)"


def test_the_start_of_a_server_names_it_on_stderr(words: list[str], place: Place) -> None:
    with (place.root / "stderr").open("w") as heard:
        served = start(["serve", *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=heard)
        try:
            assert wait_until(lambda: NAMED in (place.root / "stderr").read_text(), 30)
        finally:
            assert served.stdin is not None
            served.stdin.close()
            served.wait(20)
    assert "code_analyzer" not in (place.root / "stderr").read_text()


def test_a_run_in_the_terminal_is_of_the_agent_that_is_named(words: list[str], place: Place) -> None:
    place.settings(reads("a.txt"), says("It says alpha."))
    ended = json.loads(
        kairos("run", "Look.", "--agent", "mine", "--json", *words, KAIROS_SCRIPT=str(place.script)).stdout
    )
    assert (ended["status"], ended["summary"], ended["remaining"]["rounds"]) == ("completed", "It says alpha.", 2)
    refused = kairos("run", "Look.", "--agent", "broken", *words, KAIROS_SCRIPT=str(place.script))
    assert (refused.returncode, "The agent broken is disabled" in refused.stderr) == (2, True)
    unknown = kairos("run", "Look.", "--agent", "nobody", *words, KAIROS_SCRIPT=str(place.script))
    assert (unknown.returncode, "There is no agent 'nobody'" in unknown.stderr) == (2, True)


@pytest.mark.usefixtures("words")
async def test_an_agent_is_a_resource_with_its_prompt_or_with_what_is_wrong_with_it(place: Place) -> None:
    settings = place.settings()
    async with App.open(settings, via="mcp") as app:

        async def reach() -> App:
            return app

        async def read(name: str) -> Any:
            return json.loads((await client.read_resource(f"kairos://agents/{name}")).contents[0].text)

        async with Client(build_server(reach, settings)) as client:
            templates = (await client.list_resource_templates()).resource_templates
            assert "kairos://agents/{name}" in [template.uri_template for template in templates]
            mine = await read("mine")
            assert (mine["prompt"], mine["tools"], mine["max_rounds"]) == ("Do.", ["read_file"], 4)
            file = place.home / "config" / "agents" / "mine.md"
            file.write_text(file.read_text().replace("Do.", f"The key is {SECRET}."))
            assert SECRET not in (await read("mine"))["prompt"]
            assert (await read("%62roken"))["problem"] == "No tool matches 'red_file'."
            with pytest.raises(MCPError, match="There is no agent 'nobody'"):
                await read("nobody")


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"agent": "broken"}, "config_error"),
        ({"agent": "nobody"}, "unknown_agent"),
        ({"agent": "mine", "system": "Other."}, "bad_arguments"),
        ({"agent": "mine", "tools": ["edit_file"]}, "bad_arguments"),
        ({"agent": ""}, "bad_arguments"),
        ({"agent": 5}, "bad_arguments"),
    ],
)
async def test_a_call_that_can_not_be_made_says_by_its_code_why(
    place: Place, arguments: dict[str, Any], code: str
) -> None:
    settings = place.settings()
    async with App.open(settings, via="mcp") as app:

        async def reach() -> App:
            return app

        async with Client(build_server(reach, settings)) as client:
            result = await client.call_tool("planner_run", {"goal": "Look.", "wait_s": 0, **arguments})
    assert (result.is_error, result.structured_content["code"]) == (True, code)
    assert str(place.home) not in result.structured_content["message"]
