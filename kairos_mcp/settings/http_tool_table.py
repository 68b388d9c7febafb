"""The table `[[http_tools]]`: an HTTP tool, from the settings file, a proposal or a row."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from kairos_mcp.core.effects import KEY_LIFE_S, Reach
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.http_definition import HttpDefinition, Method, Parameter, Place, effect_unless_stated
from kairos_mcp.settings.table_values import DeclaredEffect
from kairos_mcp.settings.tables import StrictTable

_ToolText = Annotated[str, Field(min_length=1, max_length=8_000)]


def _parse_json_text(value: object) -> object:
    """Accept a schema as JSON text too, since TOML has no null."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError as error:
        raise ValueError("nested too deep") from error


class HttpParameterTable(StrictTable):
    name: _ToolText
    place: Place = Field(alias="in")
    schema_: Annotated[JsonObject, BeforeValidator(_parse_json_text)] = Field(
        alias="schema", default_factory=lambda: {"type": "string"}
    )
    description: _ToolText | None = None
    required: bool | None = None
    sent_as: _ToolText | None = Field(alias="as", default=None)

    def to_parameter(self) -> Parameter:
        """Return the parameter; one in the path is required unless it says otherwise."""
        schema = self.schema_ | ({"description": self.description} if self.description else {})
        required = self.place == "path" if self.required is None else self.required
        return Parameter(self.name, self.place, schema, required, self.sent_as or "")


class HttpToolTable(StrictTable):
    """The keys of `[[http_tools]]`."""

    name: _ToolText = Field(description="Its name for the model.", examples=["forecast"])
    description: _ToolText = Field(
        description="Its description for the model.", examples=["The weather of the next days in a city."]
    )
    method: Method = Field("GET", description="GET, HEAD, POST, PUT, PATCH or DELETE.")
    url: _ToolText = Field(
        description="The URL. An argument fills in a {hole}: one segment of the path, or a part of one. A host that "
        "is not public must also be in private_hosts.",
        examples=["https://api.example.com/v1/forecast/{city}?lang=en"],
    )
    parameters: list[HttpParameterTable] = Field(
        default_factory=list,
        max_length=100,
        description='What a model fills in: in the "path", the "query", a "header", as a member of a JSON "body", or '
        'as the whole "json" body. `as` is its name there, `schema` a JSON Schema (default: a string), `required` is '
        "false by default, except in the path.",
        examples=[[{"name": "city", "in": "path"}, {"name": "days", "in": "query", "schema": {"type": "integer"}}]],
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        max_length=30,
        description='Headers of each request. A value names the place of a secret: "env:NAME", "file:PATH" or '
        '"keyring:SERVICE/NAME"; within a text "${env:NAME}".',
        examples=[{"Authorization": "Bearer ${env:FORECAST_KEY}"}],
    )
    result: Annotated[str, Field(max_length=1_000)] = Field(
        "",
        description='Which part of a JSON reply is the result, as "/daily/0" or "daily.0"; without it, all of it.',
        examples=["/daily"],
    )
    effect: DeclaredEffect | None = Field(
        None,
        description='The tool\'s effect: "read" (GET and HEAD only), "idempotent" (may be repeated), "keyed" (carried '
        'out once for its Idempotency-Key) or "irreversible". Default: idempotent for GET and HEAD, which still asks a '
        "person; irreversible for all others.",
        examples=["read"],
    )
    timeout_s: float = Field(30.0, description="The most seconds for a call.")
    reaches: Reach = Field(
        "service",
        description='How far what it sends can get: "service" (to that host, where only those read whom you trust), '
        '"outside" (others can read it) or "inside".',
    )
    trusted: bool = Field(False, description="Whether nobody else wrote what it gives.")
    private: bool = Field(True, description="Whether what it gives may not leave without a question.")
    key_life_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        KEY_LIFE_S, description="How many seconds the host keeps the key of a keyed call; later a person is asked."
    )

    def to_definition(self) -> HttpDefinition:
        """Return the definition. Raises ConfigError."""
        parameters = tuple(parameter.to_parameter() for parameter in self.parameters)
        return HttpDefinition(
            self.name,
            self.description,
            self.url,
            self.method,
            parameters,
            tuple(self.headers.items()),
            self.result,
            self.effect or effect_unless_stated(self.method),
            float(self.timeout_s),
            self.reaches,
            self.trusted,
            self.private,
            float(self.key_life_s),
        )


def parse_http_tool(fields: JsonObject) -> HttpDefinition:
    """Return the tool that a row defines. Raises ConfigError, which names the place and quotes no value.

    Without an effect it is irreversible: so it was shown to whoever approved it.
    """
    try:
        return HttpToolTable.model_validate({"effect": "irreversible", **fields}).to_definition()
    except ValidationError as error:
        _, place, message = first_problem(error)
        valid = ", ".join(HttpToolTable.model_fields)
        raise ConfigError(f"The HTTP tool can't be read: {place}: {message}.", f"Its parts: {valid}.") from error
