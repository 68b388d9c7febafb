"""What the variables of proxies and certificates mean for requests to a provider, checked before a client is made.

The client libraries read them too. Where they can't use one, that looks like a missing key or package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.secret_forms import strip_passwords

THROUGH_PROXY = " through the proxy of "
_SOCKS = ("socks5", "socks5h")
_KNOWN_SCHEMES = ("http", "https", *_SOCKS)
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def client_options(base_url: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of an HTTP client for this provider, None for one at its own address. Raises ConfigError,
    which names the variable that can't be used."""
    proxy = check_way(base_url, environ)
    is_tls = urlsplit(base_url or "https://").scheme == "https"
    if is_loopback(base_url):
        return {"trust_env": False, "verify": make_tls_context(reads_variables=is_tls)}
    if proxy is None:
        return {} if is_tls else {"verify": make_tls_context(reads_variables=False)}
    return {"proxy": proxy} if urlsplit(proxy).scheme in _SOCKS else {}  # `socks://` the library would not read


def check_way(url: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the proxy through which a URL is asked; None for none. Raises ConfigError, which names the variable that
    can't be used.

    A loopback address is never asked through a proxy: that would look for it on the proxy's own machine.
    """
    if urlsplit(url or "https://").scheme == "https":
        _check_certificates(environ)
    if is_loopback(url):
        return None
    name, proxy = find_proxy(url, environ)
    if proxy is None:
        return None
    scheme = urlsplit(proxy).scheme
    if scheme not in _KNOWN_SCHEMES:
        shown = strip_passwords(proxy)
        raise ConfigError(
            f"{name} names no proxy that can be used: {shown}.", "Set it to http://HOST:PORT, or unset it."
        )
    if scheme in _SOCKS:
        _check_socks(name)
    return proxy


def network_notes(base_url: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence on each variable that is set and not used for this provider."""
    notes = []
    if is_loopback(base_url):
        name, proxy = find_proxy(base_url, environ)
        if proxy is not None:
            host = urlsplit(base_url or "").hostname
            notes.append(f"{name} is not used for {host}, which is this machine; NO_PROXY={host} says so as well.")
    if urlsplit(base_url or "https://").scheme == "http":
        notes += [
            f"{name} names {environ[name]}, which is not there; {base_url} needs no certificate."
            for name in _CERTIFICATES
            if environ.get(name) and not os.path.exists(environ[name])
        ]
    return tuple(notes)


def describe_way(address: str | None, environ: Mapping[str, str]) -> str | None:
    """Return where a request goes, with the variable of the proxy that it goes through."""
    name, proxy = find_proxy(address, environ) if address is not None and not is_loopback(address) else ("", None)
    return address if proxy is None else f"{address}{THROUGH_PROXY}{name}"


def is_loopback(url: str | None) -> bool:
    """Whether a URL names this machine itself."""
    host = urlsplit(url).hostname if url is not None else None
    if host is None:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def find_proxy(url: str | None, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the variable that names the proxy for a URL, and the proxy; None if there is none for it. `socks://`, as
    desktops write it, is read as `socks5://`."""
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # no stub

    # Imported here, since that takes 20 ms.

    address = urlsplit(url or "https://")
    known = {name.lower(): (name, environ[name]) for name in sorted(environ) if name.lower().endswith("_proxy")}
    bypassed = {"no": known.get("no_proxy", ("", ""))[1]}
    if bypassed["no"] == "*" or proxy_bypass_environment(address.hostname or "", bypassed):
        return "", None
    for variable in (f"{address.scheme}_proxy", "all_proxy"):
        name, value = known.get(variable, ("", ""))
        if value:
            whole = value if "://" in value else f"http://{value}"
            return name, f"socks5{whole[5:]}" if whole.startswith("socks://") else whole
    return "", None


def _check_certificates(environ: Mapping[str, str]) -> None:
    import ssl

    # Imported here, since that takes 10 ms, and most addresses of people's own servers need none of it.

    for name in _CERTIFICATES:
        path = environ.get(name)
        if path and not os.access(path, os.R_OK):
            reason = "can't be read" if os.path.exists(path) else "is not there"
            raise ConfigError(f"{name} names {path}, which {reason}.", f"Correct {name}, or unset it.")
        if path and name == "SSL_CERT_FILE":
            try:
                ssl.create_default_context(cafile=path)
            except OSError:  # of TLS, too
                raise ConfigError(f"{name} names {path}, which holds no certificate.", f"Correct {name}.") from None


def _check_socks(name: str) -> None:
    from importlib.util import find_spec

    if find_spec("socksio") is None:
        raise ConfigError(
            f"{name} names a SOCKS proxy, and what speaks SOCKS is not installed.",
            f"Install `socksio` beside this program, or set {name} to an http:// proxy.",
        )


def make_tls_context(*, reads_variables: bool) -> Any:
    """Return a TLS context. An address without TLS needs none, and one of a wrong variable must not stop it."""
    import httpx2

    return httpx2.create_ssl_context(trust_env=reads_variables)
