"""`doctor`: what works here, the cure for what does not, and each setting with where it came from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kairos_mcp.app.app import App
from kairos_mcp.cli.doctor_checks import Finding, findings
from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.output import commands_of
from kairos_mcp.cli.session import with_host
from kairos_mcp.cli.speech import say, say_json
from kairos_mcp.core.counting import count_of
from kairos_mcp.core.errors import ConfigError, KairosError, StoreCorrupt
from kairos_mcp.core.limits import limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.secret_forms import strip_passwords
from kairos_mcp.core.urls import HostRule
from kairos_mcp.settings.http_tool import HttpDefinition
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import SETTINGS, Flags, GateRule, ServerSetting, Settings
from kairos_mcp.store.integrity import SQLITE_DAMAGE

_WORTH_BYTES, _WORTH_RUNS = 16 << 20, 1_000
_DAMAGED = (
    "Stop the servers, copy the state folder, `kairos-mcp export` what can still be read, then move the file away: "
    "the next start makes a new one."
)
_UNFIT = (
    "Such a run spends nothing more: cancel it where it is still open, or go on from it with planner_run continues;"
    " others are not touched. Keep a copy."
)
_MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def examine(flags: Flags, *, as_json: bool) -> int:
    """Look at everything; 0 where nothing is bad."""
    settings: Settings | None = None
    try:
        settings = load_settings(flags, os.environ)
        found = [*findings(settings, os.environ), *_store(settings)]
    except ConfigError as error:
        found = [Finding("settings", "bad", error.message, error.hint)]
    worded = commands_of(flags).complete_all
    shown = {} if settings is None else {name: _safe(row) for name, row in _effective(settings)}
    found = [
        replace(each, text=worded(strip_passwords(each.text)), cure=worded(strip_passwords(each.cure)))
        for each in found
    ]
    if as_json:
        said = [{"matter": f.matter, "state": f.state, "text": f.text, "cure": f.cure} for f in found]
        say_json({"findings": said, "settings": shown})
    else:
        for line in _lines(found, shown):
            say(line)
    return FAILED if any(finding.state == "bad" for finding in found) else COMPLETED


def _safe(value: Any) -> Any:
    """A setting as it is shown: no URL with its password."""
    match value:
        case str():
            return strip_passwords(value)
        case dict():
            return {name: _safe(part) for name, part in value.items()}
        case list():
            return [_safe(part) for part in value]
        case _:
            return value


def _store(settings: Settings) -> Iterator[Finding]:
    """A store that is not there yet is not made only to be looked at."""

    async def look(host: App) -> JsonObject:
        health = host.health(thorough=True)
        if health["exists"]:
            host.check_writable()
        return health

    try:
        health = with_host(settings, look)
    except StoreCorrupt as error:
        yield Finding("store", "bad", error.message, _DAMAGED)
        return
    except KairosError as error:
        yield Finding("store", "bad", error.message, error.hint)
        return
    if not health["exists"]:
        yield Finding("store", "ok", "none yet; it is made at the first run")
        yield from _tools(settings)
        return
    for text in health["damage"]:
        yield Finding("store", "bad", text, _DAMAGED if text.startswith(SQLITE_DAMAGE) else _UNFIT)
    if not health["damage"]:
        size = (
            f"{health['bytes'] >> 10} KB, schema {health['schema_version']}, {count_of(health['runs']['total'], 'run')}"
        )
        yield Finding("store", "ok", f"{health['store']}: {size}")
    yield from _room(health, settings)
    yield from _tools(settings)


def _tools(settings: Settings) -> Iterator[Finding]:
    """What the sources of tools have to say, so far as it is known: no server is started."""

    async def look(host: App) -> tuple[str, ...]:
        return host.tool_notes()

    try:
        notes = with_host(settings, look)
    except KairosError as error:
        yield Finding("tools", "bad", error.message, error.hint)
        return
    for note in notes:
        yield Finding("tools", "note", note)


def _room(health: JsonObject, settings: Settings) -> Iterator[Finding]:
    """What could be given back: only said where it is worth a command."""
    old = health.get("prunable")
    if old and old["runs"] and (old["bytes"] >= _WORTH_BYTES or old["runs"] >= _WORTH_RUNS):
        kept = "for ever" if settings.keep_days is None else f"for {settings.keep_days} days"
        text = f"{old['runs']} runs ended over {old['ended_days_ago']} days ago, about {old['bytes'] >> 10} KB"
        cure = f"`kairos-mcp runs --prune --older-than {old['ended_days_ago']}d`"
        yield Finding("room", "note", f"{text}; ended runs are kept {kept}", cure)


def _effective(settings: Settings) -> Iterator[tuple[str, JsonObject]]:
    """Each setting in the words of the file, with its value and where it came from."""
    caps = {"limits": limits_to_json(settings.limits), "day": limits_to_json(settings.day)}
    yield "home", {"value": str(settings.home), "from": settings.origins["home"]}
    yield (
        "config",
        {"value": None if settings.config_file is None else str(settings.config_file), "from": "-"},
    )
    for name in SETTINGS:
        group, _, cap = name.rpartition(".")
        value = caps[group][cap] if group else getattr(settings, name)
        yield name, {"value": _plain(value), "from": settings.origins[name]}


def _plain(value: Any) -> Any:
    match value:
        case tuple():
            return [_plain(each) for each in value]
        case Path():
            return str(value)
        case GateRule():
            given = asdict(value)
            return {name: _plain(part) for name, part in given.items() if part not in (None, ())}
        case ServerSetting():  # values of env and headers may be secrets, and are not shown
            reached = value.url or " ".join(value.command)
            named = [name for name, _ in (*value.env, *value.headers)]
            return {"name": value.name, "at": reached, "sandbox": value.sandbox, "given": named}
        case HostRule():
            return str(value)
        case HttpDefinition():  # values of headers may be secrets, and are not shown
            return {"name": value.name, "at": f"{value.method} {value.url}", "effect": value.effect}
        case _:
            return value


def _lines(found: list[Finding], shown: dict[str, JsonObject]) -> Iterator[str]:
    for finding in found:
        yield f"{_MARKS[finding.state]}  {finding.matter:<12}  {finding.text}"
        if finding.cure:
            yield f"{'':20}-> {finding.cure}"
    if shown:
        yield ""
        yield "settings"
    for name, row in shown.items():
        value = "none" if row["value"] in (None, []) else row["value"]
        yield f"  {name:<22} {value}  ({row['from']})"
