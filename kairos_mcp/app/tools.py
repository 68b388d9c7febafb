"""Find tools, list and show them, propose new ones, and record what a person decides about definitions from outside.

What an agent proposes is checked and stored, and not in use before approval. Only a person at this machine decides, by
the command `tools`: no tool of the server and no run may.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from difflib import unified_diff
from typing import TYPE_CHECKING, Literal

from kairos_mcp.app import proposals
from kairos_mcp.app.context import Operations
from kairos_mcp.app.proposals import PIN_CHARS
from kairos_mcp.app.start import find_idle_rules
from kairos_mcp.core.builtin_tools import LIST_FILES
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.effects import Effect
from kairos_mcp.core.errors import BadArguments, Denied, EgressDenied, KairosError, NotFound, UnknownTool
from kairos_mcp.core.hidden_text import make_visible
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.proposal import Proposal, load_proposal, parse_proposal
from kairos_mcp.settings.table_values import ServerSetting
from kairos_mcp.store.tool_pins import REGISTERED, DefinitionRow, DefinitionTable, list_registered
from kairos_mcp.tools.http.addresses import describe_local
from kairos_mcp.tools.registry import MAX_NOTES, NAMED_WAIT_S
from kairos_mcp.tools.tool import call_redacted

if TYPE_CHECKING:
    from kairos_mcp.tools.mcp_servers.source import ServerTrial

STDERR_CHARS = 2_000  # of what a server wrote that is shown
LISTED_PATHS = 1_000  # of a folder
LIST_PATHS_S = 2.0
CLIENT_CHARS = 60  # of a client's name, beside a proposal
DefinitionDecision = Literal["approved", "removed"]


@dataclass(frozen=True, slots=True)
class ToolSummary:
    """A tool in a list. `state`: `offered`; `new` or `changed`, which wait for a person; `registered`, for a server
    that a person has approved, so that its tools are offered."""

    name: str
    effect: str
    source: str
    category: str
    state: str
    address: str | None = None
    pin: str | None = None

    def as_json(self) -> JsonObject:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class PendingDefinition:
    """A definition from outside: its address SOURCE/NAME, the name of the tool it offers, and its row.

    `server_address`: the command line or URL of its server.
    """

    address: str
    offered_name: str
    row: DefinitionRow
    server_address: str | None = None

    @property
    def pin(self) -> str:
        return self.row.hash[:PIN_CHARS]

    @property
    def source(self) -> str:
        """The source of its tools, as a list of tools shows it."""
        if self.row.source != REGISTERED:
            return f"mcp:{self.row.source.partition('@')[0]}"
        return "http" if self._kind == "http_tool" else f"mcp:{self.row.name}"

    @property
    def is_server(self) -> bool:
        return self.row.source == REGISTERED and self._kind == "server"

    @property
    def _kind(self) -> str:
        return str(json.loads(self.row.body).get("kind"))


DecidedDefinitions = tuple[PendingDefinition, ...]


@dataclass(frozen=True, slots=True)
class ToolDetails:
    """All that is known of a tool: how it is offered, if it is, and its definitions, the approved one first.

    `diff`: from the approved definition, if there is one, to the pending one, line by line. `remarks`: what a
    registered definition would do, and what a reader might overlook in it.
    """

    name: str
    offered: JsonObject | None
    definitions: tuple[PendingDefinition, ...]
    diff: str
    remarks: tuple[str, ...] = ()

    def as_json(self) -> JsonObject:
        definitions = [
            {"address": each.address, "pin": each.pin, "hash": each.row.hash}
            | {"state": each.row.state, "by": each.row.by, "at": each.row.at}
            for each in self.definitions
        ]
        remarks = {"remarks": list(self.remarks)} if self.remarks else {}
        return {"name": self.name, "tool": self.offered, "definitions": definitions, "diff": self.diff} | remarks


class Tools(Operations):
    """Find, list and propose the tools that loops may call, and decide about definitions that wait for a person."""

    async def search(
        self, query: str | None, names: tuple[str, ...] | None, category: str | None, cursor: str | None
    ) -> JsonObject:
        """Return a page of the tools that match. Raises UnknownTool, BadArguments."""
        registry = await self._factory.ready_registry(self._factory.find_workspace(None), names or ("*",))
        if names:  # they are about to be called
            await asyncio.to_thread(registry.try_sources, names)
        starting = registry.starting_sources(names or ("*",))
        notes = [f"{', '.join(starting)}: not there yet; its tools are found once it is."] if starting else []
        found = registry.notes(names or ("*",))
        notes += found[:MAX_NOTES]
        if len(found) > MAX_NOTES:
            notes.append(f"{len(found) - MAX_NOTES} more notes: `kairos-mcp tools list`.")
        return registry.search(query, names, category, cursor).as_json() | ({"degraded": notes} if notes else {})

    async def list_names(self) -> list[str]:
        """Return the names of the tools that a run may be given. No server is started for it."""
        registry = await self._factory.registry(self._factory.find_workspace(None))
        return [spec.name for spec in registry.specs]

    async def list_paths(self, beginning: str) -> list[str]:
        """Return the files and folders of this server's first workspace in the folder that the beginning of a path
        names; none that a rule of the gate hides."""
        folder = beginning.rpartition("/")[0]
        workspace = self._factory.find_workspace(None)
        await self._factory.registry(workspace)
        resources = self._factory.resources(workspace)
        arguments: JsonObject = {"path": folder or ".", "limit": LISTED_PATHS}
        tool = resources.registry.find(LIST_FILES.name)
        if tool is None or resources.gate.judge(call := GatedCall(tool.spec, arguments)).decision != "allow":
            return []
        is_hidden = resources.gate.hidden_path_test(call)
        ctx = ToolContext("", time.monotonic() + LIST_PATHS_S, lambda _ref: None, is_hidden=is_hidden)
        try:
            result = await resources.workers.call(
                LIST_PATHS_S, lambda: call_redacted(self._factory.redactor, tool, arguments, ctx)
            )
        except TimeoutError:
            return []
        return [] if result.is_error else result.content.split("\n")[: result.data["shown"]]

    async def list_all(self) -> tuple[tuple[ToolSummary, ...], tuple[str, ...]]:
        """List every tool that could be offered, then the definitions that wait; also return the sources' notes."""
        workspace = self._factory.find_workspace(None)
        registry = await self._factory.ready_registry(workspace, ("*",), soon_s=NAMED_WAIT_S)  # a person has the time
        known = await self._pending_definitions()
        at = {each.offered_name: each for each in known if each.row.state == "approved"}
        lines: list[ToolSummary] = []
        for spec in registry.specs:
            defined = at.get(spec.name)
            binding = (None, None) if defined is None else (defined.address, defined.pin)
            source = spec.source.partition("#")[0]
            lines.append(ToolSummary(spec.name, spec.effect, source, spec.category, "offered", *binding))
        for each in known:
            if each.row.state == "pending":
                state = "changed" if each.offered_name in at else "new"
                lines.append(
                    ToolSummary(each.offered_name, "-", each.source, each.source, state, each.address, each.pin)
                )
            elif each.row.state == "approved" and each.is_server:
                lines.append(
                    ToolSummary(each.offered_name, "-", each.source, each.source, "registered", each.address, each.pin)
                )
        return tuple(lines), (*registry.notes(("*",)), *await self.unused_gate_rules())

    async def suggested_effects(self) -> tuple[dict[str, dict[str, Effect]], tuple[str, ...]]:
        """Return what the annotations of the configured servers' tools suggest, by server and tool; and why a server
        lists none. Starts the servers."""
        from kairos_mcp.tools.mcp_servers import suggested_effect

        _, notes = await self.list_all()
        found: dict[str, dict[str, Effect]] = {}
        for each in await self._pending_definitions():
            suggested = found.setdefault(each.source.removeprefix("mcp:"), {})
            if (effect := suggested_effect(each.row.body)) is not None:
                suggested[each.row.name] = effect
        missing = [server.name for server in self._settings.servers if server.name not in found]
        return found, tuple(note for note in notes if note.startswith(tuple(missing)))

    async def details(self, name: str) -> ToolDetails:
        """Return the details of a tool by its name, or of a definition by SOURCE/NAME. Raises UnknownTool."""
        known = await self._definitions_named(name)
        called = known[0].offered_name if known else name
        registry = await self._factory.ready_registry(self._factory.find_workspace(None), (called,))
        if not known:  # a server that was met only now
            known = await self._definitions_named(name)
            called = known[0].offered_name if known else name
        try:
            offered: JsonObject | None = registry.search(names=(called,)).as_json()["tools"][0]
        except UnknownTool:
            if not known:
                raise
            offered = None
        rank = ("approved", "pending", "removed")
        known.sort(key=lambda each: rank.index(each.row.state))
        return ToolDetails(called, offered, tuple(known), _format_diff(known), _list_remarks(known))

    async def decide(
        self, address: str, decision: DefinitionDecision, pin: str | None, caller: Caller
    ) -> tuple[PendingDefinition, ...]:
        """Approve the pending definition of this address, or remove the pending and approved ones; return which.

        `pin`, the beginning of its hash as it is listed, names one definition, whatever its state. Raises BadArguments,
        NotFound, EgressDenied, ApprovalRequired.
        """
        self._context.check_may_decide("registration", caller, "kairos-mcp tools list")
        by = caller.principal
        known = await self._definitions_named(address)
        if pin is not None and len(pin) < PIN_CHARS:
            raise BadArguments(f"A pin has at least {PIN_CHARS} characters.", "Copy it from `kairos-mcp tools list`.")
        states = ("pending",) if decision == "approved" else ("pending", "approved")
        if pin is not None:
            selected = [each for each in known if each.row.hash.startswith(pin) and each.row.state != decision]
        else:
            selected = [each for each in known if each.row.state in states]
        if not selected:
            nothing = "of that pin " if pin is not None else ""
            raise NotFound(
                f"No definition {nothing}waits under {address[:160]!r}.", "`kairos-mcp tools list` has them."
            )
        definitions, at = DefinitionTable(self._store), self._clock()
        for each in selected if decision == "approved" else ():
            if each.row.source == REGISTERED:  # what was free when it was proposed may be taken now
                await self._check_name_and_address(load_proposal(each.row.body))
        for each in selected:
            key = (each.row.source, each.row.name, each.row.hash)
            (definitions.approve if decision == "approved" else definitions.remove)(*key, by, at)
        return tuple(selected)

    async def propose(self, spec: JsonObject, caller: Caller) -> JsonObject:
        """Store a proposal until a person decides; the same one again changes nothing.

        Raises BadArguments, TooLarge, EgressDenied, ApprovalsFull; Denied for a definition that a person has removed.
        """
        self._context.require_writing("registry_register")
        made = parse_proposal(spec, self._factory.redactor)
        await self._check_name_and_address(made)
        client = " ".join(make_visible(caller.client[:CLIENT_CHARS])[0].split())
        by = f"{caller.principal} ({client})" if client else caller.principal
        definitions = DefinitionTable(self._store)
        state = await asyncio.to_thread(definitions.propose, made.name, made.hash, made.body, by, self._clock())
        if state == "removed":
            raise Denied("A person has removed this very definition.", "Go on without it, or propose another.")
        response: JsonObject = {"name": made.name, "kind": made.kind, "status": state, "pin": made.hash[:PIN_CHARS]}
        if state == "approved":
            how = made.name if made.kind == "http_tool" else f"{made.name}__*"
            return response | {"message": f"It is approved: registry_search and loops find it as {how}."}
        return response | {
            "message": "Nobody can call it yet: a person has to approve it on the command line of this machine, after "
            "looking at it. Show your user the two commands; no tool approves.",
            "show": self._command_for(proposals.proposal_command("show", made.name), caller),
            "approve": self._command_for(proposals.proposal_command("approve", made.name, made.hash), caller),
        }

    def _command_for(self, said: str, caller: Caller) -> str:
        """Make a command ready to paste, if the caller is the person who owns the state folder."""
        return self._context.command_line.complete(said) if caller.is_local else said

    async def _check_name_and_address(self, made: Proposal) -> None:
        """Check that a proposal's name is free, and that its address is allowed. Raises BadArguments, EgressDenied."""
        registry = await self._factory.registry(self._factory.find_workspace(None))
        taken = {spec.name for spec in registry.specs_without(REGISTERED)}
        taken |= proposals.reserved_tool_names() | {server.name for server in self._settings.servers}
        if made.kind == "server":  # its tools are called NAME__TOOL
            taken |= {name.partition("__")[0] for name in taken if "__" in name}
        if made.name in taken:
            raise BadArguments(f"There is a tool or a server {made.name!r} already.", "Propose it under another name.")
        url = made.address
        if url is None or any(rule.includes(url) for rule in self._settings.private_hosts):
            return
        if (what := describe_local(url)) is not None:
            listed = f'A person can list it in the settings: private_hosts = ["{url.host}:{url.port}"].'
            raise EgressDenied(f"{url.host} is not public, but {what}.", listed)

    async def try_servers(self, within_s: float) -> list[ServerTrial]:
        """Start each approved server once more and see whether it lists its tools; of what it wrote to stderr the last
        is kept, redacted before it is cut. Nothing of it is pinned or stored."""
        await self._factory.registry(self._factory.find_workspace(None))  # knows those that were registered
        trials = await asyncio.to_thread(self._factory.try_servers, within_s)
        redact = self._factory.redactor.redact_text
        return [replace(trial, stderr=redact(trial.stderr).text[-STDERR_CHARS:]) for trial in trials]

    async def source_notes(self) -> tuple[str, ...]:
        """Return the notes that the sources have made so far: no server is started."""
        registry = await self._factory.registry(self._factory.find_workspace(None))
        return (*registry.notes(("*",)), *await self.unused_gate_rules())

    async def list_waiting(self) -> list[PendingDefinition]:
        """Return the definitions that wait for a person's approval, as far as they are known; starts no server."""
        return [each for each in await self._pending_definitions() if each.row.state == "pending"]

    async def describe_waiting(self) -> list[JsonObject]:
        """Return the definitions that wait for a person, each with what it changes; starts no server."""
        known = await self._pending_definitions()
        described = []
        for each in (each for each in known if each.row.state == "pending"):
            same = [other for other in known if other.address == each.address and (other is each or _counts(other))]
            described.append(
                {
                    "address": each.address,
                    "name": each.offered_name,
                    "source": each.source,
                    "state": "changed" if any(map(_counts, same)) else "new",
                    "pin": each.pin,
                    "hash": each.row.hash,
                    "by": each.row.by,
                    "at": each.row.at,
                    "diff": _format_diff(same),
                    "remarks": list(_list_remarks(same)),
                }
            )
        return described

    async def unused_gate_rules(self) -> tuple[str, ...]:
        """Return the gate's rules that match no tool known so far, as sentences; starts no server.

        A server that was never connected may have any tool whose name begins with its own.
        """
        if not self._settings.gate:
            return ()
        registry = await self._factory.registry(self._factory.find_workspace(None))
        defined = await self._pending_definitions()
        unmet = (*registry.unknown_sources, *(each.row.name for each in defined if each.is_server))
        names = (*registry.names, *(each.offered_name for each in defined))
        return await find_idle_rules(self._context, registry, names, unmet)

    async def _definitions_named(self, name: str) -> list[PendingDefinition]:
        return [each for each in await self._pending_definitions() if name in (each.offered_name, each.address)]

    async def _pending_definitions(self) -> list[PendingDefinition]:
        """Return what was registered, then the definitions of the configured and registered servers, by name."""
        found: list[PendingDefinition] = []
        if self._settings.servers or self._store.exists:
            for row in await self._store.read(list_registered):
                found.append(PendingDefinition(proposals.definition_address(row.name), row.name, row))
        servers = self._known_servers(found)
        if not servers:
            return found
        from kairos_mcp.tools.mcp_servers import offered_name_of, pin_source

        definitions = DefinitionTable(self._store)
        for setting in servers:
            for row in definitions.read_source(pin_source(setting)) or ():
                found.append(
                    PendingDefinition(f"{setting.name}/{row.name}", offered_name_of(row), row, _server_address(setting))
                )
        return found

    def _known_servers(self, registrations: Sequence[PendingDefinition]) -> list[ServerSetting]:
        """Return the configured servers, then the registered ones that are approved."""
        servers = list(self._settings.servers)
        for each in registrations:
            if each.row.state == "approved" and each.is_server:
                try:
                    servers.append(load_proposal(each.row.body).server)
                except KairosError:
                    continue  # another version's row: the registry's notes name it
        return servers


def _counts(definition: PendingDefinition) -> bool:
    return definition.row.state == "approved"


def _server_address(setting: ServerSetting) -> str:
    """Describe how a server is reached, with the names of its variables and headers."""
    given = ", ".join(name for name, _ in (*setting.env, *setting.headers))
    where = setting.url or shlex.join(setting.command)
    return make_visible(where + (f", in {setting.cwd}" if setting.cwd else "") + (f", with {given}" if given else ""))[
        0
    ]


def _list_remarks(known: Sequence[PendingDefinition]) -> tuple[str, ...]:
    shown = next((each for each in known if each.row.state == "pending"), None)
    if shown is not None and shown.server_address is not None:
        return (f"Its server is {shown.server_address}.",)
    shown = shown or next((each for each in known if each.row.state == "approved"), None)
    if shown is None or shown.row.source != REGISTERED:
        return ()
    try:
        remarks = proposals.describe_proposal(load_proposal(shown.row.body))
    except KairosError as error:
        remarks = (f"It can't be used: {error.message}",)
    return (*remarks, *make_visible("\n".join(_format_body(shown.row.body)))[1])


def _format_diff(known: Sequence[PendingDefinition]) -> str:
    """Show what a person is asked to approve: the pending definition against the approved one, or all of it."""
    waiting = next((each for each in known if each.row.state == "pending"), None)
    if waiting is None:
        return ""
    counts = next((each for each in known if each.row.state == "approved"), None)
    before = [] if counts is None else _format_body(counts.row.body)
    return "\n".join(unified_diff(before, _format_body(waiting.row.body), "approved", "waiting", n=2, lineterm=""))


def _format_body(body: str) -> list[str]:
    return json.dumps(json.loads(body), indent=2, sort_keys=True, ensure_ascii=True).splitlines()
