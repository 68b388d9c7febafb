"""Finds why a connection failed, in the exceptions of libraries that say no more than that it did."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from typing import NamedTuple

_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")  # what was read is no TLS
_TRUST_HINT = (
    "If your network has a certificate of its own, set SSL_CERT_FILE to a file that holds it and the usual ones; else "
    "check the address."
)
_PROXY_HINT = "It takes a user and a password as http://USER:PASSWORD@HOST:PORT."


class NetworkCause(NamedTuple):
    """Why a connection failed; `hint`: what helps, where that is known. `is_refused`: a proxy refused it, and nothing
    was sent any further."""

    words: str
    hint: str = ""
    is_refused: bool = False


def find_network_cause(error: BaseException) -> NetworkCause | None:
    """Return why a connection failed, by the innermost error of the network; None where nothing says it."""
    causes = [cause for cause in cause_chain(error) if isinstance(cause, OSError) and cause.errno is not None]
    match causes[-1] if causes else None:
        case ssl.SSLCertVerificationError(verify_message=str(why)):
            return NetworkCause(f"its certificate is not trusted: {why}", _TRUST_HINT)
        case ssl.SSLError(reason=reason) if reason in _NO_TLS:
            return NetworkCause("it does not speak TLS", "Is it http instead of https?")
        case ssl.SSLError(reason=reason):
            return NetworkCause(f"TLS failed: {str(reason).replace('_', ' ').lower()}")
        case OSError(errno=int(number), strerror=words):
            # A name that can't be resolved has a number below 0 and its own words; of others asyncio words it with the
            # address.
            return NetworkCause(os.strerror(number) if number > 0 else str(words))
        case _:
            return next((_refusal(cause) for cause in cause_chain(error) if type(cause).__name__ == "ProxyError"), None)


def _refusal(error: BaseException) -> NetworkCause:
    """Return what a proxy said; the class has one name in each of the libraries."""
    said = " ".join(str(error).split())[:100]
    return NetworkCause(f"the proxy refused: {said}", _PROXY_HINT if said.startswith("407") else "", is_refused=True)


def cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
