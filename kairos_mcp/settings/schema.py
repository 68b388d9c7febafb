"""Validate settings from a file or the environment; the only place that does."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from kairos_mcp.core.decision_rights import ApprovalsSetting
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.limits import CAPS, DAY_UNITS, UNLIMITED, Limits, set_limits_to_json
from kairos_mcp.core.limits_table import LimitsTable
from kairos_mcp.core.routes import RouteName
from kairos_mcp.core.steps import DialectName
from kairos_mcp.core.text import decode_text
from kairos_mcp.core.urls import parse_host_rule
from kairos_mcp.settings.bounded_files import read_bounded
from kairos_mcp.settings.secret_refs import REFERENCE_FORMS, is_reference
from kairos_mcp.settings.settings import (
    FILE_ONLY,
    SETTINGS,
    CommandMode,
    Durability,
    PromptForm,
    ServerSetting,
    variable_name,
)
from kairos_mcp.settings.tables import GateTable, HttpToolTable, OAuthTable, ServerName, ServerTable, StrictTable, Text

Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
PathGlob = Annotated[str, Field(pattern=r"^[^/\\][^\\]*$", max_length=256)]  # from the workspace's root, or a bare name
PLACE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
SETTINGS_BYTES = 1_000_000  # of the settings file
FOLDERS = ("workspaces", "command_reads", "skills")  # lists; in a variable separated as in PATH


def _check_reference(text: str) -> str:
    """Refuse a key itself, which does not belong into a setting; the error does not quote it."""
    if not is_reference(text):
        raise PydanticCustomError("reference", "it has to refer to a key: {forms}", {"forms": REFERENCE_FORMS})
    return text


def _check_network(text: str) -> str:
    """Refuse what is no address and no network."""
    try:
        ip_network(text, strict=False)
    except ValueError:
        raise PydanticCustomError("network", "it has to be an address or a network, as 10.0.0.0/8") from None
    return text


def _check_address(text: str) -> str:
    """Refuse a password in the address of a database; the error does not quote it."""
    user, _, host = text.partition("://")[2].rpartition("@")  # a password may hold what else ends an authority
    options = parse_qs(urlsplit(text).query)
    if (host and user.partition(":")[2]) or "password" in options or "sslpassword" in options:
        raise PydanticCustomError("password", "a password does not belong into it: store_password refers to one")
    return text


def _to_servers(tables: dict[str, ServerTable]) -> tuple[ServerSetting, ...]:
    return tuple(table.to_setting(name) for name, table in sorted(tables.items()))


class _SettingsFile(StrictTable):
    """The keys of the settings file. All are optional: what is not given comes from the next source."""

    workspaces: list[Text] | None = None
    durability: Durability | None = None
    store: (
        Annotated[str, Field(pattern=r"^postgres(ql)?://\S*$", max_length=2_000), AfterValidator(_check_address)] | None
    ) = None
    store_password: Annotated[str, AfterValidator(_check_reference)] | None = None
    place: Annotated[str, Field(pattern=PLACE)] | None = None
    route: RouteName | None = None
    script: Text | None = None
    model: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_./-]*:\S+$")] | None = None
    model_key: Annotated[str, AfterValidator(_check_reference)] | None = None
    base_url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+[^\s?#]*$")] | None = None
    dialect: DialectName | None = None
    price_input: Amount | None = None
    price_output: Amount | None = None
    sampling: Literal["fallback", "prefer"] | None = None
    silent_clients: list[Text] | None = None
    tools: Text | None = None
    default_rounds: Annotated[int, Field(ge=1, le=10_000)] | None = None
    context_tokens: Annotated[int, Field(ge=2_000, le=100_000_000)] | None = None
    prompts: PromptForm | None = None
    read_bytes: Annotated[int, Field(ge=1_024, le=256 * 1024 * 1024)] | None = None
    shown_chars: Annotated[int, Field(ge=500, le=1_000_000)] | None = None
    time_zone: Text | None = None
    keep_days: Annotated[int, Field(ge=1, le=100_000)] | None = None
    limits: Annotated[Limits, LimitsTable()] | None = None
    day: Annotated[Limits, LimitsTable(DAY_UNITS)] | None = None
    approvals: ApprovalsSetting | None = None
    approval_hours: Annotated[int, Field(ge=1, le=10_000)] | None = None
    gate: list[Annotated[GateTable, AfterValidator(GateTable.to_rule)]] | None = None
    servers: Annotated[dict[ServerName, ServerTable], AfterValidator(_to_servers)] | None = None
    http_fetch: bool | None = None
    http_hosts: list[Annotated[Text, AfterValidator(parse_host_rule)]] | None = None
    private_hosts: list[Annotated[Text, AfterValidator(partial(parse_host_rule, wildcard=False))]] | None = None
    http_tools: list[Annotated[HttpToolTable, AfterValidator(HttpToolTable.to_definition)]] | None = None
    commands: CommandMode | None = None
    command_reads: list[Text] | None = None
    command_writes: list[PathGlob] | None = None
    skills: list[Text] | None = None
    claude_agents: bool | None = None
    instructions: list[PathGlob] | None = None
    rate_limit: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    rate_burst: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_sessions: Annotated[int, Field(ge=1, le=100_000)] | None = None
    principal_sessions: Annotated[int, Field(ge=1, le=100_000)] | None = None
    shutdown_s: Annotated[float, Field(ge=0, le=3_600, allow_inf_nan=False)] | None = None
    trusted_proxies: list[Annotated[Text, AfterValidator(_check_network)]] | None = None
    log_format: Literal["text", "json"] | None = None
    oauth: Annotated[OAuthTable, AfterValidator(OAuthTable.to_setting)] | None = None
    telemetry: bool | None = None
    telemetry_content: bool | None = None

    def to_settings(self) -> dict[str, Any]:
        """Return what was given: limits one by one (`limits.usd`), lists as tuples."""
        given = {name: getattr(self, name) for name in self.model_fields_set - {"limits", "day"}}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        for group, limits in (("limits", self.limits), ("day", self.day)):
            given |= {f"{group}.{name}": cap for name, cap in set_limits_to_json(limits or UNLIMITED).items()}
        return given


def read_settings_file(file: Path) -> dict[str, Any]:
    """Return the settings in a file. Its paths are relative to the file's folder. Raises ConfigError."""
    try:
        parsed = tomllib.loads(decode_text(read_bounded(file, SETTINGS_BYTES)))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The settings file {file} can't be read: {error}.", "Name another by --config.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"The settings file {file} is not valid TOML: {error}.", "Correct that line.") from error
    try:
        given = _SettingsFile.model_validate(parsed).to_settings()
    except ValidationError as error:
        raise _rejected_error(f"The settings file {file}", error) from error
    for name in FOLDERS:
        if name in given:
            given[name] = [_relative_to_file(file, text) for text in given[name]]
    if "script" in given:
        given["script"] = _relative_to_file(file, given["script"])
    if "servers" in given:
        given["servers"] = tuple(_resolve_cwd(file, server) for server in given["servers"])
    return given


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in KAIROS_* variables; empty ones count as unset. Raises ConfigError."""
    texts: dict[str, Any] = {}
    for name in SETTINGS:
        text = environ.get(variable_name(name), "")
        if not text or name in FILE_ONLY or name in FOLDERS:
            continue
        group, _, leaf = name.rpartition(".")
        inner = texts.setdefault(group, {}) if group else texts
        inner[leaf] = text
    try:
        given = _SettingsFile.model_validate_strings(texts).to_settings()
    except ValidationError as error:
        raise _rejected_error("The environment", error, in_environment=True) from error
    for name in FOLDERS:
        if folders := [part for part in environ.get(variable_name(name), "").split(os.pathsep) if part]:
            given[name] = folders
    return given


def limits_from_texts(given: Mapping[str, str]) -> Limits:
    """Validate limits as a person types them (`rounds=8`, `usd=0.50`). Raises BadArguments."""
    try:
        return TypeAdapter[Limits](Annotated[Limits, LimitsTable()]).validate_strings(given)
    except ValidationError as error:
        _, name, message = first_problem(error)
        raise BadArguments(f"The limit {name!r}: {message}.", f"Limits are: {', '.join(CAPS)}.") from error


def check_place(text: str) -> str:
    """Return the name of a place as a flag gives it. Raises BadArguments."""
    if not re.match(PLACE, text):
        raise BadArguments(f"{text[:80]!r} can't name a place.", f"It is {_FORMS['place']}.")
    return text


def _resolve_cwd(file: Path, server: ServerSetting) -> ServerSetting:
    """Resolve a server's folder relative to the file, unless it begins with a reference such as `${workspace}`."""
    if server.cwd is None or server.cwd.startswith("${"):
        return server
    return replace(server, cwd=_relative_to_file(file, server.cwd))


def _relative_to_file(file: Path, text: str) -> str:
    return str(file.parent / Path(text).expanduser())


_FORMS = {
    "model": 'a provider and its model, as "openai:gpt-5"',
    "store": 'the address of a PostgreSQL database, as "postgresql://kairos@db.example.com/kairos"',
    "place": "a name of letters, digits, dots, - and _",
    "base_url": 'an address without a query, as "http://127.0.0.1:8080/v1"',
    "url": 'an address, as "https://mcp.example.com/mcp"',
    "command_writes": 'a path from the root of the workspace, or a name, as "docs/AGENTS.md"',
    "instructions": 'a path from the root of the workspace, or a name, as "docs/prompts/*"',
    "env": "the name of a variable: letters, digits and _",
    "headers": "the name of a header",
    "issuer": 'an https address, as "https://login.example.com"; http on this machine alone',
    "jwks_uri": 'an https address, as "https://login.example.com/jwks.json"; http on this machine alone',
    "resource": 'the address of this server for clients, as "https://kairos.example.com/mcp"',
    "servers": "a name of letters and digits, joined by single - or _",
}
"""What a value has to be where its form is wrong, by the key that it belongs to: nobody reads a regular expression."""


def _rejected_error(where: str, error: ValidationError, *, in_environment: bool = False) -> ConfigError:
    """Return an error for the first problem, which names the key and what is valid, and quotes no value."""
    kind, key, message = first_problem(error)
    if kind == "extra_forbidden":
        return ConfigError(f"{where} has an unknown setting {key!r}.", _place_hint(key))
    form = next((_FORMS[part] for part in reversed(key.split(".")) if part in _FORMS), None)
    if kind == "string_pattern_mismatch" and form is not None:
        message = f"it has to be {form}"
    shown = variable_name(key) if in_environment else key
    cure = "docs/settings.md explains each setting, and so does the file that `kairos-mcp init` writes."
    return ConfigError(f"{where}: {shown}: {message}.", cure)


def _place_hint(key: str) -> str:
    """Say in which tables a key is a setting, if not in this place; else what is valid in it."""
    name = key.rpartition(".")[2]
    fields: dict[str, type[StrictTable]] = {
        "[[gate]]": GateTable,
        "[[http_tools]]": HttpToolTable,
        "[servers.NAME]": ServerTable,
        "[oauth]": OAuthTable,
    }
    tables = [f"[{group}]" for group in ("limits", "day") if f"{group}.{name}" in SETTINGS]
    tables += [table for table, model in fields.items() if name in model.model_fields]
    if tables:
        return f"{name} belongs below a line {' or '.join(tables)}: take the # away from that line too."
    return f"Valid are: {', '.join(_valid_names(key))}."


def _valid_names(key: str) -> list[str]:
    """Return the keys that are valid in the place of an unknown one."""
    group = key.partition(".")[0]
    if group in ("limits", "day"):
        return [name.removeprefix(f"{group}.") for name in SETTINGS if name.startswith(f"{group}.")]
    if key.startswith("gate."):
        return list(GateTable.model_fields)
    if key.startswith("servers."):
        return list(ServerTable.model_fields)
    if key.startswith("http_tools."):
        return list(HttpToolTable.model_fields)
    if key.startswith("oauth."):
        return list(OAuthTable.model_fields)
    return list(dict.fromkeys(name.partition(".")[0] for name in SETTINGS))
