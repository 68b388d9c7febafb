"""A call that the gate is asked about, and what its tool and its arguments say of it, whatever the rules are."""

from __future__ import annotations

from collections.abc import Sequence

from kairos_mcp.core.builtin_tools import MULTI_FILE_EDITS, NAME_LISTING_TOOLS, READ_SKILL, RUN_COMMAND
from kairos_mcp.core.command_patterns import ProgramNames
from kairos_mcp.core.messages import JsonObject, ToolSpec
from kairos_mcp.core.paths import Risk, Scope, plain_path_or_none, raise_risk, table_risk
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.gate_rules import Command
from kairos_mcp.tools.files.read_tools import READ_SPEC
from kairos_mcp.tools.touched_paths import TouchedSet


@dataclass(frozen=True, slots=True)
class GatedCall:
    """A call to be judged. `tool` is None if no tool has this name.

    `agent` and `mandate` say for whom it is. `preview_paths` are further paths that the call depends on, found by its
    preview; `brings_hidden`: the preview also found that it writes invisible characters into a file. `declared_risk`:
    what the model stated, which can only raise ours. `touched`: what the call touches, if that was found already
    (`Gate.with_touched_paths`); None: it is found when the gate is asked. `program`: what the program of a command is
    called, found by the same; None: it was not looked for, so that no rule may allow it.
    """

    tool: ToolSpec | None
    arguments: JsonObject
    agent: str | None = None
    mandate: str | None = None
    preview_paths: tuple[str, ...] = ()
    declared_risk: Risk = "low"
    touched: TouchedSet | None = None
    brings_hidden: bool = False
    program: ProgramNames | None = None


def read_call(path: str, agent: str | None, mandate: str | None) -> GatedCall:
    return GatedCall(READ_SPEC, {"path": path}, agent, mandate)


def is_command(tool: ToolSpec | None) -> bool:
    """Return whether a call of this tool starts a program."""
    return RUN_COMMAND.is_tool(tool)


def risk_of(tool: ToolSpec | None, scopes: Sequence[Scope], declared: Risk = "low") -> Risk:
    """Return the risk by a fixed table; `scopes` are those of the call's paths. A model can only raise it."""
    if tool is None:
        return raise_risk(table_risk(None, (), edits_several=False), declared)
    return raise_risk(table_risk(tool.effect, scopes, edits_several=tool.name in MULTI_FILE_EDITS), declared)


def command_of(call: GatedCall) -> Command | None:
    """Return the command in a call of run_command; by the program's name alone where nobody looked for its file."""
    argv = call.arguments.get("argv") if is_command(call.tool) else None
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
        return None  # the tool refuses it
    program, *arguments = argv
    names = call.program or ProgramNames(all=(program, program.rpartition("/")[2]))
    return Command(names, tuple(arguments))


def list_asked_paths(call: GatedCall) -> list[str]:
    """Return the paths of the workspace that a command asks to read, though programs don't see them."""
    reads = call.arguments.get("reads") if is_command(call.tool) else None
    texts = [each for each in reads if isinstance(each, str)] if isinstance(reads, list) else []
    return [path for text in texts if not text.startswith("~") and (path := plain_path_or_none(text)) is not None]


def reads_at_paths(tool: ToolSpec) -> bool:
    """Return whether a built-in tool reads files that its arguments name."""
    if tool.source != "builtin" or tool.name in NAME_LISTING_TOOLS or READ_SKILL.is_tool(tool):
        return False
    properties = tool.input_schema.get("properties", {})
    return "path" in properties or "edits" in properties


def shows_files(tool: ToolSpec) -> bool:
    """Return whether another built-in tool shows what files hold: it is judged by the rules for read_file as well."""
    return tool.effect == "read" and tool.name != READ_SPEC.name and reads_at_paths(tool)
