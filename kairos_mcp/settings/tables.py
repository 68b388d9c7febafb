"""The tables that define a rule of the gate, a server or an HTTP tool, validated, and made the values that they define.

They come from outside: from the settings file; a server or a tool from a proposal too, a tool from a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.core.builtin_tools import RUN_COMMAND
from kairos_mcp.core.command_patterns import check_pattern
from kairos_mcp.core.effects import Effect
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import Risk, Scope
from kairos_mcp.settings.http_definition import HttpDefinition, Method, Parameter, Place, effect_unless_stated
from kairos_mcp.settings.settings import DeclaredEffect, GateRule, GateVerdict, OAuthSetting, ServerSetting

Text = Annotated[str, Field(min_length=1)]
_ToolText = Annotated[str, Field(min_length=1, max_length=8_000)]
ServerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*$", max_length=24)]
_VERDICTS: Mapping[str, Any] = {"auto": "allow", "propose": "ask"}
"""Other words for the same verdicts."""


class StrictTable(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class GateTable(StrictTable):
    """The keys of `[[gate]]`."""

    tools: Text = ""
    verdict: Literal[GateVerdict, "auto", "propose"]
    paths: list[Text] | None = None
    scope: Scope | None = None
    effect: Effect | None = None
    risk: Risk | None = None
    agent: Text | None = None
    mandate: Text | None = None
    argv: list[str] | None = None
    category: Text | None = None

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        """Refuse a pattern that no command could match, and a rule that says neither tools, a category nor commands."""
        if self.argv is not None:
            self.tools = self.tools or RUN_COMMAND.name
            if (problem := check_pattern(self.argv)) is not None:
                raise PydanticCustomError("argv", "argv: {problem}", {"problem": problem})
        elif not self.tools and self.category is not None:
            self.tools = "*"
        elif not self.tools:
            raise PydanticCustomError("missing", "a rule needs `tools`, `category` or `argv`")
        return self

    @model_validator(mode="after")
    def _check_protected_scopes(self) -> Self:
        """Refuse a rule that would allow what no rule can: writing the server's own files."""
        verdict = _VERDICTS.get(self.verdict, self.verdict)
        if self.scope == "L0" and verdict != "deny":
            raise PydanticCustomError("core", "scope L0 is never written; a rule on it can only deny")
        if self.scope == "L1" and verdict == "allow":
            raise PydanticCustomError("instructions", "scope L1 always asks; a rule on it can ask or deny")
        return self

    def to_rule(self) -> GateRule:
        """Return the rule."""
        given = self.model_dump(exclude={"verdict", "paths", "argv"})
        paths, argv = tuple(self.paths or ()), tuple(self.argv or ())
        return GateRule(verdict=_VERDICTS.get(self.verdict, self.verdict), paths=paths, argv=argv, **given)


class ServerTable(StrictTable):
    """The keys of `[servers.NAME]`."""

    command: Text | None = None
    args: list[str] | None = None
    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+[^\s#]*$")] | None = None
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] | None = None
    headers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")], str] | None = None
    cwd: Text | None = None
    sandbox: bool = True
    effects: dict[Text, DeclaredEffect] | None = None
    tools: list[Text] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 60

    @model_validator(mode="after")
    def _is_one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise PydanticCustomError("way", "give a command, or a url")
        if self.url is not None and (self.args or self.env or self.cwd):
            raise PydanticCustomError("way", "args, env and cwd belong to a command")
        if self.command is not None and self.headers:
            raise PydanticCustomError("way", "headers belong to a url")
        return self

    def to_setting(self, name: str) -> ServerSetting:
        """Return the setting of a server with this name."""
        return ServerSetting(
            name,
            (self.command, *(self.args or ())) if self.command is not None else (),
            self.url,
            tuple((self.env or {}).items()),
            tuple((self.headers or {}).items()),
            self.cwd,
            self.sandbox,
            tuple((self.effects or {}).items()),
            tuple(self.tools) if self.tools is not None else ("*",),
            self.timeout_s,
        )


_SecureUrl = Annotated[
    str, Field(pattern=r"^(https://[^\s/?#@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?)(/[^\s?#]*)?$")
]
_Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures by a key pair: with a shared secret whoever verifies a token could make one."""


class OAuthTable(StrictTable):
    """The keys of `[oauth]`."""

    issuer: _SecureUrl
    audience: Text
    jwks_uri: _SecureUrl
    algorithms: Annotated[list[_Algorithm], Field(min_length=1)]
    resource: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")] | None = None

    @model_validator(mode="after")
    def _has_address(self) -> Self:
        if self.resource is None and not self.audience.startswith(("https://", "http://")):
            raise PydanticCustomError("resource", "give `resource` too, since the audience is no address")
        return self

    def to_setting(self) -> OAuthSetting:
        """Return the setting."""
        resource = self.resource or self.audience
        return OAuthSetting(self.issuer, self.audience, self.jwks_uri, tuple(self.algorithms), resource)


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

    name: _ToolText
    description: _ToolText
    url: _ToolText
    method: Method = "GET"
    parameters: list[HttpParameterTable] = Field(default_factory=list, max_length=100)
    headers: dict[str, str] = Field(default_factory=dict, max_length=30)
    result: Annotated[str, Field(max_length=1_000)] = ""
    effect: DeclaredEffect | None = None
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
            self.effect or effect_unless_stated(self.method),
            float(self.timeout_s),
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
