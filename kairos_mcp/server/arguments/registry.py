"""The arguments of what finds the tools of the house, and calls one outside a loop."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.server.arguments.base import DEFAULT_WAIT_S, Arguments, Name, Wait


class RegistrySearch(Arguments):
    query: Annotated[str, Field(max_length=1_000)] | None = None
    names: Annotated[list[Name], Field(max_length=64)] | None = Field(None, description="Whole schemas of these")
    category: Name | None = None
    cursor: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class RegistryCall(Arguments):
    name: Name
    arguments: JsonObject
    wait_s: Wait | None = Field(None, description="Default 45")

    @property
    def wait(self) -> float:
        return DEFAULT_WAIT_S if self.wait_s is None else self.wait_s


class RegistryRegister(Arguments):
    spec: JsonObject = Field(
        description="{kind: http_tool, name, description, url, method?, parameters?: [{name, in, schema?}], headers?, "
        "result?, effect?} or {kind: server, name, command, args?, env? | url, headers?}. Keys by name: env:NAME"
    )
