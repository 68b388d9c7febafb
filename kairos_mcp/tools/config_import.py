"""Reads the server lists of other programs: `.mcp.json`, `claude_desktop_config.json`, `.vscode/mcp.json`.

Pure: a text gives settings and remarks, and nothing is started. References to secrets stay references; what can't be
taken over is named. Sources: the formats as Claude Code, Claude Desktop and VS Code document them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.text import truncate
from kairos_mcp.settings.settings import ServerSetting

NAME_CHARS = 24
SERVERS = 100
_KNOWN = {"command", "args", "env", "cwd", "url", "serverUrl", "headers", "type", "transport"}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOLDERS = ("workspaceFolder", "workspaceRoot", "CLAUDE_PROJECT_DIR", "PWD")


@dataclass(frozen=True, slots=True)
class ImportedServers:
    """What was read: servers in the order of their names, and what a person should know of them."""

    servers: tuple[ServerSetting, ...]
    notes: tuple[str, ...] = ()

    def as_toml(self) -> str:
        """The servers as they stand in kairos.toml."""
        return "\n".join(_toml(server) for server in self.servers)


def from_mcp_json(text: str) -> ImportedServers:
    """Claude Code's `.mcp.json`: `mcpServers`, with `${VAR}` and `${VAR:-default}`. Raises BadArguments."""
    return _read(text, ("mcpServers",), _of_environment)


def from_claude_desktop(text: str) -> ImportedServers:
    """Claude Desktop's `claude_desktop_config.json`: `mcpServers`, values as they are. Raises BadArguments."""
    return _read(text, ("mcpServers",), None)


def from_vscode(text: str) -> ImportedServers:
    """VS Code's `.vscode/mcp.json`: JSON with comments; `servers`, with `${env:VAR}`, `${input:ID}` and
    `${workspaceFolder}`. Raises BadArguments."""
    return _read(_without_comments(text), ("servers",), _of_vscode)


Words = Callable[[str, str], tuple[str, str | None]]
"""(what stands in `${…}`, the key it stands under) -> what stands there for us, and a remark."""


@dataclass
class _ServerReader:
    """One server on its way; `remarks` are about it."""

    name: str
    words: Words | None
    remarks: list[str] = field(default_factory=list)

    def setting(self, given: Mapping[str, Any]) -> ServerSetting | None:
        if unknown := sorted(set(given) - _KNOWN):
            self.remarks.append(f"left out: {', '.join(_shown(key) for key in unknown[:10])}")
        kind = given.get("type") or given.get("transport")
        url = given.get("url") or given.get("serverUrl")
        if kind == "sse":
            self.remarks.append("it speaks the old HTTP+SSE; its address is taken as one for Streamable HTTP")
        if isinstance(url, str) and re.fullmatch(r"https?://[^\s/?#@]+[^\s#]*", url):
            return ServerSetting(self.name, url=url, headers=self._pairs(given, "headers", secret=True))
        command, args = given.get("command"), given.get("args", [])
        if not isinstance(command, str) or not command or not _is_texts(args):
            self.remarks.append("not taken: it has neither a command with a list of texts, nor a plain url")
            return None
        words = tuple(self._text("command", part) for part in (command, *args))
        if any("${env:" in part for part in words):
            self.remarks.append("an argument names a variable; secrets are not put into arguments: move it to env")
        cwd = given.get("cwd")
        placed = self._text("cwd", cwd) if isinstance(cwd, str) else None
        return ServerSetting(self.name, words, env=self._pairs(given, "env", secret=False), cwd=placed)

    def _pairs(self, given: Mapping[str, Any], key: str, *, secret: bool) -> tuple[tuple[str, str], ...]:
        pairs = given.get(key) or {}
        if not isinstance(pairs, dict):
            self.remarks.append(f"left out: {key}, which is no object")
            return ()
        taken = []
        for name, stated in pairs.items():
            value = json.dumps(stated) if isinstance(stated, bool | int | float) else stated
            if not isinstance(value, str) or (key == "env" and not _VARIABLE.fullmatch(name)):
                self.remarks.append(f"left out: {key}.{_shown(name)}, which is no text or has an odd name")
                continue
            worded = self._text(f"{key}.{name}", value)
            if worded == value and (secret or _names_a_secret(name)):
                self.remarks.append(f"{key}.{_shown(name)} stands there in the open; better: env:{_as_variable(name)}")
            taken.append((name, worded))
        return tuple(taken)

    def _text(self, key: str, text: str) -> str:
        if self.words is None:
            return text
        words = self.words

        def said(found: re.Match[str]) -> str:
            ours, remark = words(found[1], key)
            if remark is not None and remark not in self.remarks:
                self.remarks.append(remark)
            return ours

        worded = re.sub(r"\$\{([^{}]*)\}", said, text)
        alone = re.fullmatch(r"\$\{(env:[A-Za-z_][A-Za-z0-9_]*)\}", worded)
        return alone[1] if alone is not None and key.startswith(("env.", "headers.")) else worded


def _read(text: str, under: tuple[str, ...], words: Words | None) -> ImportedServers:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise BadArguments("The file is no JSON.", "Name the file of the other program.") from None
    found = next((parsed[key] for key in under if isinstance(parsed, dict) and isinstance(parsed.get(key), dict)), None)
    if found is None:
        raise BadArguments(f"The file has no {under[0]!r}.", "Is it of another program?")
    servers: dict[str, ServerSetting] = {}
    notes = [f"{len(found) - SERVERS} servers more are left out."] if len(found) > SERVERS else []
    notes += [f"{_shown(key)}: left out." for key in parsed if key not in (*under, "inputs")]
    for given_name in sorted(found)[:SERVERS]:
        reading = _ServerReader(_free_name(given_name, servers), words)
        given = found[given_name]
        setting = reading.setting(given) if isinstance(given, dict) else None
        if reading.name != given_name:
            reading.remarks.insert(0, f"was called {_shown(given_name)}")
        if setting is not None:
            servers[setting.name] = setting
        if reading.remarks:
            notes.append(f"{reading.name}: {'; '.join(reading.remarks)}.")
    return ImportedServers(tuple(servers[name] for name in sorted(servers)), tuple(notes))


def _of_environment(inside: str, key: str) -> tuple[str, str | None]:
    name, default, fallback = inside.partition(":-")
    if name in _FOLDERS:
        return "${workspace}", None
    if not _VARIABLE.fullmatch(name):
        return f"${{{inside}}}", f"{key} holds ${{{_shown(inside)}}}, which is not known here and stays as it is"
    return f"${{env:{name}}}", f"the default of {name} is left out; set the variable" if default and fallback else None


def _of_vscode(inside: str, key: str) -> tuple[str, str | None]:
    kind, _, name = inside.partition(":")
    if kind in _FOLDERS:
        return "${workspace}", None
    if kind == "env" and _VARIABLE.fullmatch(name):
        return f"${{env:{name}}}", None
    if kind == "input" and name:
        variable = _as_variable(name)
        return f"${{env:{variable}}}", f"VS Code asks for {_shown(name)}: set the variable {variable} in its place"
    return f"${{{inside}}}", f"{key} holds ${{{_shown(inside)}}}, which is not known here and stays as it is"


def _free_name(given: str, taken: Mapping[str, object]) -> str:
    """A name that tools can be called by: a letter or digit, then those and single - or _."""
    plain = "-".join(re.findall(r"[A-Za-z0-9]+", given)) if not _is_name(given) else given
    stem = plain[:NAME_CHARS].strip("-_") or "server"
    name, n = stem, 1
    while name in taken:
        n += 1
        name = f"{stem[: NAME_CHARS - len(str(n)) - 1].rstrip('-_')}-{n}"
    return name


def _is_name(text: str) -> bool:
    return len(text) <= NAME_CHARS and re.fullmatch(r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*", text) is not None


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _names_a_secret(name: str) -> bool:
    return re.search(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASS|PAT|CREDENTIALS?)(?:_|$)", name.upper()) is not None


def _as_variable(name: str) -> str:
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper() or "SECRET"


def _shown(text: str) -> str:
    return repr(truncate(text, 60))


def _without_comments(text: str) -> str:
    """JSON with comments and trailing commas, as editors write it, made plain; strings stay what they are."""
    pieces = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*(?s:.*?)\*/|,(?=\s*(?:(?://[^\n]*|/\*(?s:.*?)\*/)\s*)*[}\]])')
    return pieces.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)


def _toml(server: ServerSetting) -> str:
    return "\n".join((f"[servers.{server.name}]", *_toml_lines(server))) + "\n"


def _toml_lines(server: ServerSetting) -> Iterator[str]:
    if server.command:
        yield f"command = {_quoted(server.command[0])}"
        if server.command[1:]:
            yield f"args = [{', '.join(_quoted(part) for part in server.command[1:])}]"
    if server.url is not None:
        yield f"url = {_quoted(server.url)}"
    for key, pairs in (("env", server.env), ("headers", server.headers)):
        if pairs:
            yield f"{key} = {{ {', '.join(f'{_quoted(name)} = {_quoted(value)}' for name, value in pairs)} }}"
    if server.cwd is not None:
        yield f"cwd = {_quoted(server.cwd)}"


def _quoted(text: str) -> str:
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise ConfigError("A text of the file holds half a character.", "Repair it there.")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
