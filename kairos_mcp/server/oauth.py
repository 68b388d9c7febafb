"""OAuth access tokens (JWT), verified as a resource server does: by the keys that the authorization server publishes.

Imported only where `[oauth]` is configured: the parts that verify a signature take their time to start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import anyio
import httpx2
import jwt
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.routes import build_resource_metadata_url, create_protected_resource_routes
from pydantic import AnyHttpUrl, ConfigDict, TypeAdapter
from pydantic_core import from_json
from starlette.routing import Route

from kairos_mcp.server.auth import KeysUnavailable
from kairos_mcp.server.sender import ALL_SCOPES
from kairos_mcp.settings.table_values import OAuthSetting

log = logging.getLogger(__name__)

CLOCK_SKEW_S = 30  # between the authorization server's clock and ours
MAX_SUBJECT_CHARS = 255  # as OpenID Connect has it
MAX_KEYS_BYTES = 256 * 1024
FETCH_S = 5.0
FRESH_S = 300.0  # keys are fetched again after this time, so that a withdrawn one ends within it
STALE_S = 3_600.0  # and are used so long where they can't be: an outage of the authorization server is not ours
COOLDOWN_S = 10.0  # between two tries, whatever tokens with unknown keys come: anybody can send those
WELL_KNOWN = "/.well-known/oauth-protected-resource"
_URL = TypeAdapter[AnyHttpUrl](AnyHttpUrl, config=ConfigDict(url_preserve_empty_path=True))  # an issuer is compared
REQUIRED_CLAIMS = ["iss", "aud", "exp", "sub"]


class SigningKey(NamedTuple):
    """A public key, and the one algorithm that it is for, if it says so."""

    key: Any
    algorithm: str | None


class SigningKeys:
    """The public keys of the authorization server, by their ids. `clock` in seconds."""

    def __init__(self, uri: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._uri = uri
        self._clock = clock
        self._lock = anyio.Lock()
        self._keys: Mapping[str, SigningKey] = {}
        self._fetched_s = self._tried_s = float("-inf")

    async def find(self, key_id: str) -> SigningKey | None:
        """Return the key of this id; None where the server has none. Raises KeysUnavailable."""
        if key_id not in self._keys or self._age_s > FRESH_S:
            async with self._lock:  # those who wait find what the first one fetched
                if self._clock() - self._tried_s > COOLDOWN_S and (key_id not in self._keys or self._age_s > FRESH_S):
                    await self._fetch()
        if self._age_s > STALE_S:
            raise KeysUnavailable
        return self._keys.get(key_id)

    @property
    def _age_s(self) -> float:
        return self._clock() - self._fetched_s

    async def _fetch(self) -> None:
        try:
            with anyio.fail_after(FETCH_S):
                self._keys = _read_keys(await self._download())
            self._fetched_s = self._clock()
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            log.warning("the keys at %s can't be had: %s", self._uri, str(error) or type(error).__name__)
        self._tried_s = self._clock()

    async def _download(self) -> bytes:
        """Read the document. A redirect doesn't count: it could lead anywhere."""
        body = bytearray()
        async with httpx2.AsyncClient(timeout=FETCH_S) as client, client.stream("GET", self._uri) as response:
            if response.status_code != 200:
                raise ValueError(f"status {response.status_code}")
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_KEYS_BYTES:
                    raise ValueError(f"more than {MAX_KEYS_BYTES} bytes")
        return bytes(body)


def _read_keys(body: bytes) -> dict[str, SigningKey]:
    """Read a JWK set: keys of a kind or for a use that is not ours are left out. Raises ValueError if there is none."""
    match from_json(body):
        case {"keys": [*raw_keys]}:
            found = dict(_usable_keys(raw_keys))
        case _:
            found = {}
    if not found:
        raise ValueError("no key for signatures that has an id")
    return found


def _usable_keys(raw_keys: Iterable[Any]) -> Iterator[tuple[str, SigningKey]]:
    for raw in raw_keys:
        match raw:
            case {"kid": str(key_id), "kty": "RSA" | "EC" | "OKP"} if raw.get("use", "sig") == "sig":
                with suppress(jwt.PyJWTError, ValueError, TypeError):
                    yield key_id, SigningKey(jwt.PyJWK.from_dict(raw).key, raw.get("alg"))
            case _:
                pass


class OAuthVerifier:
    """The SDK's TokenVerifier, for JWTs of one issuer that are meant for this server."""

    def __init__(self, setting: OAuthSetting, keys: SigningKeys | None = None) -> None:
        self._setting = setting
        self._keys = keys or SigningKeys(setting.jwks_uri)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return what a token says; None for one that is not valid here. Raises KeysUnavailable."""
        setting = self._setting
        try:
            header = jwt.get_unverified_header(token)
            key_id, algorithm = header.get("kid"), header.get("alg")
            if not isinstance(key_id, str) or algorithm not in setting.algorithms:
                return None
            key = await self._keys.find(key_id)
            if key is None or key.algorithm not in (None, algorithm):
                return None
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                issuer=setting.issuer,
                audience=setting.audience,
                leeway=CLOCK_SKEW_S,
                options={"require": REQUIRED_CLAIMS, "enforce_minimum_key_length": True},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        return _access_token(claims, setting)


def _access_token(claims: Mapping[str, Any], setting: OAuthSetting) -> AccessToken | None:
    subject = claims["sub"]
    if not (0 < len(subject) <= MAX_SUBJECT_CHARS and subject.isprintable()):
        return None  # it becomes part of a principal, which is shown
    client = next((claims[name] for name in ("client_id", "azp", "cid") if isinstance(claims.get(name), str)), "")
    return AccessToken(
        token="",  # not kept any longer than it is needed
        client_id=client,
        scopes=[scope for scope in ALL_SCOPES if scope in _scopes_of(claims)],
        expires_at=int(claims["exp"]),
        resource=setting.resource,
        subject=subject,
        claims={"iss": setting.issuer},
    )


def _scopes_of(claims: Mapping[str, Any]) -> set[str]:
    """The scopes of a token: words of `scope` (RFC 9068), or `scp`, which some servers use, also as a list."""
    match claims.get("scope", claims.get("scp")):
        case str(words):
            return set(words.split())
        case [*words]:
            return {word for word in words if isinstance(word, str)}
        case _:
            return set()


def metadata_url(setting: OAuthSetting) -> str:
    """Where the description of this resource is found (RFC 9728): before the path of the resource."""
    return str(build_resource_metadata_url(_URL.validate_python(setting.resource)))


def metadata_routes(setting: OAuthSetting) -> list[Route]:
    """The routes of that description, by the SDK: at its place for the resource, and at the root, where clients look
    that do not know the resource's path."""
    (route,) = create_protected_resource_routes(
        resource_url=_URL.validate_python(setting.resource),
        authorization_servers=[_URL.validate_python(setting.issuer)],
        scopes_supported=list(ALL_SCOPES),
        resource_name="Kairos",
    )
    return [route] if route.path == WELL_KNOWN else [route, Route(WELL_KNOWN, endpoint=route.endpoint)]
