"""Read a secret from where a setting refers to: `env:NAME`, `file:PATH`, `keyring:SERVICE/NAME`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from kairos_mcp.core.errors import ConfigError

REFERENCE_FORMS = "env:NAME, file:PATH or keyring:SERVICE/NAME"
MAX_KEY_FILE_BYTES = 64 * 1024  # of a file with a key: a PEM block has a few thousand

EMBEDDED_REFERENCE = re.compile(r"\$\{((?:env|file|keyring):[^{}]+)\}")  # within a text: `${env:NAME}`
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def is_reference(text: str) -> bool:
    """Whether a text refers to a secret. One that does not may be a secret itself: never show it."""
    kind, colon, place = text.partition(":")
    match kind:
        case "env":
            return _VARIABLE.fullmatch(place) is not None
        case "file":
            return bool(colon and place and "\0" not in place)
        case "keyring":
            service, slash, name = place.partition("/")
            return bool(slash and service and name)
        case _:
            return False


def read_secret(reference: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the secret that a reference names, without surrounding white space.

    Read again at each call, so that a changed key is used from the next request on. Raises ConfigError, which never
    quotes what was read.
    """
    if not is_reference(reference):
        raise ConfigError(
            "This does not refer to a key.", f"Write {REFERENCE_FORMS}; never write a key into a setting."
        )
    kind, _, place = reference.partition(":")
    match kind:
        case "env":
            found = environ.get(place, "").strip()
            cure = f"Set {place}."
        case "file":
            found, cure = _read_key_file(place), "Write the key into it."
        case _:
            service, _, name = place.partition("/")
            found = _read_keyring(service, name)
            cure = f"Store it: keyring set {service} {name}"
    if not found:
        raise ConfigError(f"There is no key at {reference}.", cure)
    return found


def _read_key_file(place: str) -> str:
    """Read a regular file; links are followed, since secrets are often mounted that way."""
    path = os.path.expanduser(place)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        raise ConfigError(f"The file of a key can't be read: {reason}.", f"Check file:{place}.") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ConfigError("The file of a key is not a regular file.", f"Check file:{place}.")
        read = os.read(handle, MAX_KEY_FILE_BYTES + 1)
    finally:
        os.close(handle)
    if len(read) > MAX_KEY_FILE_BYTES:
        raise ConfigError(f"The file of a key is larger than {MAX_KEY_FILE_BYTES} bytes.", f"Check file:{place}.")
    try:
        return read.decode().strip()
    except UnicodeDecodeError:
        raise ConfigError("The file of a key is not text.", f"Check file:{place}.") from None


def _read_keyring(service: str, name: str) -> str:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError as error:
        raise ConfigError("The package for keyrings is missing.", "pip install 'kairos-loop[keyring]'") from error
    try:
        return (keyring.get_password(service, name) or "").strip()
    except KeyringError as error:
        raise ConfigError(
            f"The keyring can't be read: {type(error).__name__}.", "Unlock it, or use env: or file:."
        ) from error
