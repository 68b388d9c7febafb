"""Agents that a workspace keeps for Claude Code can be used by a setting alone, and never take the place of ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from support.app import PERSON, Place

from kairos_mcp.app.agents import AgentList
from kairos_mcp.app.app import App
from kairos_mcp.settings.agents import AGENT_BYTES, MAX_AGENTS, OURS
from kairos_mcp.settings.table_values import GateRule

Put = Callable[..., None]
READING = ["list_files", "file_tree", "read_file", "search_files", "read_result"]


@pytest.fixture
def write_agent(place: Place) -> Put:
    """Write an agent's file into `.claude/agents` of the workspace."""

    def write(text: str | bytes, name: str = "reviewer") -> None:
        folder = place.workspace / ".claude" / "agents"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_bytes(text.encode() if isinstance(text, str) else text)

    return write


def head(**keys: str) -> str:
    lines = {"name": "reviewer", "description": "Reviews code.", **keys}
    return "---\n" + "".join(f"{key}: {value}\n" for key, value in lines.items()) + "---\nYou review.\n"


async def list_agents(place: Place, **settings: Any) -> AgentList:
    async with App.open(place.settings(**{"claude_agents": True, **settings}), via="command") as app:
        return await app.agents.list_all(PERSON)


async def only(place: Place) -> dict[str, Any]:
    """The one agent of the workspace, as `agents --json` has it."""
    found = await list_agents(place)
    assert found.disabled == ()
    (agent,) = [each.as_json() for each in found.agents if each.agent.name.startswith("claude:")]
    return agent


def problems(found: AgentList) -> dict[str, str]:
    return {wrong.name: wrong.problem for wrong in found.disabled}


async def test_without_the_setting_they_are_not_read(place: Place, write_agent: Put) -> None:
    write_agent(head())
    assert [each.agent.name for each in (await list_agents(place, claude_agents=False)).agents] == list(OURS)


async def test_one_that_names_no_tools_has_those_that_read(place: Place, write_agent: Put) -> None:
    write_agent(head(model="inherit"))
    assert await only(place) == {
        "name": "claude:reviewer",
        "description": "Reviews code.",
        "tools": READING,
        "model": None,
        "max_rounds": 10,
        "from": ".claude/agents/reviewer.md",
        "left_out": [],
        "record": None,
    }


@pytest.mark.parametrize(
    "tools", ["Read, Edit,Bash", "[Read, Edit, Bash]", "\n- Read\n- Edit\n- Bash", "Read, Edit, Bash,"]
)
async def test_tools_are_translated_by_name(place: Place, write_agent: Put, tools: str) -> None:
    write_agent(head(tools=tools, model="sonnet"))
    found = await only(place)
    assert (set(found["tools"]), found["model"]) == ({"read_file", "edit_file", "run_command"}, "sonnet")


async def test_keys_and_tools_without_a_counterpart_are_left_out_and_named(place: Place, write_agent: Put) -> None:
    write_agent(head(tools="Read, Bash(git *), WebSearch, mcp__github__get", color="red", maxTurns="3"))
    found = await only(place)
    assert found["tools"] == ["read_file"]
    names = ["the key color", "the key maxTurns", "the tool Bash(git *)", "the tool WebSearch"]
    assert found["left_out"] == [*names, "the tool mcp__github__get"]


async def test_keys_that_nest_as_those_of_that_format_do_are_left_out_too(place: Place, write_agent: Put) -> None:
    hooks = "\n  PreToolUse:\n    - matcher: Bash\n      hooks:\n        - type: command\n          command: ./x.sh"
    write_agent(head(hooks=hooks, tools="\n  - Read\n  - Grep"))
    found = await only(place)
    assert (set(found["tools"]), found["left_out"]) == ({"read_file", "search_files"}, ["the key hooks"])


async def test_a_tool_that_a_setting_keeps_off_is_left_out(place: Place, write_agent: Put) -> None:
    write_agent(head(tools="Grep, WebFetch, Bash"))
    found = await list_agents(place, commands="off")
    (agent,) = [each for each in found.agents if each.agent.name == "claude:reviewer"]
    assert (agent.tools, agent.agent.left_out) == (("search_files",), ("the tool WebFetch", "the tool Bash"))


async def test_what_a_file_forbids_it_has_not(place: Place, write_agent: Put) -> None:
    write_agent(head(tools="Read, Edit, Bash", disallowedTools="Bash(rm *), Edit"))
    assert (await only(place))["tools"] == ["read_file"]
    write_agent(head(disallowedTools="[Grep]"))
    assert (await only(place))["tools"] == [name for name in READING if name != "search_files"]


async def test_a_description_with_colons_is_read_though_it_is_no_yaml(place: Place, write_agent: Put) -> None:
    write_agent(head(description="Use this: Examples: <example>user: 'hi'</example>", tools="[Read, WebSearch]"))
    found = await only(place)
    assert found["description"] == "Use this: Examples: <example>user: 'hi'</example>"
    assert (found["tools"], found["left_out"]) == (["read_file"], ["the tool WebSearch"])


async def test_of_a_folder_with_too_many_the_rest_is_named(place: Place, write_agent: Put) -> None:
    for n in range(MAX_AGENTS + 1):
        write_agent(head(name=f"a{n}"), f"a{n:03}")
    found = await list_agents(place)
    assert len(found.agents) == len(OURS) + MAX_AGENTS
    assert problems(found) == {"claude:*": "Of a folder the first 300 files are read."}


async def test_one_with_the_name_of_ours_stands_beside_it(place: Place, write_agent: Put) -> None:
    write_agent(head(name="general"), "general")
    found = {each.agent.name: each.agent.origin for each in (await list_agents(place)).agents}
    assert (found["general"], found["claude:general"]) == ("built-in", ".claude/agents/general.md")


async def test_of_two_files_with_one_name_the_first_counts_and_the_other_is_named(
    place: Place, write_agent: Put
) -> None:
    write_agent(head(), "a")
    write_agent(head(description="Other."), "b")
    found = await list_agents(place)
    assert [(wrong.name, wrong.origin, wrong.problem) for wrong in found.disabled] == [
        ("claude:reviewer", ".claude/agents/b.md", ".claude/agents/a.md has the same name.")
    ]
    assert [each.agent.description for each in found.agents if each.agent.name == "claude:reviewer"] == [
        "Reviews code."
    ]


WRONG: dict[str, tuple[str | bytes, str]] = {
    "no tools": (head(tools="[]"), "None of its tools is there."),
    "unknown tools alone": (head(tools="WebSearch, Task"), "None of its tools is there."),
    "all forbidden": (head(tools="Read", disallowedTools="Read"), "None of its tools is there."),
    "no description": ("---\nname: reviewer\n---\nDo.", "It has no description."),
    "no name": ("---\ndescription: x\n---\nDo.", "It has no name."),
    "a name with spaces": (head(name="Code reviewer"), "Its name has to be one word"),
    "a name that leaves the line": (head(name='"a\\e[2J"'), "Its name has to be one word"),
    "tools as a number": (head(tools="5"), "tools: it is not a list of names."),
    "no front matter": ("Do.", "It has no front matter."),
    "no prompt": (head().replace("You review.", ""), "It has no prompt."),
    "a huge file": (head() + "x" * AGENT_BYTES, "It has more than 64 KB."),
    "a binary file": (b"\xff\xfe\x00", "It is not text in UTF-8"),
}


KNOWN_NAME = ("no tools", "unknown tools alone", "all forbidden", "no description", "tools as a number")


@pytest.mark.parametrize("case", WRONG)
async def test_one_that_can_not_be_used_is_named_and_no_other_is_harmed(
    place: Place, write_agent: Put, case: str
) -> None:
    text, problem = WRONG[case]
    write_agent(text, "wrong")
    write_agent(head(), "zz")
    found = await list_agents(place)
    ((name, reason),) = problems(found).items()
    assert name == ("claude:reviewer" if case in KNOWN_NAME else "claude:wrong")
    assert reason.startswith(problem)
    assert [each.agent.name for each in found.agents] == [*OURS, "claude:reviewer"]


async def test_nothing_is_read_through_a_link_or_from_what_is_no_file(place: Place, write_agent: Put) -> None:
    outside = place.root / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text(head(name="secret"))
    write_agent(head())
    folder = place.workspace / ".claude" / "agents"
    (folder / "linked.md").symlink_to(outside / "secret.md")
    (folder / "inner.md").symlink_to(folder / "reviewer.md")
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    found = await list_agents(place)
    assert set(problems(found)) == {"claude:linked", "claude:inner", "claude:folder", "claude:pipe"}
    assert [each.agent.name for each in found.agents] == [*OURS, "claude:reviewer"]


async def test_a_folder_that_is_a_link_counts_as_none(place: Place) -> None:
    outside = place.root / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text(head(name="secret"))
    (place.workspace / ".claude").mkdir()
    (place.workspace / ".claude" / "agents").symlink_to(outside)
    found = await list_agents(place)
    assert ([each.agent.name for each in found.agents], found.disabled) == (list(OURS), ())


@pytest.mark.parametrize("verdict", ["deny", "ask"])
async def test_what_no_run_may_read_is_not_read_here_either(place: Place, write_agent: Put, verdict: Any) -> None:
    write_agent(head(), "open")
    write_agent(head(name="hidden"), "hidden")
    rule = GateRule("read_*", verdict, paths=(".claude/agents/hidden.md",))
    found = await list_agents(place, gate=(rule,))
    assert problems(found) == {"claude:hidden": "A rule of the gate keeps it from being read."}
    assert [each.agent.name for each in found.agents] == [*OURS, "claude:reviewer"]
