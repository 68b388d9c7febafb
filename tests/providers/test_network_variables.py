"""Variables of proxies and certificates: read rightly, named where they can't be used, never used for this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest

from kairos_mcp.core.errors import ConfigError
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


def test_a_certificate_that_is_there_is_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    assert client_options(FAR, {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}) == {}
