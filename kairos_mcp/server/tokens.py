"""Bearer tokens for clients over HTTP. A token is shown once, when it is made; only its hash is stored.

Beside the hash stand its scopes, when it ends and when it was last used. A name may have two tokens, while its clients
change from the one to the other.

In a state folder each is a file of its own (`tokens/NAME`, mode 0600), not a row: a request from outside reaches the
store only once it is admitted, a copy of the state file carries no credential, and adding and revoking are one step of
the file system each, seen by every running server at the next request. Where a database is the store they are rows of
it, since servers on several machines share no folder.

The token of the local owner is one of them. Its text is kept too, in a file of the state folder that nobody else can
read (`http_token`): `install --http` writes it into the entries of hosts.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from kairos_mcp.app.app import make_store
from kairos_mcp.core.calendar import DAY_MS, format_timestamp
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.errors import BadArguments, KairosError, StoreUnavailable
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.server.sender import SCOPES
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store.database import Store
from kairos_mcp.store.rows import Row, Session

PREFIX = "kairos"  # so that scanners for leaked secrets can recognise one
SECRET_BYTES = 32  # this many random bytes need no salt and no slow hash
FILE_CHARS = 1_000  # of a token's file
USE_MS = 60_000  # as often its last use is noted
_PLACES = (1, 2)
OWNER_FILE = "http_token"
OWNER_CHARS = 200  # no token is as long

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class AccessToken:
    """Its name is the principal. Times in milliseconds since 1970. `expires_at`: None for never. `used_at`: to the
    minute; None for never."""

    name: str
    made_at: int
    expires_at: int | None = None
    scopes: tuple[str, ...] = SCOPES
    used_at: int | None = None

    def has_expired(self, at: int) -> bool:
        """Whether it no longer gives access at this moment."""
        return self.expires_at is not None and self.expires_at <= at


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token as it is stored: what it is, and the hash of its secret. `place`: of its file; 0 in a database."""

    token: AccessToken
    hashed: str
    place: int = 0


class Tokens(ABC):
    """The tokens of one store, each a name with the hash of its secret."""

    def add(self, name: str, *, scopes: Collection[str] = SCOPES, lasts_days: float | None = None) -> str:
        """Make a token and return its text, which is stored nowhere. Raises BadArguments, StoreUnavailable."""
        if not _NAME.fullmatch(name) or name == LOCAL:
            raise BadArguments(
                f"{name[:80]!r} can't name a token.",
                f"Use up to 40 lower-case letters, digits and -; {LOCAL!r} is you at this machine.",
            )
        token = self.try_to_add(name, scopes=scopes, lasts_days=lasts_days)
        if token is None:
            raise BadArguments(
                f"There is a token {name!r} already.",
                f"Take another name, `kairos-mcp token rotate {name}`, or `kairos-mcp token revoke {name}`.",
            )
        return token

    def try_to_add(self, name: str, *, scopes: Collection[str] = SCOPES, lasts_days: float | None = None) -> str | None:
        """Make a token and return its text; None where one of that name gives access. Raises StoreUnavailable."""
        at = self.now()
        self._delete_expired(name, at)
        return self._make(name, scopes, _after(at, lasts_days), at, most=1)

    def rotate(self, name: str, *, keep_days: float, lasts_days: float | None = None) -> str:
        """Make a second token of this name with the scopes of the first, which still gives access for `keep_days`;
        return its text. Raises BadArguments, StoreUnavailable."""
        at = self.now()
        self._delete_expired(name, at)
        held = self._find(name)
        if not held:
            raise BadArguments(f"There is no token {name[:80]!r}.", "`kairos-mcp token add NAME` makes one.")
        if len(held) > 1:
            ends = [each.token.expires_at for each in held if each.token.expires_at is not None]
            until = f" until {format_timestamp(min(ends))}" if ends else ""
            raise BadArguments(
                f"There are two tokens {name!r} already{until}.",
                f"Wait for the end of the older one, or `kairos-mcp token revoke {name}` ends both.",
            )
        (old,) = held
        made = self._make(name, old.token.scopes, _after(at, lasts_days), at, most=2)
        if made is None:  # somebody else was first
            raise BadArguments(f"There are two tokens {name!r} already.", "`kairos-mcp token list` shows them.")
        ends_at = min(at + int(keep_days * DAY_MS), old.token.expires_at or 2**62)
        self._limit(old, ends_at)
        return made

    def _make(self, name: str, scopes: Collection[str], expires_at: int | None, at: int, *, most: int) -> str | None:
        secret = secrets.token_urlsafe(SECRET_BYTES)
        new = AccessToken(name, at, expires_at, tuple(scopes))
        return f"{PREFIX}.{name}.{secret}" if self._insert(new, _hash(secret), most) else None

    @abstractmethod
    def list_tokens(self) -> list[AccessToken]:
        """The tokens that were not revoked, by name, the older first; also those that have expired."""

    def revoke(self, name: str) -> None:
        """Make the tokens of a name invalid, from the next request on. Raises BadArguments if absent."""
        if not self._delete(name):
            raise BadArguments(f"There is no token {name[:80]!r}.", "`kairos-mcp token list` names them.")

    def find_token(self, text: str) -> AccessToken | None:
        """Return what a token is, also one that has expired; None for one that is revoked, wrong or was never made,
        which look the same."""
        name, secret = _split(text)
        return _match(self._find(name), secret) if name else None

    def find_principal(self, text: str) -> str | None:
        """The principal of a token that gives access; None for any other."""
        found = self.find_token(text)
        return None if found is None or found.has_expired(self.now()) else found.name

    def any(self) -> bool:
        """Whether a token gives access; also if that can't be read, so that nobody gets in without one."""
        try:
            return any(not each.has_expired(self.now()) for each in self.list_tokens())
        except (StoreUnavailable, OSError):
            return True

    async def look_up(self, text: str) -> AccessToken | None:
        """As `find_token`, and note that it was used. Raises the store's errors."""
        found = self.find_token(text)
        if found is not None and self._is_use_new(found):
            self._note_use(found)
        return found

    def now(self) -> int:
        """Return the time by which tokens expire, in milliseconds since 1970."""
        return int(time.time() * 1000)

    def _is_use_new(self, token: AccessToken) -> bool:
        return token.used_at is None or self.now() - token.used_at >= USE_MS

    async def close(self) -> None:  # noqa: B027 - files need nothing
        """Close what was opened."""

    def check_store(self) -> None:  # noqa: B027 - files have no version
        """Raise the store's error where this version can't use its tables."""

    @abstractmethod
    def _insert(self, new: AccessToken, hashed: str, most: int) -> bool:
        """Store a token durably; return False if `most` of that name are there already."""

    @abstractmethod
    def _delete(self, name: str) -> bool:
        """Remove the tokens of a name. Return False if absent."""

    @abstractmethod
    def _delete_expired(self, name: str, at: int) -> None:
        """Remove those of a name that have expired."""

    @abstractmethod
    def _limit(self, old: StoredToken, expires_at: int) -> None:
        """Have a token end then."""

    @abstractmethod
    def _find(self, name: str) -> list[StoredToken]:
        """Return the tokens of a name, the older first."""

    @abstractmethod
    def _note_use(self, token: AccessToken) -> None:
        """Store that a token was used now."""


class TokenStore(Tokens):
    """The tokens of one state folder. Nothing is created before the first is added.

    The first of a name is in the file `NAME`, a second one in `NAME.2`: its hash, and after it, in a second line, what
    else it is. When each was last used is the time of `NAME.used` and `NAME.2.used`.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / "tokens"

    def list_tokens(self) -> list[AccessToken]:
        """As in Tokens."""
        return [each.token for name in self._names() for each in self._find(name)]

    def _insert(self, new: AccessToken, hashed: str, most: int) -> bool:
        if most == 1 and self._find(new.name):
            return False
        fields = {"made_at": new.made_at, "expires_at": new.expires_at, "scopes": new.scopes}
        text = f"{hashed}\n{json.dumps(fields)}\n"
        return any(_write_new(self._file(new.name, place), text) for place in _PLACES[:most])

    def _delete(self, name: str) -> bool:
        if name not in self._names():
            return False
        for place in _PLACES:
            self._remove(name, place)
        return True

    def _delete_expired(self, name: str, at: int) -> None:
        for each in self._find(name):
            if each.token.has_expired(at):
                self._remove(name, each.place)

    def _remove(self, name: str, place: int) -> None:
        file = self._file(name, place)
        for each in (file, file.with_name(f"{file.name}.used")):
            each.unlink(missing_ok=True)

    def _limit(self, old: StoredToken, expires_at: int) -> None:
        fields = {"made_at": old.token.made_at, "expires_at": expires_at, "scopes": old.token.scopes}
        file = self._file(old.token.name, old.place)
        beside = file.with_name(f"{file.name}.new")
        beside.unlink(missing_ok=True)
        _write_new(beside, f"{old.hashed}\n{json.dumps(fields)}\n")
        beside.replace(file)

    def _find(self, name: str) -> list[StoredToken]:
        found = [each for place in _PLACES if (each := self._read(name, place)) is not None]
        return sorted(found, key=lambda each: each.token.made_at)

    def _read(self, name: str, place: int) -> StoredToken | None:
        file = self._file(name, place)
        try:
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW)) as opened:
                hashed, _, rest = opened.read(FILE_CHARS).partition("\n")
                made_at = os.fstat(opened.fileno()).st_mtime_ns // 1_000_000
            fields = json.loads(rest) if rest.strip() else {}
            expires_at, scopes = fields.get("expires_at"), tuple(fields.get("scopes", SCOPES))
        except (OSError, ValueError, AttributeError, TypeError):
            return None
        with suppress(OSError):
            used_at = file.with_name(f"{file.name}.used").stat().st_mtime_ns // 1_000_000
            return StoredToken(
                AccessToken(name, fields.get("made_at", made_at), expires_at, scopes, used_at), hashed, place
            )
        return StoredToken(AccessToken(name, fields.get("made_at", made_at), expires_at, scopes), hashed, place)

    def _note_use(self, token: AccessToken) -> None:
        for each in self._find(token.name):
            if each.token.made_at == token.made_at:
                with suppress(OSError):
                    file = self._file(token.name, each.place)
                    file.with_name(f"{file.name}.used").touch(0o600)

    def _file(self, name: str, place: int) -> Path:
        return self._folder / (name if place == 1 else f"{name}.{place}")

    def _names(self) -> list[str]:
        try:
            names = {name.removesuffix(".2") for name in os.listdir(self._folder)}
        except FileNotFoundError:
            return []
        return sorted(filter(_NAME.fullmatch, names))


_COLUMNS = "name, made_at, expires_at, scopes, used_at, hash"


class TokenRows(Tokens):
    """The tokens of a database, as rows: all servers on it admit the same."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._noting: set[asyncio.Task[None]] = set()

    def check_store(self) -> None:
        """As in Tokens."""
        self._store.open()

    def now(self) -> int:
        """As in Tokens: by the database's clock."""
        return self._store.now()

    def list_tokens(self) -> list[AccessToken]:
        """As in Tokens."""
        with self._store.read_session() as session:
            found = session.rows(f"select {_COLUMNS} from token order by name, made_at")
        return [_from_row(row).token for row in found]

    async def look_up(self, text: str) -> AccessToken | None:
        """As in Tokens. That it was used is noted beside, so that no request waits for a write."""
        name, secret = _split(text)
        found = _match(await self._store.read(lambda session: _find_rows(session, name)), secret)
        if found is not None and self._is_use_new(found) and not self._noting:
            noting = asyncio.create_task(asyncio.to_thread(self._note_use, found))
            self._noting.add(noting)
            noting.add_done_callback(self._noting.discard)
        return found

    async def close(self) -> None:
        """As in Tokens."""
        await asyncio.gather(*self._noting, return_exceptions=True)
        await self._store.close()

    def _insert(self, new: AccessToken, hashed: str, most: int) -> bool:
        insert = (
            "insert into token(name, hash, made_at, expires_at, scopes) select ?, ?, ?, ?, ?"
            " where (select count(*) from token where name = ?) < ?"
        )
        bindings = (new.name, hashed, new.made_at, new.expires_at, " ".join(new.scopes), new.name, most)
        with self._store.write_session() as session:
            return bool(session.change(insert, bindings))

    def _delete(self, name: str) -> bool:
        with self._store.write_session() as session:
            return bool(session.change("delete from token where name = ?", (name,)))

    def _delete_expired(self, name: str, at: int) -> None:
        with self._store.write_session() as session:
            session.change("delete from token where name = ? and expires_at <= ?", (name, at))

    def _limit(self, old: StoredToken, expires_at: int) -> None:
        with self._store.write_session() as session:
            session.change("update token set expires_at = ? where hash = ?", (expires_at, old.hashed))

    def _find(self, name: str) -> list[StoredToken]:
        with self._store.read_session() as session:
            return _find_rows(session, name)

    def _note_use(self, token: AccessToken) -> None:
        use = "update token set used_at = ? where name = ? and made_at = ?"
        with suppress(KairosError), self._store.write_session() as session:
            session.change(use, (self.now(), token.name, token.made_at))


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
    """Return the name and the secret of a token; no name if it isn't one of ours."""
    prefix, _, rest = text.partition(".")
    name, _, secret = rest.partition(".")
    return (name, secret) if prefix == PREFIX and _NAME.fullmatch(name) else ("", "")


def _match(held: Iterable[StoredToken], secret: str) -> AccessToken | None:
    """Return the token whose secret this is."""
    hashed = _hash(secret).encode()
    return next((each.token for each in held if hmac.compare_digest(each.hashed.encode(), hashed)), None)


def _after(at: int, days: float | None) -> int | None:
    return None if days is None else at + int(days * DAY_MS)


def _from_row(row: Row) -> StoredToken:
    name, made_at, expires_at, scopes, used_at, hashed = row
    return StoredToken(AccessToken(name, made_at, expires_at, tuple(scopes.split()), used_at), hashed)


def _find_rows(session: Session, name: str) -> list[StoredToken]:
    found = session.rows(f"select {_COLUMNS} from token where name = ? order by made_at", (name,))
    return list(map(_from_row, found))


def make_tokens(settings: Settings) -> Tokens:
    """Return the tokens of the store that the settings name. Raises ConfigError."""
    if settings.store is None:
        return TokenStore(settings.home)
    return TokenRows(make_store(settings, "tokens", None, salvage=False))
