"""A tool, the context of its calls, what a person is shown before one, and what is found of one after a crash.

A tool's effect class, category and schema are in its ToolSpec. Calls are made by `tools/tool.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from hashlib import sha256
from typing import Literal, NoReturn

from kairos_mcp.core.effects import KEY_LIFE_S, Effect
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.json_schema import Schema, compile_schema
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.text import FindParted, find_nothing_parted


@dataclass(frozen=True, slots=True)
class ToolMemory:
    """Stores texts for a run, by name, in its rows. `keep` returns once the text would survive a crash.

    A name is kept once: keeping the same text again does nothing, keeping another one raises ValueError. `check_owner`
    raises FenceLost if another server has taken over the run, as `keep` does. All three are called in a worker
    thread. `redactor` masks what is kept to be read alone.
    """

    keep: Callable[[str, str], None]
    recall: Callable[[str], str | None]
    check_owner: Callable[[], None] = lambda: None
    redactor: Redactor = Redactor()

    def keep_taken(self, prefix: str, path: str, texts: Mapping[str, str]) -> dict[str, str]:
        """Keep the texts that were taken out of the workspace at a path, and return them as they are kept: masked as
        those of files are, since a person reads them, and nothing puts them back.

        The name begins with `prefix` and follows from what is kept, so that an undo that was killed can be made again.
        """
        masked = {
            part: self.redactor.mask_file(f"{path}/{part}" if part else path, text.encode()).masked_content.decode()
            for part, text in texts.items()
        }
        text = json.dumps({"path": path, "texts": masked})
        self.keep(f"{prefix}/{sha256(text.encode()).hexdigest()[:32]}", text)
        return masked

    @staticmethod
    def in_process() -> ToolMemory:
        """Return a memory that lasts as long as this process: for tests, and for calls outside a run."""
        known: dict[str, str] = {}

        def keep(name: str, text: str) -> None:
            if known.setdefault(name, text) != text:
                raise ValueError(f"{name} is kept already, with another text")

        return ToolMemory(keep, known.get)


def _refuse_note(*_given: str) -> NoReturn:
    raise RuntimeError("no tool is called of a run at rest")


NO_MEMORY = ToolMemory(_refuse_note, _refuse_note, _refuse_note)


class StopSignal:
    """Tells a call to end early, because its run was cancelled or its time is over."""

    __slots__ = ("_callbacks", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._callbacks: list[Callable[[], object]] = []

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` (from another thread) when the signal is set; at once if it is set already."""
        self._callbacks.append(callback)
        if self.is_set:
            callback()

    def set(self) -> None:
        self.is_set = True
        for act in list(self._callbacks):
            act()


Drafts = dict[str, bytes]
"""What files will hold, by plain path, once calls were made that a person is asked about together."""


Written = dict[str, tuple[bytes, bytes]]
"""The contents of files of the workspace before and after a call, by plain path; empty: no file."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know of the call: when it must end, what it may keep, and what it has to check.

    A function of an installed package gets it by a parameter of this type, which is no part of its schema. Such a
    function usually needs three members:

    - `deadline`, on `time.monotonic()`: when the call must have ended.
    - `stop`: set when the call should end early; poll `stop.is_set`, or `stop.add_callback`.
    - `recheck_for(effect)`: returns the check to make right before acting on the outside.

    The others: `run_id` and `path`, the step's path, which is unique in the run and so names what one call keeps.
    `key` is the same however often this call is begun, and no other call's (empty outside a run): a server that knows
    it carries the call out once. `is_marked`: it is to be marked in the rows right before it leaves
    (tools/departure.py). `begun_s_ago`, for probes: how long ago the call may have left first.
    `memory` stores texts in the run's rows. `read_kept` returns the full text of a shortened result by its ref, or
    None. `base_hashes`: the SHA-256 in hex of each file as the approver was shown it (None: no file); the files must
    still match. It is empty if nobody was asked. `is_hidden` tells whether a rule hides a plain path from this call,
    which then must not show its content, nor may a program that it starts; None if nothing is hidden. `check_paths`
    raises Denied or StaleFile if the call now touches other files than when it was authorized; None if that can't
    happen. `find_parted` finds the secret that a cut would part: a text is redacted after its tool has cut it. `drafts`
    is for previews: what files hold once the calls before this one in its turn were made; a preview of changes adds
    its own. `written`: what a call that changes files puts into each, for whoever asks whose text that is.
    """

    run_id: str
    deadline: float
    read_kept: Callable[[str], str | None]
    path: str = ""
    memory: ToolMemory = field(default_factory=ToolMemory.in_process)
    base_hashes: Mapping[str, str | None] = field(default_factory=dict)
    stop: StopSignal = field(default_factory=StopSignal)
    is_hidden: Callable[[str], bool] | None = None
    check_paths: Callable[[], None] | None = None
    find_parted: FindParted = find_nothing_parted
    drafts: Drafts = field(default_factory=dict)
    key: str = ""
    is_marked: bool = False
    begun_s_ago: float = 0
    written: Written = field(default_factory=dict)

    def recheck_for(self, effect: Effect) -> Callable[[], None]:
        """Return the check that a call of this effect makes right before it acts.

        It raises if another server has taken over the run (not asked for calls that only read), or if the call's paths
        lead elsewhere than when it was authorized. Either may happen while a call waits for a name, a handshake or a
        start of a process.
        """
        if effect == "read":
            return self.check_paths or _no_check
        return self._check_all if self.check_paths is not None else self.memory.check_owner

    def _check_all(self) -> None:
        self.memory.check_owner()
        if self.check_paths is not None:
            self.check_paths()


@dataclass(frozen=True, slots=True)
class ImpliedCall:
    """A call that was made before, whose effect at a path this one has: its tool, and the arguments it is judged by."""

    tool: str
    arguments: JsonObject
    path: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What a person is shown before a call: a diff or an argument list, and the files it is based on.

    `base_hashes` maps each plain path to the SHA-256 in hex of the file's content now, None where there is no file.
    `brings_hidden`: the call would write invisible characters into a file, or ones that turn the direction of writing.
    `failure`: what the call would end in, found once the files of `base_hashes` had been looked at; there is no text
    then. `implies`: calls which, if rules let each of them be made unasked, let this one be; None: it is judged by
    itself alone.
    """

    text: str
    base_hashes: Mapping[str, str | None] = field(default_factory=dict)
    brings_hidden: bool = False
    failure: KairosError | None = None
    implies: tuple[ImpliedCall, ...] | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe found or did after a crash.

    `resolved`: the call was finished or reverted, and has its answer (`result`; an error if it was reverted).
    `not_done`: it changed nothing, or may be made again without harm. `unclear`: a person has to settle it (`result`:
    why, or None).
    """

    state: Literal["resolved", "not_done", "unclear"]
    result: ToolResult | None = None


def _no_check() -> None:
    pass


@dataclass(frozen=True)  # not slotted: the compiled schema is cached on the instance
class Tool:
    """A tool and the function behind it. `run` blocks and is called in a worker thread.

    `run` raises a subclass of KairosError for what the model can act on. `preview` returns what an approver is shown
    before the call (raising as `run` would); without it the arguments are shown. `probe` is called after a crash
    interrupted a call, and may write: it finishes or reverts what that call began, or cleans up after it and finds that
    only a person can tell. `internal`: called by our own flows only; it is offered to no
    model, matched by no glob and open to no caller. `named_only`: offered only where its name is given, although it
    only reads. `exact_only`: matched by no glob, only by its whole name. `at_once`, only of tools that read: returns
    what `run` would return, or None where it would have to wait or take more than some hundred microseconds. It is
    called first, in the event loop, since a thread costs more than such a call. `masks_content`: what it shows of files
    is cut from their masked texts (core/masked_file.py), so that only known values are still redacted in its results.
    `marks_itself`: it marks itself when a call leaves (tools/departure.py); of others that is done before `run`.
    `key_life_s`: how long the other end keeps the key of a call that is keyed.
    """

    spec: ToolSpec
    run: Callable[[JsonObject, ToolContext], ToolResult]
    timeout_s: float = 60
    examples: tuple[JsonObject, ...] = ()
    preview: Callable[[JsonObject, ToolContext], Preview] | None = None
    probe: Callable[[JsonObject, ToolContext], ProbeResult] | None = None
    internal: bool = False
    named_only: bool = False
    exact_only: bool = False
    at_once: Callable[[JsonObject, ToolContext], ToolResult | None] | None = None
    masks_content: bool = False
    marks_itself: bool = False
    key_life_s: float = KEY_LIFE_S

    def __post_init__(self) -> None:
        if self.at_once is not None and self.spec.effect != "read":
            raise ValueError(f"{self.spec.name} does more than read, so it can't be called at once")

    @cached_property
    def schema(self) -> Schema:
        return compile_schema(self.spec.input_schema)


def error_result(error: KairosError) -> ToolResult:
    """Turn an error into the result that a model reads."""
    return failure_result(error.code, error.message, error.hint, retryable=error.retryable)


def failure_result(code: str, message: str, hint: str, *, retryable: bool) -> ToolResult:
    failure = {"code": code, "message": message, "hint": hint, "retryable": retryable}
    return ToolResult(f"{message} {hint}".rstrip(), is_error=True, data=failure, code=code)
