"""An authorization server as far as a resource server sees it: keys that it publishes, and tokens signed with them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "https://kairos.example.com/mcp"
ISSUER = "https://login.example.com"


@dataclass(frozen=True)
class KeyPair:
    """One of its keys. `stated`: the algorithm that the published key names, if any."""

    id: str
    private: Any
    algorithm: str = "RS256"
    stated: str | None = None

    @staticmethod
    def rsa(key_id: str, algorithm: str = "RS256", stated: str | None = None, bits: int = 2048) -> KeyPair:
        return KeyPair(key_id, rsa.generate_private_key(65537, bits), algorithm, stated)

    @staticmethod
    def ec(key_id: str) -> KeyPair:
        return KeyPair(key_id, ec.generate_private_key(ec.SECP256R1()), "ES256")

    @property
    def public_jwk(self) -> dict[str, Any]:
        kind = ECAlgorithm if self.algorithm.startswith("ES") else RSAAlgorithm
        found = kind.to_jwk(self.private.public_key(), as_dict=True)
        return {**found, "kid": self.id, "use": "sig", **({"alg": self.stated} if self.stated else {})}

    @property
    def public_pem(self) -> bytes:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.private.public_key().public_bytes(serialization.Encoding.PEM, form)


@dataclass
class AuthorizationServer:
    """`document`: what is published instead of the keys. `fetches`: how often it was read. `is_down`: it refuses.
    `codes`: the scopes of the token that a code is exchanged for; `exchanged`: what was asked for."""

    keys: list[KeyPair] = field(default_factory=lambda: [KeyPair.rsa("first")])
    document: bytes | None = None
    redirect: str | None = None
    is_down: bool = False
    fetches: int = 0
    codes: dict[str, str] = field(default_factory=dict)
    exchanged: list[dict[str, str]] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None

    def start(self) -> AuthorizationServer:
        owner = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                if asked.path == "/authorize":  # whoever asks is taken for somebody who signs in
                    query = dict(parse_qsl(asked.query))
                    owner.codes["a-code"] = query["scope"]
                    answer = urlencode({"code": "a-code", "state": query["state"]})
                    self.send_response(302)
                    self.send_header("Location", f"{query['redirect_uri']}?{answer}")
                    self.end_headers()
                    return
                owner.fetches += 1
                body = json.dumps({"keys": [key.public_jwk for key in owner.keys]}).encode()
                self.send_response(503 if owner.is_down else 302 if owner.redirect else 200)
                if owner.redirect:
                    self.send_header("Location", owner.redirect)
                self.end_headers()
                self.wfile.write(body if owner.document is None else owner.document)

            def do_POST(self) -> None:
                form = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
                owner.exchanged.append(form)
                scope = owner.codes.get(form.get("code", ""))
                self.send_response(400 if scope is None else 200)
                self.end_headers()
                self.wfile.write(b"{}" if scope is None else json.dumps({"access_token": owner.token(scope)}).encode())

            def log_message(self, *_words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def jwks_uri(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}/jwks.json"

    @property
    def page_client(self) -> dict[str, str]:
        """The keys of the table by which the page for operators signs in."""
        server = self.jwks_uri.removesuffix("/jwks.json")
        return {"client_id": "operators", "authorize_uri": f"{server}/authorize", "token_uri": f"{server}/token"}

    def settings(self, **more: str) -> str:
        """The table for the settings file of a server that accepts its tokens."""
        fields = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_uri": self.jwks_uri, **more}
        lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        return "\n".join(["[oauth]", *lines, 'algorithms = ["RS256", "ES256"]', ""])

    def token(self, scope: str | None = "run", key: KeyPair | None = None, **claims: Any) -> str:
        """A token for this user, valid for an hour; a claim of None is left out."""
        key = key or self.keys[0]
        return sign(claims_of(scope, **claims), key.private, key.algorithm, key.id)


def claims_of(scope: str | None = "run", **claims: Any) -> dict[str, Any]:
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + 3_600, "client_id": "ide"}
    return {name: value for name, value in {**found, "scope": scope, **claims}.items() if value is not None}


def sign(claims: Mapping[str, Any], key: Any, algorithm: str, key_id: str | None) -> str:
    return jwt.encode(dict(claims), key, algorithm, headers={} if key_id is None else {"kid": key_id})
