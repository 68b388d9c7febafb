"""Variables of proxies and certificates: read rightly, named where they can't be used, never used for this machine."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
import trustme
from support.provider_calls import KEY, ask_model, asking, step_of

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.steps import Failure
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider_connection import ProviderConnection
from kairos_mcp.models.provider_network import client_options, describe_way, find_proxy, network_notes

FAR = "https://api.example.com/v1"


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        (FAR, {"HTTPS_PROXY": "http://p:1"}, ("HTTPS_PROXY", "http://p:1")),
        (FAR, {"https_proxy": "p:1"}, ("https_proxy", "http://p:1")),
        (FAR, {"HTTP_PROXY": "http://p:1"}, ("", None)),
        (FAR, {"ALL_PROXY": "socks://p:1/"}, ("ALL_PROXY", "socks5://p:1/")),
        (FAR, {"ALL_PROXY": "socks5h://p:1", "HTTPS_PROXY": ""}, ("ALL_PROXY", "socks5h://p:1")),
        (FAR, {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example.com"}, ("", None)),
        (FAR, {"HTTPS_PROXY": "http://p:1", "no_proxy": "*"}, ("", None)),
        ("http://api.example.com", {"HTTP_PROXY": "http://p:1"}, ("HTTP_PROXY", "http://p:1")),
        (None, {"HTTPS_PROXY": "http://p:1"}, ("HTTPS_PROXY", "http://p:1")),
    ],
)
def test_a_proxy_is_found_as_other_programs_find_it(
    url: str | None, environ: Mapping[str, str], proxy: tuple[str, str | None]
) -> None:
    assert find_proxy(url, environ) == proxy


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({"ALL_PROXY": "ftp://p:1"}, "ALL_PROXY"),
        ({"HTTPS_PROXY": "://"}, "HTTPS_PROXY"),
        ({"SSL_CERT_FILE": "/nowhere/ca.pem"}, "SSL_CERT_FILE"),
        ({"SSL_CERT_DIR": "/nowhere"}, "SSL_CERT_DIR"),
    ],
)
@pytest.mark.parametrize("model", ["openai:m", "anthropic:m", "groq:m"])
def test_a_variable_that_can_t_be_used_is_named_and_no_key_or_package(
    environ: Mapping[str, str], variable: str, model: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        ProviderConnection.open(Tariff(model), environ)
    assert variable in raised.value.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.9.1", "model.localhost"])
def test_this_machine_is_never_asked_through_a_proxy(host: str) -> None:
    url, environ = f"http://{host}:8080/v1", {"HTTP_PROXY": "http://p:1", "SSL_CERT_FILE": "/nowhere/ca.pem"}
    assert client_options(url, environ)["trust_env"] is False
    assert describe_way(url, environ) == url
    assert [note.split()[0] for note in network_notes(url, environ)] == ["HTTP_PROXY", "SSL_CERT_FILE"]
    assert network_notes(url, {"HTTP_PROXY": "http://p:1", "NO_PROXY": host.strip("[]")}) == ()


async def test_a_request_to_this_machine_arrives_though_a_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        async with httpx2.AsyncClient(**client_options(url, {"HTTP_PROXY": "http://127.0.0.1:9"})) as client:
            assert (await client.get(url)).status_code == 204


def test_a_proxy_that_a_request_goes_through_is_named_with_its_address() -> None:
    assert describe_way(FAR, {"HTTPS_PROXY": "http://p:1"}) == f"{FAR} through the proxy of HTTPS_PROXY"
    assert describe_way(FAR, {}) == FAR
    assert describe_way(None, {"HTTPS_PROXY": "http://p:1"}) is None


def test_certificates_are_used_and_a_file_without_any_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(file)
    assert client_options(FAR, {"SSL_CERT_FILE": str(file)}) == {}
    file.write_text("of no use")
    with pytest.raises(ConfigError) as raised:
        client_options(FAR, {"SSL_CERT_FILE": str(file)})
    assert "SSL_CERT_FILE" in raised.value.message


@contextmanager
def accepts(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A port that answers each request with status 501; with a context, one that speaks TLS."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http:
        if context is not None:
            http.socket = context.wrap_socket(http.socket, server_side=True)
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield http.server_port
        http.shutdown()


def untrusted() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.parametrize("model", ["openai:m", "anthropic:m"])
async def test_why_a_connection_failed_is_said_with_what_helps(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with accepts() as plain, accepts(untrusted()) as speaks_tls, socket.create_server(("127.0.0.1", 0)) as listener:
        dead = listener.getsockname()[1]
        listener.close()
        rows = (
            (f"https://127.0.0.1:{speaks_tls}/v1", {}, ("certificate is not trusted", "SSL_CERT_FILE")),
            (f"https://127.0.0.1:{plain}/v1", {}, ("does not speak TLS", "http instead of https")),
            (f"http://127.0.0.1:{dead}/v1", {}, ("Connection refused", "Check KAIROS_BASE_URL")),
            (FAR, {"HTTPS_PROXY": f"http://127.0.0.1:{dead}"}, ("Connection refused", "Check HTTPS_PROXY")),
            (FAR, {"HTTPS_PROXY": f"http://127.0.0.1:{plain}"}, ("the proxy refused: 501", "Check HTTPS_PROXY")),
        )
        for url, environ, words in rows:
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            keys = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
            async with asking(model, url, keys | environ) as ask:
                failure = await ask_model(ask, step_of())
            assert isinstance(failure, Failure)
            assert [word for word in words if word not in failure.message] == []
            assert (failure.retryable, failure.unknown_end) == (True, False)  # nothing was sent: nothing is charged
