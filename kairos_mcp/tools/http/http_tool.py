"""A tool that is one HTTP request, as a person defined it: arguments fill what was left open, and nothing else.

No argument reaches the host, the scheme or the shape of the path. A secret is read as the request is sent, goes into
its header alone, and is taken out of whatever comes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from kairos_mcp.core.errors import BadArguments, ConfigError, EgressDenied, KairosError, TooLarge
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.urls import parse_url
from kairos_mcp.settings.http_tool import HttpDefinition, Parameter, fill_secrets
from kairos_mcp.tools.http.addresses import why_local
from kairos_mcp.tools.http.body import spell_out_line
from kairos_mcp.tools.http.client import HttpClient, HttpReply, HttpRequest, check_request
from kairos_mcp.tools.http.fetch import as_json, body_notes, format_request, read_body, reply_result
from kairos_mcp.tools.tool import Preview, Tool, ToolContext

MASKED = "[secret]"
MIN_SECRET_CHARS = 4  # a shorter secret is not one: what it stands for would be left out of every text
PIN_CHARS = 16
NONE: Mapping[str, str] = MappingProxyType({})

Secret = Callable[[str], str]
"""The secret behind a reference such as `env:NAME`. Raises ConfigError."""


def http_tool(definition: HttpDefinition, client: HttpClient, secret: Secret) -> Tool:
    """The tool of this definition; its source names the pin, so that another definition is another tool."""
    spec = ToolSpec(
        definition.name,
        definition.description,
        definition.input_schema,
        definition.effect,
        "http",
        f"http#{definition.pin[:PIN_CHARS]}",
    )

    def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        secrets = {reference: _read_secret(reference, secret) for reference in definition.secret_references}
        filled, redactor = fill(definition, arguments, secrets), _CallRedactor(secrets)
        try:
            reply = client.send(filled, ctx.deadline, ctx.stop, ctx.recheck_for(spec.effect))
            return redactor.result(_tool_result(definition, filled, reply))
        except KairosError as error:
            raise type(error)(redactor.text(error.message), redactor.text(error.hint)) from None

    def preview(arguments: JsonObject, ctx: ToolContext) -> Preview:
        filled = fill(definition, arguments)
        check_request(filled)
        if (why := why_local(filled.url)) is not None and not client.lists_private(filled.url):
            listed = f'Add it to the settings: private_hosts = ["{filled.url.host}:{filled.url.port}"].'
            raise EgressDenied(f"{filled.url.host} is not public, but {why}.", listed)
        return Preview(format_request(filled))

    return Tool(spec, run, definition.timeout_s, preview=preview)


def fill(definition: HttpDefinition, arguments: JsonObject, secrets: Mapping[str, str] = NONE) -> HttpRequest:
    """The request that the arguments make; a secret that is not among `secrets` stays named, as `${env:NAME}`.

    An argument is never looked at for the name of a secret. Raises BadArguments, EgressDenied.
    """
    given = [
        (parameter, arguments[parameter.name])
        for parameter in definition.parameters
        if arguments.get(parameter.name) is not None
    ]
    url = definition.url
    for parameter, value in given:
        if parameter.place == "path":
            url = url.replace(f"{{{parameter.wire_name}}}", _path_segment(parameter, value))
    pairs = [
        pair for parameter, value in given if parameter.place == "query" for pair in _query_pairs(parameter, value)
    ]
    if pairs:
        url += ("&" if "?" in url else "?") + "&".join(pairs)
    filled, meant = parse_url(url), definition.sample_url()
    if filled.origin != meant.origin or _path_shape(filled.target) != _path_shape(meant.target):
        raise BadArguments("An argument would change where the request goes.", "Send plain values.")
    fixed = [(name, fill_secrets(value, secrets)) for name, value in definition.headers]
    headers = [
        *fixed,
        *(
            (parameter.wire_name, _plain_text(parameter, value))
            for parameter, value in given
            if parameter.place == "header"
        ),
    ]
    body = _body(given)
    if body and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", "application/json"))
    return HttpRequest(definition.method, filled, tuple(headers), body, definition.effect != "irreversible")


def _path_segment(parameter: Parameter, value: Any) -> str:
    """One segment, or a part of one. What some server could take apart again is refused, not only encoded."""
    text = _plain_text(parameter, value)
    if not text or any(letter in "/\\" or not letter.isprintable() for letter in unquote(text)):
        raise BadArguments(
            f"{parameter.name} is empty, or holds a slash or a control character.", "Send one plain name."
        )
    return quote(text, safe="")


def _query_pairs(parameter: Parameter, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [f"{quote(parameter.wire_name, safe='')}={quote(_plain_text(parameter, item), safe='')}" for item in values]


def _plain_text(parameter: Parameter, value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() | float():
            return json.dumps(value)
        case _:
            raise BadArguments(f"{parameter.name} is no plain value.", "Send a text, a number or a boolean.")


def _body(given: list[tuple[Parameter, Any]]) -> bytes:
    for parameter, value in given:
        if parameter.place == "json":
            return as_json(value)
    members = {parameter.wire_name: value for parameter, value in given if parameter.place == "body"}
    return as_json(members) if members else b""


def _path_shape(target: str) -> tuple[int, bool]:
    """How many segments a path has, and whether one leads up or nowhere, also to a server that decodes twice."""
    segments = target.partition("?")[0].split("/")
    return len(segments), any(unquote(unquote(segment)) in (".", "..") for segment in segments)


def _read_secret(reference: str, secret: Secret) -> str:
    value = secret(reference)
    if len(value) < MIN_SECRET_CHARS or not (value.isascii() and value.isprintable()):
        raise ConfigError(f"What {reference} holds can't stand in a header.", "Put one line of ASCII there.")
    return value


class _CallRedactor:
    """Takes the secrets of one call out of its texts: as they are, and as a URL, JSON or base64 would have them."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = sorted(secrets.values(), key=len, reverse=True)
        self._redactor = Redactor(self._secrets)

    def text(self, text: str) -> str:
        for value in self._secrets:
            text = text.replace(value, MASKED)
        return self._redactor.redact_known(text).text

    def result(self, result: ToolResult) -> ToolResult:
        if not self._secrets:
            return result
        redacted_data = {
            name: self.text(value) if isinstance(value, str) else value for name, value in result.data.items()
        }
        return replace(result, content=self.text(result.content), data=redacted_data)


def _tool_result(definition: HttpDefinition, filled: HttpRequest, reply: HttpReply) -> ToolResult:
    """The result that the definition points at, else the whole body; a status other than 2xx with the body."""
    text = read_body(reply)
    notes = body_notes(reply, text)
    data: JsonObject = {
        "url": str(reply.url),
        "status": reply.head.status,
        "content_type": spell_out_line(reply.head.header("content-type"))[:200],
        "bytes": len(reply.body.content),
        "notes": notes,
    }
    whole = text.text or ""
    if reply.ok and definition.result:
        if reply.body.cut:
            raise TooLarge(f"The reply has more than {data['bytes']:,} bytes.", "Ask for less; the call was made.")
        found = _value_at(whole, definition.result)
        if found is None:
            notes.append(f"nothing stands at {definition.result} of the reply; all of it follows")
        else:
            whole = found
    marks = "".join(f"[{note}]\n" for note in notes)
    status = "" if whole or not reply.ok else f"{reply.head.status} {spell_out_line(reply.head.reason)[:80]}".rstrip()
    return reply_result(filled, reply, f"{marks}{whole}{status}", data)


def _value_at(text: str, where: str) -> str | None:
    """What a JSON text holds at `/a/0/b` or `a.0.b`: a text as it is, another value as JSON; None: nothing."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    pointer = where.startswith("/")
    for part in where[1:].split("/") if pointer else where.split("."):
        name = part.replace("~1", "/").replace("~0", "~") if pointer else part
        match value:
            case dict() if name in value:
                value = value[name]
            case list() if name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(value):
                value = value[int(name)]
            case _:
                return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
