"""Validate an HTTP tool from outside (a table of the settings, a proposal, a row) and make an HttpDefinition of it."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.http_tool import HttpDefinition, Method, Parameter, Place
from kairos_mcp.settings.settings import DeclaredEffect

Text = Annotated[str, Field(min_length=1, max_length=8_000)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


def _parse_json_text(value: object) -> object:
    """Accept a schema as JSON text too, since TOML has no null."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError as error:
        raise ValueError("nested too deep") from error


class GivenParameter(_StrictModel):
    name: Text
    place: Place = Field(alias="in")
    schema_: Annotated[JsonObject, BeforeValidator(_parse_json_text)] = Field(
        alias="schema", default_factory=lambda: {"type": "string"}
    )
    description: Text | None = None
    required: bool | None = None
    sent_as: Text | None = Field(alias="as", default=None)

    def to_parameter(self) -> Parameter:
        """Return the parameter; one in the path is required unless it says otherwise."""
        schema = self.schema_ | ({"description": self.description} if self.description else {})
        required = self.place == "path" if self.required is None else self.required
        return Parameter(self.name, self.place, schema, required, self.sent_as or "")


class GivenTool(_StrictModel):
    """The keys of `[[http_tools]]`."""

    name: Text
    description: Text
    url: Text
    method: Method = "GET"
    parameters: list[GivenParameter] = Field(default_factory=list, max_length=100)
    headers: dict[str, str] = Field(default_factory=dict, max_length=30)
    result: Annotated[str, Field(max_length=1_000)] = ""
    effect: DeclaredEffect = "irreversible"
    timeout_s: float = 30.0

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
            self.effect,
            float(self.timeout_s),
        )


def parse_http_tool(fields: JsonObject) -> HttpDefinition:
    """Return the tool that a JSON object defines. Raises ConfigError, which names the place and quotes no value."""
    try:
        return GivenTool.model_validate(fields).to_definition()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:80]
        valid = ", ".join(GivenTool.model_fields)
        raise ConfigError(f"The HTTP tool can't be read: {where}: {first['msg']}.", f"Its parts: {valid}.") from error
