"""Orders, answers and a small workspace of texts for the tests of phases and cycles: no files, no app."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from kairos_mcp.core.mandate import parse_mandate
from kairos_mcp.core.messages import Completion, JsonObject, ToolCall, ToolResult, ToolSet, ToolSpec
from kairos_mcp.core.replay import Runner
from kairos_mcp.core.steps import Answer, CallTool, Flow, Pause, RequestCompletion, Resumed, Step
from kairos_mcp.flows.ooda.context import CarryOver, CycleContext
from kairos_mcp.flows.ooda.prompts import PhasePrompts
from support.flow_runner import Fed
from support.planner_inputs import PROMPTS, prompts

PATH: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}}
READS = ToolSet(
    [
        ToolSpec("file_tree", "Lists.", PATH, "read"),
        ToolSpec("read_file", "Reads.", PATH, "read"),
        ToolSpec("search_files", "Searches.", {"type": "object"}, "read"),
    ]
)
ARGV: JsonObject = {
    "type": "object",
    "properties": {"argv": {"type": "array", "items": {"type": "string"}}},
    "required": ["argv"],
    "additionalProperties": False,
}
RUNNABLE = ToolSet(
    [
        ToolSpec("search_files", "Searches.", {"type": "object"}, "read"),
        ToolSpec("tidy", "Tidies up.", {"type": "object"}, "idempotent"),
        ToolSpec("run_command", "Runs.", ARGV, "irreversible"),
    ]
)
ORIENTED: JsonObject = {"summary": "A link is broken.", "priorities": ["Mend it."], "risk_level": "low"}
EDIT: JsonObject = {
    "action": "code_edit", "target": "a.md", "old_string": "broken", "new_string": "whole", "intent": "mend the link"
}  # fmt: skip
NOOP: JsonObject = {"action": "noop", "reason": "Nothing to do."}
JUDGED: JsonObject = {
    "assessment": "success",
    "lessons": ["Links are relative."],
    "confidence": 0.5,
    "remaining": ["b"],
}
SURE: JsonObject = {"assessment": "success", "lessons": [], "confidence": 0.95, "remaining": []}


def says() -> PhasePrompts:
    return PhasePrompts.load(lambda name: (PROMPTS / f"{name}.md").read_text())


def order(carry_over: CarryOver | None = None, **mandate: Any) -> CycleContext:
    given = {"id": "m", "goal": "Mend the broken links.", "observe": ["file_tree"], **mandate}
    return CycleContext(
        parse_mandate(given),
        says(),
        prompts(),
        READS,
        RUNNABLE,
        carry_over=carry_over or CarryOver(),
    )


def gives(value: Any) -> Completion:
    """A completion whose text is this object, or this text."""
    return Completion(value if isinstance(value, str) else json.dumps(value), finish="stop")


def calls(*wanted: tuple[str, JsonObject]) -> Completion:
    return Completion("", tuple(ToolCall("outside", name, given) for name, given in wanted), "tool_calls")


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@dataclass
class Simulation:
    """What answers steps of cycles: texts by path, models' answers by step or by phase, and pauses that are resumed.

    `phases` maps orient, decide, reflect to the object that is given in each cycle, or a list with one for each.
    `answers` go before: a step's path to its answer.
    """

    texts: dict[str, str] = field(default_factory=lambda: {"a.md": "one\nbroken\nthree\n"})
    phases: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    goal_hash: str | None = None
    resumed: int = 100

    def __call__(self, step: Step) -> Answer:
        if step.name in self.answers:
            return self.answers[step.name]
        match step:
            case RequestCompletion():
                return self._thinks(step.name)
            case CallTool(call=call):
                return self._does(call)
            case Pause():
                self.resumed -= 1
                assert self.resumed >= 0, f"nobody resumes {step.name}"
                return Resumed()

    def _thinks(self, path: str) -> Answer:
        parts = path.split("/")
        number = int(parts[0].removeprefix("cycle-")) if parts[0].startswith("cycle-") else 1
        phase = parts[1] if parts[0].startswith("cycle-") else parts[0]
        default = {"orient": ORIENTED | {"files": [{"path": "a.md"}]}, "decide": EDIT, "reflect": JUDGED}
        given = self.phases.get(phase, default[phase])
        value = given[min(number, len(given)) - 1] if isinstance(given, list) else given
        return gives(value)

    def _does(self, call: ToolCall) -> Answer:
        wanted = call.arguments
        match call.name:
            case "read_mandate" if self.goal_hash is not None:
                return ToolResult("The mandate.", data={"id": wanted["id"], "goal_hash": self.goal_hash})
            case "read_mandate":
                return ToolResult("There is none.", is_error=True, code="unknown_mandate")
            case "read_file":
                return self._read(wanted["path"])
            case "edit_file" | "apply_edits":
                return self._edit(call)
            case "write_file":
                self.texts[wanted["path"]] = wanted["content"]
                after = digest(wanted["content"])
                return ToolResult(
                    "Written.", data={"files": [{"path": wanted["path"], "before": None, "after": after}]}
                )
            case "check_file":
                text = self.texts.get(wanted["path"])
                there = text is not None and wanted.get("text", "") in text
                return ToolResult("Looked.", data={"exists": text is not None, "contains": there})
            case _:
                return ToolResult(f"result of {call.id}")

    def _read(self, path: str) -> ToolResult:
        if path not in self.texts:
            return ToolResult(f"There is no {path}.", is_error=True, code="not_found")
        text = self.texts[path]
        lines = text.count("\n")
        entry = {"path": path, "lines": lines, "start_line": min(1, lines), "end_line": lines, "sha256": digest(text)}
        return ToolResult(text, data=entry | {"bytes": len(text)})

    def _edit(self, call: ToolCall) -> ToolResult:
        files = []
        for edit in call.arguments.get("edits", [call.arguments]):
            before = self.texts[edit["path"]]
            if call.arguments["base"][edit["path"]] != digest(before):
                return ToolResult("It has changed.", is_error=True, code="stale_file")
            after = before.replace(edit["old_string"], edit["new_string"])
            files.append({"path": edit["path"], "before": digest(before), "after": digest(after)})
            self.texts[edit["path"]] = after
        return ToolResult("Edited.", data={"files": files})


def simulation_of(of: CycleContext, **changes: Any) -> Simulation:
    """A simulation in which the mandate of the order is what it was."""
    return Simulation(**{"goal_hash": of.mandate.goal_hash, **changes})


def run_flow(flow: Flow[Any], answering: Callable[[Step], Answer]) -> Fed:
    """Unfold a flow as a run is, and answer what waits, in order, until it ends."""
    runner, fed = Runner(flow), Fed()
    while not runner.finished:
        for path, step in list(runner.waiting.items()):
            fed.asked.append((path, step, answering(step)))
            runner.answer(path, fed.asked[-1][2])
    fed.outcome = runner.outcome
    return fed
