"""Import servers from other programs' files, and HTTP tools from an OpenAPI document, as lines for the settings file.

What the servers of such a file would start, where they would connect to and which secrets they want is shown first.
By --effects they are started, once the person at the terminal has said so. Nothing is written without --write; then the
whole settings file has to be valid.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kairos_mcp.cli.exit_codes import CANCELLED, COMPLETED
from kairos_mcp.cli.keyboard import confirm, is_person_there
from kairos_mcp.cli.session import with_app
from kairos_mcp.cli.settings import read_settings, settings_for_list
from kairos_mcp.cli.terminal import QuestionLine, emit, one_line, print_json, print_line, print_note
from kairos_mcp.core.effects import Effect
from kairos_mcp.core.errors import BadArguments, ConfigError
from kairos_mcp.core.json_bounds import DOCUMENT_VALUES, has_more_values
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.bounded_files import read_text_bounded
from kairos_mcp.settings.settings import Flags
from kairos_mcp.settings.table_values import ServerSetting

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.tools.config_import import ImportedServers

FETCH_S = 30.0
DESKTOP, CLAUDE_CODE = "claude_desktop_config.json", ".mcp.json"
_MASKED = "Secrets are masked in these lines; --write writes them in full. Better: env:NAME in their place."
_BY_HAND = "Nothing was written; leave out --write and add the lines by hand."


@dataclass(frozen=True, slots=True)
class OpenApiOptions:
    """What is imported from an OpenAPI document; `server`, `secret` and `reads` as in tools/http/openapi.py."""

    operations: tuple[str, ...] = ()
    server: str | None = None
    secret: str | None = None
    reads: bool = False


@dataclass(frozen=True, slots=True)
class SettingsLines:
    """Lines for the settings file: their text, the names that they define, and what a person should know of them.

    `starts`: what servers would start or connect to, and the secrets that they want. `masked_toml`: the text as people
    see it, without secrets; None if it holds none.
    """

    toml: str
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    masked_toml: str | None = None


def import_servers(flags: Flags, source: str, *, effects: bool, write: bool, as_json: bool) -> int:
    """Print the lines for the servers that a file of another program lists, or append them to the settings file.

    `effects`: start them, if the person at the terminal says so, and add what their tools' annotations suggest, as
    comments. Raises BadArguments where nobody is there to look at what would be started.
    """
    found = _read_servers(source)
    starts = tuple(found.without_secrets().describe_starts())
    suggested: Mapping[str, Mapping[str, Effect]] = {}
    notes: tuple[str, ...] = ()
    if effects and found.servers:
        if not _may_start(starts, as_json=as_json):
            print_note("nothing was started")
            return CANCELLED
        suggested, notes = _suggested_effects(flags, found.servers)
    names = tuple(server.name for server in found.servers)
    toml, shown = found.format_toml(suggested), found.without_secrets().format_toml(suggested)
    masked = () if write or shown == toml else (_MASKED,)
    notes = (*found.notes, *notes, *masked)
    lines = SettingsLines(toml, names, notes, () if effects else starts, shown)
    return _print_or_append(flags, lines, write=write, as_json=as_json)


def _may_start(starts: Sequence[str], *, as_json: bool) -> bool:
    """Show what would be started and ask. Raises BadArguments where nobody can be asked."""
    for line in starts:
        print_note(QuestionLine(line))
    if as_json or not is_person_there():
        raise BadArguments(
            "Nothing was started: without a terminal nobody can confirm it.", "Run it in a terminal without --json."
        )
    return confirm("Start these servers, and ask for their tools")


def _suggested_effects(
    flags: Flags, servers: tuple[ServerSetting, ...]
) -> tuple[Mapping[str, Mapping[str, Effect]], tuple[str, ...]]:
    """Start the servers, and return what their tools' annotations suggest, and notes. What they list is not kept."""

    async def ask(app: App) -> tuple[Mapping[str, Mapping[str, Effect]], tuple[str, ...]]:
        return await app.tools.suggested_effects()

    with tempfile.TemporaryDirectory(prefix="kairos-") as home:
        settings = replace(settings_for_list(flags), home=Path(home), servers=servers, http_tools=(), gate=())
        return with_app(settings, ask)


def import_openapi(flags: Flags, source: str, options: OpenApiOptions, *, write: bool, as_json: bool) -> int:
    """Print the lines for operations of an OpenAPI document, or append them to the settings file. Without an operation:
    list those that there are."""
    if not options.operations:
        return _list_operations(source, as_json=as_json)
    return _print_or_append(flags, _operation_lines(source, options), write=write, as_json=as_json)


def _print_or_append(flags: Flags, lines: SettingsLines, *, write: bool, as_json: bool) -> int:
    if not lines.names:
        raise BadArguments("The file has nothing to import.", " ".join(lines.notes))
    written = _append(flags, lines) if write else None
    shown = lines.toml if lines.masked_toml is None else lines.masked_toml
    if as_json:
        value = {
            "names": list(lines.names),
            "toml": shown,
            "notes": list(lines.notes),
            "starts": list(lines.starts),
        }
        print_json(value | {"written": None if written is None else str(written)})
        return COMPLETED
    for line in (*lines.starts, *(f"note: {note}" for note in lines.notes)):
        print_note(line)
    if written is None:
        print_line(shown)
        print_note(
            "Put these lines into kairos.toml, or add --write. A server's tool without an effect is irreversible."
        )
    else:
        print_line(f"written to {written}: {', '.join(lines.names)}")
    return COMPLETED


def _read_servers(source: str) -> ImportedServers:
    from kairos_mcp.tools.config_import import read_claude_desktop, read_mcp_json, read_vscode

    file = Path(source)
    text = _read_text(file)
    if file.name == DESKTOP:
        return read_claude_desktop(text)
    if file.absolute().parent.name == ".vscode" and file.name == "mcp.json":
        return read_vscode(text)
    if file.name in (CLAUDE_CODE, "mcp.json"):
        return read_mcp_json(text)
    hint = f"Known are {CLAUDE_CODE}, {DESKTOP} and .vscode/mcp.json; with --openapi an OpenAPI document."
    raise BadArguments("This file's name is not that of a list of servers.", hint)


def _operation_lines(source: str, options: OpenApiOptions) -> SettingsLines:
    from kairos_mcp.tools.http.http_snippet import format_http_tool
    from kairos_mcp.tools.http.openapi import make_definitions

    tools = make_definitions(
        _read_document(source),
        options.operations,
        server=options.server,
        fetched_from=source if _is_url(source) else None,
        secret=options.secret,
        reads=options.reads,
    )
    keys = {(key, tool.sample_url().authority) for tool in tools for key in tool.secret_references}
    notes = [f"The key at {key} is sent to {authority}." for key, authority in sorted(keys)]
    notes.append("List a host that is not public in private_hosts.")
    return SettingsLines("\n".join(map(format_http_tool, tools)), tuple(tool.name for tool in tools), tuple(notes))


def _list_operations(source: str, *, as_json: bool) -> int:
    from kairos_mcp.tools.http.openapi import list_operations

    operations = list(list_operations(_read_document(source)))
    value = {"operations": [{"id": found.id, "method": found.method, "path": found.path} for found in operations]}
    lines = (f"{found.method:<7} {one_line(found.path, 60):<60} {one_line(found.id, 100)}" for found in operations)
    emit(value, lines, as_json=as_json)
    if not as_json:
        print_note("Choose by --operation ID; repeatable.")
    return COMPLETED


def _read_document(source: str) -> dict[str, Any]:
    from kairos_mcp.tools.http.openapi import fetch_document, parse_document

    if _is_url(source):
        return fetch_document(source, time.monotonic() + FETCH_S)
    return parse_document(_read_text(Path(source)))


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _read_text(file: Path) -> str:
    try:
        text = read_text_bounded(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadArguments(f"The file can't be read: {why}.", "Name a file that exists.") from error
    if has_more_values(text, DOCUMENT_VALUES):
        raise BadArguments(f"The file has more than {DOCUMENT_VALUES:,} values.", "Cut it down to what you need.")
    return text


def _append(flags: Flags, lines: SettingsLines) -> Path:
    """Append the lines to the settings file in one step, and return its path. Its mode is kept. Raises ConfigError."""
    settings = read_settings(flags)
    file = (settings.config_file or settings.home / "kairos.toml").resolve()
    names = {server.name for server in settings.servers} | {tool.name for tool in settings.http_tools}
    if taken := sorted(names.intersection(lines.names)):
        raise ConfigError(f"There is {', '.join(taken)} already.", "Rename or remove it; nothing was written.")
    before = file.read_bytes() if file.exists() else b""
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    end = b"" if not before or before.endswith(b"\n") else b"\n"
    after = before + end + (b"\n" if before else b"") + lines.toml.encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(file, before, after, mode)
    except OSError as error:
        raise ConfigError(f"The settings can't be written: {error.strerror}.", _BY_HAND) from error
    return file


def _replace(file: Path, before: bytes, after: bytes, mode: int) -> None:
    """Replace the file by one with the bytes `after`, if they are valid settings and the file still is `before`."""
    from kairos_mcp.settings.schema import read_settings_file

    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(after)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        try:
            read_settings_file(temporary)
        except ConfigError as error:
            raise ConfigError("With these lines the settings would not be valid.", _BY_HAND) from error
        if (file.read_bytes() if file.exists() else b"") != before:
            raise ConfigError("The settings were changed meanwhile.", "Try again; nothing was written.")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
