"""Makes HTTP tools of an OpenAPI 3 document, by operation id.

The document is untrusted: it decides only what a person is shown for approval, and nothing that it refers to is
fetched. It never decides which host is sent a key: that is the one that a person named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

from kairos_mcp.core.effects import Effect
from kairos_mcp.core.errors import ConfigError, EgressDenied, HttpError
from kairos_mcp.core.json_bounds import DOCUMENT_VALUES, has_more_values
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import truncate
from kairos_mcp.core.tool import StopSignal
from kairos_mcp.core.urls import HostRule, parse_url
from kairos_mcp.settings.http_definition import (
    READ_METHODS,
    HttpDefinition,
    Method,
    Parameter,
    Place,
    effect_unless_stated,
    is_plain_schema,
)
from kairos_mcp.tools.http.body import decode_body
from kairos_mcp.tools.http.client import HttpClient, HttpRequest
from kairos_mcp.tools.http.openapi_schemas import SchemaInliner, operation_error, quote_document

DOCUMENT_BYTES = 20_000_000  # GitHub's, the largest in wide use, has about 12 million
DESCRIPTION_CHARS = 1_000
MAX_NAMED = 40  # operations that an error lists
METHODS: dict[str, Method] = {
    "get": "GET",
    "head": "HEAD",
    "post": "POST",
    "put": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_PLACES: dict[str, Place] = {"path": "path", "query": "query", "header": "header"}
_IGNORED_HEADERS = {"accept", "content-type", "authorization"}  # as OpenAPI itself says
_KINDS = {"type", "enum", "const", "anyOf", "oneOf", "allOf"}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9-]+")
_HOLE = re.compile(r"\{[^{}]*\}")
_NAME_IT = "Name the server that is meant: --server URL."
_MERGE = re.compile(r"^[ \t-]*[\"']?<<[\"']?[ \t]*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """An operation of a document; `shared` is its path's entry, which counts for all operations there."""

    id: str
    method: Method
    path: str
    body: JsonObject
    shared: JsonObject


@dataclass(frozen=True, slots=True)
class NamedAddresses:
    """The URLs that a person named: `server`, the one to call; `fetched_from`, where the document was fetched."""

    server: str | None
    fetched_from: str | None

    def is_origin_of_fetch(self, origin: tuple[str, str, int]) -> bool:
        return self.fetched_from is not None and parse_url(self.fetched_from).origin == origin


def parse_document(text: str) -> JsonObject:
    """Parse a document of JSON or YAML. Raises ConfigError."""
    if len(text) > DOCUMENT_BYTES:
        raise ConfigError(f"The document has over {DOCUMENT_BYTES:,} characters.", "Cut it down to what is wanted.")
    if has_more_values(text, DOCUMENT_VALUES):
        raise ConfigError(f"The document holds over {DOCUMENT_VALUES:,} values.", "Cut it down to what you need.")
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else _parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("The document is not JSON.", "Check it, or convert it.") from error
    version = str(document.get("openapi", "")) if isinstance(document, dict) else ""
    if not version.startswith("3."):
        raise ConfigError("This is not an OpenAPI 3 document.", "Convert one of Swagger 2 first.")
    return dict(document)


def fetch_document(text: str, deadline: float) -> JsonObject:
    """Fetch a document from a URL that a person typed; for that reason its host may be private.

    `deadline` is on `time.monotonic()`. Raises ConfigError, HttpError and what `HttpClient.send` raises.
    """
    url = parse_url(text)
    client = HttpClient((), (HostRule(url.host, port=url.port),), body_bytes=DOCUMENT_BYTES)
    reply = client.send(
        HttpRequest("GET", url, (("Accept", "application/json, application/yaml"),)), deadline, StopSignal()
    )
    if not reply.is_success:
        raise HttpError(f"{url.host} answered {reply.head.status} instead of a document.", "Check the URL.")
    content = decode_body(reply.body.content, reply.head.header("content-type"), raw=True).text
    if content is None or reply.body.cut:
        raise ConfigError(f"What {url.host} sent is not text, or over {DOCUMENT_BYTES:,} bytes.", "Use a file.")
    return parse_document(content)


def list_operations(document: JsonObject) -> Iterator[ApiOperation]:
    """Yield every operation in the order of the document; one without an id gets one like `get_/pets/{id}`."""
    paths = document.get("paths")
    for path, item in paths.items() if isinstance(paths, dict) else ():
        if not isinstance(item, dict):
            continue
        for name, method in METHODS.items():
            body = item.get(name)
            if isinstance(body, dict):
                operation_id = body.get("operationId") or f"{name}_{path}"
                yield ApiOperation(str(operation_id), method, str(path), body, item)


def make_definitions(
    document: JsonObject,
    operations: Sequence[str],
    *,
    server: str | None = None,
    fetched_from: str | None = None,
    secret: str | None = None,
    reads: bool = False,
) -> list[HttpDefinition]:
    """Make HTTP tools of these operation ids, in this order.

    `server`: the URL that a person named as the one to call; no tool calls another origin. `fetched_from`: where a
    person had the document fetched, to which a relative server URL refers. `secret`: the reference (`env:NAME`) of the
    key that an operation needs; it goes to the origin of `server`, else of `fetched_from`, and to no other. `reads`: a
    person states that GET and HEAD only read; else the method alone says whether a tool may be repeated, since the
    document is no promise. Raises ConfigError for an operation that can't be a tool.
    """
    named = NamedAddresses(server, fetched_from)
    known: dict[str, ApiOperation] = {}
    for operation in list_operations(document):
        if operation.id in operations and operation.id in known:
            raise operation_error(operation.id, "there are two of that id", "Give them different ones in the document.")
        known.setdefault(operation.id, operation)
    for operation_id in operations:
        if operation_id not in known:
            names = ", ".join(quote_document(name) for name in list(known)[:MAX_NAMED]) or "none"
            more = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
            raise operation_error(operation_id, "there is none of that id", f"There are: {names}{more}.")
    return [
        _build_definition(document, known[operation_id], named, secret, reads)
        for operation_id in dict.fromkeys(operations)
    ]


def _build_definition(
    document: JsonObject, operation: ApiOperation, named: NamedAddresses, secret: str | None, reads: bool
) -> HttpDefinition:
    inliner = SchemaInliner(document, operation.id)
    sendable, left_out = _read_parameters(operation, inliner)
    parameters = [*sendable, *_read_body(operation, inliner)]
    names = [parameter.name for parameter in parameters]
    for number, parameter in enumerate(parameters):
        if names.count(parameter.name) > 1:  # id in the path and id in the query are two arguments
            parameters[number] = Parameter(
                f"{parameter.place}_{parameter.name}",
                parameter.place,
                parameter.schema,
                parameter.required,
                parameter.wire_name,
            )
    reads_only = reads and operation.method in READ_METHODS
    effect: Effect = "read" if reads_only else effect_unless_stated(operation.method)
    headers = _key_headers(document, operation, inliner, secret)
    summary, more = (str(operation.body.get(name) or "").strip() for name in ("summary", "description"))
    text = "\n".join(dict.fromkeys(part for part in (summary, more) if part)) or f"{operation.method} {operation.path}"
    shown = truncate(text, DESCRIPTION_CHARS)
    description = f"{shown}\nNot offered here: {', '.join(left_out)[:DESCRIPTION_CHARS]}." if left_out else shown
    return HttpDefinition(
        tool_name(operation.id),
        description,
        _operation_url(document, operation, named, has_key=bool(headers)),
        operation.method,
        tuple(parameters),
        headers,
        effect=effect,
    )


def tool_name(operation_id: str) -> str:
    """Return a name that every provider accepts: `pets.get/{id}` becomes `pets_get_id`."""
    plain = _NOT_IN_NAMES.sub("_", operation_id).strip("_-")[:64]
    return plain if plain[:1].isalpha() else f"op_{plain}"[:64]


def _operation_url(document: JsonObject, operation: ApiOperation, named: NamedAddresses, *, has_key: bool) -> str:
    """Return the operation's URL. Raises ConfigError if its origin is not one that a person named, and has to be."""
    root = _server_url(document, operation, named)
    try:
        origin = parse_url(root).origin
        if named.server is not None and origin != parse_url(named.server).origin:
            raise operation_error(
                operation.id, f"the document leads from the server that you named to {quote_document(root)}", _NAME_IT
            )
        if has_key and named.server is None and not named.is_origin_of_fetch(origin):
            raise operation_error(
                operation.id, f"only the document says that your key is to be sent to {quote_document(root)}", _NAME_IT
            )
        parts = urlsplit(root)
        url = urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}{operation.path}", "", ""))
        if not operation.path.startswith("/") or parse_url(_HOLE.sub("x", url)).origin != origin:
            raise operation_error(operation.id, "its path leads away from its server", "Correct it in the document.")
    except EgressDenied as error:
        raise operation_error(
            operation.id, f"its address is not a URL: {error.message.rstrip('.')}", error.hint
        ) from None
    return url


def _server_url(document: JsonObject, operation: ApiOperation, named: NamedAddresses) -> str:
    """Return the URL of the server: the one that a person named, or the nearest `servers` entry with its variables'
    defaults; a relative entry refers to what a person named."""
    servers = next(
        (holder["servers"] for holder in (operation.body, operation.shared, document) if holder.get("servers")), None
    )
    server_entry = servers[0] if isinstance(servers, list) and isinstance(servers[0], dict) else {}
    written = str(server_entry.get("url") or "/")
    variables = server_entry.get("variables")
    for name, variable in variables.items() if isinstance(variables, dict) else ():
        if isinstance(variable, dict):
            written = written.replace(f"{{{name}}}", str(variable.get("default", "")))
    is_relative = "://" not in written
    if named.server is not None:
        return urljoin(named.server, written) if is_relative and written != "/" else named.server
    if is_relative and named.fetched_from is None:
        raise operation_error(operation.id, "the document does not say where its server is", _NAME_IT)
    return urljoin(named.fetched_from, written) if named.fetched_from is not None else written


def _read_parameters(operation: ApiOperation, inliner: SchemaInliner) -> tuple[list[Parameter], list[str]]:
    """Return the parameters that a tool can send, and the names of optional ones that it can't."""
    found: dict[tuple[str, str], JsonObject] = {}
    for source in (operation.shared, operation.body):  # the operation's own replace those of its path
        for entry in _list_of(source, "parameters", operation.id):
            parameter = inliner.resolve(entry)
            found[str(parameter.get("in")), str(parameter.get("name"))] = parameter
    parameters_found: list[Parameter] = []
    left_out: list[str] = []
    for (place, name), parameter in found.items():
        if place == "header" and name.lower() in _IGNORED_HEADERS:
            continue
        sendable = _read_parameter(place, name, parameter, inliner)
        if sendable is not None:
            parameters_found.append(sendable)
        elif parameter.get("required") is True:
            raise operation_error(
                operation.id, f"it wants {quote_document(name)} in a way that is not supported", "Write it by hand."
            )
        else:
            left_out.append(quote_document(name))
    return parameters_found, left_out


def _read_parameter(place: str, name: str, parameter: JsonObject, inliner: SchemaInliner) -> Parameter | None:
    schema = inliner.inline(parameter.get("schema", {}))
    if not _KINDS & schema.keys():
        schema = {"type": "string"} | schema
    style = parameter.get("style", "form" if place == "query" else "simple")
    joined = schema.get("type") == "array" and parameter.get("explode") is False
    if place not in _PLACES or style not in ("form", "simple") or joined:
        return None
    if not is_plain_schema(schema, lists=place == "query"):
        return None
    if parameter.get("description"):
        schema = schema | {"description": str(parameter["description"])[:DESCRIPTION_CHARS]}
    plain = _NOT_IN_NAMES.sub("_", name).strip("_-")[:64]
    argument = plain if plain[:1].isalpha() else f"p_{plain}"[:64]
    return Parameter(
        argument, _PLACES[place], schema, parameter.get("required") is True, "" if argument == name else name
    )


def _read_body(operation: ApiOperation, inliner: SchemaInliner) -> Iterator[Parameter]:
    if operation.body.get("requestBody") is None:
        return
    body = inliner.resolve(operation.body["requestBody"])
    contents = _object_of(body, "content", operation.id)
    for kind, content in contents.items():
        media = str(kind).partition(";")[0].strip().lower()
        if (media == "application/json" or media.endswith("+json")) and isinstance(content, dict):
            yield Parameter("body", "json", inliner.inline(content.get("schema", {})), body.get("required") is True)
            return
    if body.get("required") is True:
        kinds = ", ".join(quote_document(str(kind)) for kind in list(contents)[:5]) or "nothing"
        raise operation_error(operation.id, f"its body is {kinds}, not JSON", "Such tools can't be made.")


def _key_headers(
    document: JsonObject, operation: ApiOperation, inliner: SchemaInliner, secret: str | None
) -> tuple[tuple[str, str], ...]:
    """Return the header for the key, if the operation needs one."""
    requirements = _list_of(operation.body if "security" in operation.body else document, "security", operation.id)
    if not requirements or any(not requirement for requirement in requirements):
        return ()
    components = _object_of(document, "components", operation.id)
    schemes = _object_of(components, "securitySchemes", operation.id)
    for requirement in requirements:
        if (
            isinstance(requirement, dict)
            and len(requirement) == 1
            and (header := _key_header(inliner.resolve(schemes.get(next(iter(requirement)), {})))) is not None
        ):
            if secret is None:
                raise operation_error(operation.id, "it requires a key", "Say where it is kept: --secret env:NAME.")
            return ((header[0], f"{header[1]}${{{secret}}}"),)
    raise operation_error(operation.id, "it requires a key in a way that is not supported", "Write the tool by hand.")


def _list_of(holder: JsonObject, name: str, operation_id: str) -> list[Any]:
    """Return the list under this name, empty if absent. Raises ConfigError for any other value."""
    value = holder.get(name)
    if value is not None and not isinstance(value, list):
        raise operation_error(operation_id, f"{name!r} is no list", "Correct it in the document.")
    return value or []


def _object_of(holder: JsonObject, name: str, operation_id: str) -> JsonObject:
    """Return the object under this name, empty if absent. Raises ConfigError for any other value."""
    value = holder.get(name)
    if value is not None and not isinstance(value, dict):
        raise operation_error(operation_id, f"{name!r} is no object", "Correct it in the document.")
    return value or {}


def _key_header(scheme: JsonObject) -> tuple[str, str] | None:
    """Return the name of the header for the key of a security scheme, and what stands before the key in it."""
    match scheme:
        case {"type": "apiKey", "in": "header", "name": str(name)}:
            return name, ""
        case {"type": "http", "scheme": str(word)} if word.lower() in ("bearer", "basic"):
            return "Authorization", f"{word.capitalize()} "
        case {"type": "oauth2" | "openIdConnect"}:
            return "Authorization", "Bearer "
        case _:
            return None


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            "The document is not JSON, and the package for YAML is missing.", "pip install 'kairos-loop[yaml]'"
        ) from error

    if _MERGE.search(text):  # merges let a small document unfold to a huge one
        raise ConfigError("The document merges by <<, which is not read here.", "Convert it to JSON.")

    # libyaml's own loader is quicker, and a deep document crashes it.
    class Plain(yaml.SafeLoader):  # type: ignore[misc]  # it ships no types
        """Only what JSON has: a date stays a text. An alias stands for one value once more, so nothing grows here."""

    Plain.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return yaml.load(text, Loader=Plain)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError("The document is neither JSON nor YAML.", "Check it.") from error
