"""Bearer tokens for clients over HTTP. A token is shown once, when it is made; only its hash is stored.

Each is a file of its own in the state folder (`tokens/NAME`, mode 0600), not a row: a request from outside
reaches the store only once it is admitted, a copy of the state file carries no credential, and adding and
revoking are one step of the file system each, seen by every running server at the next request.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from kairos_mcp.core.errors import BadArguments, StoreUnavailable
from kairos_mcp.core.identity import LOCAL

PREFIX = "kairos"  # so that scanners for leaked secrets can recognise one
SECRET_BYTES = 32  # so many random bytes need no salt and no slow hash
HASH_CHARS = 64

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Its name is the principal. `made_at` in milliseconds since 1970."""

    name: str
    made_at: int


class TokenStore:
    """The tokens of one state folder. Nothing is created before the first is added."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "tokens"

    def add(self, name: str) -> str:
        """Make a token and return its text, which is stored nowhere. Raises BadArguments, StoreUnavailable."""
        if not _NAME.fullmatch(name) or name == LOCAL:
            raise BadArguments(
                f"{name[:80]!r} can't name a token.",
                f"Use up to 40 lower-case letters, digits and -; {LOCAL!r} is you at this machine.",
            )
        secret = secrets.token_urlsafe(SECRET_BYTES)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError as error:
            raise BadArguments(
                f"There is a token {name!r} already.",
                f"Take another name, or `kairos-mcp token revoke {name}`.",
            ) from error
        except OSError as error:
            raise StoreUnavailable(
                f"The state folder can't be written: {error.strerror}.", "Check its permissions, or --home."
            ) from error
        with os.fdopen(handle, "w") as file:
            file.write(_hash(secret))
            file.flush()
            os.fsync(file.fileno())
        return f"{PREFIX}.{name}.{secret}"

    def list_tokens(self) -> list[AccessToken]:
        """The tokens that are valid now, by name."""
        found = []
        for name in self._names():
            try:
                made_at = (self._folder / name).stat().st_mtime_ns // 1_000_000
            except FileNotFoundError:  # revoked meanwhile
                continue
            found.append(AccessToken(name, made_at))
        return found

    def revoke(self, name: str) -> None:
        """Make a token invalid, from the next request on. Raises BadArguments if there is none of that name."""
        if name not in self._names():
            raise BadArguments(f"There is no token {name[:80]!r}.", "`kairos-mcp token list` names them.")
        (self._folder / name).unlink(missing_ok=True)

    def find_principal(self, text: str) -> str | None:
        """The principal of a token; None for one that is revoked, wrong or was never made, which look the same."""
        prefix, _, rest = text.partition(".")
        name, _, secret = rest.partition(".")
        if prefix != PREFIX or not _NAME.fullmatch(name):
            return None
        try:
            handle = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            stored = os.read(handle, HASH_CHARS)
        finally:
            os.close(handle)
        hashed = _hash(secret).encode()
        return name if hmac.compare_digest(stored, hashed) else None

    def any(self) -> bool:
        """Whether there is a token; also if the folder can't be read, so that nobody gets in without one."""
        try:
            return bool(self._names())
        except OSError:
            return True

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []


def _hash(secret: str) -> str:
    return sha256(secret.encode(errors="replace")).hexdigest()
