"""Bearer tokens for clients over HTTP. A token is shown once, when it is made; only its hash is stored.

In a state folder each is a file of its own (`tokens/NAME`, mode 0600), not a row: a request from outside reaches the
store only once it is admitted, a copy of the state file carries no credential, and adding and revoking are one step of
the file system each, seen by every running server at the next request. Where a database is the store they are rows of
it, since servers on several machines share no folder.

The token of the local owner is one of them. Its text is kept too, in a file of the state folder that nobody else can
read (`http_token`): `install --http` writes it into the entries of hosts.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from abc import ABC, abstractmethod
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from kairos_mcp.app.app import make_store
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.errors import BadArguments, StoreUnavailable
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store.database import Store
from kairos_mcp.store.rows import Session

PREFIX = "kairos"  # so that scanners for leaked secrets can recognise one
SECRET_BYTES = 32  # so many random bytes need no salt and no slow hash
HASH_CHARS = 64
OWNER_FILE = "http_token"
OWNER_CHARS = 200  # no token is as long

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Its name is the principal. `made_at` in milliseconds since 1970."""

    name: str
    made_at: int


class Tokens(ABC):
    """The tokens of one store, each a name with the hash of its secret."""

    def add(self, name: str) -> str:
        """Make a token and return its text, which is stored nowhere. Raises BadArguments, StoreUnavailable."""
        if not _NAME.fullmatch(name) or name == LOCAL:
            raise BadArguments(
                f"{name[:80]!r} can't name a token.",
                f"Use up to 40 lower-case letters, digits and -; {LOCAL!r} is you at this machine.",
            )
        token = self.try_to_add(name)
        if token is None:
            raise BadArguments(
                f"There is a token {name!r} already.",
                f"Take another name, or `kairos-mcp token revoke {name}`.",
            )
        return token

    def try_to_add(self, name: str) -> str | None:
        """Make a token and return its text; None where there is one of that name. Raises StoreUnavailable."""
        secret = secrets.token_urlsafe(SECRET_BYTES)
        return f"{PREFIX}.{name}.{secret}" if self._insert(name, _hash(secret)) else None

    @abstractmethod
    def list_tokens(self) -> list[AccessToken]:
        """The tokens that are valid now, by name."""

    def revoke(self, name: str) -> None:
        """Make a token invalid, from the next request on. Raises BadArguments if there is none of that name."""
        if not self._delete(name):
            raise BadArguments(f"There is no token {name[:80]!r}.", "`kairos-mcp token list` names them.")

    def find_principal(self, text: str) -> str | None:
        """The principal of a token; None for one that is revoked, wrong or was never made, which look the same."""
        name, secret = _split(text)
        return name if name and _is_secret(secret, self._find_hash(name)) else None

    @abstractmethod
    def any(self) -> bool:
        """Whether there is a token; also if that can't be read, so that nobody gets in without one."""

    async def look_up(self, text: str) -> str | None:
        """As `find_principal`. Raises the store's errors."""
        return self.find_principal(text)

    async def close(self) -> None:  # noqa: B027 - files need nothing
        """Close what was opened."""

    @abstractmethod
    def _insert(self, name: str, hashed: str) -> bool:
        """Store a token durably; return False if the name is taken."""

    @abstractmethod
    def _delete(self, name: str) -> bool:
        """Remove a token. Return False if there is none of that name."""

    @abstractmethod
    def _find_hash(self, name: str) -> bytes | None:
        """Return the hash that is stored of a token."""


class TokenStore(Tokens):
    """The tokens of one state folder. Nothing is created before the first is added."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "tokens"

    def list_tokens(self) -> list[AccessToken]:
        """As in Tokens."""
        found = []
        for name in self._names():
            try:
                made_at = (self._folder / name).stat().st_mtime_ns // 1_000_000
            except FileNotFoundError:  # revoked meanwhile
                continue
            found.append(AccessToken(name, made_at))
        return found

    def any(self) -> bool:
        """As in Tokens."""
        try:
            return bool(self._names())
        except OSError:
            return True

    def _insert(self, name: str, hashed: str) -> bool:
        return _write_new(self._folder / name, hashed)

    def _delete(self, name: str) -> bool:
        if name not in self._names():
            return False
        (self._folder / name).unlink(missing_ok=True)
        return True

    def _find_hash(self, name: str) -> bytes | None:
        try:
            handle = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return os.read(handle, HASH_CHARS)
        finally:
            os.close(handle)

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []


class TokenRows(Tokens):
    """The tokens of a database, as rows: all servers on it admit the same."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_tokens(self) -> list[AccessToken]:
        """As in Tokens."""
        with self._store.read_session() as session:
            return [AccessToken(*found) for found in session.rows("select name, made_at from token order by name")]

    def any(self) -> bool:
        """As in Tokens."""
        try:
            return bool(self.list_tokens())
        except StoreUnavailable:
            return True

    async def look_up(self, text: str) -> str | None:
        """As in Tokens."""
        name, secret = _split(text)
        stored = await self._store.read(lambda session: _find_row(session, name))
        return name if _is_secret(secret, stored) else None

    async def close(self) -> None:
        """As in Tokens."""
        await self._store.close()

    def _insert(self, name: str, hashed: str) -> bool:
        new = "insert into token(name, hash, made_at) values (?, ?, ?) on conflict do nothing"
        with self._store.write_session() as session:
            return bool(session.change(new, (name, hashed, self._store.now())))

    def _delete(self, name: str) -> bool:
        with self._store.write_session() as session:
            return bool(session.change("delete from token where name = ?", (name,)))

    def _find_hash(self, name: str) -> bytes | None:
        with self._store.read_session() as session:
            return _find_row(session, name)


def make_owner_token(tokens: Tokens, home: Path) -> str | None:
    """Make the token of the local owner, keep its text in the state folder, and return it.

    Returns None where another process has made it. Raises StoreUnavailable.
    """
    token = tokens.try_to_add(LOCAL)
    if token is None:
        return None
    try:
        remove_owner_token(home)
        _write_new(home / OWNER_FILE, token)
    except BaseException:
        tokens.revoke(LOCAL)  # else it would be a token that nobody has, and none would be made in its place
        raise
    return token


def read_owner_token(home: Path) -> str | None:
    """Return the text of the local owner's token; None where it is not kept here."""
    try:
        with os.fdopen(os.open(home / OWNER_FILE, os.O_RDONLY | os.O_NOFOLLOW)) as file:
            return file.read(OWNER_CHARS).strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def remove_owner_token(home: Path) -> None:
    """Remove the text of the local owner's token, if it is kept here."""
    with suppress(FileNotFoundError):
        (home / OWNER_FILE).unlink()


def _write_new(file: Path, text: str) -> bool:
    """Write a file that its owner alone reads, durably; False where there is one. Raises StoreUnavailable."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreUnavailable(
            f"The state folder can't be written: {error.strerror}.", "Check its permissions, or --home."
        ) from error
    try:
        with os.fdopen(handle, "w") as written:
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
    except BaseException:
        file.unlink(missing_ok=True)  # on a full disk half a token would count as one
        raise
    return True


def _hash(secret: str) -> str:
    return sha256(secret.encode(errors="replace")).hexdigest()


def _split(text: str) -> tuple[str, str]:
    """Return the name and the secret of a token; no name where it is none."""
    prefix, _, rest = text.partition(".")
    name, _, secret = rest.partition(".")
    return (name, secret) if prefix == PREFIX and _NAME.fullmatch(name) else ("", "")


def _is_secret(secret: str, stored: bytes | None) -> bool:
    return stored is not None and hmac.compare_digest(stored, _hash(secret).encode())


def _find_row(session: Session, name: str) -> bytes | None:
    found = session.row("select hash from token where name = ?", (name,))
    return None if found is None else str(found[0]).encode()


def make_tokens(settings: Settings) -> Tokens:
    """Return the tokens of the store that the settings name. Raises ConfigError."""
    if settings.store is None:
        return TokenStore(settings.home)
    return TokenRows(make_store(settings, "tokens", None, salvage=False))
