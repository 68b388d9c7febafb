"""Builds what a run is performed with from its frozen spec: tools of its workspace, its script, its budgeted hands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from pathlib import Path

import apsw

from kairos_mcp.core.errors import BadArguments, KairosError, Stale
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.routes import AvailableRoutes
from kairos_mcp.core.scopes import Scopes
from kairos_mcp.core.steps import DialectName, Failure
from kairos_mcp.core.tool_discovery import SEARCH
from kairos_mcp.execution.authorization import ToolAccess
from kairos_mcp.execution.executor import PaidModel, Resources, StepExecutor
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.gate import Default, Gate
from kairos_mcp.models.model import Model, ModelInput, ModelOptions, redact_model
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider import Provider
from kairos_mcp.models.scripted import Script
from kairos_mcp.settings.secret_refs import read_secret
from kairos_mcp.settings.settings import Settings, skill_folders
from kairos_mcp.specs import build, rebuilt_texts
from kairos_mcp.specs.build import VERSIONS, LoadedSpec, load_spec
from kairos_mcp.store import mandates, runs, texts
from kairos_mcp.store.approvals import ApprovalRequest, ReusedApproval
from kairos_mcp.store.codec import unreadable
from kairos_mcp.store.database import Store
from kairos_mcp.store.queries import RunRow, run_by_number
from kairos_mcp.store.texts import DamagedText
from kairos_mcp.tools import CommandSettings, SkillFolders, builtin_tools, network_tools
from kairos_mcp.tools.files.scopes import build_scopes, server_paths
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.mandate_tools import internal_tools
from kairos_mcp.tools.registry import DEFAULT_WAIT_S, ToolRegistry
from kairos_mcp.tools.sources import ToolSources
from kairos_mcp.tools.threads import WorkerThreads
from kairos_mcp.tools.tool import Tool
from kairos_mcp.tools.touched_paths import TouchedPaths, base_folders

THREADS = 10  # reads that run side by side
_PUT_BACK = "A text of this run was damaged in the state file; it was made again from its source."
THAWED = 16  # specs that are kept taken apart; a run that waits for its client is looked at with every ask


class RunFactory:
    """The parts that runs share in this server, each made at first use and closed at the end."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings = settings
        self._store = store
        self._opened = ExitStack()
        self._workers: WorkerThreads | None = None
        self._providers: dict[str, Provider] = {}
        self.mask = Redactor.from_environ(os.environ)
        self._elsewhere = ToolSources(settings, store, self._key, self.mask)
        self.means = cache(self._means)  # one registry and one open folder for each workspace
        self._thawed = lru_cache(maxsize=THAWED)(self._thaw)
        self._mended: dict[tuple[str, int], str] = {}  # by the hash of a text and the run that was read

    def workspace(self, wanted: str | None) -> str | None:
        """The configured folder that is meant: by its path, or its name where that is unambiguous; the first is
        the default. Raises BadArguments."""
        known = self.settings.workspaces
        if wanted is None:
            return str(known[0]) if known else None
        named = [path for path in known if wanted in (str(path), path.name) or os.path.realpath(wanted) == str(path)]
        if len(named) != 1:
            names = ", ".join(path.name for path in known) or "none"
            raise BadArguments("This workspace is not configured.", f"Configured: {names}.")
        return str(named[0])

    def registry(self, workspace: str | None) -> ToolRegistry:
        """The tools that there are at this moment: what a person approved or removed by a command counts at once."""
        registry = self.means(workspace).registry
        self._elsewhere.refresh()
        return registry

    async def ready_registry(
        self,
        workspace: str | None,
        globs: Sequence[str] | None,
        named: Sequence[str] = (),
        *,
        soon_s: float = DEFAULT_WAIT_S,
    ) -> ToolRegistry:
        """The registry, once the sources that the globs and names may mean know what they have: within half a minute
        where one tool is meant, else within `soon_s`."""
        registry = self.registry(workspace)
        if registry.must_wait_for(globs) or registry.must_wait_for(named):
            await asyncio.to_thread(registry.wait_ready, globs, named, soon_s=soon_s)
        return registry

    def can_perform(self, run: RunRow) -> bool:
        """Whether this server may go on with a run by itself."""
        return next(self.lacks(run), None) is None

    def lacks(self, run: RunRow, *, by_hand: bool = False) -> Iterator[str]:
        """What it takes to go on with a run and is not here: its flow's version, its route, its workspace, its tools.
        A person's command (`by_hand`) goes into the run's own workspace."""
        if VERSIONS.get(run.flow) != run.version:
            yield f"version {run.version} of the flow {run.flow}"
        if run.route == "provider" and self.settings.model is None:
            yield "a provider (KAIROS_MODEL)"
        if not by_hand and run.workspace is not None and Path(run.workspace) not in self.settings.workspaces:
            yield f"the workspace {Path(run.workspace).name!r}"  # its folder is not opened to look for tools
        elif not self._knows_tools(run):
            yield "the tools that it was given"

    def minds(self, run: RunRow, *, samples: bool) -> AvailableRoutes:
        """What there is to think with for this run, here and with this client."""
        return build.available_routes(self.settings, self.load_spec(run).script is not None, samples)

    def check_version(self, run: RunRow) -> None:
        """Raises Stale for a run whose flow has changed since: its rows are readable, itself it can't go on."""
        known = build.VERSIONS.get(run.flow)
        if known != run.version:
            raise Stale(
                f"The run is of version {run.version} of the flow {run.flow}; this program has version {known}.",
                f'planner_run continues="{run.id}" goes on from it.',
                run_id=run.id,
            )

    def forget_specs(self) -> None:
        """Take every spec apart anew: its texts may have been changed by another hand."""
        self._thawed.cache_clear()

    def load_spec(self, run: RunRow) -> LoadedSpec:
        """The run's spec taken apart: once, however often the run is looked at. Raises StoreCorrupt."""
        return self._thawed(run.spec, run.workspace, run.n)

    def _thaw(self, spec: str, workspace: str | None, run: int) -> LoadedSpec:
        return load_spec(spec, lambda content_hash: self._text(content_hash, workspace, run))

    async def repair_texts(self) -> None:
        """Write the texts that were found damaged, or gone, and could be made again; each of their runs says so."""
        mended, self._mended = self._mended, {}
        if mended:

            def write(connection: apsw.Connection) -> None:
                texts.keep_texts(connection, ((content_hash, body) for (content_hash, _), body in mended.items()))
                for run in {run for _, run in mended}:
                    runs.add_note(connection, run_by_number(connection, run), _PUT_BACK)

            await self._store.submit(write)

    def new_state(self, run: RunRow) -> RunState:
        """The run in memory, not folded yet."""
        thawed = self.load_spec(run)
        models: dict[str, Model] = (
            {"scripted": scripted_model(replace(thawed.script, requests=[]))} if thawed.script else {}
        )
        paid: dict[str, PaidModel] = {}
        dialects: dict[str, DialectName] = {"caller": "native"}
        if self.settings.model is not None:
            named = thawed.spec.model or ""  # a name without a provider is a hint for other routes
            provider = self._provider(named if ":" in named else self.settings.model)
            dialects["provider"] = thawed.spec.dialect or self.settings.dialect
            options = ModelOptions(thawed.spec.temperature, dialects["provider"], thawed.text_prompts)
            models["provider"] = redact_model(provider.make_model(options), self.mask)
            paid["provider"] = PaidModel(provider.tariff.model, provider.tariff.highest_price())

        def kept(ref: str) -> str | None:
            with self._store.read_connection() as connection:
                return self._store.read_full_text(connection, run.n, ref)

        def stands(path: str, asking: ApprovalRequest) -> ReusedApproval | None:
            if thawed.spec.mandate_text is None or not mandates.is_check_step(path):
                return None
            with self._store.read_connection() as connection:
                return mandates.find_check_approval(connection, run, thawed.spec.mandate_text, asking)

        own_lines = thawed.script.by_path if thawed.script else {}
        registry, means = self.registry(run.workspace), self.means(run.workspace)  # what was registered counts here too
        performer = StepExecutor(
            run.id,
            ToolAccess(
                thawed.offered, registry, means.gate, thawed.searchable, thawed.spec.mandate, thawed.spec.joining
            ),
            means,
            models,
            thawed.spec.model,
            kept,
            frozenset(own_lines),
            paid_models=paid,
            dialects=dialects,
            temperature=thawed.spec.temperature,
            find_approval=stands,
        )
        return RunState(run, performer, thawed.flow)

    async def close(self) -> None:
        for provider in self._providers.values():
            await provider.close()
        if self._workers is not None:
            self._workers.close()
        await asyncio.to_thread(self._elsewhere.close)
        self._opened.close()

    def _provider(self, model: str) -> Provider:
        if model not in self._providers:
            named = self.settings.model_key
            key = None if named is None or not self._is_configured(model) else lambda: self._key(named)
            self._providers[model] = Provider(Tariff.from_settings(self.settings, model), key=key)
        return self._providers[model]

    def _is_configured(self, model: str) -> bool:
        """Whether a model is of the configured provider: its key goes nowhere else."""
        return model.partition(":")[0] == (self.settings.model or "").partition(":")[0]

    def _key(self, reference: str) -> str:
        """The key that a setting refers to; from now on it is known as a secret."""
        found = read_secret(reference)
        self.mask.learn(found)
        return found

    def _means(self, workspace: str | None) -> Resources:
        if self._workers is None:
            self._workers = WorkerThreads(THREADS, "kairos-tools")
        opener = None
        if workspace is not None:
            opener = self._opened.enter_context(Workspace(Path(workspace), private=self.settings.home))
        networked, judged = self._network_tools()
        folder = Path(workspace) if workspace is not None else None
        scopes = build_scopes(folder, self.settings) if folder is not None else None
        commands = CommandSettings.from_settings(self.settings)
        built_in = builtin_tools(
            opener,
            read_bytes=self.settings.read_bytes,
            scopes=scopes,
            commands=commands,
            skill_folders=self._shelves,
            redactor=self.mask,
        )
        internal = internal_tools(opener, self._store)
        registry = ToolRegistry([*built_in, *networked, *internal], self._elsewhere.sources(workspace))
        own, bases = (
            server_paths(self.settings),
            {f"mcp:{each.name}": base_folders(each, folder) for each in self.settings.servers},
        )
        paths = TouchedPaths(folder, scopes or Scopes(), own, bases)
        gate = Gate(self.settings.gate, (scopes or Scopes()).scope_of, judged, paths)
        return Resources(
            registry, gate, self._workers, self.settings.shown_chars, self.mask, workspace, self._approval_ms
        )

    @property
    def _approval_ms(self) -> int:
        return self.settings.approval_hours * 3_600_000

    @cached_property
    def _shelves(self) -> SkillFolders:
        """The skills, the same for every workspace."""
        return self._opened.enter_context(closing(SkillFolders(skill_folders(self.settings))))

    def _network_tools(self) -> tuple[list[Tool], Mapping[str, Default]]:
        """The tools that leave this machine, and how the gate judges those that it doesn't by their effect."""
        settings = self.settings
        if not settings.http_fetch and not settings.http_tools:
            return [], {}  # most houses have none, and don't import what it takes
        from kairos_mcp.tools.http.client import HttpClient
        from kairos_mcp.tools.http.fetch import classify_fetch

        egress = HttpClient(settings.http_hosts, settings.private_hosts)
        tools = network_tools(egress, settings.http_tools, self._key, with_fetch=settings.http_fetch)
        return tools, {"http_fetch": lambda arguments: classify_fetch(arguments, egress)}

    def _knows_tools(self, run: RunRow) -> bool:
        try:
            registry, thawed = self.registry(run.workspace), self.load_spec(run)
        except KairosError:
            return False  # its row is damaged, or its folder is gone: that must not stop other runs
        granted = [spec for spec in (*thawed.offered, *thawed.searchable) if spec.source != "caller"]
        return all(registry.can_resolve(spec.name) or (thawed.searches and spec.name == SEARCH) for spec in granted)

    def _text(self, content_hash: str, workspace: str | None, run: int) -> str:
        """A text of a run's spec; a damaged one from its source, if that is at hand. Raises Unreadable."""
        try:
            found = texts.read_text(self._store.reader, content_hash)
            trouble = None if found is not None else unreadable("text that a run refers to")
        except DamagedText as damaged:
            found, trouble = None, damaged
        if trouble is None:
            return found or ""
        rest = trouble.body if isinstance(trouble, DamagedText) else b""
        served = workspace if workspace is not None and Path(workspace) in self.settings.workspaces else None
        for body in rebuilt_texts.rebuilt_texts(self.settings, self.registry(served), served, rest):
            if sha256(body.encode()).hexdigest() == content_hash:
                self._mended[content_hash, run] = body
                return body
        raise trouble


def scripted_model(script: Script) -> Model:
    """The model that a script is: each completion takes the line that its step was marked with."""

    async def complete(asked: ModelInput) -> Completion | Failure:
        line = script.answer_for(asked.path, -1 if asked.sent.line is None else asked.sent.line, asked.step)
        await asyncio.sleep(line.delay_s)  # without a delay it still lets others run
        return line.answer

    return complete
