"""What a phase starts from: the mandate, the tools, the prompts, and what earlier cycles have taught."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kairos_mcp.core.mandate import Mandate
from kairos_mcp.core.messages import JsonObject, ToolSet, ToolSpec, digest_of
from kairos_mcp.core.scopes import Scopes
from kairos_mcp.flows.ooda.prompts import PhasePrompts
from kairos_mcp.flows.planner_input import Prompts, quote_model_text

EDITING = frozenset({"edit_file", "write_file", "plan_edits", "apply_edit_plan", "apply_edits"})
"""Tools that run_tool may not call: they would bypass the mandate's limits and the hashes of what was read."""
NOOP_DIGEST = digest_of(b"noop", b"{}", b"noop").hex()
"""The digest of a noop's effect."""
LESSONS = 20  # the newest, kept from run to run
EFFECTS = 2


@dataclass(frozen=True, slots=True)
class Effect:
    """What an act came to: `digest` (hex) is equal where tool, canonical arguments and what was there afterwards are;
    `said` tells it to a model."""

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
    effects: tuple[Effect, ...] = ()

    def with_lessons(self, lessons: tuple[str, ...]) -> CarryOver:
        new = tuple(lesson for lesson in lessons if lesson not in self.lessons)
        return replace(self, lessons=(*self.lessons, *new)[-LESSONS:])

    def with_effect(self, effect: Effect) -> CarryOver:
        return replace(self, effects=(*self.effects, effect))

    @property
    def has_repeated_effect(self) -> bool:
        """Whether the newest effect is the one before it, or the one before that one: A-A, A-B-A."""
        digests = [effect.digest for effect in self.effects[-3:]]
        return any(digests[-1:] == [earlier] for earlier in digests[:-1])

    def as_json(self) -> JsonObject:
        return {"lessons": list(self.lessons), "effects": [each.as_json() for each in self.effects[-EFFECTS:]]}


@dataclass(frozen=True, slots=True)
class CycleContext:
    """Everything that a phase, or a run of cycles, starts from.

    `reads`: what observe and decide may call; `may`: what run_tool may name. The tools that change files are in
    neither: only the edit actions reach them, with the hashes of what was read. `behind`: names of tools of
    both that decide is not shown, since there are too many; it finds them with `search`, which it may then call.
    `idle_cycles`: after so many noops in a row a run ends, and a noop is no loop; None in older specs.
    `joined`: the search may find tools that were added after the start; those that only read can be called.
    """

    mandate: Mandate
    phase_prompts: PhasePrompts
    prompts: Prompts
    reads: ToolSet
    may: ToolSet
    scopes: Scopes = field(default_factory=Scopes)
    carried: CarryOver = field(default_factory=CarryOver)
    searchable: frozenset[str] = frozenset()
    search: ToolSpec | None = None
    idle_cycles: int | None = None
    joined: bool = False

    def __post_init__(self) -> None:
        if writing := [spec.name for spec in self.reads if spec.effect != "read" or spec.name in EDITING]:
            raise ValueError(f"{', '.join(writing)} in reads: more than reading")
        if editing := [spec.name for spec in self.may if spec.name in EDITING]:
            raise ValueError(f"{', '.join(editing)} in may: files are changed by the edit actions alone")
        if self.searchable and self.search is None:
            raise ValueError("tools are behind a search that is not there")

    def quote(self, text: str) -> str:
        """A text that a model wrote in an earlier step, as a prompt has it."""
        return quote_model_text(self.prompts.quoted, text)

    def on_one_line(self, text: str) -> str:
        """A text from elsewhere that a line of a prompt has to hold; as it is in runs of older specs."""
        return " ".join(text.split()) if self.prompts.quoted else text

    def is_circling(self, carried: CarryOver) -> bool:
        """Whether the newest effect was there shortly before. To do nothing again and again is no loop: it has no
        effect, and over several runs it is what a mandate that is kept looks like."""
        idle = self.idle_cycles is not None and carried.effects[-1:] and carried.effects[-1].digest == NOOP_DIGEST
        return carried.has_repeated_effect and not idle

    def may_call(self, found: ToolSpec) -> bool:
        """Whether decide may call a tool that its search has found."""
        joins = self.joined and found.effect == "read" and found.name not in EDITING
        return joins or self.reads.find(found.name) is not None

    @property
    def shown_reads(self) -> ToolSet:
        """What decide may call from its first turn on."""
        if self.search is None:
            return self.reads
        return ToolSet((*[spec for spec in self.reads if spec.name not in self.searchable], self.search))

    @property
    def shown_may(self) -> ToolSet:
        """What run_tool may name, as far as decide is told of it from its first turn on."""
        return ToolSet([spec for spec in self.may if spec.name not in self.searchable]) if self.searchable else self.may
