"""The variables by which a server's program finds its way out: proxies, and the certificates that it has to trust.

Without them nothing can be loaded in a network with a proxy or with a certificate of its own, and loaders say so late
or never.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kairos_mcp.tools.commands.toolchains import is_wide

# Each names files or folders that hold certificates, no key.
CERTIFICATES = (
    *("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "DENO_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE"),
    *("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "npm_config_cafile"),
)
# Whether a program uses what the system and the variables say.
SWITCHES = ("DENO_TLS_CA_STORE", "NODE_USE_ENV_PROXY", "NODE_USE_SYSTEM_CA", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS")
PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")


def pass_network_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a server's program gets of these variables: all but proxies with a password."""
    withheld = {*list_withheld_proxies(environ)}
    return {
        name: value
        for name, value in environ.items()
        if name in (*CERTIFICATES, *SWITCHES) or (name.upper() in PROXIES and name not in withheld)
    }


def list_withheld_proxies(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that name a proxy with a password: a secret, which a server gets by name alone."""
    return sorted(name for name in environ if name.upper() in PROXIES and "@" in environ[name])


def list_certificates(env: Mapping[str, str]) -> list[Path]:
    """Return the files and folders that hold the certificates; a sandbox has to show them."""
    paths = [Path(part) for name in CERTIFICATES for part in env.get(name, "").split(os.pathsep) if os.path.isabs(part)]
    return [path for path in paths if path.exists() and not is_wide(Path(os.path.realpath(path)), env)]
