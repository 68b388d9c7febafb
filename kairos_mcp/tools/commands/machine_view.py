"""Lists what of the machine a program in a sandbox sees: programs, libraries, and the settings that these need.

Everything else is absent, so that no program, nor one of root's, reads keys, passwords or other projects. What a
toolchain elsewhere needs is let in by name: see `toolchains.py`, and the setting command_reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SYSTEM_FOLDERS = tuple(
    map(
        Path,
        (
            *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"),
            *("/nix/store", "/gnu/store", "/run/current-system", "/home/linuxbrew/.linuxbrew"),
        ),
    )
)
# Read by the loader, by libraries, by interpreters and by git; nothing here holds a password or a key.
SYSTEM_SETTINGS = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld-musl-x86_64.path", "ld-musl-aarch64.path", "alternatives"),
    *("passwd", "group", "nsswitch.conf", "host.conf", "hosts", "gai.conf", "services", "protocols", "networks"),
    *("localtime", "timezone", "locale.alias", "locale.conf", "os-release", "lsb-release", "debian_version"),
    *("redhat-release", "alpine-release", "mime.types", "magic", "magic.mime", "gitconfig", "gitattributes"),
    *("ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "crypto-policies"),
    *("pki/tls/certs", "pki/tls/openssl.cnf", "pki/ca-trust", "pki/java", "terminfo", "inputrc", "fonts", "vulkan"),
    *("python3", "perl", "java", "maven", "lua", "texmf", "matplotlibrc", "static", "clang", "OpenCL"),
)
_NUMBERED_SETTINGS = ("python3.*", "java-*", "ruby*", "lua*")
_ETC = Path("/etc")
_READABLE_BY_ALL = 0o004


def list_system_settings() -> Iterator[Path]:
    """Yield the entries of /etc that are let in. None that only its owner may read, whatever its name."""
    named = (_ETC / name for name in SYSTEM_SETTINGS)
    numbered = (path for pattern in _NUMBERED_SETTINGS for path in sorted(_ETC.glob(pattern)))
    for path in dict.fromkeys((*named, *numbered)):
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        if mode & _READABLE_BY_ALL:
            yield path
