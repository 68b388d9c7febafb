"""A host's JSON file, changed by somebody else: one entry set, all else kept; or not touched at all."""

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
    """What was read: `found` are the bytes, None where there is no file yet. A link is followed, and kept."""

    path: Path
    found: bytes | None
    content: JsonObject

    @staticmethod
    def read(file: Path) -> HostFile:
        """Refuses what could not be written back whole: comments, a key given twice, a number too large."""
        path = file.resolve()
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            return HostFile(path, None, {})
        except OSError as error:
            raise ConfigError(f"{file} can't be read: {error.strerror}.", _BY_HAND) from error
        if not found.strip():
            return HostFile(path, found, {})
        try:
            content = json.loads(
                found.decode("utf-8-sig"),
                object_pairs_hook=_refuse_duplicate_keys,
                parse_constant=_no_number,
                parse_float=_finite,
            )
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file} is not plain JSON (comments?): {error}.", _BY_HAND) from error
        if not isinstance(content, dict):
            raise ConfigError(f"{file} holds no JSON object.", _BY_HAND)
        return HostFile(path, found, content)

    def entry(self, section: str, name: str) -> Any:
        """The entry as it is, None where there is none."""
        servers = self.content.get(section, {})
        if not isinstance(servers, dict):
            raise ConfigError(f"{section!r} in {self.path} is no JSON object.", _BY_HAND)
        return servers.get(name)

    def write(self, section: str, name: str, entry: JsonObject) -> Path | None:
        """Set the entry in one step (rename); gives the copy of what was there, None where nothing was."""
        content = {**self.content, section: {**self.content.get(section, {}), name: entry}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._exchange(self._encode(content))
        except OSError as error:
            raise ConfigError(f"{self.path} can't be written: {error.strerror}.", _BY_HAND) from error

    def _encode(self, content: JsonObject) -> bytes:
        """Indented as it was, with its byte order mark and its line ends."""
        found = self.found or b""
        step = re.search(rb"\{\s*\n([ \t]+)\S", found)
        indent = step[1].decode() if step else "  "
        text = json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # a lone surrogate can only stay as an escape
            encoded = (json.dumps(content, indent=indent) + "\n").encode()
        if b"\r\n" in found:
            encoded = encoded.replace(b"\n", b"\r\n")
        return b"\xef\xbb\xbf" + encoded if found.startswith(b"\xef\xbb\xbf") else encoded

    def _exchange(self, encoded: bytes) -> Path | None:
        copy = None if self.found is None else self._copy(self.found)
        mode = 0o600 if self.found is None else self.path.stat().st_mode & 0o777
        handle, beside = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(encoded)
                out.flush()
                os.fsync(out.fileno())
            Path(beside).chmod(mode)
            if self._bytes_now() != self.found:
                raise ConfigError(f"{self.path} was changed meanwhile.", "Try again; nothing was written.")
            Path(beside).replace(self.path)
        finally:
            Path(beside).unlink(missing_ok=True)
        return copy

    def _copy(self, found: bytes) -> Path:
        """A name of its own each time: a copy is never written over. It is as private as the file."""
        number = 1
        while True:
            copy = self.path.with_name(f"{self.path.name}.before-kairos-{number}")
            try:
                handle = os.open(copy, _NEW, self.path.stat().st_mode & 0o777)
            except FileExistsError:
                number += 1
                continue
            with os.fdopen(handle, "wb") as out:
                out.write(found)
            return copy

    def _bytes_now(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key is given twice")
    return content


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number
