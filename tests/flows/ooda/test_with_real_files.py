"""Cycles over a real folder, with the tools that read and change it: what flows and tools say to each other fits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.cycle_inputs import EDIT, ORIENTED, digest, order, run_flow, simulation_of
from support.flow_runner import Fed

from kairos_mcp.core.builtin_tools import EDIT_TOOLS
from kairos_mcp.core.messages import JsonObject, ToolSet
from kairos_mcp.core.steps import Answer, CallTool, Step
from kairos_mcp.core.tool import ToolContext, ToolMemory
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.cycles import mandate_flow
from kairos_mcp.tools import builtin_tools
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.results import shorten
from kairos_mcp.tools.tool import call_tool

TEXT = "one\nbroken\nthree\n"


@dataclass
class RealTools:
    """Calls real tools and shortens what they give, as the steps of a run do; the rest is answered by a simulation."""

    registry: ToolRegistry
    think: Callable[[Step], Answer]
    before: dict[str, Callable[[], Any]]
    memory: ToolMemory

    def __call__(self, step: Step) -> Answer:
        self.before.get(step.name, lambda: None)()
        match step:
            case CallTool(call=wanted) if (tool := self.registry.find(wanted.name)) is not None:
                around = ToolContext("run-1", time.monotonic() + 60, {}.get, step.name, self.memory)
                return shorten(call_tool(tool, wanted.arguments, around), 12_000, step.name)[0]
            case _:
                return self.think(step)


def cycle(folder: Path, decide: Any, before: dict[str, Callable[[], Any]] | None = None, **mandate: Any) -> Fed:
    registry = ToolRegistry(builtin_tools(folder, read_bytes=1 << 20))
    reads = ToolSet([spec for spec in registry.specs if spec.effect == "read" and spec.name not in EDIT_TOOLS])
    of: CycleContext = replace(order(**mandate), reads=reads, runnable=reads)
    files = [{"path": name} for name in sorted(path.name for path in folder.iterdir())]
    place = simulation_of(of, phases={"decide": decide, "orient": ORIENTED | {"files": files}})
    return run_flow(mandate_flow(of, 1), RealTools(registry, place, before or {}, ToolMemory.in_process()))


def act_of(fed: Fed) -> JsonObject:
    (only,) = fed.outcome.output["cycles"]
    act: JsonObject = only["act"]
    return act


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.md").write_text(TEXT)
    (tmp_path / "b.md").write_text(TEXT)
    return tmp_path


def test_an_edit_is_made_on_what_was_read_and_both_hashes_are_there(folder: Path) -> None:
    fed = cycle(folder, EDIT)
    assert (folder / "a.md").read_text() == "one\nwhole\nthree\n"
    files = [{"path": "a.md", "before": digest(TEXT), "after": digest("one\nwhole\nthree\n")}]
    assert (act_of(fed)["status"], act_of(fed)["files"]) == ("applied", files)
    text = fed.request("cycle-1/decide").conversation[1].content
    assert f"### a.md, lines 1-3 of 3 (hash {digest(TEXT)})\n    1| one\n    2| broken\n    3| three\n" in text


def test_the_tree_is_observed(folder: Path) -> None:
    fed = cycle(folder, EDIT)
    assert "a.md" in fed.request("cycle-1/orient").conversation[1].content


def test_a_file_that_changed_between_decision_and_act_is_left_as_it_is(folder: Path) -> None:
    fed = cycle(folder, EDIT, {"cycle-1/act/call-1": lambda: (folder / "a.md").write_text("broken, by somebody\n")})
    assert (folder / "a.md").read_text() == "broken, by somebody\n"
    assert (act_of(fed)["status"], act_of(fed)["code"]) == ("failed", "stale_file")


PLAN: JsonObject = {
    "action": "edit_plan",
    "edits": [
        {"path": "a.md", "old_string": "broken", "new_string": "whole"},
        {"path": "a.md", "old_string": "three", "new_string": "3"},
        {"path": "b.md", "old_string": "one", "new_string": "1"},
    ],
    "intent": "i",
}
MEDIUM = {"allowed_actions": ["edit_plan", "create_file"], "risk_budget": "medium"}


def test_a_plan_is_made_whole(folder: Path) -> None:
    fed = cycle(folder, PLAN, **MEDIUM)
    assert [(folder / name).read_text() for name in ("a.md", "b.md")] == ["one\nwhole\n3\n", "1\nbroken\nthree\n"]
    assert [file["path"] for file in act_of(fed)["files"]] == ["a.md", "b.md"]


def test_a_plan_of_which_one_file_changed_changes_none(folder: Path) -> None:
    fed = cycle(folder, PLAN, {"cycle-1/act/call-1": lambda: (folder / "b.md").write_text(TEXT + "x")}, **MEDIUM)
    assert [(folder / name).read_text() for name in ("a.md", "b.md")] == [TEXT, TEXT + "x"]
    assert (act_of(fed)["status"], act_of(fed)["code"]) == ("failed", "stale_file")


CREATE: JsonObject = {"action": "create_file", "target": "new/c.md", "content": "new\n", "intent": "i"}


def test_a_file_is_created_where_there_is_none(folder: Path) -> None:
    fed = cycle(folder, CREATE, **MEDIUM)
    assert (folder / "new/c.md").read_text() == "new\n"
    assert act_of(fed)["files"] == [{"path": "new/c.md", "before": None, "after": digest("new\n")}]


def test_a_file_that_somebody_made_meanwhile_is_not_written_over(folder: Path) -> None:
    def make_file() -> None:
        (folder / "new").mkdir()
        (folder / "new/c.md").write_text("theirs\n")

    fed = cycle(folder, CREATE, {"cycle-1/act/call-1": make_file}, **MEDIUM)
    assert (folder / "new/c.md").read_text() == "theirs\n"
    assert (act_of(fed)["status"], act_of(fed)["code"]) == ("failed", "stale_file")


def test_line_ends_and_mark_of_a_file_stay_what_they_are(folder: Path) -> None:
    (folder / "a.md").write_bytes(b"\xef\xbb\xbfone\r\nbroken\r\n")
    fed = cycle(folder, EDIT | {"old_string": "one\nbroken", "new_string": "one\nwhole"})
    assert act_of(fed)["status"] == "applied"
    assert (folder / "a.md").read_bytes() == b"\xef\xbb\xbfone\r\nwhole\r\n"


def test_a_long_file_is_shown_in_part_and_can_be_edited_where_it_was_read(folder: Path) -> None:
    lines = [f"line {n} of a long file, which goes on for a while" for n in range(1, 1_001)]
    (folder / "a.md").write_text("\n".join(lines) + "\n")
    fed = cycle(folder, EDIT | {"old_string": "line 7 of", "new_string": "line seven of"})
    text = fed.request("cycle-1/decide").conversation[1].content
    assert "lines 1-400 of 1000" in text
    assert "    7| line 7 of" in text
    assert "     | line 400 of" in text, "after what was left out nobody knows the numbers"
    assert act_of(fed)["status"] == "applied"
    assert (folder / "a.md").read_text().split("\n")[6].startswith("line seven of")


def test_what_the_hands_refuse_is_said_with_their_code(folder: Path) -> None:
    (folder / "a.md").write_text("broken\n" * 500)
    fed = cycle(folder, EDIT)
    assert (act_of(fed)["status"], act_of(fed)["code"]) == ("failed", "match_many")


def test_a_link_out_of_the_folder_is_neither_read_nor_written(folder: Path, tmp_path_factory: Any) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.md"
    outside.write_text("broken\n")
    (folder / "a.md").unlink()
    (folder / "a.md").symlink_to(outside)
    fed = cycle(folder, EDIT)
    assert outside.read_text() == "broken\n"
    assert fed.outcome.output["cycles"][0]["status"] == "parse_error"
    assert "secret" not in str([message for request in fed.requests for message in request.conversation])


def test_the_servers_own_code_and_version_control_are_never_written(folder: Path) -> None:
    for target in (".git/hooks/pre-commit", ".git/config"):
        fed = cycle(folder, CREATE | {"target": target}, **MEDIUM)
        assert fed.outcome.output["cycles"][0]["status"] == "parse_error"
    assert not (folder / ".git").exists()
