"""Models that were asked although nobody knows their price: what they cost is in no sum, and whoever reads one is told.

A completion's row says it (`Sent.unpriced`), since a price may be stated, or become known, later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apsw

from kairos_mcp.core.steps import Sent
from kairos_mcp.store.accounts import CHARGES_SQL
from kairos_mcp.store.connection import fetch_all, json_or_null

_UNPRICED_OF_RUN = f"""
    select distinct json_extract(sent, '$.model') from (
        select {json_or_null("sent")} as sent from (select sent from mark where run = ?1 union all
            select attempt.sent from attempt join mark on mark.id = attempt.mark where run = ?1))
    where json_extract(sent, '$.unpriced') order by 1
"""
_UNPRICED_BY_ACCOUNT = f"""
    select distinct value, json_extract(sent, '$.model') from ({CHARGES_SQL}), json_each(shared)
    where json_extract(sent, '$.unpriced') order by 1, 2
"""


def unpriced_models(connection: apsw.Connection, n: int) -> tuple[str, ...]:
    """The models without a known price that a run has asked, by name."""
    return tuple(model for (model,) in fetch_all(connection, _UNPRICED_OF_RUN, (n,)))


def unpriced_models_by_account(connection: apsw.Connection) -> dict[int, list[str]]:
    """The models without a known price that were asked on each shared account, by name."""
    found: dict[int, list[str]] = {}
    for account, model in fetch_all(connection, _UNPRICED_BY_ACCOUNT):
        found.setdefault(account, []).append(model)
    return found


def unpriced_notes(sent: Iterable[Sent]) -> Iterator[str]:
    """One sentence for each such model: a run says it once."""
    for model in {sent.model for sent in sent if sent.unpriced}:
        yield (
            f"The price of {model} is not known: usd is without what it costs."
            " Set price_input and price_output to have it counted."
        )
