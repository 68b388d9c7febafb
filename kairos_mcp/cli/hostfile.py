"""Edit a host's file, which people and other programs write too: set or remove one entry, or change nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from kairos_mcp.cli.host_formats import HostFormat
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.bounded_files import read_bounded

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_BY_HAND = "Nothing was changed; edit the file by hand (leave out --write to see the lines)."
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class HostFile:
    """A host's file as it was read: its bytes, None if there is no file yet, and its values. A link is followed, and
    kept."""

    path: Path
    written_as: HostFormat
    original: bytes | None
    content: JsonObject

    @staticmethod
    def read(file: Path, written_as: HostFormat) -> HostFile:
        """Read the file. Raises ConfigError where it can't be read, or is not of this format."""
        path = file.resolve()
        if path.exists() and not path.is_file():
            raise ConfigError(f"{file} is not a file.", _BY_HAND)
        try:
            original = read_bounded(path)
        except FileNotFoundError:
            return HostFile(path, written_as, None, {})
        except OSError as error:
            raise ConfigError(f"{file} can't be read: {error.strerror}.", _BY_HAND) from error
        try:
            return HostFile(path, written_as, original, written_as.parse(original.decode().removeprefix(_BOM)))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file} can't be understood: {error}.", _BY_HAND) from error

    def entry(self, section: str, name: str) -> Any:
        """The entry of that name; None if absent. Raises ConfigError where the section is not an object."""
        entries = self.content.get(section)
        if entries is None:
            return None
        if not isinstance(entries, dict):
            raise ConfigError(f"{section!r} in {self.path} is not a table of entries.", _BY_HAND)
        return entries.get(name)

    def set_entry(self, section: str, name: str, entry: JsonObject, *, is_secret: bool = False) -> Path | None:
        """Set the entry, replacing the file in one step. Return the path of a copy of the file as it was, None if there
        was none. `is_secret`: nobody but its owner may read the file from then on. Raises ConfigError."""
        entries = {**(self.content.get(section) or {}), name: entry}
        try:
            text = self.written_as.set_entry(self._text, section, name, entry)
        except ValueError as error:  # as an inline table of TOML, which can't take another one
            raise ConfigError(f"{self.path} has no place for the entry: {error}.", _BY_HAND) from error
        return self._write(text, {**self.content, section: entries}, 0o700 if is_secret else 0o777)

    def remove_entry(self, section: str, name: str) -> Path | None:
        """Remove an entry that is there; as `set_entry`."""
        entries = {other: entry for other, entry in self.content[section].items() if other != name}
        return self._write(self.written_as.remove_entry(self._text, section, name), {**self.content, section: entries})

    @property
    def _text(self) -> str:
        return (self.original or b"").decode().removeprefix(_BOM)

    def _write(self, text: str, expected: JsonObject, mask: int = 0o777) -> Path | None:
        """Write a text that must hold these values: an edit that would change anything else is not made."""
        kept = {name: value for name, value in expected.items() if value}
        found = {name: value for name, value in self.written_as.parse(text).items() if value}
        if found != kept:
            raise ConfigError(f"{self.path} could not be edited without changing more of it.", _BY_HAND)
        has_mark = (self.original or b"").startswith(_BOM.encode())
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._replace((_BOM * has_mark + text).encode(), mask)
        except OSError as error:
            raise ConfigError(f"{self.path} can't be written: {error.strerror}.", _BY_HAND) from error

    def _replace(self, encoded: bytes, mask: int) -> Path | None:
        copy = None if self.original is None else self._write_copy(self.original)
        mode = 0o600 if self.original is None else self.path.stat().st_mode & mask
        handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(encoded)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).chmod(mode)
            if self._read_bytes() != self.original:
                raise ConfigError(f"{self.path} was changed meanwhile.", "Try again; nothing was written.")
            Path(temporary).replace(self.path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        return copy

    def _write_copy(self, original: bytes) -> Path:
        """Write a copy beside the file, with its mode, under a name that is free."""
        number = 1
        while True:
            copy = self.path.with_name(f"{self.path.name}.before-kairos-{number}")
            try:
                handle = os.open(copy, _NEW, self.path.stat().st_mode & 0o777)
            except FileExistsError:
                number += 1
                continue
            with os.fdopen(handle, "wb") as stream:
                stream.write(original)
            return copy

    def _read_bytes(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
