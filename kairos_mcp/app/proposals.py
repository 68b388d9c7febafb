"""Tools and servers that an agent proposes for the registry: checked and stored, and not in use before approval.

Only a person decides, by the command `tools` (app/tool_admin.py): no tool of the server leads there.
"""

from __future__ import annotations

import asyncio
import shlex

from kairos_mcp.app.context import AppContext
from kairos_mcp.core.errors import BadArguments, Denied, EgressDenied
from kairos_mcp.core.identity import Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import make_visible
from kairos_mcp.settings.proposal import Proposal, parse_proposal
from kairos_mcp.store.tool_pins import REGISTERED, DefinitionTable
from kairos_mcp.tools.http.addresses import describe_local

PIN_CHARS = 16  # of a definition's hash: enough to tell the one that was looked at from any other
CLIENT_CHARS = 60
_FIRST_LISTING = "what it lists when it is first used is taken as it is, unless another server has had its name."

RESERVED_NAMES = frozenset(
    (
        *("planner_run", "planner_plan", "team_run", "agents_list", "agent_info"),
        *("ooda_run", "ooda_observe", "ooda_orient", "ooda_decide", "ooda_act", "ooda_reflect"),
        *("mandate_save", "mandate_list", "run_status", "run_continue", "run_control", "run_trace"),
        *("registry_search", "registry_call", "registry_register", "budget_status"),
        *(
            "request_more_rounds",
            "read_result",
            "read_mandate",
            "check_file",
            "apply_edits",
            "http_fetch",
            "run_command",
        ),
    )
)
"""Names of our own tools, offered at this moment or not: no other tool may be mistaken for one of these."""


async def propose(context: AppContext, spec: JsonObject, caller: Caller) -> JsonObject:
    """Store a proposal until a person decides; the same one again changes nothing.

    Raises BadArguments, TooLarge, EgressDenied, ApprovalsFull; Denied for a definition that a person has removed.
    """
    made = parse_proposal(spec, context.factory.redactor)
    check_name_and_address(context, made)
    client = " ".join(make_visible(caller.client[:CLIENT_CHARS])[0].split())
    by = f"{caller.principal} ({client})" if client else caller.principal
    definitions = DefinitionTable(context.store)
    state = await asyncio.to_thread(definitions.propose, made.name, made.hash, made.body, by, context.clock())
    if state == "removed":
        raise Denied("A person has removed this very definition.", "Go on without it, or propose another.")
    response: JsonObject = {"name": made.name, "kind": made.kind, "status": state, "pin": made.hash[:PIN_CHARS]}
    if state == "approved":
        how = made.name if made.kind == "http_tool" else f"{made.name}__*"
        return response | {"message": f"It is approved: registry_search and loops find it as {how}."}
    return response | {
        "message": "Nobody can call it yet: a person has to approve it on the command line of this machine, after "
        "looking at it. Show your user the two commands; no tool approves.",
        "show": _command_for(context, proposal_command("show", made.name), caller),
        "approve": _command_for(context, proposal_command("approve", made.name, made.hash), caller),
    }


def _command_for(context: AppContext, said: str, caller: Caller) -> str:
    """Make a command ready to paste, if the caller is the person who owns the state folder."""
    return context.command_line.complete(said) if caller.is_local else said


def check_name_and_address(context: AppContext, made: Proposal) -> None:
    """Check that a proposal's name is free, and that its address is allowed. Raises BadArguments, EgressDenied."""
    registry = context.factory.registry(context.factory.find_workspace(None))
    taken = {spec.name for spec in registry.specs_without(REGISTERED)}
    taken |= RESERVED_NAMES | {server.name for server in context.settings.servers}
    if made.kind == "server":  # its tools are called NAME__TOOL
        taken |= {name.partition("__")[0] for name in taken if "__" in name}
    if made.name in taken:
        raise BadArguments(f"There is a tool or a server {made.name!r} already.", "Propose it under another name.")
    url = made.address
    if url is None or any(rule.includes(url) for rule in context.settings.private_hosts):
        return
    if (what := describe_local(url)) is not None:
        listed = f'A person can list it in the settings: private_hosts = ["{url.host}:{url.port}"].'
        raise EgressDenied(f"{url.host} is not public, but {what}.", listed)


def proposal_command(verb: str, name: str, pin: str | None = None) -> str:
    """Return the command by which a person shows, approves or removes a proposal."""
    pinned = ["--pin", pin[:PIN_CHARS]] if pin is not None else []
    return shlex.join(["kairos-mcp", "tools", verb, definition_address(name), *pinned])


def definition_address(name: str) -> str:
    return f"{REGISTERED}:{name}"


def describe_proposal(made: Proposal) -> tuple[str, ...]:
    """Describe what a proposal would do once it is approved, in sentences for the person who decides."""
    if made.kind == "http_tool":
        tool = made.tool
        lines = [f"An HTTP tool: it sends {tool.method} {tool.url}", *_describe_effect(tool.effect)]
        lines += [f"It sends the header {name}: {value}" for name, value in tool.headers]
    else:
        server = made.server
        if server.url is not None:
            lines = [f"An MCP server at {server.url}: {_FIRST_LISTING}"]
            lines += [f"It is sent the header {name}: {value}" for name, value in server.headers]
        else:
            lines = [
                f"An MCP server, which this machine starts: {shlex.join(server.command)}",
                f"In a sandbox: it may write the workspace and use the network; {_FIRST_LISTING}",
                *(f"Its environment has {name}={value}" for name, value in server.env),
            ]
        lines += [f"Its tools {glob} count as {effect}" for glob, effect in server.effects]
    lines += [f"It is given the secret at {reference}, as it is there at each use." for reference in made.secrets]
    return tuple(make_visible(line)[0] for line in lines)


def _describe_effect(effect: str) -> list[str]:
    if effect == "read":
        return ["It is stated to read only: agents may call it without asking anybody."]
    return [f"It is {effect}: the gate asks a person before each call, unless a rule says otherwise."]
