"""An HTTP tool as a person defines it, checked once.

Its host and the headers that it sets are fixed; a model fills in the parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from typing import Literal
from urllib.parse import unquote

from kairos_mcp.core.effects import KEY_LIFE_S, Effect, Reach
from kairos_mcp.core.errors import ConfigError, EgressDenied, SchemaRejected
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import JsonObject, canonical_json
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.urls import Url, parse_url
from kairos_mcp.settings.secret_refs import EMBEDDED_REFERENCE, is_reference

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Place = Literal["path", "query", "header", "body", "json"]
"""Where an argument goes: `body` is a member of a JSON object, `json` the whole body."""

READ_METHODS = ("GET", "HEAD")
KEY_HEADER = "Idempotency-Key"
TOOL_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")  # what every provider takes for the name of a tool
_HOLE = re.compile(r"\{([^{}]*)\}")
_SCALARS = {"string", "integer", "number", "boolean"}
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
# Headers that hold credentials: a key written into a setting ends up in backups, diffs and screenshots.
_CREDENTIALS = ("authorization", "cookie", "x-api-key", "api-key", "x-auth-token")
_RESERVED_HEADERS = (
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "accept-encoding",
    "expect",
    "te",
    "upgrade",
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the tool. `sent_as`: its name in the request, where it differs from `name`."""

    name: str
    place: Place
    schema: JsonObject
    required: bool = False
    sent_as: str = ""

    @property
    def wire_name(self) -> str:
        """Its name in the request."""
        return self.sent_as or self.name

    def as_json(self) -> JsonObject:
        """Return it with the keys of the settings file."""
        fields = {"name": self.name, "in": self.place, "required": self.required, "schema": self.schema}
        return fields | ({"as": self.sent_as} if self.sent_as else {})


@dataclass(frozen=True)  # not slotted, for its cached properties
class HttpDefinition:
    """An HTTP tool. Raises ConfigError where its parts contradict each other.

    `url`: may have placeholders `{name}` in its path alone. `headers`: a value may refer to a secret, as `env:NAME`, or
    `${env:NAME}` within a text, which is filled in when the request is sent. `result`: where in a JSON reply the result
    is, as `/a/0/b` or `a.0.b`; empty: all of it. `key_life_s`: how long the host keeps the key of a keyed call.
    `reaches`, `trusted`, `private`: see `ToolSpec`; the settings alone state them, so neither a proposal nor the pin
    holds them.
    """

    name: str
    description: str
    url: str
    method: Method = "GET"
    parameters: tuple[Parameter, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    result: str = ""
    effect: Effect = "irreversible"
    timeout_s: float = 30.0
    reaches: Reach = "service"
    trusted: bool = False
    private: bool = True
    key_life_s: float = KEY_LIFE_S

    def __post_init__(self) -> None:
        for problem, cure in self._problems():
            raise ConfigError(f"The HTTP tool {self.name[:64]!r}: {problem}.", cure)

    @cached_property
    def input_schema(self) -> JsonObject:
        """The JSON Schema of the tool's arguments."""
        return {
            "type": "object",
            "properties": {parameter.name: parameter.schema for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }

    @property
    def secret_references(self) -> tuple[str, ...]:
        """The references to secrets in its headers, as `env:NAME`."""
        return tuple(dict.fromkeys(found for _, value in self.headers for found in find_references(value)))

    @property
    def takes_key(self) -> bool:
        """Whether a call carries its key: it does more than read, and the header is not used for something else."""
        return self.method not in READ_METHODS and KEY_HEADER.lower() not in self._header_names

    @property
    def _header_names(self) -> list[str]:
        names = [name.lower() for name, _ in self.headers]
        return names + [parameter.wire_name.lower() for parameter in self.parameters_in("header")]

    @cached_property
    def pin(self) -> str:
        """SHA-256 in hex of the whole definition: another definition is another tool."""
        return sha256(canonical_json(self.as_json()).encode()).hexdigest()

    def sample_url(self) -> Url:
        """Return its URL with `x` for each placeholder: no argument can change scheme, host and port."""
        return parse_url(_HOLE.sub("x", self.url))

    def parameters_in(self, *places: Place) -> tuple[Parameter, ...]:
        """Return the parameters in these places."""
        return tuple(parameter for parameter in self.parameters if parameter.place in places)

    def as_json(self) -> JsonObject:
        """Return it with the keys of the settings file; `parse_http_tool` reads it back."""
        fields: JsonObject = {
            "name": self.name,
            "description": self.description,
            "method": self.method,
            "url": self.url,
        }
        fields |= {"effect": self.effect, "timeout_s": self.timeout_s}
        fields |= {"key_life_s": self.key_life_s} if self.key_life_s != KEY_LIFE_S else {}
        fields |= {"result": self.result} if self.result else {}
        fields |= {"headers": dict(self.headers)} if self.headers else {}
        if self.parameters:
            fields["parameters"] = [parameter.as_json() for parameter in self.parameters]
        return fields

    def _problems(self) -> Iterator[tuple[str, str]]:
        if not TOOL_NAME.fullmatch(self.name):
            yield "its name is not valid", "Use at most 64 letters, digits, _ and -."
        if not self.description.strip() or len(self.description) > 4_000:
            yield "it has no description, or one of more than 4,000 characters", "Describe in a line what it does."
        if not 0 < self.timeout_s <= 600:
            yield "timeout_s is out of range", "Give seconds, above 0 and at most 600."
        if self.effect == "checked":
            yield "effect can't be checked: nothing looks at what it changed", "State another one."
        if self.effect == "keyed" and not self.takes_key:
            yield (
                f"it is keyed and can't carry {KEY_HEADER}",
                f"Use POST, PUT, PATCH or DELETE; leave {KEY_HEADER} out.",
            )
        if not 0 < self.key_life_s <= 10 * 365 * 86_400:
            yield "key_life_s is out of range", "Give seconds, above 0."
        if self.effect == "read" and self.method not in READ_METHODS:
            yield (
                f"a {self.method} is not read",
                "State idempotent or keyed where it may be repeated, else irreversible.",
            )
        yield from self._problems_of_url()
        yield from self._problems_of_headers()
        yield from self._problems_of_parameters()

    def _problems_of_url(self) -> Iterator[tuple[str, str]]:
        path = self.url.partition("?")[0]
        holes = _HOLE.findall(self.url)
        if len(holes) != len(_HOLE.findall(path)) or "{" in _HOLE.sub("", self.url) or "#" in self.url:
            yield "its url has a hole outside the path", 'Fill a query by a parameter with in = "query".'
        try:
            sample, filled = self.sample_url(), parse_url(_HOLE.sub("y", self.url))
        except EgressDenied as error:
            yield f"its url is not a URL: {error.message.rstrip('.')}", error.hint
            return
        if sample.origin != filled.origin:
            yield "its url has a hole in the host", "Name the host in full."
        if any(unquote(segment) in (".", "..") for segment in sample.target.partition("?")[0].split("/")):
            yield "its url has . or .. in its path", "Write the path that is meant."
        named = {parameter.wire_name for parameter in self.parameters_in("path")}
        if set(holes) != named or len(holes) != len(set(holes)):
            yield "the holes of its url are not its path parameters", "Name each once in both: {id} and in = 'path'."
        if any(not parameter.required for parameter in self.parameters_in("path")):
            yield "a path parameter is not required", "Set required = true."
        is_local = sample.host == "localhost" if sample.address is None else sample.address.is_private
        if self.secret_references and sample.scheme == "http" and not is_local:
            yield "its secret would go over http", "Use https."

    def _problems_of_headers(self) -> Iterator[tuple[str, str]]:
        names = self._header_names
        for name in names:
            if not _HEADER.fullmatch(name) or name in _RESERVED_HEADERS or name.startswith("proxy-"):
                yield f"the header {name[:80]!r} is not for a tool to set", "Leave it out."
        if len(set(names)) != len(names):
            yield "a header is given twice", "Set it once, or leave it to a parameter."
        for name, value in self.headers:
            if not (value.isascii() and value.isprintable()) or "${" in EMBEDDED_REFERENCE.sub("", value):
                yield f"the header {name[:80]} can't be read", "Write a text, env:NAME, or ${env:NAME} within a text."
            if name.lower() in _CREDENTIALS and not find_references(value):
                yield f"the header {name[:80]} contains the key itself", "Refer to it: env:NAME, or file:PATH."

    def _problems_of_parameters(self) -> Iterator[tuple[str, str]]:
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) != len(names) or not all(TOOL_NAME.fullmatch(name) for name in names):
            yield (
                "the names of its parameters are not valid or not unique",
                "Use letters, digits, _ and -, each name once.",
            )
        wires = [(parameter.place, parameter.wire_name) for parameter in self.parameters]
        if len(set(wires)) != len(wires):
            yield "two parameters have the same place and name", "Give each a name of its own there."
        if self.parameters_in("body", "json") and self.method in READ_METHODS:
            yield f"a {self.method} has no body", "Use a parameter in the query, or another method."
        if len(self.parameters_in("json")) > 1 or (self.parameters_in("json") and self.parameters_in("body")):
            yield "its body is given twice", 'Use one parameter in = "json", or members in = "body".'
        for parameter in self.parameters_in("path", "query", "header"):
            if not is_plain_schema(parameter.schema, lists=parameter.place == "query"):
                yield (
                    f"{parameter.name[:64]} goes into the {parameter.place} and is not a plain value",
                    "Declare its type: string.",
                )
        try:
            compile_schema(self.input_schema)
        except SchemaRejected as error:
            yield f"the schema of a parameter is refused: {error.message.rstrip('.')}", error.hint


def effect_unless_stated(method: Method) -> Literal["idempotent", "irreversible"]:
    """Return the effect of a tool whose definition states none, by what HTTP says of the method: a GET or HEAD may be
    repeated. That it only reads is for a person to say: such a call is made unasked."""
    return "idempotent" if method in READ_METHODS else "irreversible"


def fill_secrets(value: str, secrets: Mapping[str, str]) -> str:
    """Return a header's value with the known secrets filled in; references to others stay."""
    if is_reference(value):
        return secrets.get(value, value)
    return EMBEDDED_REFERENCE.sub(lambda found: secrets.get(found[1], found[0]), value)


def find_references(value: str) -> list[str]:
    """Find the references to secrets in the value of a header or a variable, as `env:NAME`."""
    return [value] if is_reference(value) else EMBEDDED_REFERENCE.findall(value)


def is_plain_schema(schema: JsonObject, *, lists: bool) -> bool:
    """Whether a value of this schema can be written as one text; with `lists`, also as several."""
    for word in ("anyOf", "oneOf"):
        if schema.get(word):
            return all(choice.get("type") == "null" or is_plain_schema(choice, lists=lists) for choice in schema[word])
    match schema.get("type"):
        case str() as kind if kind in _SCALARS:
            return True
        case list() as kinds:
            return bool(kinds) and set(map(str, kinds)) <= _SCALARS | {"null"}
        case "array" if lists:
            return isinstance(schema.get("items"), dict) and is_plain_schema(schema["items"], lists=False)
        case None:
            enum = schema.get("enum", [schema["const"]] if "const" in schema else [])
            return bool(enum) and all(choice is None or isinstance(choice, str | int | float) for choice in enum)
        case _:
            return False
