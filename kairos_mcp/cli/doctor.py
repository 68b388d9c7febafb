"""`doctor`: check what works here, say how to mend what does not, and list each setting with its origin."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kairos_mcp.cli.doctor_checks import Finding, check_environment
from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.options import AllFlags, AsJson
from kairos_mcp.cli.output import command_line_for
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import read_settings
from kairos_mcp.cli.terminal import emit
from kairos_mcp.core.errors import ConfigError, KairosError, StoreCorrupt
from kairos_mcp.core.limits import limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.secret_forms import strip_passwords
from kairos_mcp.core.text import count_of
from kairos_mcp.core.urls import HostRule
from kairos_mcp.settings.http_definition import HttpDefinition
from kairos_mcp.settings.settings import SETTINGS, GateRule, ServerSetting, Settings

if TYPE_CHECKING:
    from kairos_mcp.app.agents import AgentList
    from kairos_mcp.app.app import App
    from kairos_mcp.tools.mcp_servers.source import ServerTrial


TRY_S = 20.0
SERVERS_TRY_S = 15.0
STDERR_LINES = 5
_INTERPRETERS = (
    (".venv/bin/python", (".venv/bin/python", "--version")),
    ("node_modules/.bin", ("node", "--version")),
    ("rust-toolchain", ("cargo", "--version")),
    ("rust-toolchain.toml", ("cargo", "--version")),
)
"""What in a workspace says that it needs an interpreter, and the command that tries it."""


def check_interpreters(settings: Settings) -> Iterator[Finding]:
    """Try the interpreters that each workspace needs, as run_command starts them."""
    if settings.commands == "off":
        return
    for folder in settings.workspaces:
        tried = set[tuple[str, ...]]()
        for name, argv in _INTERPRETERS:
            if argv not in tried and os.path.lexists(folder / name):
                tried.add(argv)
                yield _try_interpreter(settings, folder, name, list(argv))


def check_servers(settings: Settings) -> Iterator[Finding]:
    """Start each configured MCP server; of one that does not list its tools say what it wrote last."""
    if not settings.servers:
        return

    async def try_servers(app: App) -> list[ServerTrial]:
        return await app.tools.try_servers(SERVERS_TRY_S)

    by_name = {server.name: server for server in settings.servers}
    for trial in with_app(settings, try_servers):
        if trial.problem is None:
            yield Finding("servers", "ok", f"{trial.name} lists {count_of(trial.tools, 'tool')}")
            continue
        last = [line.strip() for line in trial.stderr.splitlines() if line.strip()][-STDERR_LINES:]
        wrote = f" It wrote: {' | '.join(last)}" if last else " It wrote nothing to stderr."
        server = by_name[trial.name]
        command = shlex.join(server.command)
        cure = f"Try it in a terminal: `{command}`" if server.command else f"Look whether {server.url} answers"
        yield Finding("servers", "note", f"{trial.problem}{wrote}", f"{cure}; then correct [servers.{trial.name}].")


def _try_interpreter(settings: Settings, folder: Path, name: str, argv: list[str]) -> Finding:
    from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
    from kairos_mcp.tools.files.workspace import Workspace
    from kairos_mcp.tools.tool import ToolContext, call_tool

    try:
        with Workspace(folder) as workspace:
            (tool,) = command_tools(workspace, CommandSettings.from_settings(settings))
            context = ToolContext("doctor", time.monotonic() + TRY_S, lambda _: None)
            result = call_tool(tool, {"argv": argv, "timeout_s": TRY_S / 2}, context)
    except KairosError as error:
        return Finding("programs", "note", f"{folder}: {name} can't be tried: {error.message}", error.hint)
    last = result.content.strip().splitlines()[-1]
    if not result.is_error:
        return Finding("programs", "ok", f"{folder}: {name} runs ({last})")
    if result.code is None:
        return Finding("programs", "note", f"{folder}: {' '.join(argv)} fails: {last}", "Try it in a terminal.")
    problem, _, cure = result.content.partition(". ")
    return Finding("programs", "note", f"{folder}: {name}: {problem}", cure)


_CLOCK_S = 2.0  # by which this machine's clock may differ before it is worth a word


def check_database(settings: Settings) -> Iterator[Finding]:
    """Check the version, the settings and the clock of the database's server. Raises KairosError."""
    from kairos_mcp.app.app import make_database

    found = make_database(settings, "doctor").check_server()
    if not found.is_new_enough:
        yield Finding("database", "bad", f"PostgreSQL {found.version} is too old", "Use PostgreSQL 16 or newer.")
        return
    yield Finding("database", "ok", f"PostgreSQL {found.version}")
    if not found.keeps_session:
        text = "a session does not stay with its connection: a pooler hands it out for single transactions"
        yield Finding("database", "bad", text, "Name the server itself in `store`, or a pooler that pools sessions.")
    if not found.is_durable:
        text = "it forgets the newest commits when it loses its power: synchronous_commit or fsync is off"
        yield Finding("database", "note", text, "Switch them on, unless that is what you want.")
    if abs(found.ahead_s) > _CLOCK_S:
        text = f"its clock is {abs(found.ahead_s):.0f} s {'ahead of' if found.ahead_s > 0 else 'behind'} this machine's"
        yield Finding("database", "note", f"{text}; days and times are the database's", "Set both by NTP.")


_PRUNE_BYTES, _PRUNE_RUNS = 16 << 20, 1_000  # from here on pruning is worth a command
_DAMAGED_FILE_CURE = (
    "Stop the servers, copy the state folder, `kairos-mcp export` what can still be read, then move the file away: "
    "the next start makes a new one."
)
_DAMAGED_DATABASE_CURE = (
    "Stop the servers, `kairos-mcp export` what can still be read, then restore the database from a backup, or name an "
    "empty one in `store` and run `kairos-mcp store migrate`."
)
_UNREADABLE_CURE = (
    "Such a run spends nothing more: cancel it if it is still open, or go on from it with planner_run continues;"
    " others are not affected. Keep a copy."
)
_STATE_LABELS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def doctor(*, as_json: AsJson = False, flags: AllFlags) -> int:
    """Check what works here, say how to mend what does not, and list the settings."""
    settings: Settings | None = None
    try:
        settings = read_settings(flags)
        found = [
            *check_environment(settings, os.environ),
            *check_interpreters(settings),
            *_check_store(settings),
            *check_servers(settings),
        ]
    except ConfigError as error:
        found = [Finding("settings", "bad", error.message, error.hint)]
    shown = {} if settings is None else _shown_settings(settings)
    complete = command_line_for(flags).complete_all
    found = [
        replace(finding, text=complete(strip_passwords(finding.text)), cure=complete(strip_passwords(finding.cure)))
        for finding in found
    ]
    value = [{"matter": f.matter, "state": f.state, "text": f.text, "cure": f.cure} for f in found]
    emit({"findings": value, "settings": shown}, _lines(found, shown), as_json=as_json)
    return FAILED if any(finding.state == "bad" for finding in found) else COMPLETED


def _check_store(settings: Settings) -> Iterator[Finding]:
    """Check the database or the state file, and list what the sources of tools report. Nothing is created for that."""
    from kairos_mcp.store.integrity import STORE_DAMAGE

    damaged_cure = _DAMAGED_FILE_CURE if settings.store is None else _DAMAGED_DATABASE_CURE
    if settings.store is not None:
        try:
            yield from check_database(settings)
        except KairosError as error:
            yield Finding("database", "bad", error.message, error.hint)
            return

    async def check(app: App) -> JsonObject:
        health = await app.health(thorough=True)
        if health["exists"]:
            app.check_writable()
        return health

    try:
        health = with_app(settings, check)
    except StoreCorrupt as error:
        yield Finding("store", "bad", error.message, damaged_cure)
        return
    except KairosError as error:
        yield Finding("store", "bad", error.message, error.hint)
        return
    if not health["exists"]:
        yield Finding("store", "ok", "none yet; it is made at the first run")
        yield from _check_tools(settings)
        return
    for text in health["damage"]:
        yield Finding("store", "bad", text, damaged_cure if text.startswith(STORE_DAMAGE) else _UNREADABLE_CURE)
    if not health["damage"]:
        size = (
            f"{health['bytes'] >> 10} KB, schema {health['schema_version']}, {count_of(health['runs']['total'], 'run')}"
        )
        yield Finding("store", "ok", f"{health['store']}: {size}")
    yield from _check_outdated_servers(settings)
    yield from _check_room(health, settings)
    yield from _check_tools(settings)


def _check_tools(settings: Settings) -> Iterator[Finding]:
    """List what is known of the sources of tools, and of agents, without starting a server."""

    async def read_agents(app: App) -> AgentList:
        return await app.agents.list_all(PERSON)

    async def read_notes(app: App) -> tuple[str, ...]:
        return await app.tools.source_notes()

    try:
        notes = with_app(settings, read_notes)
        agents = with_app(settings, read_agents)
    except KairosError as error:
        yield Finding("tools", "bad", error.message, error.hint)
        return
    for note in notes:
        yield Finding("tools", "note", note)
    yield Finding("agents", "ok", f"{len(agents.agents)} to be chosen from; `kairos-mcp agents` lists them")
    for wrong in agents.disabled:
        if wrong.origin == "built-in" and not settings.workspaces:
            continue  # all that need files, and `serve` says so
        yield Finding("agents", "note", f"{wrong.name} is disabled ({wrong.file}): {wrong.problem}", wrong.hint)
    for each in agents.agents:
        if each.agent.left_out:
            yield Finding("agents", "note", f"of {each.agent.name} is left out: {', '.join(each.agent.left_out)}")


def _check_outdated_servers(settings: Settings) -> Iterator[Finding]:
    """Name the servers that still use what the settings file held when they began."""

    async def list_outdated(app: App) -> list[tuple[int, list[str]]]:
        return await app.control.outdated_servers()

    for pid, names in with_app(settings, list_outdated):
        text = f"{settings.config_file} was changed after the server of process {pid} began; it differs in"
        cure = "Restart it: end its host, or the connection to it, and begin again."
        yield Finding("servers", "note", f"{text} {', '.join(names)}", cure)


def _check_room(health: JsonObject, settings: Settings) -> Iterator[Finding]:
    """Say what pruning would free, if that is worth a command."""
    old = health.get("prunable")
    if old and old["runs"] and (old["bytes"] >= _PRUNE_BYTES or old["runs"] >= _PRUNE_RUNS):
        kept = "for ever" if settings.keep_days is None else f"for {settings.keep_days} days"
        text = f"{old['runs']} runs ended over {old['ended_days_ago']} days ago, about {old['bytes'] >> 10} KB"
        cure = f"`kairos-mcp runs --prune --older-than {old['ended_days_ago']}d --all`"
        yield Finding("room", "note", f"{text}; ended runs are kept {kept}", cure)


def _shown_settings(settings: Settings) -> dict[str, JsonObject]:
    """Each setting under its name in the settings file, with its value and its origin. No secret is shown."""
    caps = {"limits": limits_to_json(settings.limits), "day": limits_to_json(settings.day)}
    file = None if settings.config_file is None else str(settings.config_file)
    shown: dict[str, JsonObject] = {
        "home": {"value": str(settings.home), "from": settings.origins["home"]},
        "config": {"value": file, "from": "-"},
    }
    for name in SETTINGS:
        group, _, cap = name.rpartition(".")
        value = caps[group][cap] if group else getattr(settings, name)
        shown[name] = {"value": _shown_value(value), "from": settings.origins[name]}
    return shown


def _shown_value(value: Any) -> Any:
    """A setting's value as JSON; URLs without passwords, and of headers and variables only the names."""
    match value:
        case str():
            return strip_passwords(value)
        case tuple():
            return [_shown_value(part) for part in value]
        case Path() | HostRule():
            return strip_passwords(str(value))
        case GateRule():
            return {name: _shown_value(part) for name, part in asdict(value).items() if part not in (None, ())}
        case ServerSetting():
            address = strip_passwords(value.url or " ".join(value.command))
            names = [name for name, _ in (*value.env, *value.headers)]
            return {"name": value.name, "at": address, "sandbox": value.sandbox, "given": names}
        case HttpDefinition():
            return {"name": value.name, "at": strip_passwords(f"{value.method} {value.url}"), "effect": value.effect}
        case _:
            return value


def _lines(findings: list[Finding], settings: dict[str, JsonObject]) -> Iterator[str]:
    for finding in findings:
        yield f"{_STATE_LABELS[finding.state]}  {finding.matter:<12}  {finding.text}"
        if finding.cure:
            yield f"{'':20}-> {finding.cure}"
    if settings:
        yield ""
        yield "settings"
    for name, setting in settings.items():
        value = "none" if setting["value"] in (None, []) else setting["value"]
        yield f"  {name:<22} {value}  ({setting['from']})"
