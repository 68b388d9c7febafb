"""`doctor`: what works here, the cure for what does not, and each setting with where it came from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kairos_mcp.cli.checks import Finding, findings
from kairos_mcp.cli.exits import COMPLETED, FAILED
from kairos_mcp.cli.running import with_host
from kairos_mcp.cli.speech import say, say_json
from kairos_mcp.configure import load_settings
from kairos_mcp.errors import ConfigError, KairosError, StoreCorrupt
from kairos_mcp.host import Host
from kairos_mcp.messages import JsonObject
from kairos_mcp.settings import CAPS, SETTINGS, Flags, GateRule, Settings, outside_limits

_MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def examine(flags: Flags, *, as_json: bool) -> int:
    """Look at everything; 0 where nothing is bad."""
    settings: Settings | None = None
    try:
        settings = load_settings(flags, os.environ)
        found = [*findings(settings, os.environ), _store(settings)]
    except ConfigError as error:
        found = [Finding("settings", "bad", error.message, error.hint)]
    shown = {} if settings is None else dict(_effective(settings))
    if as_json:
        said = [{"matter": f.matter, "state": f.state, "text": f.text, "cure": f.cure} for f in found]
        say_json({"findings": said, "settings": shown})
    else:
        for line in _lines(found, shown):
            say(line)
    return FAILED if any(finding.state == "bad" for finding in found) else COMPLETED


def _store(settings: Settings) -> Finding:
    """A store that is not there yet is not made only to be looked at."""

    async def look(host: Host) -> JsonObject:
        return host.health()

    try:
        health = with_host(settings, look)
    except StoreCorrupt as error:
        return Finding("store", "bad", error.message, f"Move the file away from {settings.home}, and keep it.")
    except KairosError as error:
        return Finding("store", "bad", error.message, error.hint)
    if not health["exists"]:
        return Finding("store", "ok", "none yet; it is made at the first run")
    size = f"{health['bytes'] >> 10} KB, schema {health['schema_version']}, {health['runs']['total']} runs"
    if health["integrity"] != "ok":
        cure = "Keep a copy, move it away and start anew; what was readable is in the copy."
        return Finding("store", "bad", f"{health['store']}: {health['integrity']}", cure)
    return Finding("store", "ok", f"{health['store']}: {size}")


def _effective(settings: Settings) -> Iterator[tuple[str, JsonObject]]:
    """Each setting in the words of the file, with its value and where it came from."""
    caps = outside_limits(settings.limits)
    yield "home", {"value": str(settings.home), "from": settings.origins["home"]}
    yield (
        "config",
        {"value": None if settings.config_file is None else str(settings.config_file), "from": "-"},
    )
    for name in SETTINGS:
        group, _, cap = name.rpartition(".")
        value = caps[cap] if group and cap in CAPS else getattr(settings, name)
        yield name, {"value": _plain(value), "from": settings.origins[name]}


def _plain(value: Any) -> Any:
    match value:
        case tuple():
            return [_plain(each) for each in value]
        case Path():
            return str(value)
        case GateRule():
            return {"tools": value.tools, "verdict": value.verdict}
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
