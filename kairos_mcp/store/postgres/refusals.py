"""Why no connection to a database could be made, in our words: they name no host, no user and no file.

PostgreSQL's library says it in a sentence alone, with no code. A sentence in another language than English, or one that
is not known here, tells no reason.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kairos_mcp.core.errors import StoreUnavailable


class _Refusal(NamedTuple):
    """`said`: what the library's sentence contains."""

    said: str
    reason: str
    hint: str


_REFUSALS = (
    _Refusal(
        "no password supplied",
        "it wants a password",
        "Say where it is kept: store_password = 'env:NAME' or 'file:PATH' in the settings, or KAIROS_STORE_PASSWORD.",
    ),
    _Refusal(
        "authentication failed",
        "it refused the user or the password",
        "Check the user in `store` and what `store_password` names.",
    ),
    _Refusal(r'role ".*" does not exist', "it has no such user", "Check the user in `store`, or create it there."),
    _Refusal(
        r'database ".*" does not exist',
        "the server has no database of this name",
        "Create it (`createdb NAME`), or name another in `store`.",
    ),
    _Refusal(
        r"no pg_hba\.conf entry",
        "it does not admit this user from this machine",
        "Add a line for it to the server's pg_hba.conf.",
    ),
    _Refusal(
        "could not translate host name|Name or service not known|nodename nor servname",
        "its host is not known",
        "Check the host in `store`.",
    ),
    _Refusal(
        "Connection refused|No such file or directory",
        "no server listens there",
        "Start it, or check the host and the port in `store`.",
    ),
    _Refusal(
        "timeout expired|timed out|No route to host|Network is unreachable",
        "its host does not answer",
        "Check the host and the port in `store`, and the network between.",
    ),
    _Refusal(
        "SSL was required|does not support SSL|SSL error|certificate verify failed|root certificate file",
        "no encrypted connection as `store` asks for it could be made",
        "Check sslmode and sslrootcert in `store`.",
    ),
)


def explain_refusal(said: str) -> StoreUnavailable:
    """Return the store's error for what the library said of a connection that it could not make."""
    for refusal in _REFUSALS:
        if re.search(refusal.said, said):
            return StoreUnavailable(f"The database can't be reached: {refusal.reason}.", refusal.hint)
    return StoreUnavailable("The database can't be reached.", "Check `store` in the settings, then call again.")
