"""What a phase starts from: the mandate, the tools, the prompts, and what earlier cycles have taught."""

from __future__ import annotations

from dataclasses import field

from kairos_mcp.core.builtin_tools import EDIT_TOOLS
from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import JsonObject, ToolSet, ToolSpec, digest_of
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.flows.ooda.prompts import PhasePrompts
from kairos_mcp.flows.planner_input import Prompts, quote_model_text

NOOP_DIGEST = digest_of(b"noop", b"{}", b"noop").hex()
"""The digest of a noop's effect."""
MAX_LESSONS = 20  # the newest, kept from run to run
MAX_EFFECTS = 2  # the newest, handed on to the next run


@dataclass(frozen=True, slots=True)
class ActEffect:
    """What an act came to. Two acts have the same `digest` (hex) where tool, canonical arguments and the state
    afterwards are the same. `said` describes the effect to a model."""

    digest: str
    said: str

    def as_json(self) -> JsonObject:
        return {"digest": self.digest, "said": self.said}


@dataclass(frozen=True, slots=True)
class CarryOver:
    """What one cycle hands to the next, and one run to the next: the newest lessons, and effects, oldest first.

    Within a run more effects are kept than the two that go on to the next run: loops are found among them.
    """

    lessons: tuple[str, ...] = ()
    effects: tuple[ActEffect, ...] = ()

    def as_json(self) -> JsonObject:
        return {"lessons": list(self.lessons), "effects": [each.as_json() for each in self.effects[-MAX_EFFECTS:]]}


@dataclass(frozen=True, slots=True)
class CycleContext:
    """Everything that a phase, or a run of cycles, starts from.

    `reads`: the tools that observe and decide may call. `runnable`: those that the action `run_tool` may name. The
    tools that change files are in neither: only the edit actions reach them, with the hashes of what was read.
    `searchable`: names of tools in both that decide is not shown, since there are too many; its tool `search` finds
    them.
    `finds_late_tools`: the search may find tools that were added after the start; those that only read can be called.
    `submits`: acts and checks work in a stage, and the cycles submit what it holds.
    `asks_at_limit`: a person is asked whether the run may have more, before a limit of its own ends it.
    """

    mandate: Mandate
    phase_prompts: PhasePrompts
    prompts: Prompts
    reads: ToolSet
    runnable: ToolSet
    scopes: Scopes = field(default_factory=Scopes)
    carry_over: CarryOver = field(default_factory=CarryOver)
    searchable: frozenset[str] = frozenset()
    search: ToolSpec | None = None
    finds_late_tools: bool = False
    submits: bool = False
    asks_at_limit: bool = False

    def __post_init__(self) -> None:
        if writing := [spec.name for spec in self.reads if spec.effect != "read" or spec.name in EDIT_TOOLS]:
            raise ValueError(f"{', '.join(writing)} in reads: more than reading")
        if editing := [spec.name for spec in self.runnable if spec.name in EDIT_TOOLS]:
            raise ValueError(f"{', '.join(editing)} in runnable: files are changed by the edit actions alone")
        if self.searchable and self.search is None:
            raise ValueError("tools can only be found by a search, and there is none")

    def quote(self, text: str) -> str:
        """Quote a text that a model wrote in an earlier step, for a prompt."""
        return quote_model_text(self.prompts.quoted, text)

    def as_one_line(self, text: str) -> str:
        """Put a text from outside on one line, so it can't make a heading in a prompt."""
        return " ".join(text.split())

    def is_circling(self, carry_over: CarryOver) -> bool:
        """Whether the newest effect repeats one of the two before it: A-A, A-B-A.

        Repeated noops are no loop: a mandate whose goal is kept needs nothing done, run after run.
        """
        *earlier, newest = [effect.digest for effect in carry_over.effects[-3:]] or [NOOP_DIGEST]
        return newest != NOOP_DIGEST and newest in earlier

    def can_call(self, found: ToolSpec) -> bool:
        """Whether decide may call a tool that its search has found."""
        is_late_read = self.finds_late_tools and found.effect == "read" and found.name not in EDIT_TOOLS
        return is_late_read or self.reads.find(found.name) is not None

    @property
    def shown_reads(self) -> ToolSet:
        """The tools that decide may call from its first turn on."""
        if self.search is None:
            return self.reads
        return ToolSet((*[spec for spec in self.reads if spec.name not in self.searchable], self.search))

    @property
    def shown_runnable(self) -> ToolSet:
        """The tools that `run_tool` may name and that decide is shown from its first turn on."""
        if not self.searchable:
            return self.runnable
        return ToolSet([spec for spec in self.runnable if spec.name not in self.searchable])
