"""One tool: what it is, what a call of it may know, and the one way to call it, which returns each failure as a result.

A tool's effect class, category and schema are in its ToolSpec; whether a call may run is for gate.py to decide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from kairos_mcp.core import redact_values
from kairos_mcp.core.errors import BadArguments, ConfigError, KairosError
from kairos_mcp.core.json_schema import Schema, compile_schema
from kairos_mcp.core.messages import Effect, JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.redaction import Redactor


@dataclass(frozen=True, slots=True)
class ToolMemory:
    """What tools remember for a run, by name, in its rows: `keep` returns once the text survives a crash.

    A name is kept once; the same text again is no error, another one raises ValueError. `check` raises where the run
    belongs to another server by now. All are called in a worker thread.
    """

    keep: Callable[[str, str], None]
    recall: Callable[[str], str | None]
    check: Callable[[], None] = lambda: None

    @staticmethod
    def in_process() -> ToolMemory:
        """A memory that ends with this process: for tests, and for calls outside a run."""
        known: dict[str, str] = {}

        def keep(name: str, text: str) -> None:
            if known.setdefault(name, text) != text:
                raise ValueError(f"{name} is kept already, otherwise")

        return ToolMemory(keep, known.get)


class StopSignal:
    """Whether a call is to end early, because its run was cancelled or its time is over."""

    __slots__ = ("_then", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self._then: list[Callable[[], None]] = []

    def then(self, act: Callable[[], None]) -> None:
        """Have `act` called (from another thread) when the call is to end; at once if that was said already."""
        self._then.append(act)
        if self.wanted:
            act()

    def now(self) -> None:
        self.wanted = True
        for act in list(self._then):
            act()


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know of the run that calls it.

    `until` is a deadline on `time.monotonic()`; `kept` gives the whole text behind a ref, or None; `path` is the
    step's, unique in the run, so that what a tool keeps for one call can be named after it. `base`: what an approval
    was shown of each file (SHA-256 in hex, None: no file), which must still hold; empty where nobody was asked. `shut`
    says of a plain path that a rule keeps it from this call: what is found there is not shown; None: nothing is.
    `check_paths` raises Denied or StaleFile where the call touches other files now than when it was judged; None: it
    can't.
    """

    run_id: str
    until: float
    kept: Callable[[str], str | None]
    path: str = ""
    memory: ToolMemory = field(default_factory=ToolMemory.in_process)
    base: Mapping[str, str | None] = field(default_factory=dict)
    stop: StopSignal = field(default_factory=StopSignal)
    shut: Callable[[str], bool] | None = None
    check_paths: Callable[[], None] | None = None

    def still_for(self, effect: Effect) -> Callable[[], None]:
        """What a call of this effect asks in the moment in which it does it: raises where its run is another's by now
        (what only reads doesn't ask that), or where its paths lead elsewhere than when it was judged. Whoever takes its
        time before (a name, a handshake, a start) may wake to that."""
        if effect == "read":
            return self.check_paths or _nothing
        return self._check_all if self.check_paths is not None else self.memory.check

    def _check_all(self) -> None:
        self.memory.check()
        if self.check_paths is not None:
            self.check_paths()


@dataclass(frozen=True, slots=True)
class Preview:
    """What a person is shown before a call: a diff or an argument list, and the files that it stands on.

    `base` maps each plain path to the SHA-256 in hex of what the file holds now, None where there is none.
    `brings_hidden`: it would put characters into a file that nobody sees, or that turn the direction of writing.
    """

    text: str
    base: Mapping[str, str | None] = field(default_factory=dict)
    brings_hidden: bool = False


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a look after a crash found: the call was carried out (`result` is what it gave), it was not, or that
    can't be told and a person has to settle it."""

    state: Literal["done", "not_done", "unclear"]
    result: ToolResult | None = None


def _nothing() -> None:
    pass


T = TypeVar("T")

UNEXPECTED = "tool_failed"  # a bug or a fault below a tool; every expected failure has a code of its own


@dataclass(frozen=True)  # not slotted: the compiled schema is cached on the instance
class Tool:
    """A tool and the function behind it. `run` blocks and is called in a worker thread.

    It raises a leaf of KairosError for what the model can act on. `preview` says what an approval shows of a call
    that was not made yet (raising as `run` would); without it the arguments are shown. `probe` looks, after a crash,
    whether a `checked` call was carried out. `internal`: flows of ours call it; it is offered to no model, found by no
    glob and called by no caller. `named_only`: offered only where somebody names it, although it only reads.
    """

    spec: ToolSpec
    run: Callable[[JsonObject, ToolContext], ToolResult]
    timeout_s: float = 60
    examples: tuple[JsonObject, ...] = ()
    preview: Callable[[JsonObject, ToolContext], Preview] | None = None
    probe: Callable[[JsonObject, ToolContext], ProbeResult] | None = None
    internal: bool = False
    named_only: bool = False

    @cached_property
    def schema(self) -> Schema:
        return compile_schema(self.spec.input_schema)


def call(tool: Tool, arguments: JsonObject, around: ToolContext) -> ToolResult:
    """Check the arguments, run the tool, and give every failure as a result; never raises."""
    return _surely(tool, arguments, lambda given: tool.run(given, around))


def previewed(tool: Tool, arguments: JsonObject, around: ToolContext) -> Preview | ToolResult:
    """What a person is shown of a call before it is made, or the failure that it would be; never raises."""
    if tool.preview is None:
        return _surely(tool, arguments, lambda given: Preview(as_arguments(tool.spec, given)))
    preview = tool.preview
    return _surely(tool, arguments, lambda given: preview(given, around))


def probed(tool: Tool, arguments: JsonObject, around: ToolContext) -> ProbeResult:
    """What a look after a crash finds of a call; never raises: what fails to look can't tell."""
    probe = tool.probe
    if probe is None:
        return ProbeResult("unclear")
    found = _surely(tool, arguments, lambda given: probe(given, around))
    return ProbeResult("unclear", found) if isinstance(found, ToolResult) else found


def as_arguments(spec: ToolSpec, arguments: JsonObject) -> str:
    """A call in full, for a person: the tool, then its arguments, a string with its line breaks as lines."""
    lines = [spec.name if spec.source == "builtin" else f"{spec.name} ({spec.source})"]
    for given, value in arguments.items():
        name = given if given.isidentifier() else json.dumps(given, ensure_ascii=False)
        if isinstance(value, str) and "\n" in value:
            lines += [f"{name}:", *(f"    {line}" for line in value.split("\n"))]
        else:
            lines.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _surely(tool: Tool, arguments: JsonObject, act: Callable[[JsonObject], T]) -> T | ToolResult:
    try:
        given = _present(arguments, tool.spec.input_schema)
        problems = tool.schema.problems(given)
        if problems:
            wrong = f"{tool.spec.name}: {'; '.join(problems)}."
            return failed(BadArguments(wrong, _valid(tool.spec.input_schema)))
        return act(given)
    except KairosError as error:
        return failed(error)
    except Exception as error:  # a tool's bug must not take the run with it
        # Only the type's name: the text of a foreign exception may hold paths of this machine, or secrets.
        kind = type(error).__name__
        return _refusal(
            UNEXPECTED,
            f"{tool.spec.name} failed unexpectedly ({kind}); nothing is known to have changed.",
            "Try other arguments or another tool.",
            retryable=isinstance(error, OSError),
        )


def failed(error: KairosError) -> ToolResult:
    """An error as the result that a model reads."""
    return _refusal(error.code, error.message, error.hint, retryable=error.retryable)


def _refusal(code: str, message: str, hint: str, *, retryable: bool) -> ToolResult:
    told = {"code": code, "message": message, "hint": hint, "retryable": retryable}
    return ToolResult(f"{message} {hint}".rstrip(), is_error=True, data=told, code=code)


def _present(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Absent and null are the same, except where the schema itself admits null."""
    if None not in arguments.values():
        return arguments
    refusing = {name for name, kind in _kinds(schema).items() if kind != "any" and "null" not in kind}
    return {name: value for name, value in arguments.items() if value is not None or name not in refusing}


def _valid(schema: JsonObject) -> str:
    required = schema.get("required", [])
    shown = [f"{name} ({kind}{', required' * (name in required)})" for name, kind in _kinds(schema).items()]
    return f"Valid arguments: {', '.join(shown) or 'none'}."


def _kinds(schema: JsonObject) -> dict[str, str]:
    """The type of each argument in words; "any" where the schema states none."""
    kinds: dict[str, str] = {}
    for name, declared in schema.get("properties", {}).items():
        stated = declared.get("type", "any") if isinstance(declared, dict) else "any"
        kinds[name] = stated if isinstance(stated, str) else " or ".join(stated)
    return kinds


def masked_call(mask: Redactor, tool: Tool, arguments: JsonObject, around: ToolContext) -> ToolResult:
    """As `call`; its errors are masked as well. What does more than read is not called, but raises, where its run
    belongs to another server by now: it may have waited here for a thread, or while this program was stopped. What
    leaves this program asks once more where it does. A call whose paths lead elsewhere than when it was judged is not
    made either."""
    if tool.spec.effect != "read":
        around.memory.check()
    try:
        if around.check_paths is not None:
            around.check_paths()
    except KairosError as refused:
        return redact_values.redact_result(failed(refused), mask)
    return redact_values.redact_result(call(tool, arguments, around), mask)


F = TypeVar("F", bound=Callable[..., Any])
GROUP = "kairos_mcp.tools"  # of entry points
_MARK = "__kairos_tool__"


@dataclass(frozen=True, slots=True)
class ToolStatement:
    """What a function states of itself; without a word it is irreversible."""

    effect: Effect = "irreversible"
    category: str = "other"
    timeout_s: float = 60
    examples: tuple[JsonObject, ...] = ()


def tool(
    *,
    effect: Effect = "irreversible",
    category: str = "other",
    timeout_s: float = 60,
    examples: Sequence[JsonObject] = (),
) -> Callable[[F], F]:
    """State what a function does when it is offered as a tool; the function itself stays what it is.

    `effect`: "read" (changes nothing; repeated freely, side by side), "idempotent" (may be repeated after a crash) or
    "irreversible". Raises ConfigError for another.
    """
    if effect not in ("read", "idempotent", "irreversible"):
        raise ConfigError(f"A function can't be of the effect {effect!r}.", "Use read, idempotent or irreversible.")

    def state(function: F) -> F:
        setattr(function, _MARK, ToolStatement(effect, category, timeout_s, tuple(examples)))
        return function

    return state


def stated_of(function: object) -> ToolStatement:
    found = getattr(function, _MARK, None)
    return found if isinstance(found, ToolStatement) else ToolStatement()
