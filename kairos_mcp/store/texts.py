"""Long texts, each kept once under the hash of what it holds, and compared with that hash whenever it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import apsw

from kairos_mcp.core.errors import Unreadable
from kairos_mcp.store.connection import fetch_all, fetch_one, json_or_null
from kairos_mcp.store.inspecting import format_first

_KEEP = (
    "insert into text(hash, body) values (?, ?) on conflict(hash) do update set body = excluded.body"
    " where body is not excluded.body"
)
_READ = "select cast(body as blob) from text where hash = ?"  # bytes: a damaged text may be no UTF-8 at all
_USERS = f"""
    select run.id from run, json_each({json_or_null("run.spec")}) part where part.value = ?1
    union select run.id from answer join mark on mark.id = answer.mark join run on run.n = mark.run
    where instr(answer.body, ?1)
"""


class DamagedText(Unreadable):
    """A text that is not what it was when it was kept; `body` is what there is of it now."""

    def __init__(self, content_hash: str, body: bytes) -> None:
        super().__init__(f"The text {content_hash[:12]} is damaged.", "Run `kairos-mcp doctor`.")
        self.body = body


def keep_texts(connection: apsw.Connection, texts: Iterable[tuple[str, str]]) -> None:
    """Keep texts by their hashes (hash, body); one that is there and was damaged is whole again."""
    for text in texts:
        fetch_all(connection, _KEEP, text)


def read_text(connection: apsw.Connection, content_hash: str) -> str | None:
    """The text of this hash, None where there is none. Raises DamagedText."""
    found = fetch_one(connection, _READ, (content_hash,))
    if found is None:
        return None
    body: bytes = found[0]
    if sha256(body).hexdigest() != content_hash:
        raise DamagedText(content_hash, body)
    return body.decode()


def find_damaged_texts(connection: apsw.Connection) -> Iterator[str]:
    """A sentence for damaged texts, with the runs that use them; what nobody uses harms nobody. Reads all."""
    damaged = [
        content_hash
        for content_hash, body in connection.execute("select hash, cast(body as blob) from text")
        if sha256(body).hexdigest() != content_hash
    ]
    users = {run_id: None for each in damaged for (run_id,) in connection.execute(_USERS, (each,))}
    if users:
        yield f"texts are damaged of {format_first(sorted(users))}"
