"""Agents are Markdown files with a front matter: read strictly, ours and the user's, each for itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.app import Place

from kairos_mcp.core.agent import Agent
from kairos_mcp.core.errors import ConfigError, UnknownAgent
from kairos_mcp.settings.agents import (
    AGENT_BYTES,
    DESCRIPTION_CHARS,
    HEAD_LINES,
    MAX_AGENTS,
    OURS,
    AgentFiles,
    load_agents,
)
from kairos_mcp.settings.folders import packaged_folder
from kairos_mcp.tools import builtin_tools
from kairos_mcp.tools.agent_files import check_tools, select_agent_tools
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.skills import SkillFolders

Write = Callable[..., AgentFiles]
GOOD = "---\nname: mine\ndescription: Does it.\n---\nYou do it.\n"


@pytest.fixture
def write(place: Place) -> Write:
    """Put a file into the user's folder of agents, and read all of them."""

    def write_and_load(content: str | bytes, name: str = "mine") -> AgentFiles:
        folder = place.home / "config" / "agents"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_bytes(content.encode() if isinstance(content, str) else content)
        return load_agents(place.settings())

    return write_and_load


@pytest.fixture
def registry(place: Place) -> ToolRegistry:
    return ToolRegistry(builtin_tools(place.workspace, read_bytes=1_000, skill_folders=SkillFolders([])))


def head(**keys: str) -> str:
    lines = {"name": "mine", "description": "Does it.", **keys}
    return "---\n" + "".join(f"{key}: {value}\n" for key, value in lines.items()) + "---\nYou do it.\n"


def problem_of(files: AgentFiles, name: str = "mine") -> str:
    (wrong,) = [wrong for wrong in files.disabled if wrong.name == name]
    assert name not in files.agents
    assert list(files.agents) == [ours for ours in OURS if ours != name]  # no other is harmed
    return wrong.problem


def test_ours_can_all_be_used_and_only_the_planner_has_no_tools(place: Place, registry: ToolRegistry) -> None:
    files = check_tools(load_agents(place.settings()), registry)
    assert (list(files.agents), files.disabled) == (list(OURS), ())
    assert [name for name, agent in files.agents.items() if agent.tools == ()] == ["planner"]
    assert {agent.max_rounds for agent in files.agents.values()} == {10}
    assert sorted(file.stem for file in (packaged_folder("config") / "agents").iterdir()) == sorted(OURS)


def test_ours_have_the_tools_that_their_work_needs_and_no_others(place: Place, registry: ToolRegistry) -> None:
    files = load_agents(place.settings())
    effects = {
        name: {spec.effect for spec in select_agent_tools(agent, registry)} for name, agent in files.agents.items()
    }
    assert effects["planner"] == set()
    assert effects["code_analyzer"] == effects["search_specialist"] == {"read"}
    assert effects["file_manager"] == effects["general"] == {"read", "checked"}
    operator = {spec.name for spec in select_agent_tools(files.agents["system_operator"], registry)}
    assert "run_command" in operator
    assert {spec.name for spec in registry.specs if spec.effect == "checked"} & operator == set()


def test_an_agent_is_what_its_file_says(write: Write) -> None:
    text = head(tools="[read_file, 'edit_*']", model="openai:gpt-5", max_rounds="3").replace(
        "Does it.", ">\n  Does\n  it."
    )
    assert write(text).agents["mine"] == Agent(
        "mine", "Does it.", ("read_file", "edit_*"), "You do it.", "openai:gpt-5", 3, "user"
    )


def test_what_is_left_out_has_its_default(write: Write) -> None:
    assert write(GOOD).agents["mine"] == Agent("mine", "Does it.", None, "You do it.", None, 10, "user")


def test_a_user_s_file_takes_the_place_of_ours_also_where_it_is_wrong(write: Write) -> None:
    files = write(head(name="general", tools="[read_file]"), "general")
    assert (files.agents["general"].origin, files.agents["general"].tools) == ("user", ("read_file",))
    assert list(files.agents) == list(OURS)  # in the same place
    assert problem_of(write("nothing", "general"), "general") == "It has no front matter."


@pytest.mark.parametrize("tools", ["read_file, edit_file", "\n  - read_file\n  - edit_file", "[read_file, edit_file]"])
def test_tools_are_a_list_or_names_with_commas(write: Write, tools: str) -> None:
    assert write(head(tools=tools)).agents["mine"].tools == ("read_file", "edit_file")


def test_a_byte_order_mark_and_line_ends_of_dos_are_no_part_of_the_text(write: Write) -> None:
    agent = write(b"\xef\xbb\xbf" + GOOD.replace("You do it.", "One.\nTwo.").replace("\n", "\r\n").encode()).agents[
        "mine"
    ]
    assert agent.prompt == "One.\nTwo."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le-mark", "utf-16-be-mark"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_an_agent_is_read_in_the_encodings_that_editors_write(write: Write, encoding: str, end: str) -> None:
    text = head(description="Sagt: é.").replace("\n", end)
    marked = text if not encoding.endswith("-mark") else f"\ufeff{text}"
    found = write(marked.encode(encoding.removesuffix("-mark"))).require("mine")
    assert (found.description, found.prompt) == ("Sagt: é.", "You do it.")


HOST_KEYS = "name: mine\ncolor: cyan\npermissionMode: plan\nmodel: inherit\ndescription: Use it when: tuning, sizing.\n"


def test_a_file_of_a_host_is_read_and_what_has_no_counterpart_is_named(
    write: Write, registry: ToolRegistry, place: Place
) -> None:
    files = write(f"---\n{HOST_KEYS}tools: Read, Grep, WebSearch, Bash(git:*)\n---\nDo.")
    (agent,) = [each for each in check_tools(files, registry).agents.values() if each.name == "mine"]
    assert (agent.description, agent.model) == ("Use it when: tuning, sizing.", None)
    assert agent.tools == ("read_file", "search_files")
    named = ["the key color", "the key permissionMode", "the tool WebSearch", "the tool Bash(git:*)"]
    assert list(agent.left_out) == named


def test_a_file_with_no_tool_but_those_of_a_host_without_counterpart_disables_its_agent(
    write: Write, registry: ToolRegistry
) -> None:
    files = check_tools(write(f"---\n{HOST_KEYS}tools: WebSearch\n---\nDo."), registry)
    assert "mine" not in files.agents


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("description: Use it when: tuning.", "Use it when: tuning."),
        ("description: ends with a colon:", "ends with a colon:"),
        ("description: @someone asks", "@someone asks"),
        ("description: `code` first: then", "`code` first: then"),
        ('description: say "x": done', 'say "x": done'),
        ("description: http://a.b/c", "http://a.b/c"),
        ("description: 'quoted: as it is'", "quoted: as it is"),
        ("description: back\\slash: kept", "back\\slash: kept"),
    ],
)
def test_a_plain_value_may_hold_a_colon(write: Write, line: str, value: str) -> None:
    assert write(f"---\nname: mine\n{line}\n---\nDo.").require("mine").description == value


WRONG = {
    "no description": ("---\nname: mine\n---\nDo.", "description: it is missing."),
    "an empty description": (head(description="'  '"), "description: "),
    "a number as a name": (head(name="5"), "name: it has to be a text."),
    "rounds as a text": (head(max_rounds="'5'"), "max_rounds: it has to be a whole number."),
    "no rounds": (head(max_rounds="0"), "max_rounds: "),
    "a truth value as rounds": (head(max_rounds="true"), "max_rounds: it has to be a whole number."),
    "tools as a mapping": (head(tools="{read_file: true}"), "tools."),
    "a number among the tools": (head(tools="[read_file, 5]"), "tools."),
    "no tools": (head(tools="[]"), "It has no tools."),
    "tools of commas": (head(tools="', ,'"), "It has no tools."),
    "a model with a space": (head(model="gpt 5"), "model: "),
    "another name than its file": (head(name="yours"), "Its name is 'yours', and its file's 'mine'."),
    "a key twice": ("---\nname: mine\nname: mine\ndescription: x\n---\nDo.", "Its front matter is not valid YAML: "),
    "no front matter": ("You do it.", "It has no front matter."),
    "an open front matter": ("---\nname: mine\ndescription: x\n", "It has no front matter."),
    "a list as front matter": ("---\n- mine\n---\nDo.", "Its front matter has no keys."),
    "an empty front matter": ("---\n---\nDo.", "Its front matter has no keys."),
    "broken YAML": (head(description="'a: b"), "Its front matter is not valid YAML: "),
    "a tab": ("---\nname: mine\n\tdescription: x\n---\nDo.", "Its front matter is not valid YAML: "),
    "no prompt": (GOOD.replace("You do it.", " "), "It has no prompt."),
    "an empty file": ("", "It has no front matter."),
    "a binary file": (b"\x89PNG\r\n\x1a\n\xff\xfe", "It is not text in UTF-8 or UTF-16."),
    "a NUL": (GOOD.replace("You", "You\0"), "It contains a NUL character."),
    "a huge file": (GOOD + "x" * AGENT_BYTES, "It has more than 64 KB."),
    "a huge front matter": (head(description="x" * 9_000), "Its front matter has more than 8,192 characters or"),
    "many lines of it": (head(tools="\n" + "  - read_file\n" * 200), "Its front matter has more than"),
    "a Python object": (head(model="!!python/object/apply:os.getcwd []"), "Its front matter is not valid YAML: "),
    "a date that is none": (head(model="2026-99-99"), "Its front matter is not valid YAML: "),
    "deep nesting": (head(tools="[" * 3_000 + "]" * 3_000), "Its front matter has references, or nests too deep."),
    "open brackets": (head(tools="[" * 8_000), "Its front matter has references, or nests too deep."),
    "references": (head(tools="[&a read_file, *a]"), "Its front matter has references, or nests too deep."),
    "two documents": ("---\nname: mine\ndescription: x\n...\n--- a\n---\nDo.", "Its front matter is not valid YAML: "),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_is_wrong_disables_its_agent_alone(write: Write, case: str) -> None:
    text, problem = WRONG[case]
    found = problem_of(write(text))
    assert found.startswith(problem)


def test_what_is_just_within_the_bounds_is_read(write: Write) -> None:
    description = "x" * DESCRIPTION_CHARS
    text = head(description=description, tools="\n" + "  - read_file\n" * (HEAD_LINES - 4))
    agent = write(text + "y" * (AGENT_BYTES - len(text))).agents["mine"]
    assert (agent.description, agent.tools) == (description, ("read_file",))
    assert problem_of(write(head(description=description + "x"))).startswith("description: ")


@pytest.mark.parametrize("merge", [False, True])
def test_a_few_lines_that_would_fill_the_memory_are_refused(write: Write, merge: bool) -> None:
    level = "{{<<: [{0}]}}" if merge else "[{0}]"
    lines = ["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {level.format(', '.join([f'*a{n - 1}'] * 20))}" for n in range(1, 30)]
    problem = problem_of(write("---\n" + "\n".join(lines) + "\n---\nDo."))
    assert problem == "Its front matter has references, or nests too deep."


@pytest.mark.parametrize("name", ["Mine", "my agent", "claude:mine", "x" * 65, "1st"])
def test_a_file_with_another_kind_of_name_is_named(write: Write, name: str) -> None:
    assert problem_of(write(GOOD, name), name[:64]).endswith("is not a name of an agent.")


def test_what_can_not_be_read_disables_its_agent(write: Write, place: Place) -> None:
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "folder.md").mkdir()
    (folder / "gone.md").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.md")
    (folder / ".hidden.md").write_text("x")
    (folder / "notes.txt").write_text("x")
    files = write(GOOD)
    assert {wrong.name: wrong.problem for wrong in files.disabled} == dict.fromkeys(
        ("folder", "gone", "pipe"), "It is not a file."
    )
    assert "mine" in files.agents


def test_of_a_folder_with_too_many_the_rest_is_named(write: Write, place: Place) -> None:
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True)
    for n in range(MAX_AGENTS):
        (folder / f"a{n:03}.md").write_text(GOOD.replace("mine", f"a{n:03}"))
    files = write(GOOD)
    assert [(wrong.name, wrong.problem) for wrong in files.disabled] == [
        ("mine", "Of a folder the first 300 files are read.")
    ]
    assert len(files.agents) == len(OURS) + MAX_AGENTS


def test_a_link_in_the_user_s_own_folder_is_followed(write: Write, place: Place, tmp_path: Path) -> None:
    (tmp_path / "kept.md").write_text(GOOD.replace("mine", "linked"))
    (place.home / "config" / "agents").mkdir(parents=True)
    (place.home / "config" / "agents" / "linked.md").symlink_to(tmp_path / "kept.md")
    assert write(GOOD).agents["linked"].prompt == "You do it."


def test_a_tool_that_is_not_there_disables_the_agent_and_the_nearest_are_named(
    write: Write, registry: ToolRegistry
) -> None:
    write(head(name="other", tools="[read_file, 'nothing_*']"), "other")
    files = check_tools(write(head(tools="[red_file]")), registry)
    assert {wrong.name: wrong.problem for wrong in files.disabled} == {
        "mine": "No tool matches 'red_file'.",
        "other": "No tool matches 'nothing_*'.",
    }
    assert "read_file" in files.disabled[0].hint


def test_without_a_workspace_those_that_need_files_are_disabled(place: Place) -> None:
    alone = ToolRegistry(builtin_tools(None, read_bytes=1_000, skill_folders=SkillFolders([])))
    files = check_tools(load_agents(place.settings()), alone)
    assert list(files.agents) == ["planner"]
    assert {wrong.hint for wrong in files.disabled} == {"Without a workspace there are no file tools."}


def test_an_agent_that_is_disabled_and_one_that_is_unknown_are_told_apart(write: Write) -> None:
    files = write("nothing")
    with pytest.raises(ConfigError, match="The agent mine is disabled: It has no front matter"):
        files.require("mine")
    with pytest.raises(UnknownAgent) as unknown:
        files.require("code_analyser")
    assert "code_analyzer" in unknown.value.hint


def test_what_an_agent_has_is_only_narrowed_and_every_agent_can_read_its_results(
    write: Write, registry: ToolRegistry
) -> None:
    agent = write(head(tools="[read_file, edit_file]")).agents["mine"]
    assert {spec.name for spec in select_agent_tools(agent, registry)} == {"read_file", "edit_file", "read_result"}
    assert {spec.name for spec in select_agent_tools(agent, registry, ("*_file",))} == {"read_file", "edit_file"}
    with pytest.raises(ConfigError, match="run_command"):
        select_agent_tools(replace(agent, tools=("run_command",)), ToolRegistry([]))
