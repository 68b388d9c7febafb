"""Reads the server lists of other programs: `.mcp.json`, `claude_desktop_config.json`, `.vscode/mcp.json`.

Pure: turns a text into settings and notes, and starts nothing. The files are others': nothing in them becomes a
reference to a secret of the user's. What asks for one, or would be read as one here, is a line that a person confirms.
A note names what can't be taken over. Sources: the formats as Claude Code, Claude Desktop and VS Code document them.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from kairos_mcp.core import jsonc
from kairos_mcp.core.effects import Effect
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.hidden_text import spell_out_hidden
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.settings.masked_servers import mask_address, mask_command, mask_server, mask_value
from kairos_mcp.settings.secret_refs import EMBEDDED_REFERENCE, is_reference
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.settings.tables import ServerTable
from kairos_mcp.settings.toml_text import toml_text

NAME_CHARS = 24
MAX_SERVERS = 100
_KNOWN_KEYS = {"command", "args", "env", "cwd", "url", "serverUrl", "headers", "type", "transport"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOLDER_VARIABLES = ("workspaceFolder", "workspaceRoot", "CLAUDE_PROJECT_DIR", "PWD")


@dataclass(frozen=True, slots=True)
class WantedSecret:
    """A variable or header of a server whose value refers to a secret here, so that only a person may set it.

    `value`: as it would stand in our settings. `is_asked_for`: the file names a variable of its user; else its text is
    meant as it is, and only looks like a reference.
    """

    server: str
    name: str
    value: str
    is_asked_for: bool


@dataclass(frozen=True, slots=True)
class ImportedServers:
    """The servers that were read, ordered by name, without the secrets that they want, and notes for a person."""

    servers: tuple[ServerSetting, ...]
    notes: tuple[str, ...] = ()
    wanted: tuple[WantedSecret, ...] = ()

    def without_secrets(self) -> ImportedServers:
        """Return them as a person is shown them, with their secrets masked."""
        return replace(self, servers=tuple(map(mask_server, self.servers)))

    def format_toml(self, suggested: Mapping[str, Mapping[str, Effect]] = MappingProxyType({})) -> str:
        """Write the servers as tables of kairos.toml.

        `suggested`: effects by server and tool, which become comments for a person to confirm.
        """
        return "\n".join(
            _format_server(server, self._wanted_by(server), suggested.get(server.name, {})) for server in self.servers
        )

    def describe_starts(self) -> list[str]:
        """Say of each server what it starts, or where it connects to, and which secrets it wants and is not given."""
        lines = (line for server in self.servers for line in _describe_start(server, self._wanted_by(server)))
        return [spell_out_hidden(line).replace("\n", "\\n").replace("\t", "\\t") for line in lines]

    def _wanted_by(self, server: ServerSetting) -> list[WantedSecret]:
        return [each for each in self.wanted if each.server == server.name]


def read_mcp_json(text: str) -> ImportedServers:
    """Read Claude Code's `.mcp.json`: `mcpServers`, with `${VAR}` and `${VAR:-default}`. Raises BadArguments."""
    return _read_servers(text, ("mcpServers",), _translate_environment)


def read_claude_desktop(text: str) -> ImportedServers:
    """Read Claude Desktop's `claude_desktop_config.json`: `mcpServers`, values unchanged. Raises BadArguments."""
    return _read_servers(text, ("mcpServers",), None)


def read_vscode(text: str) -> ImportedServers:
    """Read VS Code's `.vscode/mcp.json`: JSON with comments; `servers`, with `${env:VAR}`, `${input:ID}` and
    `${workspaceFolder}`. Raises BadArguments."""
    return _read_servers(jsonc.blank_extras(text), ("servers",), _translate_vscode)


_IN_ARGUMENT = "an argument names a variable; secrets are not put into arguments: move it to env"
Translate = Callable[[str, str], tuple[str, str | None]]
"""(the expression inside `${…}`, the key of its value) -> what to write in our settings, and a note or None."""


@dataclass
class _ServerReader:
    """Reads one server's entry. `notes`: what a person should know of it; `wanted`: the secrets that it wants."""

    name: str
    translate: Translate | None
    notes: list[str] = field(default_factory=list)
    wanted: list[WantedSecret] = field(default_factory=list)

    def read_valid_setting(self, entry: Any) -> ServerSetting | None:
        """Read an entry; None, with a note that says why, if our settings could not hold it. The others are taken."""
        if not isinstance(entry, dict):
            self.notes.append("not imported: it is not an object")
            return None
        setting = self.read_setting(entry)
        if setting is None or (problem := _find_problem(setting, self.wanted)) is None:
            return setting
        self.notes.append(f"not imported: {problem.removesuffix('.')}")
        return None

    def read_setting(self, entry: Mapping[str, Any]) -> ServerSetting | None:
        if unknown := sorted(set(entry) - _KNOWN_KEYS):
            self.notes.append(f"left out: {', '.join(_quote(key) for key in unknown[:10])}")
        kind = entry.get("type") or entry.get("transport")
        url = entry.get("url") or entry.get("serverUrl")
        if kind == "sse":
            self.notes.append("it speaks the old HTTP+SSE; its address is taken as one for Streamable HTTP")
        if isinstance(url, str) and re.fullmatch(r"https?://[^\s/?#@]+[^\s#]*", url):
            if mask_address(url) != url:
                self.notes.append("its url holds a secret in plain text; better: a header, as env:NAME")
            return ServerSetting(self.name, url=url, headers=self._read_pairs(entry, "headers"))
        command, args = entry.get("command"), entry.get("args", [])
        are_texts = isinstance(args, list) and all(isinstance(part, str) for part in (command, *args))
        if not are_texts or not command:
            self.notes.append("not imported: it has neither a command with a list of texts, nor a plain url")
            return None
        command_line = tuple(self._translate_text("command", part) for part in (command, *args))
        if mask_command(command_line) != command_line:
            self.notes.append("an argument holds a secret in plain text; better: a variable in env, as env:NAME")
        cwd = entry.get("cwd")
        cwd_text = self._translate_text("cwd", cwd) if isinstance(cwd, str) else None
        return ServerSetting(self.name, command_line, env=self._read_pairs(entry, "env"), cwd=cwd_text)

    def _read_pairs(self, entry: Mapping[str, Any], key: str) -> tuple[tuple[str, str], ...]:
        pairs = entry.get(key) or {}
        if not isinstance(pairs, dict):
            self.notes.append(f"left out: {key}, which is not an object")
            return ()
        read = []
        for name, given_value in pairs.items():
            value = json.dumps(given_value) if isinstance(given_value, bool | int | float) else given_value
            if not isinstance(value, str) or (key == "env" and not _VARIABLE.fullmatch(name)):
                self.notes.append(f"left out: {key}.{_quote(name)}, which is not a text or has an unusual name")
                continue
            translated = self._translate_text(f"{key}.{name}", value)
            if is_reference(translated) or EMBEDDED_REFERENCE.search(translated):
                self.wanted.append(WantedSecret(self.name, name, translated, translated != value))
                continue
            if translated == value and (_is_secret_name(name) or mask_value(name, value) != value):
                self.notes.append(
                    f"{key}.{_quote(name)} is written there in plain text; better: env:{_variable_name(name)}"
                )
            read.append((name, translated))
        return tuple(read)

    def _translate_text(self, key: str, text: str) -> str:
        if self.translate is None:
            return text
        translate = self.translate

        def replace_expression(match: re.Match[str]) -> str:
            replacement, note = translate(match[1], key)
            if not key.startswith(("env.", "headers.")) and EMBEDDED_REFERENCE.search(replacement):
                replacement, note = match[0], _IN_ARGUMENT
            if note is not None and note not in self.notes:
                self.notes.append(note)
            return replacement

        translated = re.sub(r"\$\{([^{}]*)\}", replace_expression, text)
        reference = re.fullmatch(r"\$\{(env:[A-Za-z_][A-Za-z0-9_]*)\}", translated)
        return reference[1] if reference is not None and key.startswith(("env.", "headers.")) else translated


def _read_servers(text: str, keys: tuple[str, ...], translate: Translate | None) -> ImportedServers:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise BadArguments("The file is not JSON.", "Name the file of the other program.") from None
    entries = next(
        (parsed[key] for key in keys if isinstance(parsed, dict) and isinstance(parsed.get(key), dict)), None
    )
    if entries is None:
        raise BadArguments(f"The file has no {keys[0]!r}.", "Is it of another program?")
    servers: dict[str, ServerSetting] = {}
    wanted: list[WantedSecret] = []
    more = len(entries) - MAX_SERVERS
    notes = [f"{count_of(more, 'more server is', 'more servers are')} left out."] if more > 0 else []
    notes += [f"{_quote(key)}: left out." for key in parsed if key not in (*keys, "inputs")]
    for given_name in sorted(entries)[:MAX_SERVERS]:
        reader = _ServerReader(_choose_name(given_name, servers), translate)
        entry = entries[given_name]
        setting = reader.read_valid_setting(entry)
        if reader.name != given_name:
            reader.notes.insert(0, f"was called {_quote(given_name)}")
        if setting is not None:
            servers[setting.name] = setting
            wanted += reader.wanted
        if reader.notes:
            notes.append(f"{reader.name}: {'; '.join(reader.notes)}.")
    return ImportedServers(tuple(servers[name] for name in sorted(servers)), tuple(notes), tuple(wanted))


def _find_problem(setting: ServerSetting, wanted: list[WantedSecret]) -> str | None:
    """Return why the lines of a server would not be valid settings, without its values; None if they are."""
    try:
        lines = tomllib.loads(_format_server(setting, wanted, {}))
        ServerTable.model_validate(lines["servers"][setting.name])
    except ConfigError as error:
        return error.message
    except ValidationError as error:
        _, key, message = first_problem(error)
        return f"{key}: {message}" if key else message
    return None


def _translate_environment(expression: str, key: str) -> tuple[str, str | None]:
    name, default, fallback = expression.partition(":-")
    if name in _FOLDER_VARIABLES:
        return "${workspace}", None
    if not _VARIABLE.fullmatch(name):
        return (
            f"${{{expression}}}",
            f"{key} holds ${{{_quote(expression)}}}, which is not known here and stays as it is",
        )
    return f"${{env:{name}}}", f"the default of {name} is left out; set the variable" if default and fallback else None


def _translate_vscode(expression: str, key: str) -> tuple[str, str | None]:
    kind, _, name = expression.partition(":")
    if kind in _FOLDER_VARIABLES:
        return "${workspace}", None
    if kind == "env" and _VARIABLE.fullmatch(name):
        return f"${{env:{name}}}", None
    if kind == "input" and name:
        variable = _variable_name(name)
        return f"${{env:{variable}}}", f"VS Code asks for {_quote(name)}: set the variable {variable} in its place"
    return f"${{{expression}}}", f"{key} holds ${{{_quote(expression)}}}, which is not known here and stays as it is"


def _choose_name(wanted_name: str, taken: Mapping[str, object]) -> str:
    """Choose a name that tools' names can begin with: letters and digits, with single - or _ between; none twice."""
    is_name = len(wanted_name) <= NAME_CHARS and re.fullmatch(r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*", wanted_name)
    cleaned = wanted_name if is_name else "-".join(re.findall(r"[A-Za-z0-9]+", wanted_name))
    stem = cleaned[:NAME_CHARS].strip("-_") or "server"
    name, n = stem, 1
    while name in taken:
        n += 1
        name = f"{stem[: NAME_CHARS - len(str(n)) - 1].rstrip('-_')}-{n}"
    return name


_SECRET_NAME = r"(?:^|_)(?:KEY|TOKEN|SECRET|PASS|PAT|CREDENTIALS?)(?:_|$)|(?:PASSWORD|PASSWD|PASSPHRASE)(?:_|$)"


def _is_secret_name(name: str) -> bool:
    return re.search(_SECRET_NAME, name.upper()) is not None


def _variable_name(name: str) -> str:
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper() or "SECRET"


def _quote(text: str) -> str:
    return repr(truncate(text, 60))


def _describe_start(server: ServerSetting, wanted: list[WantedSecret]) -> Iterator[str]:
    if server.url is not None:
        yield f"{server.name} connects to {server.url}"
    else:
        where = f", in {server.cwd}" if server.cwd is not None else ""
        yield f"{server.name} starts {shlex.join(server.command)}{where}"
    given = [name if _is_secret_name(name) else f"{name}={value}" for name, value in server.env]
    if given := [*given, *(name for name, _ in server.headers)]:
        yield f"  with {', '.join(given)}"
    for each in wanted:
        why = "asks for your" if each.is_asked_for else "has a text that would read your"
        yield f"  {each.name} {why} {each.value}: not given"


def _format_server(server: ServerSetting, wanted: list[WantedSecret], suggested: Mapping[str, Effect]) -> str:
    lines = [f"[servers.{server.name}]", *_server_lines(server, has_table=bool(wanted))]
    if wanted:
        lines += [f"[servers.{server.name}.{'env' if server.url is None else 'headers'}]"]
        lines += [f"{_toml_string(name)} = {_toml_string(value)}" for name, value in (*server.env, *server.headers)]
        lines += ["# It would be sent these secrets of yours; remove the # before what it may have."]
        lines += [f"# {_toml_string(each.name)} = {_toml_string(each.value)}" for each in wanted]
    if suggested:
        lines += ["# Its tools say this of themselves; remove the # here and before what you confirm."]
        lines += [f"# [servers.{server.name}.effects]"]
        lines += [f"# {_toml_string(name)} = {_toml_string(effect)}" for name, effect in sorted(suggested.items())]
    return "\n".join(lines) + "\n"


def _server_lines(server: ServerSetting, *, has_table: bool) -> Iterator[str]:
    """Write what a server's own table holds. `has_table`: its variables or headers are in a table of theirs."""
    if server.command:
        yield f"command = {_toml_string(server.command[0])}"
        if server.command[1:]:
            yield f"args = [{', '.join(_toml_string(part) for part in server.command[1:])}]"
    if server.url is not None:
        yield f"url = {_toml_string(server.url)}"
    for key, pairs in (("env", server.env), ("headers", server.headers)):
        if pairs and not has_table:
            yield f"{key} = {{ {', '.join(f'{_toml_string(name)} = {_toml_string(value)}' for name, value in pairs)} }}"
    if server.cwd is not None:
        yield f"cwd = {_toml_string(server.cwd)}"


def _toml_string(text: str) -> str:
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ConfigError("A text of the file holds half a character.", "Repair it there.")
    return toml_text(text)
