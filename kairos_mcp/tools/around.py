"""What surrounds a call: what a tool may know of its run, remember for it, and show before or look up after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kairos_mcp.core.messages import Effect, ToolResult


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
