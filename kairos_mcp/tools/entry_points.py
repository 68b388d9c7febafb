"""Tools that installed Python packages bring: functions under the entry point group `kairos_mcp.tools`.

    # pyproject.toml of the package
    [project.entry-points."kairos_mcp.tools"]
    weather = "my_package.tools:weather"

    # my_package/tools.py
    from kairos_mcp.tools import tool

    @tool(effect="read")
    def weather(city: str, days: int = 1) -> str:
        "Tells the weather of a city."

The name of the entry point is the tool's. The schema comes from the hints, strictly; the description is the docstring.
Without `@tool` a function is irreversible. A function may be `async`; one that has a parameter of the type
Surroundings is given what surrounds the call (its deadline, whether it is to stop). It returns a text, a ToolResult,
or anything that JSON can say. What it raises becomes a result: a leaf of KairosError with its own words, any other
exception by its type alone, since its text may hold what no model should see. Installed code runs in this process:
nothing contains it, and the gate sees only what it states of itself.

Packages are looked at when the tools are first wanted; one that is broken is named and harms nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError, to_json

from kairos_mcp.core.errors import BadArguments, ConfigError, KairosError, Timeout
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.text import truncate
from kairos_mcp.tools.tool import ENTRY_POINT_GROUP, Tool, ToolContext, statement_of

RESULT_CHARS = 1_000_000
DESCRIPTION_CHARS = 4_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass
class EntryPointSource:
    """The functions of installed packages as a source of tools."""

    found: Callable[[], Iterable[EntryPoint]] = lambda: entry_points(group=ENTRY_POINT_GROUP)
    name: str = "python"
    version: int = 0
    _tools: tuple[Tool, ...] = ()
    _notes: tuple[str, ...] = ()
    _looked: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tools(self) -> tuple[Tool, ...]:
        return self._tools

    def why_withheld(self, name: str) -> str | None:
        return None

    def may_match(self, globs: Sequence[str] | None) -> bool:
        return globs is None or len(globs) > 0

    def notes(self) -> tuple[str, ...]:
        return self._notes

    def starting(self) -> Sequence[EntryPointSource]:
        return (self,)

    @property
    def is_starting(self) -> bool:
        return not self._looked

    def wait_ready(self, deadline: float) -> None:
        """Import what is installed, once; one that takes longer goes on behind, and is there the next time."""
        thread = threading.Thread(target=self._look, name="kairos-installed", daemon=True)
        thread.start()
        thread.join(max(0.0, deadline - time.monotonic()))

    def _look(self) -> None:
        with self._lock:
            if self._looked:
                return
            tools: dict[str, Tool] = {}
            notes: list[str] = []
            for point in sorted(self.found(), key=lambda each: (each.name, each.value)):
                package = point.dist.name if point.dist is not None else point.module
                if point.name in tools:
                    notes.append(f"The tool {point.name[:64]!r} of {package} is left out: another package has it.")
                    continue
                try:
                    made = made_of(point.name, point.load(), f"python:{package}")
                except KairosError as error:
                    notes.append(f"The tool {point.name[:64]!r} of {package} is left out: {error}")
                except BaseException as error:  # also SystemExit: a broken package harms nothing but itself
                    notes.append(f"The tool {point.name[:64]!r} of {package} can't be loaded ({type(error).__name__}).")
                else:
                    tools[point.name] = made
            self._tools, self._notes = tuple(tools.values()), tuple(notes)
            self._looked = True
            self.version += 1


def made_of(name: str, function: Any, source: str) -> Tool:
    """The tool that a function is. Raises ConfigError and SchemaRejected for one that can't be one."""
    if not _NAME.fullmatch(name) or "__" in name:
        raise ConfigError("its name is no name of a tool.", "Letters, digits, - and single _, 64 at most.")
    if not callable(function) or inspect.isclass(function):
        raise ConfigError("it is no function.", "Name a function in the entry point.")
    description = inspect.getdoc(function) or ""
    if not description.strip():
        raise ConfigError("it has no docstring.", "A model goes by its docstring.")
    stated = statement_of(function)
    taken, wants = _parameters(function)
    adapter = _adapter(name, taken)
    schema = _schema(adapter)
    spec = ToolSpec(name, description[:DESCRIPTION_CHARS], schema, stated.effect, stated.category, source)

    def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        given = _given(adapter, arguments) | ({wants: ctx} if wants is not None else {})
        try:
            found = function(**given)
            return _result(_awaited(found, ctx) if inspect.isawaitable(found) else found)
        except (SystemExit, KeyboardInterrupt) as end:  # a function doesn't end the server
            return ToolResult(f"{name} gave up ({type(end).__name__}).", is_error=True, code="tool_failed")

    return Tool(spec, run, stated.timeout_s, stated.examples)


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, Any], str | None]:
    """The hints and defaults that make its schema, and the parameter that wants the surroundings."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # a hint is any expression
        raise ConfigError(f"its hints can't be read ({type(error).__name__}).", "Import what they name.") from error
    taken: dict[str, Any] = {}
    wants = None
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"its parameter {name} has no name in a call.", "No *args, **kwargs or / in a tool.")
        if name not in hints:
            raise ConfigError(f"its parameter {name} has no type hint.", "Each parameter needs one.")
        if hints[name] is ToolContext:
            wants = name
        else:
            required = parameter.default is parameter.empty
            # by alias: a field may not be called as a method of the model is
            options = Field(alias=name) if required else Field(default=parameter.default, alias=name)
            taken[f"given_{len(taken)}"] = (hints[name], options)
    return taken, wants


def _adapter(name: str, taken: dict[str, Any]) -> TypeAdapter[Any]:
    try:
        made = create_model(name, __config__=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False), **taken)
        return TypeAdapter(made)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError) as error:
        raise ConfigError(f"its hints make no schema ({type(error).__name__}).", "Use plain types.") from error


def _schema(adapter: TypeAdapter[Any]) -> JsonObject:
    try:
        schema = adapter.json_schema()
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError("its hints have no JSON Schema.", "Use types that JSON has.") from error
    schema.pop("title", None)
    for declared in schema.get("properties", {}).values():
        declared.pop("title", None)
    compile_schema(schema)
    return schema


def _given(adapter: TypeAdapter[Any], arguments: JsonObject) -> dict[str, Any]:
    """The arguments as the hints want them: a date from its text, a model from its object. Raises BadArguments."""
    try:
        made = adapter.validate_json(to_json(arguments))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = "/".join(str(part) for part in first["loc"])
        raise BadArguments(f"at /{where[:80]}: {first['msg'][:200]}.", "See the tool's schema.") from None
    return {info.alias or name: getattr(made, name) for name, info in type(made).model_fields.items()}


def _awaited(waiting: Any, ctx: ToolContext) -> Any:
    """The end of an async function, in a loop of its own in this worker thread; it is cancelled at its deadline."""

    async def end() -> Any:
        task = asyncio.ensure_future(waiting)
        loop = asyncio.get_running_loop()
        ctx.stop.add_callback(lambda: _quietly(loop, task))
        async with asyncio.timeout_at(ctx.deadline):
            return await task

    try:
        return asyncio.run(end())
    except TimeoutError:
        raise Timeout("It did not end in time, and was stopped.", "Ask for less at once.") from None
    except asyncio.CancelledError:
        raise Timeout("It was stopped.", "") from None


def _quietly(loop: asyncio.AbstractEventLoop, task: asyncio.Future[Any]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)


def _result(found: Any) -> ToolResult:
    match found:
        case ToolResult():
            return found
        case None:
            return ToolResult("done")
        case str():
            text = found
        case _:
            try:
                text = to_json(found, inf_nan_mode="null").decode()
            except (PydanticSerializationError, UnicodeError):
                return ToolResult("It gave back something that JSON can't say.", is_error=True, code="tool_failed")
    marker = "\n[cut here: {total:,} characters in all, {limit:,} are kept]"
    return ToolResult(truncate(text, RESULT_CHARS, marker))
