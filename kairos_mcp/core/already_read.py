"""What a caller has read before its call, as the call itself says: a result shows it only what is new."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import NamedTuple


class AlreadyRead(NamedTuple):
    """`answered`: the keys that the call answers, word for word as they are recorded. `after`: keys that its caller
    answered before, the newest of each conversation, and keys of what waits that it was shown. `known`: ids of texts.
    """

    answered: Collection[str] = ()
    after: Collection[str] = ()
    known: Collection[str] = ()

    @property
    def keys(self) -> frozenset[str]:
        return frozenset((*self.answered, *self.after))


NOTHING_READ = AlreadyRead()


def text_id(text: str) -> str:
    """Return what a long text is called by whoever has it: the beginning of its hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
