"""Edit a host's JSON file, which other programs write too: set one entry and keep all else, or change nothing."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import JsonObject

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_BY_HAND = "Nothing was changed; put the lines in by hand (leave out --write to see them)."


@dataclass(frozen=True, slots=True)
class HostFile:
    """A host's file as it was read: its bytes, None if there is no file yet, and their JSON. A link is followed, and
    kept."""

    path: Path
    original: bytes | None
    content: JsonObject

    @staticmethod
    def read(file: Path) -> HostFile:
        """Read the file. Raises ConfigError for what could not be written back unchanged: comments, a key given twice,
        a number too large."""
        path = file.resolve()
        try:
            original = path.read_bytes()
        except FileNotFoundError:
            return HostFile(path, None, {})
        except OSError as error:
            raise ConfigError(f"{file} can't be read: {error.strerror}.", _BY_HAND) from error
        if not original.strip():
            return HostFile(path, original, {})
        try:
            content = json.loads(
                original.decode("utf-8-sig"),
                object_pairs_hook=_refuse_duplicate_keys,
                parse_constant=_refuse_constant,
                parse_float=_parse_finite,
            )
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file} is not plain JSON (comments?): {error}.", _BY_HAND) from error
        if not isinstance(content, dict):
            raise ConfigError(f"{file} holds no JSON object.", _BY_HAND)
        return HostFile(path, original, content)

    def entry(self, section: str, name: str) -> Any:
        """The entry of that name; None if there is none."""
        servers = self.content.get(section, {})
        if not isinstance(servers, dict):
            raise ConfigError(f"{section!r} in {self.path} is no JSON object.", _BY_HAND)
        return servers.get(name)

    def write(self, section: str, name: str, entry: JsonObject) -> Path | None:
        """Set the entry, replacing the file in one step. Return the path of a copy of the file as it was, None if there
        was none. Raises ConfigError."""
        content = {**self.content, section: {**self.content.get(section, {}), name: entry}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._replace(self._encode(content))
        except OSError as error:
            raise ConfigError(f"{self.path} can't be written: {error.strerror}.", _BY_HAND) from error

    def _encode(self, content: JsonObject) -> bytes:
        """The content as JSON with the indentation, byte order mark and line ends of the file."""
        original = self.original or b""
        indented = re.search(rb"\{\s*\n([ \t]+)\S", original)
        indent = indented[1].decode() if indented else "  "
        text = json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # a lone surrogate can only stay as an escape
            encoded = (json.dumps(content, indent=indent) + "\n").encode()
        if b"\r\n" in original:
            encoded = encoded.replace(b"\n", b"\r\n")
        return b"\xef\xbb\xbf" + encoded if original.startswith(b"\xef\xbb\xbf") else encoded

    def _replace(self, encoded: bytes) -> Path | None:
        copy = None if self.original is None else self._write_copy(self.original)
        mode = 0o600 if self.original is None else self.path.stat().st_mode & 0o777
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


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key is given twice")
    return content


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number
