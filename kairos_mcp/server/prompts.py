"""The prompts of this server, which hosts show as slash commands: one table, and what each says.

A prompt tells the host's model which tool to call with which arguments; it embeds nothing but brief reports.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError
from pydantic_core import to_json

from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments, KairosError
from kairos_mcp.core.hidden_text import spell_hidden
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import truncate
from kairos_mcp.server.arguments import ooda, planner, runs, team
from kairos_mcp.server.resources import OUTSIDE, GetApp, protocol_error, refuse_cursor
from kairos_mcp.server.sender import current_principal
from kairos_mcp.server.validation import validate_arguments

if TYPE_CHECKING:
    from collections.abc import Collection

    from kairos_mcp.server.arguments.base import Arguments

TEXTS = Path(__file__).with_name("prompt_texts")
EMBEDDED_RUNS = 10
_PLACEHOLDER = re.compile(r"\$\d+")  # from a host that asks before its user has typed, and puts that in its place


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """An argument of a prompt. `names`: what completes it, None where it is free text; `is_list`: several, with commas
    between them; `tool_argument`: what it is called in the call, where that is another name."""

    name: str
    description: str
    names: str | None = None
    is_required: bool = False
    is_list: bool = False
    tool_argument: str = ""


@dataclass(frozen=True, slots=True)
class PromptKind:
    """A prompt: the tool that it leads to, with the model of that tool's arguments."""

    name: str
    title: str
    description: str
    tool: str
    tool_arguments: type[Arguments]
    arguments: tuple[PromptArgument, ...]

    def as_prompt(self) -> wire.Prompt:
        return wire.Prompt(
            name=self.name,
            title=self.title,
            description=self.description,
            arguments=[
                wire.PromptArgument(name=each.name, description=each.description, required=each.is_required)
                for each in self.arguments
            ],
        )


_GOAL = PromptArgument("goal", "What is to be achieved, and what a finished answer holds", is_required=True)
_ROUTE = PromptArgument("route", "Whose model works: auto, provider, sampling, caller (you)", "routes")
_AGENTS = PromptArgument("agents", "Agents that may be chosen, with commas", "agents", is_list=True)

PROMPTS = (
    PromptKind(
        "plan", "Plan", "Split a goal into tasks for agents, to be looked at first", "planner_plan",
        team.PlannerPlan, (_GOAL, _AGENTS, _ROUTE),
    ),
    PromptKind(
        "run", "Run", "Hand a goal to an agent loop", "planner_run", planner.PlannerRun,
        (
            _GOAL,
            PromptArgument("agent", "The agent that works on it", "agents"),
            PromptArgument("tools", "Tools that it may use, with commas; default: all that read", "tools",
                           is_list=True),
            PromptArgument("path", "A file or folder to begin with", "paths", tool_argument="context"),
            PromptArgument("continues", "The run that it goes on from", "runs"),
            _ROUTE,
        ),
    ),
    PromptKind(
        "team", "Team", "Have several agents work on a goal", "team_run", team.TeamRun, (_GOAL, _AGENTS, _ROUTE),
    ),
    PromptKind(
        "ooda", "Mandate", "Run the next cycles of a mandate", "ooda_run", ooda.OodaRun,
        (
            PromptArgument("mandate", "The id of the mandate", "mandates", is_required=True,
                           tool_argument="mandate_id"),
            _ROUTE,
        ),
    ),
    PromptKind(
        "inbox", "Inbox", "What waits for you, over all runs", "run_status", runs.RunStatus,
        (PromptArgument("run", "Only this run", "waiting runs", tool_argument="run_ids", is_list=True),),
    ),
)  # fmt: skip


def list_prompts(listed_tools: Collection[str], cursor: str | None) -> wire.ListPromptsResult:
    """The prompts whose tools are listed, on one page. Raises MCPError for a cursor."""
    refuse_cursor(cursor)
    return wire.ListPromptsResult(prompts=[kind.as_prompt() for kind in PROMPTS if kind.tool in listed_tools])


async def get_prompt(name: str, given: dict[str, str] | None, get_app: GetApp) -> wire.GetPromptResult:
    """What a prompt says with these arguments. Raises MCPError for an unknown prompt or a wrong argument."""
    kind = next((each for each in PROMPTS if each.name == name), None)
    if kind is None:
        known = ", ".join(each.name for each in PROMPTS)
        raise MCPError(wire.INVALID_PARAMS, f"There is no prompt {truncate(name, 60)!r}. There are: {known}.")
    app, caller = await get_app(), Caller(current_principal())
    try:
        arguments = _tool_arguments(kind, given or {})
        run_ids: list[str] = [arguments["continues"]] if "continues" in arguments else []
        if kind.name == "inbox":
            run_ids = arguments.get("run_ids") or await app.overview.list_waiting_ids(caller)
        reports = [report.as_row() for report in await app.runs.list_reports(run_ids[:EMBEDDED_RUNS], caller)]
    except KairosError as error:
        raise protocol_error(error, app, caller) from error
    template = Template((TEXTS / f"{kind.name}.md").read_text(encoding="utf-8").strip())
    text = template.substitute(arguments=to_json(arguments).decode())
    blocks: list[Any] = [wire.TextContent(type="text", text=text)]
    if kind.name == "inbox" or reports:
        uri = "kairos://inbox" if kind.name == "inbox" else "kairos://runs"
        rows = spell_hidden(to_json({"note": OUTSIDE, "runs": reports}).decode())
        contents = wire.TextResourceContents(uri=uri, mime_type="application/json", text=rows)
        blocks.append(wire.EmbeddedResource(type="resource", resource=contents))
    messages = [wire.PromptMessage(role="user", content=block) for block in blocks]
    return wire.GetPromptResult(description=kind.description, messages=messages)


def _tool_arguments(kind: PromptKind, given: dict[str, str]) -> JsonObject:
    """The arguments of the call. Raises BadArguments, whose hint names the prompt's own arguments."""
    known = {each.name: each for each in kind.arguments}
    hint = f"It takes: {', '.join(known)}."
    unknown = [name for name in given if name not in known]
    missing = [each.name for each in kind.arguments if each.is_required and not given.get(each.name, "").strip()]
    if unknown or missing:
        what = f"has no argument {truncate(unknown[0], 60)!r}" if unknown else f"needs {', '.join(missing)}"
        raise BadArguments(f"The prompt {kind.name} {what}.", hint)
    values: JsonObject = {}
    for name, value in given.items():
        argument = known[name]
        if not value.strip() or (_PLACEHOLDER.fullmatch(value) and not argument.is_required):
            continue  # a host sends an empty text for a field that was left out
        shown: Any = [part.strip() for part in value.split(",") if part.strip()] if argument.is_list else value
        values[argument.tool_argument or name] = f"Begin with {value}." if name == "path" else shown
    try:
        validate_arguments(kind.tool_arguments, values)
    except BadArguments as error:
        raise BadArguments(error.message, hint) from error
    return values
