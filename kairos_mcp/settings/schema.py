"""Validate settings from a file or the environment, by what `Settings` declares; the only place that does."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticCustomError

from kairos_mcp.core.decision_rights import ApprovalsSetting
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.limits import CAPS, DAY_UNITS, UNLIMITED, Limits
from kairos_mcp.core.limits_table import LimitsTable, set_limits_to_json
from kairos_mcp.core.routes import RouteName
from kairos_mcp.core.steps import DialectName
from kairos_mcp.core.text import decode_text, nearest_names
from kairos_mcp.core.urls import HostRule, parse_host_rule
from kairos_mcp.settings.bounded_files import read_bounded
from kairos_mcp.settings.folders import absolute_path
from kairos_mcp.settings.http_definition import HttpDefinition
from kairos_mcp.settings.http_tool_table import HttpToolTable
from kairos_mcp.settings.key import Key
from kairos_mcp.settings.names import KEYS, SETTINGS, VARIABLES, variable_name
from kairos_mcp.settings.notify_table import NotifyTable
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import (
    ClientSetting,
    DayBudget,
    FlowSetting,
    GateRule,
    NotifySetting,
    OAuthSetting,
    ServerSetting,
)
from kairos_mcp.settings.tables import (
    ClientName,
    ClientTable,
    DayBudgetTable,
    FlowTable,
    GateTable,
    OAuthTable,
    ServerName,
    ServerTable,
    StrictTable,
    Text,
    check_reference,
)

SETTINGS_BYTES = 1_000_000  # of the settings file


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
        raise PydanticCustomError("password", "it must not contain a password: store_password refers to one")
    return text


def _to_servers(tables: dict[str, ServerTable]) -> tuple[ServerSetting, ...]:
    return tuple(table.to_setting(name) for name, table in sorted(tables.items()))


def _to_clients(tables: dict[str, ClientTable]) -> tuple[ClientSetting, ...]:
    return tuple(ClientSetting(name, **table.model_dump()) for name, table in sorted(tables.items()))


CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "reference": check_reference,
    "no_password": _check_address,
    "network": _check_network,
    "host": parse_host_rule,
    "single_host": partial(parse_host_rule, wildcard=False),
}
TABLES: Mapping[str, tuple[str, type[StrictTable]]] = {
    "day_budget": ("[[day_budget]]", DayBudgetTable),
    "gate": ("[[gate]]", GateTable),
    "flow": ("[flow]", FlowTable),
    "http_tools": ("[[http_tools]]", HttpToolTable),
    "servers": ("[servers.NAME]", ServerTable),
    "clients": ("[clients.NAME]", ClientTable),
    "notify": ("[[notify]]", NotifyTable),
    "oauth": ("[oauth]", OAuthTable),
}
"""The settings that are tables: how each begins in the file, and its keys."""
_TABLES: Mapping[Any, Any] = {
    DayBudget: Annotated[DayBudgetTable, AfterValidator(DayBudgetTable.to_budget)],
    GateRule: Annotated[GateTable, AfterValidator(GateTable.to_rule)],
    FlowSetting: Annotated[FlowTable, AfterValidator(FlowTable.to_setting)],
    HttpDefinition: Annotated[HttpToolTable, AfterValidator(HttpToolTable.to_definition)],
    tuple[ServerSetting, ...]: Annotated[dict[ServerName, ServerTable], AfterValidator(_to_servers)],
    tuple[ClientSetting, ...]: Annotated[dict[ClientName, ClientTable], AfterValidator(_to_clients)],
    NotifySetting: Annotated[NotifyTable, AfterValidator(NotifyTable.to_setting)],
    OAuthSetting: Annotated[OAuthTable, AfterValidator(OAuthTable.to_setting)],
}
"""The table of the settings file that defines a value of this type."""
_TYPES = get_type_hints(
    Settings,
    localns={
        "ApprovalsSetting": ApprovalsSetting,
        "DialectName": DialectName,
        "HostRule": HostRule,
        "HttpDefinition": HttpDefinition,
        "RouteName": RouteName,
    },
)
_FOLDERS = tuple(name for name in KEYS if _TYPES[name] == tuple[Path, ...])
_PATHS = tuple(name for name in KEYS if _TYPES[name] == Path | None)


def _written_type(kind: Any, key: Key) -> Any:
    """Return the type of a setting in the file. `kind`: the type of its value."""
    if kind in _TABLES:
        return _TABLES[kind]
    if get_origin(kind) is UnionType:
        return _written_type(get_args(kind)[0], key)  # the other one is None
    if get_origin(kind) is tuple:
        return list[_written_type(get_args(kind)[0], key)]  # type: ignore[misc]  # made at run time
    checks = [Field(**key.bounds)] if key.bounds else []
    checks += [AfterValidator(CHECKS[key.check])] if key.check else []
    if kind in (Path, HostRule) or (kind is str and not checks):
        kind = Text
    return Annotated[(kind, *checks)] if checks else kind


_WRITTEN_TYPES: Mapping[str, Any] = {
    **{name: _written_type(_TYPES[name], key) for name, key in KEYS.items()},
    "limits": Annotated[Limits, LimitsTable()],
    "day": Annotated[Limits, LimitsTable(DAY_UNITS)],
}
_FIELDS: dict[str, Any] = {name: (written | None, None) for name, written in _WRITTEN_TYPES.items()}
_SettingsFile = create_model("_SettingsFile", __base__=StrictTable, **_FIELDS)
"""The keys of the settings file. All are optional: what is not given comes from the next source."""


def _given_settings(file: StrictTable) -> dict[str, Any]:
    """Return what was given: limits one by one (`limits.usd`), lists as tuples."""
    given = {name: getattr(file, name) for name in file.model_fields_set}
    for group in ("limits", "day"):
        limits = given.pop(group, None) or UNLIMITED
        given |= {f"{group}.{name}": cap for name, cap in set_limits_to_json(limits).items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def read_settings_file(file: Path) -> dict[str, Any]:
    """Return the settings in a file. Its paths are relative to the file's folder. Raises ConfigError."""
    try:
        text = decode_text(read_bounded(file, SETTINGS_BYTES))
        parsed = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"The settings file {file} can't be read: {why}.", "Name another by --config.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"The settings file {file} is not valid TOML: {error}.", "Correct that line.") from error
    try:
        given = _given_settings(_SettingsFile.model_validate(parsed))
    except ValidationError as error:
        line = find_line(text, first_problem(error).place)
        raise _rejected_error(f"The settings file {file}{'' if line is None else f', line {line}'}", error) from error
    if "servers" in given:
        given["servers"] = tuple(_resolve_cwd(file, server) for server in given["servers"])
    return _with_paths(given, file.parent)


_HEADING = re.compile(r"\s*(\[\[?)\s*([^]]+?)\s*\]")
_ASSIGNMENT = re.compile(r"\s*([\w.\"'-]+)\s*=")


def find_line(text: str, key: str) -> int | None:
    """Return the number of the line of a settings file that gives a key, as `servers.down.url` or `gate.0.tool`; of
    its table, if the key is missing there; None if neither is found."""
    wanted, heading, found = key.split("."), [], None
    counts: Counter[str] = Counter()
    for number, line in enumerate(text.split("\n"), 1):
        if (table := _HEADING.match(line)) is not None:
            heading = _key_parts(table[2])
            if table[1] == "[[":
                heading.append(str(counts[table[2]]))
                counts[table[2]] += 1
            if heading == wanted[: len(heading)]:
                found = number
        elif (given := _ASSIGNMENT.match(line)) is not None:
            path = [*heading, *_key_parts(given[1])]
            if path == wanted[: len(path)]:
                return number
    return found


def _key_parts(dotted: str) -> list[str]:
    return [part.strip(" \"'") for part in dotted.split(".")]


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in KAIROS_* variables; empty ones count as unset. Raises ConfigError."""
    texts: dict[str, Any] = {}
    for variable, name in VARIABLES.items():
        if environ.get(variable) and name not in _FOLDERS:
            group, _, leaf = name.rpartition(".")
            inner = texts.setdefault(group, {}) if group else texts
            inner[leaf] = environ[variable]
    try:
        given = _given_settings(_SettingsFile.model_validate_strings(texts))
    except ValidationError as error:
        raise _rejected_error("The environment", error, in_environment=True) from error
    for name in _FOLDERS:
        if folders := [part for part in environ.get(variable_name(name), "").split(os.pathsep) if part]:
            given[name] = folders
    return _with_paths(given, None)


def _with_paths(given: dict[str, Any], parent: Path | None) -> dict[str, Any]:
    """Return the settings with paths in place of texts, relative to `parent`, else to the current folder."""
    paths = {name: absolute_path(given[name], parent) for name in _PATHS if name in given}
    folders = {
        name: tuple(dict.fromkeys(absolute_path(text, parent) for text in given[name]))
        for name in _FOLDERS
        if name in given
    }
    return given | paths | folders


def limits_from_texts(given: Mapping[str, str]) -> Limits:
    """Validate limits as a person types them (`rounds=8`, `usd=0.50`). Raises BadArguments."""
    try:
        return TypeAdapter[Limits](Annotated[Limits, LimitsTable()]).validate_strings(given)
    except ValidationError as error:
        kind, name, message = first_problem(error)
        known = f"Limits are: {', '.join(CAPS)}."
        if kind == "extra_forbidden":
            near = nearest_names(name, list(CAPS))[0]
            raise BadArguments(f"There is no limit {name!r}. Did you mean {near}?", known) from error
        raise BadArguments(f"The limit {name}: {message}.", known) from error


def check_place(text: str) -> str:
    """Return the name of a place as a flag gives it. Raises BadArguments."""
    key = KEYS["place"]
    if not re.match(key.bounds["pattern"], text):
        raise BadArguments(f"{text[:80]!r} can't name a place.", f"It is {key.form}.")
    return text


def _resolve_cwd(file: Path, server: ServerSetting) -> ServerSetting:
    """Resolve a server's folder relative to the file, unless it begins with a reference such as `${workspace}`."""
    if server.cwd is None or server.cwd.startswith("${"):
        return server
    return replace(server, cwd=str(absolute_path(server.cwd, file.parent)))


_FORMS = {name: key.form for name, key in KEYS.items() if key.form} | {
    "url": 'an address, as "https://mcp.example.com/mcp"',
    "env": "the name of a variable: letters, digits and _",
    "headers": "the name of a header",
    "quiet": 'two times of the day, as "22:00-07:30"',
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


_FEW = 12  # names that an error lists


def _place_hint(key: str) -> str:
    """Say in which tables a key is a setting, if not in this place; else what is valid in it."""
    name = key.rpartition(".")[2]
    tables = [f"[{group}]" for group in ("limits", "day") if f"{group}.{name}" in SETTINGS]
    tables += [heading for heading, model in TABLES.values() if name in model.model_fields]
    if tables:
        return f"{name} belongs below a line {' or '.join(tables)}: take the # away from that line too."
    valid = _valid_names(key)
    near = f"Did you mean {nearest_names(name, valid)[0]}?"
    return f"{near} Valid are: {', '.join(valid)}." if len(valid) <= _FEW else f"{near} docs/settings.md lists all."


def _valid_names(key: str) -> list[str]:
    """Return the keys that are valid in the place of an unknown one."""
    group = key.partition(".")[0]
    if group in ("limits", "day"):
        return [name.removeprefix(f"{group}.") for name in SETTINGS if name.startswith(f"{group}.")]
    if group in TABLES and "." in key:
        return list(TABLES[group][1].model_fields)
    return list(KEYS)
