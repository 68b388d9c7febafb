"""Load the specs of runs from their rows, and build texts of them again that were damaged in the store."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from kairos_mcp.core.errors import Unreadable
from kairos_mcp.core.messages import ToolSet
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.settings.settings import Settings
from kairos_mcp.specs.build import load_text_prompts
from kairos_mcp.specs.kinds import KINDS, kind_of
from kairos_mcp.specs.load import LoadedSpec
from kairos_mcp.specs.load_spec import load_built_spec, load_spec
from kairos_mcp.store import rows, runs
from kairos_mcp.store.database import Store
from kairos_mcp.store.queries import RunRow, referred_texts, run_by_number
from kairos_mcp.store.rows import DamagedText, Session, encode, read_each, unreadable
from kairos_mcp.store.runs import NewRun
from kairos_mcp.tools.files.workspace_scopes import build_scopes
from kairos_mcp.tools.registry import ToolRegistry
from kairos_mcp.tools.selection import offer_tools

MAX_LOADED_SPECS = 16  # cached; the spec of a run that waits for its client is needed with every request
_REBUILT_NOTE = "A text of this run was damaged in the state file; it was made again from its source."
_NAMED_TOOL = re.compile(r'"name":"([^"]{1,64})"')


@dataclass(frozen=True, slots=True)
class LostText(Exception):
    """A text of a run's spec is damaged or missing; `rest`: what is left of it. `error`: what to say if it can't be
    rebuilt."""

    content_hash: str
    rest: bytes
    error: Unreadable


class StoredSpecs:
    """Loads specs and keeps those that were used last.

    `find_tools` gives the run's folder, if it is served here, and the tools of this moment: texts are built anew from
    them.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        find_tools: Callable[[RunRow], Awaitable[tuple[str | None, ToolRegistry]]],
    ) -> None:
        self._settings = settings
        self._store = store
        self._find_tools = find_tools
        self._loaded: OrderedDict[tuple[str, str | None, int], LoadedSpec] = OrderedDict()
        self._rebuilt: dict[tuple[str, int], str] = {}  # by (hash of the text, number of the run)

    async def load_new(self, new: NewRun, spec: Spec) -> LoadedSpec:
        """Load the spec of a run that is about to be created, from what it was built of. Raises LostText."""
        built_texts = dict(new.texts)
        if kind_of(spec.flow).is_call:
            return load_built_spec(spec, built_texts.__getitem__)

        def load(session: Session) -> LoadedSpec:  # others refer to texts of earlier runs too
            return load_spec(new.spec, lambda hash_: built_texts.get(hash_) or _read_text(session, hash_))

        return await self._store.read(load)

    async def load(self, run: RunRow) -> LoadedSpec:
        """Return the run's loaded spec, from a cache. Raises StoreCorrupt."""
        loaded = self._loaded.get((run.spec, run.workspace, run.n)) or await self._read(run)
        self.keep(run, loaded)
        return loaded

    def keep(self, run: RunRow, loaded: LoadedSpec) -> None:
        """Keep a spec that was loaded, as the one that was used last."""
        key = run.spec, run.workspace, run.n
        self._loaded[key] = loaded
        self._loaded.move_to_end(key)
        while len(self._loaded) > MAX_LOADED_SPECS:
            self._loaded.popitem(last=False)

    def forget(self) -> None:
        """Load every spec anew: somebody else may have changed its texts."""
        self._loaded.clear()

    async def repair_texts(self) -> None:
        """Store the texts that were found damaged or missing and could be rebuilt, with a note for each run."""
        rebuilt, self._rebuilt = self._rebuilt, {}
        if rebuilt:

            def write(session: Session) -> None:
                rows.keep_texts(session, ((content_hash, body) for (content_hash, _), body in rebuilt.items()))
                for run in {run for _, run in rebuilt}:
                    runs.add_note(session, run_by_number(session, run), _REBUILT_NOTE)

            await self._store.submit(write)

    async def _read(self, run: RunRow) -> LoadedSpec:
        """Load the run's spec from its rows; a text that is damaged or missing is rebuilt from its source, where that
        is still there. Raises StoreCorrupt."""
        rebuilt: dict[str, str] = {}
        hashes = referred_texts(run, ())

        def load(session: Session) -> LoadedSpec:
            read = dict(zip(hashes, read_each(session, _try_to_read_text, hashes), strict=True))
            return load_spec(run.spec, lambda content_hash: rebuilt.get(content_hash) or _text_of(read[content_hash]))

        while True:
            try:
                return await self._store.read(load)
            except LostText as lost:
                rebuilt[lost.content_hash] = await self._rebuild(lost, run)

    async def _rebuild(self, lost: LostText, run: RunRow) -> str:
        """Rebuild a text of a run's spec if its source is still there. Raises Unreadable."""
        workspace, registry = await self._find_tools(run)
        for body in rebuild_texts(self._settings, registry, workspace, lost.rest):
            if sha256(body.encode()).hexdigest() == lost.content_hash:
                self._rebuilt[lost.content_hash, run.n] = body
                return body
        raise lost.error


def _read_text(session: Session, content_hash: str) -> str:
    """Read a text of a run's spec. Raises LostText."""
    try:
        found = rows.read_text(session, content_hash)
    except DamagedText as damaged:
        raise LostText(content_hash, damaged.body, damaged) from damaged
    if found is None:
        raise LostText(content_hash, b"", unreadable("text that a run refers to"))
    return found


def _try_to_read_text(session: Session, content_hash: str) -> str | LostText:
    try:
        return _read_text(session, content_hash)
    except LostText as lost:
        return lost


def _text_of(read: str | LostText) -> str:
    if isinstance(read, LostText):
        raise read
    return read


def rebuild_texts(settings: Settings, registry: ToolRegistry, workspace: str | None, rest: bytes) -> Iterator[str]:
    """Yield the texts that specs are made of, each as it would be built now: prompts of the package and the settings,
    scopes, specs of tools. `rest`: what is left of the damaged one; it may name tools."""
    yield settings.read_prompt("planner").strip()
    yield settings.read_prompt("planner-short").strip()
    for prompts in dict.fromkeys(prompts for kind in KINDS.values() for prompts in kind.specs.prompts):
        yield encode(prompts.load(settings.read_prompt))
    yield encode(load_text_prompts(settings))
    yield encode(load_text_prompts(settings, is_brief=True))
    yield encode(build_scopes(Path(workspace), settings) if workspace is not None else Scopes())
    yield from _tool_texts(registry, rest)
    if settings.script is not None:
        with suppress(OSError, UnicodeDecodeError):
            yield settings.script.read_text(encoding="utf-8")
    from kairos_mcp.settings.agents import load_agents  # only when needed, which is seldom

    yield from (agent.prompt for agent in load_agents(settings).agents.values())


def _tool_texts(registry: ToolRegistry, rest: bytes) -> Iterator[str]:
    """Yield candidate tool lists: the default offer, each tool alone, and the tools named in `rest`."""
    for several in (registry.select(None), ToolSet(registry.specs)):
        for is_default in (True, False):
            offer = offer_tools(several, is_default=is_default)
            yield encode(tuple(offer.shown))
            yield encode(tuple(offer.searchable))
    for spec in registry.specs:
        yield encode((spec,))
    named = [registry.find(name) for name in _NAMED_TOOL.findall(rest.decode("utf-8", "replace"))]
    yield encode(tuple(tool.spec for tool in named if tool is not None))
