"""A tool or a server that an agent proposes: the keys of the settings file, validated more strictly.

A person decides by what is shown, so nothing in it may be hidden, too long to read, or a key. And it gets no more than
it needs: a proposed server always runs in the sandbox, in the workspace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import parse_qsl

from pydantic import TypeAdapter, ValidationError

from kairos_mcp.core.errors import BadArguments, ConfigError, TooLarge
from kairos_mcp.core.hidden_text import make_visible
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor, is_key_name
from kairos_mcp.core.urls import Url, parse_url
from kairos_mcp.settings.http_definition import READ_METHODS, HttpDefinition, find_references
from kairos_mcp.settings.http_tool_table import HttpToolTable, parse_http_tool
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.settings.tables import ServerName, ServerTable

SPEC_BYTES = 32_000  # of one proposal, since a person reads all of it
_IN_SANDBOX = "a proposed server is in the sandbox, and in the workspace"
_BY_PERSON = "what flows through a tool is for a person to state"
NOT_PROPOSED = {"cwd": _IN_SANDBOX, "sandbox": _IN_SANDBOX} | dict.fromkeys(
    ("reaches", "trusted", "private", "content"), _BY_PERSON
)
KINDS = ("http_tool", "server")
Kind = Literal["http_tool", "server"]

_FORMS = 'As {"kind": "http_tool", "name", "description", "url", ...} or {"kind": "server", "name", "command" | "url"}.'
_NAME: TypeAdapter[str] = TypeAdapter(ServerName)


@dataclass(frozen=True)  # not slotted, for its cached properties
class Proposal:
    """A proposal. `body`: all of it as canonical JSON, including `kind` and `name`."""

    kind: Kind
    name: str
    body: str

    @cached_property
    def hash(self) -> str:
        """SHA-256 in hex of its canonical JSON."""
        return sha256(self.body.encode()).hexdigest()

    @cached_property
    def tool(self) -> HttpDefinition:
        """The proposed HTTP tool. Raises ConfigError."""
        return parse_http_tool(self._fields)

    @cached_property
    def server(self) -> ServerSetting:
        """The proposed server. Raises ConfigError."""
        return _parse_server(self.name, {key: value for key, value in self._fields.items() if key != "name"})

    @property
    def address(self) -> Url | None:
        """The URL that it requests; None for a program. Raises EgressDenied for a malformed one."""
        if self.kind == "http_tool":
            return self.tool.sample_url()
        return parse_url(self.server.url) if self.server.url is not None else None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The references to secrets that it would be given, as `env:NAME`."""
        if self.kind == "http_tool":
            return self.tool.secret_references
        pairs = (*self.server.env, *self.server.headers)
        return tuple(dict.fromkeys(found for _, value in pairs for found in find_references(value)))

    @property
    def _fields(self) -> JsonObject:
        fields: JsonObject = json.loads(self.body)
        return {key: value for key, value in fields.items() if key != "kind"}


def parse_proposal(spec: JsonObject, redactor: Redactor) -> Proposal:
    """Validate a proposal. Raises BadArguments and TooLarge, which name the place and quote no value.

    Raises EgressDenied for a malformed URL.
    """
    _check_kind(spec)
    if spec["kind"] == "http_tool" and "effect" not in spec and spec.get("method", "GET") in READ_METHODS:
        spec = {**spec, "effect": "read"}  # the method suggests it; whoever approves the tool is shown it
    body = _canonical_body(spec)
    _check_keys(spec, redactor)
    proposal = load_proposal(body)
    try:
        name = proposal.tool.name if proposal.kind == "http_tool" else proposal.server.name
        _check_url(proposal)
    except ConfigError as error:
        raise BadArguments(error.message, error.hint) from None
    if proposal.kind == "http_tool" and "__" in name:
        raise BadArguments(
            "spec.name contains __, which separates a server's name from its tool's.", "Use one _ there."
        )
    return proposal


def load_proposal(body: str) -> Proposal:
    """Return a stored proposal from its canonical JSON."""
    fields = json.loads(body)
    return Proposal(fields["kind"], fields["name"], body)


def _check_kind(spec: JsonObject) -> None:
    if spec.get("kind") not in KINDS:
        raise BadArguments("spec.kind has to be http_tool or server.", _FORMS)
    if not isinstance(spec.get("name"), str):
        raise BadArguments("spec.name is missing, or not a string.", _FORMS)
    valid = ("kind", "name", *(HttpToolTable if spec["kind"] == "http_tool" else ServerTable).model_fields)
    valid = tuple(dict.fromkeys(key for key in valid if key not in NOT_PROPOSED))
    for key in spec:
        if key in NOT_PROPOSED:
            raise BadArguments(
                f"spec.{key} can't be proposed: {NOT_PROPOSED[key]}.", "Leave it out; a person can configure it."
            )
        if key not in valid:
            raise BadArguments(f"spec has an unknown key {key[:80]!r}.", f"Valid: {', '.join(valid)}.")


def _canonical_body(spec: JsonObject) -> str:
    try:
        body = canonical_json(spec)
        size = len(body.encode())
    except (ValueError, RecursionError):  # NaN, half a character, or nested without an end
        raise BadArguments("spec is not plain JSON.", "Send plain strings, integers and lists.") from None
    if size > SPEC_BYTES:
        raise TooLarge(
            f"spec has {size:,} bytes; it may have at most {SPEC_BYTES:,}.", "A person has to read it: make it shorter."
        )
    return body


def _check_keys(spec: JsonObject, redactor: Redactor) -> None:
    for where, name, value in _walk_texts("spec", "", spec):
        if make_visible(value)[0] != value:
            raise BadArguments(f"{where} contains an invisible character.", "Write plain text.")
        if any(not reference.startswith(("env:", "keyring:")) for reference in find_references(value)):
            raise BadArguments(f"{where} refers to a file.", "Use env:NAME or keyring:SERVICE/NAME.")
        secrets = redactor.redact_json({name: value})[1] if name else redactor.redact_text(value).count
        if secrets and not find_references(value):
            raise BadArguments(f"{where} looks like a key.", "Refer to it, as env:NAME; never send a key itself.")
    for place in ("headers", "env"):
        pairs = spec.get(place)
        for name, value in pairs.items() if isinstance(pairs, dict) else ():
            if is_key_name(str(name)) and not (isinstance(value, str) and find_references(value)):
                raise BadArguments(f"spec.{place}.{str(name)[:80]} contains a key.", "Refer to it: env:NAME.")
    arguments = spec.get("args")
    for argument in arguments if isinstance(arguments, list) else ():
        if not isinstance(argument, str) or not argument.startswith("-"):
            continue
        if is_key_name(argument.lstrip("-").partition("=")[0]):
            raise BadArguments(
                "spec.args gives a key as an option, which every program on the machine can read.",
                "Give it as a variable: env = {NAME: env:NAME}.",
            )


def _walk_texts(where: str, name: str, value: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (place, key, text) for every text in a value."""
    match value:
        case str():
            yield where, name, value
        case dict():
            for key, item in value.items():
                yield f"{where} (a key)", "", str(key)
                yield from _walk_texts(f"{where}.{str(key)[:80]}", str(key), item)
        case list():
            for at, item in enumerate(value):
                yield from _walk_texts(f"{where}.{at}", "", item)
        case _:
            return


def _check_url(proposal: Proposal) -> None:
    """Raise BadArguments for a key in the URL, or one that would be sent over plain http."""
    url = proposal.address
    if url is None:
        return
    query = url.target.partition("?")[2]
    if any(is_key_name(name) for name, _ in parse_qsl(query, keep_blank_values=True)):
        raise BadArguments("spec.url contains a key.", "Give it in a header: headers = {NAME: env:NAME}.")
    if proposal.kind == "server" and proposal.secrets and url.scheme == "http":
        raise BadArguments("Its secret would be sent over http.", "Use https.")


def _parse_server(name: str, fields: JsonObject) -> ServerSetting:
    try:
        _NAME.validate_python(name, strict=True)
    except ValidationError as error:
        cure = "Use up to 24 letters and digits, with single - and _ within."
        raise ConfigError(f"The server's name {name[:40]!r} is not valid.", cure) from error
    try:
        return replace(ServerTable.model_validate(fields).to_setting(name), sandbox=True)
    except ValidationError as error:
        _, place, message = first_problem(error)
        raise ConfigError(f"The server can't be read: {place or 'server'}: {message}.", _FORMS) from error
