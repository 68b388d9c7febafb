"""Store long texts once each, by the SHA-256 of their content; reading one compares it with its hash."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from kairos_mcp.core.errors import Unreadable
from kairos_mcp.store.session import Session

_KEEP = (
    "insert into text(hash, body) values (?, ?) on conflict(hash) do update set body = excluded.body"
    " where text.body is distinct from excluded.body"
)
_READ = "select cast(body as blob) from text where hash = ?"  # bytes: a damaged text may be no UTF-8 at all


class _KeptText(NamedTuple):
    """A text that a transaction stores last."""

    hash: str
    body: str

    def plus(self, other: _KeptText) -> _KeptText:
        return other

    def write(self, session: Session) -> None:
        session.rows(_KEEP, self)


class DamagedText(Unreadable):
    """A text whose content no longer matches its hash; `body` is what is stored now."""

    def __init__(self, content_hash: str, body: bytes) -> None:
        super().__init__(f"The text {content_hash[:12]} is damaged.", "Run `kairos-mcp doctor`.")
        self.body = body


def keep_texts(session: Session, texts: Iterable[tuple[str, str]]) -> None:
    """Store texts, given as (hash, body). A damaged one that is stored already is replaced."""
    for text in texts:
        if session.last_writes is None:
            session.rows(_KEEP, text)
        else:
            session.last_writes.add("text", text[0], _KeptText(*text))


def read_text(session: Session, content_hash: str) -> str | None:
    """Return the text with this hash, None where there is none. Raises DamagedText."""
    found = session.row(_READ, (content_hash,))
    if found is None:
        return None
    body: bytes = found[0]
    if sha256(body).hexdigest() != content_hash:
        raise DamagedText(content_hash, body)
    return body.decode()
