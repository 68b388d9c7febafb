"""The tools of this server: one table, from which the listing with its schemas and hints is made.

The listing is made ahead of time, into listing.json, and this module is imported at the first call: many starts of a
server only ask for the list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import mcp_types as wire

from kairos_mcp.core.effects import Effect
from kairos_mcp.core.limits import CAPS
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.flows.ooda.phase_kinds import PHASES, PhaseKind
from kairos_mcp.server import handlers
from kairos_mcp.server.annotations import hints
from kairos_mcp.server.arguments import ooda, planner, runs
from kairos_mcp.server.arguments.base import Arguments
from kairos_mcp.server.arguments.run_control import RUN_CONTROL_ARGUMENTS, summarize_actions
from kairos_mcp.server.claude_code import claude_code_meta
from kairos_mcp.server.validation import listed_schema

if TYPE_CHECKING:
    from kairos_mcp.server.call import ServerCall

TEXT: JsonObject = {"type": "string"}
TEXTS: JsonObject = {"type": "array", "items": TEXT}

OBJECT: JsonObject = {"type": "object"}
"""The schema of a result. It is open, and errors fit it too: some clients check those as well. Without a `type` at its
root the listing would break legacy clients. What the keys of a run's result hold is said by kairos://schema/result: the
listing's room is for what models read."""


MANDATE_SHAPE = (
    "{goal, id?, observe?: [tool|{tool, args}], max_cycles?, checkpoint_every?, risk_budget?: low|medium, "
    "allowed_actions?: [code_edit|edit_plan|create_file|run_tool|noop], "
    "decide_hints?: {prefer_scope?, max_edit_bytes?}, "
    "acceptance?: [{check: file_exists|file_contains|command_succeeds, path?, text?, argv?, cwd?}], "
    "tools?: [glob], workspace?, limits?, day?, schedule?: {rule, time_zone?, catch_up?, bound?}, "
    "starts_on?: [{event, mandate_id?, server?, arguments?}]}; "
    "all of it: kairos://schema/mandate"
)


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool of this server.

    `effect`: its effect class, from which its hints follow; those of tools that move runs also depend on the settings
    (`annotate_tool` in annotations.py).

    `search_hint`: words of users that the description has no room for. `is_always_loaded`: its schema is worth the room
    from a session's first request on. Both are for Claude Code (claude_code.py).
    """

    name: str
    title: str
    description: str
    effect: Effect
    arguments: type[Arguments]
    handle: Callable[[ServerCall, Any], Awaitable[handlers.Result]]
    output_schema: JsonObject
    search_hint: str
    is_always_loaded: bool = False

    def as_tool(self) -> wire.Tool:
        return wire.Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self._input_schema(),
            output_schema=self.output_schema,
            annotations=hints(self.effect),
            _meta=claude_code_meta(self.search_hint, is_always_loaded=self.is_always_loaded),
        )

    def _input_schema(self) -> JsonObject:
        """Return the listed schema of the arguments. It is sent in every session: only planner_run names limits and
        routes."""
        schema = listed_schema(self.arguments)
        properties = schema["properties"]
        if "limits" not in properties:
            return schema
        about = properties["limits"].get("description")
        if self.name == "planner_run":
            about = f"{about}: {', '.join(CAPS)}"
        briefs: JsonObject = {"limits": {"type": "object"} | ({"description": about} if about else {})}
        if self.name != "planner_run":
            briefs["route"] = {
                name: properties["route"][name] for name in ("type", "description") if name in properties["route"]
            }
            briefs |= {name: TEXTS for name in ("after", "known") if name in properties}
        if issubclass(self.arguments, ooda.OodaPhase):
            briefs = {"limits": {"type": "object"}, "route": TEXT, "goal": TEXT}
        return {**schema, "properties": {**properties, **briefs}}


def _phase_tool(kind: PhaseKind) -> ServerTool:
    """Make the tool that runs a phase alone. Its `output` has the listed keys once the phase has ended."""
    output = {"type": "object", "properties": {name: {"type": each} for name, each in kind.output.items()}}
    return ServerTool(
        kind.tool,
        kind.title,
        f"Run one phase alone: {kind.about}",
        "irreversible" if kind.calls is None else "idempotent",
        ooda.phase_arguments(kind),
        handlers.start_run,
        {**OBJECT, "properties": {"output": output}},
        "OODA phase",
    )


TOOLS = (
    ServerTool(
        "planner_run",
        "Run a loop",
        "Work on a goal with tools, round by round: fix, change, find out. Use it when a change needs the user's "
        "approval, must survive a restart, has a budget, or outlasts this chat. Returns the outcome, or "
        "input_required: answer by run_continue. An identical call returns the open run.",
        "idempotent",
        planner.PlannerRun,
        handlers.start_run,
        OBJECT,
        "ask me before you change, edit or refactor anything, change nothing without my permission, let me approve "
        "every edit; keep working overnight, through the night, in the background, while I am away; go on after I "
        "close this, resume if my laptop restarts; let an agent fix a bug or a failing test, find out why; spend at "
        "most",
        is_always_loaded=True,
    ),
    ServerTool(
        "planner_plan",
        "Plan",
        "Split a goal into tasks for agents. None is carried out: `output` is the plan, which team_run takes.",
        "idempotent",
        planner.PlannerPlan,
        handlers.start_run,
        OBJECT,
        "make a plan first, break it down into the steps needed, do not execute anything yet",
    ),
    ServerTool(
        "team_run",
        "Run a team",
        "Several agents in parallel on a goal of several parts: plan, tasks side by side, one answer.",
        "idempotent",
        planner.TeamRun,
        handlers.start_run,
        OBJECT,
        "team of agents in parallel, several workers, subagents or reviewers at once or at the same time, split the "
        "work, divide, delegate",
    ),
    ServerTool(
        "ooda_run",
        "Run a mandate",
        "Work on a mandate (a standing goal) in cycles until it holds: observe, orient, decide, act, reflect. Changes "
        "ask a person, unless a rule allows them. A second call returns the open run.",
        "idempotent",
        ooda.OodaRun,
        handlers.start_run,
        OBJECT,
        "keep going or iterate until it passes; start the mandate now, run another cycle",
    ),
    *map(_phase_tool, PHASES.values()),
    ServerTool(
        "mandate_save",
        "Save a mandate",
        'Save a mandate: a standing goal, for "do this each week", "every day", "whenever", "make sure that".\n'
        f"{MANDATE_SHAPE}",
        "idempotent",
        ooda.MandateSave,
        handlers.mandate_save,
        OBJECT,
        "make sure that a rule holds; do this, look or check every morning, every Friday, each week on Monday, "
        "daily, weekly, hourly, nightly, on schedule, from today on, always; watch or monitor a log, remind, keep up "
        "to date, repair what fails",
    ),
    ServerTool(
        "mandate_list",
        "List mandates",
        "List the saved mandates with their status and newest run.",
        "read",
        ooda.MandateList,
        handlers.mandate_list,
        OBJECT,
        "which schedules, scheduled and standing goals do I have",
    ),
    ServerTool(
        "run_status",
        "See runs",
        "Show where runs stand, what to call next; wait with until.",
        "read",
        runs.RunStatus,
        handlers.run_status,
        OBJECT,
        "is it done yet, has the agent finished, state of my job, progress, how far",
        is_always_loaded=True,
    ),
    ServerTool(
        "run_continue",
        "Answer a run",
        "Answer what waits. An item with `after` has only what is new since you answered that key.",
        "idempotent",
        runs.RunContinue,
        handlers.run_continue,
        OBJECT,
        "approve or deny it, reply to its question",
        is_always_loaded=True,
    ),
    ServerTool(
        "run_control",
        "Steer a run",
        summarize_actions(),
        "idempotent",
        RUN_CONTROL_ARGUMENTS,
        handlers.run_control,
        OBJECT,
        "stop that run, kill, abort, cancel or pause the agent for now; give it more rounds, budget or time",
    ),
    ServerTool(
        "run_trace",
        "Look into a run",
        "Show what happened in a run: calls, diff, plan; or a ref's text.",
        "read",
        runs.RunTrace,
        handlers.run_trace,
        OBJECT,
        "why did it fail, what did the agent do or change, history, show its tool calls",
    ),
    ServerTool(
        "registry_search",
        "Find tools",
        "Find tools for runs.",
        "read",
        runs.RegistrySearch,
        handlers.registry_search,
        OBJECT,
        "which tools are available, list the tools, what can the agent use to query",
    ),
    ServerTool(
        "registry_call",
        "Call one tool",
        "Call one tool without a loop; registry_search finds it. `output` is {content, is_error, data?}.",
        "irreversible",
        runs.RegistryCall,
        handlers.start_run,
        OBJECT,
        "use just this one tool once",
    ),
    ServerTool(
        "registry_register",
        "Propose a tool",
        "Connect an MCP server or the API of a service: propose it. It can be used once a person has approved it.",
        "idempotent",
        runs.RegistryRegister,
        handlers.registry_register,
        OBJECT,
        "add or connect the API or MCP server of our own, of a tracker or database, as a tool",
    ),
    ServerTool(
        "budget_status",
        "See what is left",
        "What is spent and left, today or of a run.",
        "read",
        runs.BudgetStatus,
        handlers.budget_status,
        OBJECT,
        "how much did it cost, spending, tokens, usd, money",
    ),
)


def as_listed() -> str:
    """Return the text of listing.json: what clients are sent. It is made ahead of time, not at each start."""
    listing = wire.ListToolsResult(tools=[tool.as_tool() for tool in TOOLS])
    return listing.model_dump_json(by_alias=True, exclude_none=True, include={"tools"}) + "\n"
