"""Makes a tool of one HTTP request that a person defined; arguments fill in only what the definition leaves open.

No argument can change the scheme, the host or the number of path segments. A secret is read when the request is sent,
goes only into its header, and is removed from whatever comes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from kairos_mcp.core.effects import REPEATABLE_EFFECTS
from kairos_mcp.core.errors import BadArguments, ConfigError, EgressDenied, KairosError, TooLarge
from kairos_mcp.core.json_bounds import MESSAGE_VALUES, has_more_values
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.text import FindParted
from kairos_mcp.core.tool import Preview, Tool, ToolContext
from kairos_mcp.core.urls import parse_url
from kairos_mcp.settings.http_definition import KEY_HEADER, HttpDefinition, Parameter, fill_secrets
from kairos_mcp.tools.departure import check_before_leaving
from kairos_mcp.tools.http.addresses import describe_local
from kairos_mcp.tools.http.body import spell_out_line
from kairos_mcp.tools.http.client import HttpClient, HttpReply, HttpRequest, check_request
from kairos_mcp.tools.http.fetch import body_notes, encode_json, format_request, read_body, reply_result

SECRET_MARK = "[secret]"
MIN_SECRET_CHARS = 4  # a shorter one is refused: removing it would destroy every text
PIN_CHARS = 16
NO_SECRETS: Mapping[str, str] = MappingProxyType({})

ResolveSecret = Callable[[str], str]
"""Returns the secret behind a reference such as `env:NAME`. Raises ConfigError."""


def http_tool(definition: HttpDefinition, client: HttpClient, resolve_secret: ResolveSecret) -> Tool:
    """Make the tool of a definition. Its source holds the pin, so another definition counts as another tool."""
    spec = ToolSpec(
        definition.name,
        definition.description,
        definition.input_schema,
        definition.effect,
        "http",
        f"http#{definition.pin[:PIN_CHARS]}",
        definition.reaches,
        definition.trusted,
        definition.private,
    )

    def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        secrets = {reference: _read_secret(reference, resolve_secret) for reference in definition.secret_references}
        request, redactor = build_request(definition, arguments, secrets), _CallRedactor(secrets)
        if ctx.key and definition.takes_key:
            request = replace(request, headers=(*request.headers, (KEY_HEADER, ctx.key)))
        try:
            reply = client.send(request, ctx.deadline, ctx.stop, check_before_leaving(ctx, spec.effect))
            return redactor.result(_tool_result(definition, request, reply, ctx.find_parted))
        except KairosError as error:
            raise type(error)(redactor.text(error.message), redactor.text(error.hint)) from None

    def preview(arguments: JsonObject, ctx: ToolContext) -> Preview:
        request = build_request(definition, arguments)
        check_request(request)
        if (kind := describe_local(request.url)) is not None and not client.is_listed_private(request.url):
            hint = f'Add it to the settings: private_hosts = ["{request.url.host}:{request.url.port}"].'
            raise EgressDenied(f"{request.url.host} is not public, but {kind}.", hint)
        return Preview(format_request(request))

    return Tool(spec, run, definition.timeout_s, preview=preview, marks_itself=True, key_life_s=definition.key_life_s)


def build_request(
    definition: HttpDefinition, arguments: JsonObject, secrets: Mapping[str, str] = NO_SECRETS
) -> HttpRequest:
    """Build the request from the arguments. A secret that is not in `secrets` stays a reference, `${env:NAME}`.

    References in arguments are not resolved. Raises BadArguments, EgressDenied.
    """
    values = [
        (parameter, arguments[parameter.name])
        for parameter in definition.parameters
        if arguments.get(parameter.name) is not None
    ]
    url, pairs = definition.url, list[str]()
    headers = [(name, fill_secrets(value, secrets)) for name, value in definition.headers]
    for parameter, value in values:
        match parameter.place:
            case "path":
                url = url.replace(f"{{{parameter.wire_name}}}", _path_segment(parameter, value))
            case "query":
                name, items = quote(parameter.wire_name, safe=""), value if isinstance(value, list) else [value]
                pairs += [f"{name}={quote(_plain_text(parameter, item), safe='')}" for item in items]
            case "header":
                headers.append((parameter.wire_name, _plain_text(parameter, value)))
            case "body" | "json":
                pass  # see _build_body
    if pairs:
        url += ("&" if "?" in url else "?") + "&".join(pairs)
    target, sample = parse_url(url), definition.sample_url()
    if target.origin != sample.origin or _path_shape(target.target) != _path_shape(sample.target):
        raise BadArguments("An argument would change where the request goes.", "Send plain values.")
    body = _build_body(values)
    if body and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", "application/json"))
    return HttpRequest(definition.method, target, tuple(headers), body, definition.effect in REPEATABLE_EFFECTS)


def _path_segment(parameter: Parameter, value: Any) -> str:
    """Return a value as one path segment, or a part of one. A slash is refused, not only encoded: some servers decode
    it again."""
    text = _plain_text(parameter, value)
    if not text or any(letter in "/\\" or not letter.isprintable() for letter in unquote(text)):
        raise BadArguments(
            f"{parameter.name} is empty, or holds a slash or a control character.", "Send one plain name."
        )
    return quote(text, safe="")


def _plain_text(parameter: Parameter, value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() | float():
            return json.dumps(value)
        case _:
            raise BadArguments(f"{parameter.name} is not a plain value.", "Send a text, a number or a boolean.")


def _build_body(values: list[tuple[Parameter, Any]]) -> bytes:
    for parameter, value in values:
        if parameter.place == "json":
            return encode_json(value)
    members = {parameter.wire_name: value for parameter, value in values if parameter.place == "body"}
    return encode_json(members) if members else b""


def _path_shape(target: str) -> tuple[int, bool]:
    """Return the number of segments of a path, and whether one is `.` or `..`, also for a server that decodes twice."""
    segments = target.partition("?")[0].split("/")
    return len(segments), any(unquote(unquote(segment)) in (".", "..") for segment in segments)


def _read_secret(reference: str, resolve_secret: ResolveSecret) -> str:
    value = resolve_secret(reference)
    if len(value) < MIN_SECRET_CHARS or not (value.isascii() and value.isprintable()):
        raise ConfigError(f"What {reference} holds can't stand in a header.", "Put one line of ASCII there.")
    return value


class _CallRedactor:
    """Removes the secrets of one call from its texts: as they are, and in the forms of URLs, JSON and base64."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = sorted(secrets.values(), key=len, reverse=True)
        self._redactor = Redactor(self._secrets)

    def text(self, text: str) -> str:
        for value in self._secrets:
            text = text.replace(value, SECRET_MARK)
        return self._redactor.redact_known(text).text

    def result(self, result: ToolResult) -> ToolResult:
        if not self._secrets:
            return result
        redacted_data = {
            name: self.text(value) if isinstance(value, str) else value for name, value in result.data.items()
        }
        return replace(result, content=self.text(result.content), data=redacted_data)


def _tool_result(
    definition: HttpDefinition, request: HttpRequest, reply: HttpReply, find_parted: FindParted
) -> ToolResult:
    """Build the result: the part of the body that the definition points at, else all; a failure for no 2xx status."""
    text = read_body(reply, find_parted)
    notes = body_notes(reply, text)
    data: JsonObject = {
        "url": str(reply.url),
        "status": reply.head.status,
        "content_type": spell_out_line(reply.head.header("content-type"))[:200],
        "bytes": len(reply.body.content),
        "notes": notes,
    }
    content = text.text or ""
    if reply.is_success and definition.result:
        if reply.body.cut:
            raise TooLarge(f"The reply has more than {data['bytes']:,} bytes.", "Ask for less; the call was made.")
        selected = _value_at(content, definition.result)
        if selected is None:
            notes.append(f"nothing stands at {definition.result} of the reply; all of it follows")
        else:
            content = selected
    header = "".join(f"[{note}]\n" for note in notes)
    status = (
        ""
        if content or not reply.is_success
        else f"{reply.head.status} {spell_out_line(reply.head.reason)[:80]}".rstrip()
    )
    return reply_result(request, reply, f"{header}{content}{status}", data)


def _value_at(text: str, where: str) -> str | None:
    """Return what a JSON text has at `/a/0/b` or `a.0.b`: a text as it is, another value as JSON; None if nothing."""
    if has_more_values(text, MESSAGE_VALUES):  # the thread that reads it would hold up all others
        return None
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
