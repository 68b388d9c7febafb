"""How a tool or a server that an agent proposes for the registry is named, and described to the person who decides."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

from kairos_mcp.core.builtin_tools import BUILTIN
from kairos_mcp.core.hidden_text import make_visible
from kairos_mcp.settings.proposal import Proposal
from kairos_mcp.store.tool_pins import REGISTERED

PIN_CHARS = 16  # of a definition's hash: enough to tell the one that was looked at from any other
_FIRST_LISTING = "what it lists when it is first used is taken as it is, unless another server has had its name."

LISTING = Path(__file__).parents[1] / "server" / "listing.json"  # a file alone: the modules of the server import ours


@cache
def reserved_tool_names() -> frozenset[str]:
    """Return the names of our own tools, offered at this moment or not: no other tool may be mistaken for one of them.

    They are the built-in tools and the tools that the server lists.
    """
    listed = json.loads(LISTING.read_bytes())["tools"]
    return frozenset(BUILTIN) | {tool["name"] for tool in listed}


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
        return ["Once it is approved it counts as reading: agents may call it without asking anybody."]
    return [f"It is {effect}: the gate asks a person before each call, unless a rule says otherwise."]
