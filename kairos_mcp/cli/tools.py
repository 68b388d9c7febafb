"""`tools`: what an agent may be given, what waits for a person's approval, one call by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from kairos_mcp.app.app import App
from kairos_mcp.app.tool_admin import Decided, Decision, PendingDefinition, ToolDetails, ToolSummary
from kairos_mcp.cli.exit_codes import COMPLETED, FAILED, WAITING
from kairos_mcp.cli.output import command
from kairos_mcp.cli.run import settings_here
from kairos_mcp.cli.session import PERSON, speak, stay, with_host
from kairos_mcp.cli.speech import line_of, say, say_diff, say_json, tell
from kairos_mcp.core.errors import BadArguments, NotFound
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags


def list_tools(flags: Flags, *, as_json: bool) -> int:
    """Every tool, then what waits; a server that was never met is started to be asked."""

    async def look(host: App) -> tuple[tuple[ToolSummary, ...], tuple[str, ...]]:
        return await host.tools()

    lines, notes = with_host(settings_here(flags), look)
    if as_json:
        say_json({"tools": [line.as_json() for line in lines], "notes": list(notes)})
        return COMPLETED
    for line in lines:
        say(f"{line.name:<32} {line.effect:<12} {line.source:<18} {line.category:<16} {line.state}")
    for note in notes:
        tell(f"note: {note}")
    for line in lines:
        if line.state in ("new", "changed") and line.address is not None:
            tell(f"waits: {command(flags, 'tools', 'show', line.address)}")
    return COMPLETED


def show_tool(flags: Flags, name: str, *, as_json: bool) -> int:
    """A tool whole: its schema, its pins, and how a definition that waits differs from the approved one."""

    async def look(host: App) -> ToolDetails:
        return await host.tool(name)

    sheet = with_host(settings_here(flags), look)
    if as_json:
        say_json(sheet.as_json())
        return COMPLETED
    for line in _sheet(sheet):
        say(line)
    _say_waiting(sheet, flags)
    return COMPLETED


def call_tool(flags: Flags, name: str, arguments: str, *, as_json: bool) -> int:
    """One call as a run of its own: the gate, the budget and the record are those of a run's calls."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise BadArguments("The arguments are no JSON object.", 'As \'{"path": "README.md"}\'.')

    async def begin(host: App) -> str:
        return await host.start_call(name, given, PERSON)

    report = stay(settings_here(flags), begin, quiet=as_json)
    code = speak(report, flags, as_json=as_json)
    failed = isinstance(report.output, dict) and report.output.get("is_error")
    return FAILED if code == COMPLETED and failed else code


def approve_tool(flags: Flags, address: str, pin: str | None, *, as_json: bool) -> int:
    """Let the definition count that the pin names; without a pin show it, since it may change until it is named."""
    if pin is not None:
        return _decide(flags, address, "approved", pin, as_json=as_json)

    async def look(host: App) -> ToolDetails:
        return await host.tool(address)

    sheet = with_host(settings_here(flags), look)
    if _waiting_definition(sheet) is None:
        raise NotFound("Nothing waits under that name.", "`kairos-mcp tools list` shows what waits.")
    if as_json:
        say_json(sheet.as_json())
        return WAITING
    for remark in sheet.remarks:
        say(remark)
    _say_waiting(sheet, flags)
    return WAITING


def remove_tool(flags: Flags, address: str, pin: str | None, *, as_json: bool) -> int:
    """Let no definition of that address count, or that one alone which the pin names."""
    return _decide(flags, address, "removed", pin, as_json=as_json)


def _decide(flags: Flags, address: str, decision: Decision, pin: str | None, *, as_json: bool) -> int:
    async def act(host: App) -> Decided:
        return await host.decide_tool(address, decision, pin, PERSON)

    done = with_host(load_settings(flags, os.environ), act)
    if as_json:
        say_json({"state": decision, "definitions": [{"address": each.address, "pin": each.pin} for each in done]})
        return COMPLETED
    for each in done:
        say(f"{decision}: {each.address} ({each.offered}), pin {each.pin}")
    return COMPLETED


def _sheet(sheet: ToolDetails) -> Iterator[str]:
    yield sheet.name
    if sheet.offered is None:
        yield "  not offered now"
    else:
        told = sheet.offered
        yield f"  {told['effect']} · {told['category']} · {told['source']}"
        yield f"  {told['description']}".replace("\n", "\n  ")
        yield "  arguments " + json.dumps(told["input_schema"], ensure_ascii=True, indent=2).replace("\n", "\n  ")
        for example in told.get("examples", ()):
            yield f"  as {line_of(json.dumps(example, ensure_ascii=False), 200)}"
    for remark in sheet.remarks:
        yield f"  {remark}".replace("\n", "\n  ")
    for each in sheet.definitions:
        by = f" by {each.row.by}" if each.row.by else ""
        yield f"  {each.row.state:<8}  {each.address}  pin {each.pin}{by}"


def _waiting_definition(sheet: ToolDetails) -> PendingDefinition | None:
    return next((each for each in sheet.definitions if each.row.state == "pending"), None)


def _say_waiting(sheet: ToolDetails, flags: Flags) -> None:
    """What waits, whole, and the command that approves just that."""
    waiting = _waiting_definition(sheet)
    if waiting is None:
        return
    say("")
    say_diff(sheet.diff)
    say("")
    say(f"  {command(flags, 'tools', 'approve', waiting.address, '--pin', waiting.pin)}")
    say(f"  {command(flags, 'tools', 'remove', waiting.address, '--pin', waiting.pin)}")
