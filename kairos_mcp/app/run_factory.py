"""Build what a run is performed with from its stored spec: the tools of its workspace, its models, its executor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_mcp import __version__
from kairos_mcp.app.run_models import RunModels
from kairos_mcp.app.served_runs import describe_served_runs, missing_settings
from kairos_mcp.app.stored_specs import StoredSpecs
from kairos_mcp.core.builtin_tools import HTTP_FETCH, STAGE_TOOLS, SUBMIT_CHANGES
from kairos_mcp.core.errors import BadArguments, ConfigError, KairosError, Stale, StoreUnavailable
from kairos_mcp.core.flow import Finding, Row
from kairos_mcp.core.messages import SEARCH, ToolSet, ToolSpec, canonical_json
from kairos_mcp.core.paths import Scopes
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.routes import RouteName
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.tool import Tool
from kairos_mcp.execution.accounting import KnownCosts
from kairos_mcp.execution.authorization import find_earlier_approval
from kairos_mcp.execution.executor import StepExecutor
from kairos_mcp.execution.flow_view import FlowPolicy, FlowView
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.execution.tool_access import ToolAccess
from kairos_mcp.execution.tool_caller import Resources, ToolCaller
from kairos_mcp.execution.worker_threads import WorkerThreads
from kairos_mcp.gate import Default, Gate
from kairos_mcp.settings.folders import run_skill_folders, skill_folders
from kairos_mcp.settings.secret_refs import read_secret
from kairos_mcp.settings.settings import Settings, StageMode
from kairos_mcp.specs import build
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.specs.load import LoadedSpec, LoadedTeam
from kairos_mcp.specs.opening_rows import has_material, opening_rows
from kairos_mcp.specs.stage import NO_STAGE, StageChoice
from kairos_mcp.store import queries, tool_intents
from kairos_mcp.store.approvals import ApprovalRequest, ReusedApproval, approved_findings
from kairos_mcp.store.database import NO_ROOM, Store, disk_is_full
from kairos_mcp.store.foreign_files import ForeignFile, list_files
from kairos_mcp.store.ownership import ServedRuns
from kairos_mcp.store.page_files import find_page_ports
from kairos_mcp.store.queries import RunRow, StepRow, read_steps_since
from kairos_mcp.store.rows import Session, decode, read_text, unreadable
from kairos_mcp.tools import CommandSettings, SkillFolders, builtin_tools, network_tools
from kairos_mcp.tools.commands.protected_paths import ProtectionRules
from kairos_mcp.tools.commands.run_command import command_namer
from kairos_mcp.tools.commands.workspace_lock import remove_leftovers
from kairos_mcp.tools.files.content_hash import keyed_hash
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.files.safe_open import FOLDER
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.files.workspace_scopes import build_scopes, server_paths
from kairos_mcp.tools.mandate_tools import check_file_tool, read_mandate_tool
from kairos_mcp.tools.registry import DEFAULT_WAIT_S, ToolRegistry
from kairos_mcp.tools.sources import ToolSources
from kairos_mcp.tools.team_tools import plan_problem_tool
from kairos_mcp.tools.touched_paths import TouchedPaths, base_folders

if TYPE_CHECKING:
    from kairos_mcp.app.run_tracing import RunTracing
    from kairos_mcp.app.stages import Stages
    from kairos_mcp.tools.mcp_servers.source import McpServerSource, ServerTrial
    from kairos_mcp.tools.stage.staged_tools import StagedTools


THREADS = 10  # for tool calls that run in parallel
COMMAND_WAIT_S = 55  # for servers that a person's command starts; a first start by npx or uvx downloads
SLOW_S = 1.0  # after which a person is shown what the program waits for


class RunFactory:
    """The parts that runs share in this server, each made at first use and closed at the end."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings = settings
        self._store = store
        self._exit_stack = ExitStack()
        self._workers: WorkerThreads | None = None
        self._edit_rules: dict[str, EditRules] = {}  # by workspace
        self._known_costs = KnownCosts(store)
        self._content_key = b""  # of a run there is one: see `read_content_key`
        self._stages: Stages | None = None
        self.redactor = Redactor.from_environ(os.environ)
        self.tracing = self._make_tracing() if settings.telemetry else None
        trace_of = None if self.tracing is None else self.tracing.context_of_call
        self._tool_sources = ToolSources(
            settings,
            store,
            self._read_key,
            self.redactor,
            trace_of,
            lambda workspace: self.resources(workspace).gate.unreadable_file_test(),
        )
        self.resources = cache(self._make_resources)  # one tool registry and one open folder for each workspace
        self.on_slow_start: Callable[[tuple[str, ...]], None] | None = None  # set where a person waits
        self.specs = StoredSpecs(settings, store, self._find_tools)
        self.models = RunModels(settings, self.redactor, self._read_key, self.tracing)

    def _make_tracing(self) -> RunTracing:
        """Make the telemetry of this server's runs. Raises ConfigError where it can't be had."""
        from kairos_mcp.app.run_tracing import RunTracing  # what it needs may not be installed

        return RunTracing(self.settings, self._store, self.redactor)

    def find_workspace(self, name: str | None) -> str | None:
        """Return the configured folder of this path, or of this name if it is unambiguous; None: the first.

        Raises BadArguments.
        """
        known = self.settings.workspaces
        if name is None:
            return str(known[0]) if known else None
        found = [path for path in known if name in (str(path), path.name) or os.path.realpath(name) == str(path)]
        if len(found) != 1:
            names = ", ".join(path.name for path in known) or "none"
            raise BadArguments("This workspace is not configured.", f"Configured: {names}.")
        return str(found[0])

    def find_server(self, workspace: str | None, name: str) -> McpServerSource:
        """Return a configured server, as runs in this workspace have it. Raises ConfigError."""
        self.resources(workspace)
        server = self._tool_sources.find_server(workspace, name)
        if server is None:
            raise ConfigError(f"There is no server {name!r} in the settings.", "Name one of [servers.NAME].")
        return server

    def try_servers(self, within_s: float) -> list[ServerTrial]:
        """Start each configured server once more, as for a run in the first workspace; blocks."""
        return self._tool_sources.try_servers(self.find_workspace(None), within_s)

    async def registry(self, workspace: str | None) -> ToolRegistry:
        """Return the tools of this moment: what a person approved or removed by a command counts at once."""
        registry = self.resources(workspace).registry
        await self._tool_sources.refresh()
        return registry

    async def ready_registry(
        self,
        workspace: str | None,
        globs: Sequence[str] | None,
        named: Sequence[str] = (),
        *,
        soon_s: float = DEFAULT_WAIT_S,
    ) -> ToolRegistry:
        """Return the registry once the sources that the globs and names may refer to have listed their tools.

        It waits half a minute at most where a source is named, else `soon_s` seconds. A person's command, which starts
        them anew each time, waits longer for each, and `on_slow_start` is called with the names of the slow ones.
        """
        registry = await self.registry(workspace)
        if registry.must_wait_for(globs) or registry.must_wait_for(named):
            if self.on_slow_start is not None:
                soon_s = max(soon_s, COMMAND_WAIT_S)
            reporting = asyncio.get_running_loop().call_later(SLOW_S, self._report_slow_start, registry)
            try:
                await asyncio.to_thread(registry.wait_ready, globs, named, soon_s=soon_s)
            finally:
                reporting.cancel()
        return registry

    def _report_slow_start(self, registry: ToolRegistry) -> None:
        names = registry.starting_sources(("*",))
        if self.on_slow_start is not None and names:
            self.on_slow_start(names)

    async def can_perform(self, run: RunRow, *, by_hand: bool = False) -> bool:
        """Whether this process can go on with a run by itself. A person's command (`by_hand`) may use the run's own
        workspace."""
        missing = missing_settings(run, self._serves, by_hand=by_hand)
        return not any(missing) and await self._knows_tools(run)

    async def missing_requirements(self, run: RunRow, *, by_hand: bool = False) -> tuple[str, ...]:
        """Return what a run needs and this process lacks: its flow's version, its route, its workspace, its tools."""
        missing = tuple(missing_settings(run, self._serves, by_hand=by_hand))
        # The tools are looked for only in a folder that is served here: it is opened for that.
        if not self.has_folder(run, by_hand=by_hand) or await self._knows_tools(run):
            return missing
        return (*missing, "the tools that it was given")

    def has_folder(self, run: RunRow, *, by_hand: bool = False) -> bool:
        """Whether the run's workspace is one of this server's, or it has none. A person's command (`by_hand`) may use
        any of its machine."""
        if not run.workspace:
            return True
        return self.is_at(run.place) and (by_hand or run.workspace in map(str, self.settings.workspaces))

    def is_at(self, place: str | None) -> bool:
        """Whether the folders of this place are here; None: of any."""
        return place in (None, self.settings.place)

    @cached_property
    def _serves(self) -> ServedRuns:
        return describe_served_runs(self.settings)

    async def available_routes(self, run: RunRow, *, samples: bool) -> tuple[RouteName, ...]:
        """Return the routes that this run could take here, with this client."""
        return build.available_routes(self.settings, samples=samples, of_run=await self.specs.load(run))

    def check_version(self, run: RunRow) -> None:
        """Raise Stale for a run whose flow has changed since: its rows are readable, but it can't go on."""
        known = kind_of(run.flow).specs.version
        if known != run.version:
            raise Stale(
                f"The run is of version {run.version} of the flow {run.flow}; this program has version {known}.",
                f'planner_run continues="{run.id}" goes on from it.',
                run_id=run.id,
            )

    async def read_content_key(self) -> None:
        """Read the store's key, with which contents of files are hashed for whoever sees the hashes: before a run.
        Raises KairosError where the state folder can't be read."""
        if not self._content_key:
            try:
                self._content_key = await self._store.sealing_key()
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise disk_is_full() from error
                text = f"The key of the state folder can't be read: {error.strerror}."
                raise StoreUnavailable(
                    text, "Call again; if it stays, `kairos-mcp doctor` says what is wrong."
                ) from error

    async def read_known_costs(self, principal: str) -> None:
        """Read what requests of a principal's runs cost, where this server has a provider: before a run."""
        if self.settings.model is not None:
            await self._known_costs.read(principal)

    async def new_state(self, run: RunRow) -> RunState:
        """Make the in-memory state of a run; its flow is not replayed yet."""
        await self.read_content_key()
        await self.read_known_costs(run.principal)
        loaded = await self.specs.load(run)
        await self._tool_sources.refresh()  # so that what was registered since counts here too
        state = self.make_state(run, loaded)
        self.bind_state(state, run, loaded)
        return state

    def make_state(self, run: RunRow, loaded: LoadedSpec) -> RunState:
        """Make the state of a run with the tools that are known by now; it reads no rows before it is bound to them."""
        resources, spec, models = self.resources(run.workspace), loaded.spec, self.models.make(run, loaded)
        tool_access = ToolAccess(
            loaded.offered_tools,
            resources.registry,
            resources.gate,
            loaded.searchable_tools,
            spec.mandate,
            spec.search_scope,
            None if loaded.team is None else _tools_by_agent(loaded.team, loaded),
            workspace=run.workspace,
            flow=self._flow_policy,
            has_material=has_material(spec),
            stage=self._make_stage(run, spec) if spec.staged and run.workspace is not None else None,
        )
        executor = StepExecutor(
            tool_access,
            ToolCaller(run.id, tool_access, resources, lambda _ref: None),
            models.by_route,
            spec.model,
            paid_models=models.paid,
            dialects=models.dialects,
            agent_models=models.by_agent,
            temperature=spec.temperature,
            grants_rounds=bool(spec.grants_rounds),
            most_rounds=self.settings.limits.rounds,
            most_caps=self.settings.limits,
            question_ms=self.settings.approval_hours * 3_600_000,
            known_costs=self._known_costs.of(run.principal),
            request_form=canonical_json([__version__, self.settings.base_url, spec.dialect or self.settings.dialect]),
        )
        if loaded.script:
            executor.unscripted_paths = frozenset(loaded.script.by_path)
        return RunState(run, executor, loaded.flow, spec.agent)

    def bind_state(self, state: RunState, run: RunRow, loaded: LoadedSpec) -> None:
        """Have a state read the rows of its run, which exists by now."""
        self.specs.keep(run, loaded)
        state.run, tool_caller = run, state.executor.tool_caller
        assert isinstance(tool_caller, ToolCaller), "as `make_state` made it"
        tool_caller.read_text = partial(self._read_full_text, run.n)
        tool_caller.find_approval = partial(self._find_approval, run, loaded.spec.mandate_text)
        tool_caller.flow_view = self.make_flow_view(run, loaded)

    @cached_property
    def _flow_policy(self) -> FlowPolicy:
        flow = self.settings.flow
        hosts = (*flow.hosts, *self.settings.http_hosts)
        return FlowPolicy.from_settings(flow.mode, flow.wish, hosts, flow.foreign)

    def make_flow_view(self, run: RunRow, loaded: LoadedSpec) -> FlowView:
        """Make the view that the calls of a run are judged by; it reads rows once one is judged."""

        def find_spec(name: str) -> ToolSpec | None:
            return loaded.offered_tools.find(name) or loaded.searchable_tools.find(name)

        def read_opening() -> Sequence[Row]:
            with self._store.read_session() as session:
                return opening_rows(loaded.spec, partial(_stored_text, session))

        def read_steps(last: int, unanswered: Collection[int]) -> Sequence[StepRow]:
            with self._store.read_session() as session:
                return read_steps_since(session, run.n, last, unanswered)

        def read_approved() -> Mapping[str, Sequence[Finding]]:
            with self._store.read_session() as session:
                return approved_findings(session, run.n)

        def read_files() -> Sequence[ForeignFile]:
            if run.workspace is None:
                return ()
            with self._store.read_session() as session:
                return list_files(session, run.workspace)

        return FlowView(self._flow_policy, find_spec, read_opening, read_steps, read_approved, read_files)

    @property
    def stages(self) -> Stages:
        """The stages of runs, made at the first that may have one: most servers need no part of it."""
        from kairos_mcp.app.stages import Stages

        if self._stages is None:
            self._stages = Stages(self.settings, self._store)
        return self._stages

    async def choose_stage(
        self, asked: StageMode | None, workspace: str | None, continues: str | None = None
    ) -> StageChoice:
        """Say whether a run is to work in a stage. `asked`: by its start; None: what the settings say. `continues`: the
        run whose stage it takes over."""
        mode = self.settings.stage if asked is None else asked
        return NO_STAGE if mode is False else await self.stages.choose(mode, workspace, continues)

    def _make_stage(self, run: RunRow, spec: Spec) -> StagedTools:
        assert run.workspace is not None, "as a run has that works in a stage"
        self.resources(run.workspace)  # which opens it
        before = spec.continues if spec.stage_of is not None else None
        read = partial(self._read_inherited_notes, before)
        rules = self._edit_rules[run.workspace]
        return self.stages.make_tools(run.id, spec.stage_of or run.id, rules, before, read)

    def _read_inherited_notes(self, run_id: str | None) -> list[str]:
        """Return what the runs noted of a stage that had it before, oldest first. Called in a tool's thread."""
        notes: list[str] = []
        with self._store.read_session() as session:
            while run_id is not None:
                run = queries.run_by_id(session, run_id)
                notes[:0] = tool_intents.recall_stage_notes(session, run.n)
                spec: Spec = decode(Spec, run.spec)
                run_id = spec.continues if spec.stage_of is not None else None
        return notes

    def _read_full_text(self, run: int, ref: str) -> str | None:
        with self._store.read_session() as session:
            return self._store.read_full_text(session, run, ref)

    async def _find_approval(
        self, run: RunRow, mandate_text: str | None, path: str, request: ApprovalRequest
    ) -> ReusedApproval | None:
        return await self._store.read(lambda session: find_earlier_approval(session, run, mandate_text, path, request))

    async def close(self) -> None:
        await self.models.close()
        if self._stages is not None:
            await asyncio.to_thread(self._stages.close)
        if self._workers is not None:
            self._workers.close()
        await asyncio.to_thread(self._tool_sources.close)
        self._exit_stack.close()

    def _read_key(self, reference: str) -> str:
        """Read the key that a setting refers to; from now on it is redacted as a secret."""
        key = read_secret(reference)
        self.redactor.learn(key)
        return key

    def _make_resources(self, workspace: str | None) -> Resources:
        if self._workers is None:
            self._workers = WorkerThreads(THREADS, "kairos-tools")
        networked, gate_defaults = self._network_tools()
        read_bytes, hash_content = self.settings.read_bytes, keyed_hash(lambda: self._content_key)
        folder, opened, scopes = None, None, None
        if workspace is not None:
            folder = Path(workspace)
            opened = self._exit_stack.enter_context(Workspace(folder, private=self.settings.home))
            scopes = build_scopes(folder, self.settings)
            _remove_leftovers(opened, scopes)
            self._edit_rules[workspace] = EditRules(opened, scopes, read_bytes, self.redactor, hash_content)
        commands = CommandSettings.from_settings(self.settings)
        built_in = builtin_tools(
            opened,
            read_bytes=read_bytes,
            scopes=scopes,
            commands=commands,
            skill_folders=self._run_skill_folders,
            redactor=self.redactor,
            hash_content=hash_content,
        )
        internal = [read_mandate_tool(self._store), plan_problem_tool()]
        internal += [] if opened is None else [check_file_tool(opened, self.redactor)]
        read_only = self.settings.read_only
        sources = self._tool_sources.sources(workspace)
        registry = ToolRegistry([*built_in, *networked, *internal], sources, read_only=read_only)
        bases = {f"mcp:{server.name}": base_folders(server, folder) for server in self.settings.servers}
        paths = TouchedPaths(folder, scopes or Scopes(), server_paths(self.settings), bases)
        programs = None if folder is None else command_namer(folder, commands)
        scope_of = (scopes or Scopes()).scope_of
        gate = Gate(
            *(self.settings.gate, scope_of, gate_defaults, paths, programs),
            read_only=read_only,
            sees_flow=self.settings.flow.mode != "off",
        )
        return Resources(
            registry,
            gate,
            self._workers,
            self.settings.shown_chars,
            self.redactor,
            workspace,
            self.settings.approval_hours * 3_600_000,
            commands.mode != "bare",
            lambda: self._content_key,
        )

    @cached_property
    def skill_folders(self) -> SkillFolders:
        """The skills for clients, the same for every workspace."""
        return self._exit_stack.enter_context(closing(SkillFolders(skill_folders(self.settings))))

    @cached_property
    def _run_skill_folders(self) -> SkillFolders:
        return self._exit_stack.enter_context(closing(SkillFolders(run_skill_folders(self.settings))))

    def _network_tools(self) -> tuple[list[Tool], Mapping[str, Default]]:
        """Return the tools that use the network, and how the gate judges those whose effect depends on arguments."""
        settings = self.settings
        if not settings.http_fetch and not settings.http_tools:
            return [], {}  # most servers have none, and need not import the HTTP client
        from kairos_mcp.tools.http.client import HttpClient
        from kairos_mcp.tools.http.fetch import classify_fetch

        ports = partial(find_page_ports, settings.home)
        client = HttpClient(settings.http_hosts, settings.private_hosts, page_ports=ports)
        tools = network_tools(client, settings.http_tools, self._read_key, with_fetch=settings.http_fetch)
        return tools, {HTTP_FETCH.name: lambda arguments: classify_fetch(arguments, client)}

    async def _find_tools(self, run: RunRow) -> tuple[str | None, ToolRegistry]:
        """Return a run's folder, if it is served here, and the tools that there are in it."""
        served = run.workspace if self.has_folder(run) else None
        return served, await self.registry(served)

    async def _knows_tools(self, run: RunRow) -> bool:
        try:
            registry, loaded = await self.registry(run.workspace), await self.specs.load(run)
        except KairosError:
            return False  # its row is damaged, or its folder is gone: that must not stop other runs
        granted = [spec.name for spec in (*loaded.offered_tools, *loaded.searchable_tools) if not spec.is_caller_tool]
        own = {*([SEARCH] if loaded.searches else []), *(STAGE_TOOLS if loaded.spec.staged else ())}
        return registry.can_resolve([name for name in granted if name not in own])


def _stored_text(session: Session, content_hash: str) -> str:
    if (text := read_text(session, content_hash)) is None:
        raise unreadable("text")
    return text


def _remove_leftovers(workspace: Workspace, scopes: Scopes) -> None:
    """Remove the empty folders that earlier versions may have left at protected names."""
    root = workspace.open_fd(".", FOLDER)
    try:
        remove_leftovers(root, ProtectionRules.from_scopes(scopes).names)
    finally:
        os.close(root)


def _tools_by_agent(team: LoadedTeam, loaded: LoadedSpec) -> dict[str, ToolSet]:
    """Return the tools of each agent of a team, and those of its own steps by an empty name: what its stage holds is
    submitted by no task."""
    tools = {each.name: each.tools for each in team.team_input.agents.values()}
    submit = loaded.offered_tools.find(SUBMIT_CHANGES.name)
    return tools if submit is None else {"": ToolSet([submit]), **tools}
