"""`tools import`: servers from the files of other programs, HTTP tools from an OpenAPI document, as settings.

Nothing is started, and nothing is written unless a person says so; then the whole file of settings has to be valid.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.speech import line_of, say, say_json, tell
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

MOST_BYTES = 20_000_000
FETCH_S = 30.0
DESKTOP, CLAUDE_CODE = "claude_desktop_config.json", ".mcp.json"


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What is taken from an OpenAPI document; `server`, `secret` and `reads` as tools/openapi.py has them."""

    operations: tuple[str, ...] = ()
    server: str | None = None
    secret: str | None = None
    reads: bool = False


@dataclass(frozen=True, slots=True)
class SettingsLines:
    """What goes into the file of settings: the lines, what they define, and what a person should know."""

    toml: str
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def import_tools(flags: Flags, source: str, wanted: ImportOptions | None, *, write: bool, as_json: bool) -> int:
    """Print the lines for kairos.toml, or append them. `wanted`: the source is an OpenAPI document."""
    if wanted is not None and not wanted.operations:
        return _list_operations(source, as_json=as_json)
    lines = _servers(source) if wanted is None else _operations(source, wanted)
    if not lines.names:
        raise BadArguments("There is nothing in it that could be taken.", " ".join(lines.notes))
    written = _append(flags, lines) if write else None
    if as_json:
        told = {"names": list(lines.names), "toml": lines.toml, "notes": list(lines.notes)}
        say_json(told | {"written": None if written is None else str(written)})
        return COMPLETED
    for note in lines.notes:
        tell(f"note: {note}")
    if written is None:
        say(lines.toml)
        tell("Put these lines into kairos.toml, or say --write. Each effect that is not stated is irreversible.")
    else:
        say(f"written to {written}: {', '.join(lines.names)}")
    return COMPLETED


def _servers(source: str) -> SettingsLines:
    from kairos_mcp.tools.config_import import from_claude_desktop, from_mcp_json, from_vscode

    file = Path(source)
    text = _text(file)
    if file.name == DESKTOP:
        found = from_claude_desktop(text)
    elif file.absolute().parent.name == ".vscode" and file.name == "mcp.json":
        found = from_vscode(text)
    elif file.name in (CLAUDE_CODE, "mcp.json"):
        found = from_mcp_json(text)
    else:
        hint = f"Known are {CLAUDE_CODE}, {DESKTOP} and .vscode/mcp.json; with --openapi an OpenAPI document."
        raise BadArguments("By its name this is no list of servers.", hint)
    return SettingsLines(found.as_toml(), tuple(server.name for server in found.servers), found.notes)


def _operations(source: str, wanted: ImportOptions) -> SettingsLines:
    from kairos_mcp.tools.http.http_snippet import snippet
    from kairos_mcp.tools.http.openapi import definitions_from

    server = wanted.server or (source if _is_address(source) else None)
    document = _document(source)
    made = definitions_from(document, wanted.operations, server=server, secret=wanted.secret, reads=wanted.reads)
    hint = "A host that is not public has to stand in private_hosts."
    return SettingsLines("\n".join(snippet(each) for each in made), tuple(each.name for each in made), (hint,))


def _list_operations(source: str, *, as_json: bool) -> int:
    from kairos_mcp.tools.http.openapi import operations_of

    found = list(operations_of(_document(source)))
    if as_json:
        say_json({"operations": [{"id": each.id, "method": each.method, "path": each.path} for each in found]})
        return COMPLETED
    for each in found:
        say(f"{each.method:<7} {line_of(each.path, 60):<60} {line_of(each.id, 100)}")
    tell("Choose by --operation ID; repeatable.")
    return COMPLETED


def _document(source: str) -> dict[str, Any]:
    from kairos_mcp.tools.http.openapi import document_at, document_in

    if _is_address(source):
        return document_at(source, time.monotonic() + FETCH_S)
    return document_in(_text(Path(source)))


def _is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise BadArguments(f"The file has over {MOST_BYTES:,} bytes.", "Name another.")
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise BadArguments(f"The file can't be read: {why}.", "Name a file that is there.") from error


def _append(flags: Flags, lines: SettingsLines) -> Path:
    """Put the lines at the end of the file of settings, in one step; the file stays as private as it is."""
    settings = load_settings(flags, os.environ)
    file = (settings.config_file or settings.home / "kairos.toml").resolve()
    there = {server.name for server in settings.servers} | {tool.name for tool in settings.http_tools}
    if twice := sorted(there.intersection(lines.names)):
        raise ConfigError(f"There is {', '.join(twice)} already.", "Rename or remove it; nothing was written.")
    before = file.read_bytes() if file.exists() else b""
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    end = b"" if not before or before.endswith(b"\n") else b"\n"
    after = before + end + (b"\n" if before else b"") + lines.toml.encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _exchange(file, before, after, mode)
    except OSError as error:
        raise ConfigError(f"The settings can't be written: {error.strerror}.", _BY_HAND) from error
    return file


def _exchange(file: Path, before: bytes, after: bytes, mode: int) -> None:
    from kairos_mcp.settings.schema import given_by_file

    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(after)
            out.flush()
            os.fsync(out.fileno())
        beside.chmod(mode)
        try:
            given_by_file(beside)
        except ConfigError as error:
            raise ConfigError("With these lines the settings would not be valid.", _BY_HAND) from error
        if (file.read_bytes() if file.exists() else b"") != before:
            raise ConfigError("The settings were changed meanwhile.", "Try again; nothing was written.")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


_BY_HAND = "Nothing was written; leave out --write and put the lines in by hand."
