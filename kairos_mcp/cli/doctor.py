"""`doctor`: check what works here, say how to mend what does not, and list each setting with its origin."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kairos_mcp.cli.doctor_checks import Finding, FindingState, check_environment
from kairos_mcp.cli.exit_codes import COMPLETED, FAILED
from kairos_mcp.cli.options import AllFlags, AsJson, Offline, ShowAll
from kairos_mcp.cli.output import command_line_for
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.settings import read_settings, with_current_folder
from kairos_mcp.cli.terminal import Signs, emit, signs_of
from kairos_mcp.core.errors import ConfigError, KairosError, StoreCorrupt
from kairos_mcp.core.limits_table import limits_to_json, set_limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.secret_forms import strip_passwords
from kairos_mcp.core.text import count_of, format_age
from kairos_mcp.core.urls import HostRule
from kairos_mcp.settings.http_definition import HttpDefinition
from kairos_mcp.settings.masked_servers import mask_address, mask_server
from kairos_mcp.settings.names import SETTINGS
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import DayBudget, FlowSetting, GateRule, ServerSetting

if TYPE_CHECKING:
    from kairos_mcp.app.agents import AgentList
    from kairos_mcp.app.app import App
    from kairos_mcp.app.finder import OwnedReport
    from kairos_mcp.store.serving import ServingServer

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


_QUEUED_RUNS = 100  # of which doctor says what they lack
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
    "Such a run spends nothing more: cancel it if it is still open, or continue it with planner_run continues;"
    " others are not affected. Keep a copy."
)
_STATE_LABELS = Signs("ok  ", "note", "BAD ")


def doctor(*, show_all: ShowAll = False, offline: Offline = False, as_json: AsJson = False, flags: AllFlags) -> int:
    """Check what works here, say how to fix what does not, and list the settings that differ from the defaults."""
    # Here, and not above: what is tried imports most of the program, and the help needs none of it.
    from kairos_mcp.cli.doctor_trials import check_interpreters, check_provider_answer, check_servers, check_stages
    from kairos_mcp.core.redaction import Redactor

    settings: Settings | None = None
    try:
        settings = read_settings(flags)
        here = _with_current_folder(settings)
        found = [
            *check_environment(settings, os.environ),
            *([] if offline else check_interpreters(here)),
            *check_stages(here),
            *_check_store(here),
            *([] if offline else check_servers(here)),
            *([] if offline else check_provider_answer(here)),
        ]
    except ConfigError as error:
        found = [Finding("settings", "bad", error.message, error.hint)]
    shown = {} if settings is None else _shown_settings(settings)
    complete = command_line_for(flags).complete_all
    redactor = Redactor.from_environ(os.environ)

    def show(text: str) -> str:
        return complete(redactor.redact_text(strip_passwords(text)).text)

    found = [replace(finding, text=show(finding.text), cure=show(finding.cure)) for finding in found]
    value = [{"matter": f.matter, "state": f.state, "text": f.text, "cure": f.cure} for f in found]
    emit({"findings": value, "settings": shown}, _lines(found, shown, show_all=show_all), as_json=as_json)
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
    if not any(text.startswith(STORE_DAMAGE) for text in health["damage"]):  # else a table may be missing
        yield from _check_differing_servers(settings)
        yield from _check_queue(health, settings)
    yield from _check_versions(health)
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


def _check_differing_servers(settings: Settings) -> Iterator[Finding]:
    """Name the servers whose settings are not those that are read here now."""

    async def list_differing(app: App) -> list[tuple[ServingServer, Sequence[str]]]:
        return await app.control.differing_servers()

    for server, names in with_app(settings, list_differing):
        where = "" if server.machine is None else f" on {server.machine}"
        what = "worker" if server.via == "work" else "server"
        text = f"the {what} of process {server.pid}{where} has other settings than are read here"
        cure = (
            "Make the files and variables the same; then restart it: SIGTERM, or quit its host. Settings are read at a"
            " start alone."
        )
        yield Finding("servers", "note", f"{text}, in {', '.join(names)}", cure)


def _check_versions(health: JsonObject) -> Iterator[Finding]:
    """Say if living servers are of several versions: that is for the time of an upgrade."""
    found = Counter(server["version"] for server in health.get("servers", ()) if server["version"] is not None)
    if len(found) > 1:
        text = ", ".join(f"{count} of version {version}" for version, count in sorted(found.items()))
        yield Finding("versions", "note", f"living servers: {text}", "End those of the older one with SIGTERM.")


def _check_queue(health: JsonObject, settings: Settings) -> Iterator[Finding]:
    """Say if runs wait for a server and none lives that drives runs, or none that can drive these: they stand still,
    and nobody hears of it."""
    queued = health.get("open_runs", {}).get("queued", 0)
    if not queued:
        return
    waited = format_age(health["oldest_wait_s"].get("server", 0))
    could = f"{count_of(queued, 'run')} could go on, the oldest for {waited}"
    lists = "`kairos-mcp runs --everyone --status queued` lists them"
    state: FindingState = "note" if settings.store is None else "bad"
    if not health["driving"]["servers"] + health["driving"]["workers"]:
        text = f"{could}, and no server or worker lives that drives runs"
        yield Finding("workers", state, text, f"`kairos-mcp work` goes on with them, {lists}.")
        return

    from kairos_mcp.store.find_runs import WantedRuns

    async def list_queued(app: App) -> list[OwnedReport]:
        return await app.finder.list_runs(WantedRuns(None, None, "queued"), _QUEUED_RUNS, PERSON)

    lacking = Counter(each.report.held_up_by[0] for each in with_app(settings, list_queued) if each.report.held_up_by)
    for why, count in lacking.items():
        text = f"{could}; {why[0].lower()}{why[1:].rstrip('.')} ({count_of(count, 'run')})"
        yield Finding("workers", state, text, f"Start a worker that has it; {lists}.")


def _check_room(health: JsonObject, settings: Settings) -> Iterator[Finding]:
    """Say what pruning would free, if that is worth a command."""
    old = health.get("prunable")
    if old and old["runs"] and (old["bytes"] >= _PRUNE_BYTES or old["runs"] >= _PRUNE_RUNS):
        kept = "forever" if settings.keep_days is None else f"for {settings.keep_days} days"
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
        case FlowSetting():
            return {each.name: _shown_value(getattr(value, each.name)) for each in fields(value)}
        case DayBudget():
            group = {} if value.group is None else {"group": value.group}
            return {"principals": list(value.principals), **group, **set_limits_to_json(value.caps)}
        case GateRule():
            return {name: _shown_value(part) for name, part in asdict(value).items() if part not in (None, ())}
        case ServerSetting():
            masked = mask_server(value)
            address = masked.url or " ".join(masked.command)
            names = [name for name, _ in (*value.env, *value.headers)]
            return {"name": value.name, "at": address, "sandbox": value.sandbox, "given": names}
        case HttpDefinition():
            return {"name": value.name, "at": f"{value.method} {mask_address(value.url)}", "effect": value.effect}
        case _:
            return value


def _lines(findings: list[Finding], settings: dict[str, JsonObject], *, show_all: bool) -> Iterator[str]:
    """Yield what differs from the usual: findings that are not ok, and settings that somebody set; or everything."""
    signs = signs_of(sys.stdout, _STATE_LABELS)
    labels = {"ok": signs.good, "note": signs.note, "bad": signs.bad}
    told = [finding for finding in findings if show_all or finding.state != "ok"]
    for finding in told:
        yield f"{labels[finding.state]}  {finding.matter:<12}  {finding.text}"
        if finding.cure:
            yield f"{'':20}-> {finding.cure}"
    named = {finding.matter for finding in told}
    if fine := list(dict.fromkeys(finding.matter for finding in findings if finding.matter not in named)):
        yield f"{labels['ok']}  {', '.join(fine)}"
    kept = {name: each for name, each in settings.items() if show_all or each["from"] not in ("default", "-")}
    if show_all and settings:
        yield from ("", "settings")
    elif settings:
        which = "settings that differ from the defaults" if kept else "every setting has its default"
        yield from ("", f"{which} (--all lists every setting and check)")
    for name, setting in kept.items():
        value = "none" if setting["value"] in (None, []) else setting["value"]
        yield f"  {name:<22} {value}  ({setting['from']})"


def _with_current_folder(settings: Settings) -> Settings:
    """Return the settings as a command has them here, so that agents, skills and servers are judged by the tools that
    a workspace brings. Where this folder is too wide to be a workspace, there is none."""
    try:
        return settings if settings.workspaces else with_current_folder(settings)
    except ConfigError:
        return settings
