"""Settings as they come in from outside, a file or the environment: checked here, and nowhere else."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kairos_mcp.errors import BadArguments, ConfigError
from kairos_mcp.settings import CAPS, SETTINGS, Dialect, Durability, GateRule, Route, variable

Count = Annotated[int, Field(ge=0, le=2**53)]
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Caps(_Strict):
    rounds: Count | None = None
    model_calls: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    total_tokens: Count | None = None
    usd: Amount | None = None
    tool_calls: Count | None = None
    seconds: Amount | None = None


class _DayCaps(_Strict):
    model_calls: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    total_tokens: Count | None = None
    usd: Amount | None = None


class _Rule(_Strict):
    tools: Text
    verdict: Literal["allow", "deny"]


class _Given(_Strict):
    """All fields are optional: what is not given is left to the next in order."""

    workspaces: list[Text] | None = None
    durability: Durability | None = None
    route: Route | None = None
    script: Text | None = None
    model: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_./-]*:\S+$")] | None = None
    base_url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+[^\s?#]*$")] | None = None
    dialect: Dialect | None = None
    price_input: Amount | None = None
    price_output: Amount | None = None
    sampling: Literal["fallback", "prefer"] | None = None
    tools: Text | None = None
    default_rounds: Annotated[int, Field(ge=1, le=10_000)] | None = None
    context_tokens: Annotated[int, Field(ge=2_000, le=100_000_000)] | None = None
    read_bytes: Annotated[int, Field(ge=1_024, le=256 * 1024 * 1024)] | None = None
    shown_chars: Annotated[int, Field(ge=500, le=1_000_000)] | None = None
    time_zone: Text | None = None
    limits: _Caps | None = None
    day: _DayCaps | None = None
    gate: list[_Rule] | None = None

    def flat(self) -> dict[str, Any]:
        """What was given, limits and those of a day one by one (`limits.usd`), gate rules as values."""
        given = self.model_dump(exclude_unset=True, exclude={"gate", "limits", "day"})
        for group, caps in (("limits", self.limits), ("day", self.day)):
            if caps is not None:
                given |= {f"{group}.{name}": cap for name, cap in caps.model_dump(exclude_unset=True).items()}
        if self.gate is not None:
            given["gate"] = tuple(GateRule(rule.tools, rule.verdict) for rule in self.gate)
        return given


def given_by_file(file: Path) -> dict[str, Any]:
    """What the file says; its paths are relative to the folder that it lies in."""
    try:
        parsed = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The settings file {file} can't be read: {error}.", "Name another by --config.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"The settings file {file} is no TOML: {error}.", "Repair that line.") from error
    try:
        given = _Given.model_validate(parsed).flat()
    except ValidationError as error:
        raise _rejected(f"The settings file {file}", error) from error
    if "workspaces" in given:
        given["workspaces"] = [_beside(file, text) for text in given["workspaces"]]
    if "script" in given:
        given["script"] = _beside(file, given["script"])
    return given


def given_by_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """What KAIROS_* says; an empty variable says nothing. Several workspaces are parted as PATH is."""
    texts: dict[str, Any] = {}
    for name in SETTINGS:
        text = environ.get(variable(name), "")
        if not text or name in ("gate", "workspaces"):
            continue
        group, _, leaf = name.rpartition(".")
        inner = texts.setdefault(group, {}) if group else texts
        inner[leaf] = text
    try:
        given = _Given.model_validate_strings(texts).flat()
    except ValidationError as error:
        raise _rejected("The environment", error, in_environment=True) from error
    if folders := [part for part in environ.get("KAIROS_WORKSPACE", "").split(os.pathsep) if part]:
        given["workspaces"] = folders
    return given


def caps_from_texts(given: Mapping[str, str]) -> dict[str, int | float]:
    """Limits as a person types them (`rounds=8`, `usd=0.50`), checked. Raises BadArguments."""
    try:
        caps: dict[str, int | float] = _Caps.model_validate_strings(given).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = str(first["loc"][0])[:80]
        raise BadArguments(f"The limit {name!r}: {first['msg']}.", f"Limits are: {', '.join(CAPS)}.") from error
    return caps


def _beside(file: Path, text: str) -> str:
    return str(file.parent / Path(text).expanduser())


def _rejected(where: str, error: ValidationError, *, in_environment: bool = False) -> ConfigError:
    """The first problem as a sentence that names the key and what is valid; values are not echoed."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return ConfigError(f"{where} has an unknown setting {key[:80]!r}.", f"Valid are: {', '.join(_beneath(key))}.")
    shown = variable(key) if in_environment else key
    return ConfigError(f"{where}: {shown}: {first['msg']}.", "See config/kairos.toml for each setting.")


def _beneath(key: str) -> list[str]:
    """The names that are valid at the place of an unknown one."""
    group = key.partition(".")[0]
    if group in ("limits", "day"):
        return [name.removeprefix(f"{group}.") for name in SETTINGS if name.startswith(f"{group}.")]
    if key.startswith("gate."):
        return ["tools", "verdict"]
    return list(dict.fromkeys(name.partition(".")[0] for name in SETTINGS))
