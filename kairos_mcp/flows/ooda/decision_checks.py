"""What a mandate allows of a decision, and how risky the decision is, by fixed tables: a model can only raise it."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from kairos_mcp.core.builtin_tools import RUN_COMMAND
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.paths import Risk, raise_risk, table_risk
from kairos_mcp.flows.ooda.context import CycleContext
from kairos_mcp.flows.ooda.decision import (
    CodeEdit,
    CreateFile,
    Decision,
    EditPlan,
    Noop,
    RunTool,
    edits_of,
    target_paths,
)


def find_problems(context: CycleContext, decision: Decision) -> list[str]:
    """Return what breaks the mandate's limits, each as a sentence for the model.

    The same rules hold where the model proposes a decision and where it is carried out.
    """
    mandate = context.mandate
    if decision.kind not in mandate.allowed_actions:
        return [f"the mandate does not allow {decision.kind}, but {', '.join(mandate.allowed_actions)}"]
    problems = [problem for path in target_paths(decision) if (problem := _out_of_scope(context, path)) is not None]
    size = sum(len(new.encode()) for new in _new_texts(decision))
    if size > mandate.max_edit_bytes:
        problems.append(f"the new text has {size} bytes in all; max_edit_bytes is {mandate.max_edit_bytes}")
    if isinstance(decision, RunTool):
        problems += _tool_problems(context, decision)
    return problems


def assess_risk(context: CycleContext, decision: Decision) -> Risk:
    """Return the risk of the decision by a fixed table; the risk that the model declared counts only if higher."""
    risk: Risk
    match decision:
        case Noop():
            risk = "low"
        case RunTool(tool=RUN_COMMAND.name) if context.submits:
            risk = "low"  # it writes in the stage alone, and what it wrote is asked about
        case RunTool(tool=tool):
            spec = context.runnable.find(tool)
            risk = table_risk(spec.effect if spec is not None else None, (), edits_several=False)
        case CodeEdit() | EditPlan() | CreateFile():
            scopes = [context.scopes.scope_of(path) for path in target_paths(decision)]
            risk = table_risk("checked", scopes, edits_several=isinstance(decision, EditPlan))
    return raise_risk(risk, decision.risk or "low")


def _new_texts(decision: Decision) -> Iterator[str]:
    match decision:
        case CreateFile(content=content):
            yield content
        case _:
            yield from (edit.new_string for edit in edits_of(decision))


def _out_of_scope(context: CycleContext, path: str) -> str | None:
    scope, allowed = context.scopes.scope_of(path), context.mandate.prefer_scope
    if scope == "L0":
        return f"{path} belongs to the server or to version control, and is never written"
    match allowed:
        case None | "L1":
            return None
        case "L2":
            return None if scope == "L2" else f"{path} instructs agents; the mandate keeps to scope L2"
        case _:
            inside = path == allowed or path.startswith(f"{allowed.rstrip('/')}/") or fnmatchcase(path, allowed)
            return None if inside else f"{path} is outside of {allowed}, to which the mandate keeps"


def _tool_problems(context: CycleContext, decision: RunTool) -> list[str]:
    spec = context.runnable.find(decision.tool)
    if spec is None:
        names = ", ".join(tool.name for tool in context.runnable) or "none"
        return [f"the tool is not one that the mandate allows ({names[:1_000]})"]
    problems = compile_schema(spec.input_schema).problems(decision.arguments)
    return [f"arguments of {spec.name}: {'; '.join(problems)}"] if problems else []
