"""Validate a downstream server from outside (a table of the settings, a proposal) and make a ServerSetting of it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.settings.settings import DeclaredEffect, ServerSetting

Text = Annotated[str, Field(min_length=1)]
ServerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*$", max_length=24)]


class GivenServer(BaseModel):
    """The keys of `[servers.NAME]`."""

    model_config = ConfigDict(strict=True, extra="forbid")

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
