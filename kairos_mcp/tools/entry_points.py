"""Tools that installed Python packages bring: functions under the entry point group `kairos_mcp.tools`.

    # pyproject.toml of the package
    [project.entry-points."kairos_mcp.tools"]
    weather = "my_package.tools:weather"

    # my_package/tools.py
    from kairos_mcp.tools import tool

    @tool(effect="read")
    def weather(city: str, days: int = 1) -> str:
        "Tells the weather of a city."

The tool has the entry point's name. Its schema comes from the type hints, checked strictly; its description is the
docstring. Without `@tool` a function counts as irreversible. A function may be `async`. A parameter of the type
`kairos_mcp.tools.ToolContext` is not part of the schema: it gets the context of the call (its deadline, whether it
should stop). Return a text, a ToolResult, or any value that JSON has. What a function raises becomes a result: a
KairosError with its own text, any other exception by its type alone, since its text may hold what no model should see.

Name a parameter that takes a file or folder `path`, `file` or the like (`source_file`, `output_dir`): the gate's rules
on paths find the files of a call by the names and texts of its arguments (touched_paths.py says how), and can't see
what else the function opens. Installed code runs in this process, without a sandbox, and the gate believes the effect
that it declares.

Packages are imported when tools are first needed. A broken one is named in the notes, and harms nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError, to_json

from kairos_mcp.core.errors import BadArguments, ConfigError, KairosError, Timeout
from kairos_mcp.core.json_schema import compile_schema
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import FindParted, truncate
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools.tool import ENTRY_POINT_GROUP, statement_of

RESULT_CHARS = 1_000_000
DESCRIPTION_CHARS = 4_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass
class EntryPointSource:
    """The functions of installed packages as a source of tools."""

    find_entry_points: Callable[[], Iterable[EntryPoint]] = lambda: entry_points(group=ENTRY_POINT_GROUP)
    name: str = "python"
    version: int = 0
    _tools: tuple[Tool, ...] = ()
    _notes: tuple[str, ...] = ()
    _is_loaded: bool = False
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
        return not self._is_loaded

    @property
    def is_listed(self) -> bool:
        return self._is_loaded

    def wait_ready(self, deadline: float) -> None:
        """Import what is installed, once. If that takes longer, it continues in its thread for the next time."""
        thread = threading.Thread(target=self._load, name="kairos-installed", daemon=True)
        thread.start()
        thread.join(max(0.0, deadline - time.monotonic()))

    def try_once(self, deadline: float) -> None:
        if not self._is_loaded:
            self.wait_ready(deadline)

    def _load(self) -> None:
        with self._lock:
            if self._is_loaded:
                return
            tools: dict[str, Tool] = {}
            notes: list[str] = []
            for point in sorted(self.find_entry_points(), key=lambda point: (point.name, point.value)):
                package = point.dist.name if point.dist is not None else point.module
                if point.name in tools:
                    notes.append(f"The tool {point.name[:64]!r} of {package} is left out: another package has it.")
                    continue
                try:
                    tool = build_tool(point.name, point.load(), f"python:{package}")
                except KairosError as error:
                    notes.append(f"The tool {point.name[:64]!r} of {package} is left out: {error}")
                except BaseException as error:  # also SystemExit: a broken package must harm only itself
                    notes.append(f"The tool {point.name[:64]!r} of {package} can't be loaded ({type(error).__name__}).")
                else:
                    tools[point.name] = tool
            self._tools, self._notes = tuple(tools.values()), tuple(notes)
            self._is_loaded = True
            self.version += 1


def build_tool(name: str, function: Any, source: str) -> Tool:
    """Make a tool of a function. Raises ConfigError or SchemaRejected if that can't be done."""
    if not _NAME.fullmatch(name) or "__" in name:
        raise ConfigError("its name can't be the name of a tool.", "Letters, digits, - and single _, 64 at most.")
    if not callable(function) or inspect.isclass(function):
        raise ConfigError("it is not a function.", "Name a function in the entry point.")
    description = inspect.getdoc(function) or ""
    if not description.strip():
        raise ConfigError("it has no docstring.", "Models read its docstring.")
    statement = statement_of(function)
    fields, ctx_parameter = _read_parameters(function)
    adapter = _build_adapter(name, fields)
    schema = _build_schema(adapter)
    labels = statement.reaches, statement.trusted, statement.private
    shown = description[:DESCRIPTION_CHARS]
    spec = ToolSpec(name, shown, schema, statement.effect, statement.category, source, *labels)

    def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        values = _parse_arguments(adapter, arguments) | ({ctx_parameter: ctx} if ctx_parameter is not None else {})
        try:
            returned = function(**values)
            value = _run_async(returned, ctx) if inspect.isawaitable(returned) else returned
            return _convert_result(value, ctx.find_parted)
        except (SystemExit, KeyboardInterrupt) as end:  # a function must not end the server
            return ToolResult(
                f"{name} tried to end the server ({type(end).__name__}).", is_error=True, code="tool_failed"
            )

    return Tool(spec, run, statement.timeout_s, statement.examples)


def _read_parameters(function: Callable[..., Any]) -> tuple[dict[str, Any], str | None]:
    """Return the fields for its schema, from hints and defaults, and the name of the parameter for the ToolContext."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # a hint is any expression
        raise ConfigError(f"its hints can't be read ({type(error).__name__}).", "Import what they name.") from error
    fields: dict[str, Any] = {}
    ctx_parameter = None
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"its parameter {name} has no name in a call.", "No *args, **kwargs or / in a tool.")
        if name not in hints:
            raise ConfigError(f"its parameter {name} has no type hint.", "Each parameter needs one.")
        if hints[name] is ToolContext:
            ctx_parameter = name
        else:
            required = parameter.default is parameter.empty
            # By alias: a field must not have the name of a method of the model.
            options = Field(alias=name) if required else Field(default=parameter.default, alias=name)
            fields[f"given_{len(fields)}"] = (hints[name], options)
    return fields, ctx_parameter


def _build_adapter(name: str, fields: dict[str, Any]) -> TypeAdapter[Any]:
    try:
        model = create_model(name, __config__=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False), **fields)
        return TypeAdapter(model)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError) as error:
        raise ConfigError(f"its hints make no schema ({type(error).__name__}).", "Use plain types.") from error


def _build_schema(adapter: TypeAdapter[Any]) -> JsonObject:
    try:
        schema = adapter.json_schema()
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError("its hints have no JSON Schema.", "Use types that JSON has.") from error
    schema.pop("title", None)
    for declared in schema.get("properties", {}).values():
        declared.pop("title", None)
    compile_schema(schema)
    return schema


def _parse_arguments(adapter: TypeAdapter[Any], arguments: JsonObject) -> dict[str, Any]:
    """Convert arguments to the types of the hints: a date from a text, a model from an object. Raises BadArguments."""
    try:
        model = adapter.validate_json(to_json(arguments))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = "/".join(str(part) for part in first["loc"])
        raise BadArguments(f"at /{where[:80]}: {first['msg'][:200]}.", "See the tool's schema.") from None
    return {info.alias or name: getattr(model, name) for name, info in type(model).model_fields.items()}


def _run_async(awaitable: Any, ctx: ToolContext) -> Any:
    """Run an async function to its end, in an event loop of its own in this thread; cancel it at its deadline."""

    async def end() -> Any:
        task = asyncio.ensure_future(awaitable)
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        ctx.stop.add_callback(cancel)
        async with asyncio.timeout_at(ctx.deadline):
            return await task

    try:
        return asyncio.run(end())
    except TimeoutError:
        raise Timeout("It did not end in time, and was stopped.", "Ask for less at once.") from None
    except asyncio.CancelledError:
        raise Timeout("It was stopped.", "") from None


def _convert_result(value: Any, find_parted: FindParted) -> ToolResult:
    match value:
        case ToolResult():
            return value
        case None:
            return ToolResult("done")
        case str():
            text = value
        case _:
            try:
                text = to_json(value, inf_nan_mode="null").decode()
            except (PydanticSerializationError, UnicodeError):
                return ToolResult("It returned something that JSON can't represent.", is_error=True, code="tool_failed")
    marker = "\n[cut here: {total:,} characters in all, {limit:,} are kept]"
    return ToolResult(truncate(text, RESULT_CHARS, marker, find_parted))
