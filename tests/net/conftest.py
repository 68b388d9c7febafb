"""A server on loopback, and certificates of an authority that only a test trusts."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator

import pytest
import trustme
from support.network import Peer, peer


@pytest.fixture
def web() -> Iterator[Peer]:
    with peer() as serving:
        yield serving


@pytest.fixture
def other() -> Iterator[Peer]:
    with peer() as serving:
        yield serving


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA) -> Callable[[], ssl.SSLContext]:
    """Makes a client's context that trusts the authority of the tests alone."""

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        assert context.verify_mode == ssl.CERT_REQUIRED
        return context

    return make


@pytest.fixture
def serving_as(authority: trustme.CA) -> Callable[[str], ssl.SSLContext]:
    """Makes a server's context with a certificate for a name."""

    def make(name: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        return context

    return make
