"""The tools of a run that works in a stage.

Those for files work on its mount, run_command over its layer; delete_file, move_file and submit_changes only such a run
has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kairos_mcp.core.builtin_tools import CONTAINED_TOOLS, RUN_COMMAND
from kairos_mcp.core.file_changes import STAGED
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.paths import plain_path
from kairos_mcp.core.tool import Preview, ProbeResult, Tool, ToolContext
from kairos_mcp.store.mandates import is_check_step
from kairos_mcp.store.tool_intents import intent_name
from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
from kairos_mcp.tools.departure import LEFT
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.files.file_tools import file_tools
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.mandate_tools import check_file_tool
from kairos_mcp.tools.stage.commands import StagedCommands
from kairos_mcp.tools.stage.layers import folders_above
from kairos_mcp.tools.stage.moving import DELETE_SPEC, MOVE_SPEC, moving_tools
from kairos_mcp.tools.stage.stage import MadeCall, Stage
from kairos_mcp.tools.stage.submit import SUBMIT_SPEC, submit_tool

STAGE_SPECS = DELETE_SPEC, MOVE_SPEC, SUBMIT_SPEC  # the tools that only runs in a stage have
UNCHANGED = "In the stage; nothing in the workspace has changed yet."
INTERRUPTED = (
    "The server ended while this ran. What it wrote until then is in the stage; call it again if you need its result."
)


class StagedTools:
    """The tools of one run's stage, by name."""

    def __init__(self, stage: Stage, rules: EditRules, commands: CommandSettings, most_bytes: int) -> None:
        self._stage, self._rules = stage, rules
        self._contained = CONTAINED_TOOLS - ({RUN_COMMAND.name} if commands.mode == "bare" else set())
        self._tools: dict[str, Tool] = {}
        for tool in self._tools_on(stage.workspace).values():
            self._tools[tool.spec.name] = self._reading(tool) if tool.spec.effect == "read" else self._writing(tool)
        for command in command_tools(stage.workspace, commands, rules.scopes):
            self._tools[command.spec.name] = self._running(command, StagedCommands(stage, commands, most_bytes))
        submit = submit_tool(stage, rules)
        self._tools[submit.spec.name] = submit

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def find_changed(self, paths: Iterable[str], ctx: ToolContext) -> list[str]:
        """Return those of these paths that the stage has changed, for a folder what is in it; of the workspace itself
        nothing."""
        named = {path for path in paths if path != "."}
        changed = self._stage.read_notes(ctx).calls if named else ()
        return [path for path in changed if named.intersection((path, *folders_above(path)))]

    def contains(self, spec: ToolSpec | None) -> bool:
        """Whether calls of this tool write nothing but the stage."""
        return spec is not None and spec.source == "builtin" and spec.name in self._contained & self._tools.keys()

    def _tools_on(self, workspace: Workspace) -> Mapping[str, Tool]:
        rules = replace(self._rules, workspace=workspace)
        made = (*file_tools(rules), *moving_tools(rules), check_file_tool(workspace, rules.redactor))
        return {tool.spec.name: tool for tool in made}

    def _reading(self, tool: Tool) -> Tool:
        name = tool.spec.name

        def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
            with self._stage.reading(ctx) as view:
                return self._tools_on(view)[name].run(arguments, ctx)

        return replace(tool, run=run, at_once=None)

    def _writing(self, tool: Tool) -> Tool:
        name, call = tool.spec.name, MadeCall(tool.spec.name, {})

        def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
            named = _named_paths(arguments)
            with self._stage.writing(ctx, call, named):
                with self._stage.open_mount() as view:
                    result = self._tools_on(view)[name].run(arguments, ctx)
                files = result.data.get("files", ()) if isinstance(result.data, dict) else ()
                named += [file["path"] for file in files]
            return _staged_result(result)

        def preview(arguments: JsonObject, ctx: ToolContext) -> Preview:
            with self._stage.reading(ctx) as view:
                preview_on = self._tools_on(view)[name].preview
                assert preview_on is not None, "every tool that writes can be previewed"
                return preview_on(arguments, ctx)

        def probe(arguments: JsonObject, ctx: ToolContext) -> ProbeResult:
            found = ProbeResult("unclear")
            with self._stage.writing(ctx, call, _named_paths(arguments)), self._stage.open_mount() as view:
                probe_on = self._tools_on(view)[name].probe
                if probe_on is not None:
                    found = probe_on(arguments, ctx)
            if found.state == "unclear":
                return ProbeResult("resolved", _interrupted_result())
            return replace(found, result=None if found.result is None else _staged_result(found.result))

        return replace(tool, run=run, preview=preview, probe=probe)

    def _running(self, tool: Tool, commands: StagedCommands) -> Tool:
        def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
            ctx.memory.keep(intent_name(ctx.path), LEFT)  # so that it is known whether it began
            with self._stage.writing(ctx, _command(arguments, ctx)):
                return commands.run(arguments, replace(ctx, is_marked=False))

        def preview(arguments: JsonObject, ctx: ToolContext) -> Preview:
            with self._stage.alone(ctx):
                return commands.preview(arguments, ctx)

        def probe(arguments: JsonObject, ctx: ToolContext) -> ProbeResult:
            if ctx.memory.recall(intent_name(ctx.path)) is None:
                return ProbeResult("not_done")
            with self._stage.writing(ctx, _command(arguments, ctx)):
                is_contained = self.contains(tool.spec)
                return ProbeResult("resolved", _interrupted_result()) if is_contained else ProbeResult("unclear")

        return replace(tool, run=run, preview=preview, probe=probe)


def _command(arguments: JsonObject, ctx: ToolContext) -> MadeCall:
    judged: JsonObject = {name: arguments[name] for name in ("argv", "cwd", "reads") if name in arguments}
    return MadeCall(RUN_COMMAND.name, judged, is_check_step(ctx.path))


def _named_paths(arguments: JsonObject) -> list[str]:
    edits = arguments.get("edits") or ()
    named: Iterable[str | None] = (arguments.get("path"), arguments.get("to"), *(edit.get("path") for edit in edits))
    return [plain_path(path) for path in named if path is not None]


def _staged_result(result: ToolResult) -> ToolResult:
    """Say of a change that only the stage has it. Its files are named otherwise: the workspace's are as they were."""
    if result.is_error:
        return result
    data = result.data
    if isinstance(data, dict) and "files" in data:
        data = {(STAGED if name == "files" else name): value for name, value in data.items()}
    return replace(result, content=f"{UNCHANGED}\n{result.content}", data=data)


def _interrupted_result() -> ToolResult:
    return ToolResult(INTERRUPTED, is_error=True, code="cancelled")
