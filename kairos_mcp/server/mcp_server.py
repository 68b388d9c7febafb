"""The MCP server, whatever the transport: what it says of itself, which tools it lists, where a call goes."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as wire
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError

from kairos_mcp import __version__
from kairos_mcp.core.effects import WRITING_TOOLS
from kairos_mcp.core.errors import ConfigError, KairosError
from kairos_mcp.server.annotations import annotate_tool
from kairos_mcp.server.apps import EXTENSION as APPS
from kairos_mcp.server.apps import shows_apps, with_app
from kairos_mcp.server.call import DEFAULT_WAIT_POLICY, LISTEN, TASKS_EXTENSION, WaitPolicy
from kairos_mcp.server.claude_code import is_claude_code, without_meta
from kairos_mcp.server.client_sessions import ClientSessions, ServePage, serve_sessions
from kairos_mcp.server.event_protocol import PlainError
from kairos_mcp.server.features import Features, cursor_of
from kairos_mcp.server.request_state import RequestStateSealer
from kairos_mcp.settings.folders import has_own_agents
from kairos_mcp.telemetry import start_telemetry

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
    from mcp_types.methods import CacheableMethod

    from kairos_mcp.app.app import App
    from kairos_mcp.core.redaction import Redactor
    from kairos_mcp.server.task_methods import TaskMethods
    from kairos_mcp.settings.settings import Settings

log = logging.getLogger(__name__)

LISTING = Path(__file__).with_name("listing.json")  # made from tools.py ahead of time; a test fails when it is stale
LEAN = ("planner_run", "run_status", "run_continue")
CORE = (
    *("planner_run", "team_run", "ooda_run", "mandate_save", "run_status", "run_continue"),
    *("run_control", "run_trace", "registry_search", "budget_status"),
)
FIXED: tuple[CacheableMethod, ...] = ("tools/list", "resources/templates/list", "prompts/list")
LISTING_TTL_MS = 300_000  # these change only with the process; a client may keep them for five minutes
NOT_REPEATED = "The request was refused. It held a secret, so nothing of it is repeated here. Call again without it."
DESCRIPTION = "The agent loop for any MCP host: planned, bounded, crash-safe, replayable."
WEBSITE = "https://github.com/kairos-mcp/kairos-mcp"  # of the namespace under which server.json names the server
_SVG = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#2a7" stroke-width="3">'
    b'<path d="M19 7a9 9 0 1 0 2 5M12 7v5l4 2"/></svg>'
)
ICON = wire.Icon(  # no address, since a host may be offline; short, since it comes with every answer
    src=f"data:image/svg+xml;base64,{b64encode(_SVG).decode()}", mime_type="image/svg+xml", sizes=["any"]
)
_TOOL_NAME = re.compile(r"[a-z]+(?:_[a-z]+)+")


def build_server(
    get_app: Callable[[], Awaitable[App]],
    settings: Settings,
    policy: WaitPolicy = DEFAULT_WAIT_POLICY,
    serve_page: ServePage | None = None,
) -> Server[ClientSessions]:
    """Build a server on an app that is opened at the first call: a client that only lists the tools does not wait for
    it. One server may serve many connections, in every protocol era. `serve_page`: for a question that needs it."""
    chosen = list_tools(settings.tools, read_only=settings.read_only)
    annotated = [annotate_tool(tool, settings) for tool in chosen.tools]
    for_claude_code = wire.ListToolsResult(tools=annotated, cache_scope="private")
    listing = without_meta(for_claude_code)
    schemas = {tool.name: tool.input_schema for tool in listing.tools}

    async def on_list_tools(
        ctx: ServerRequestContext[Any], params: wire.PaginatedRequestParams | None
    ) -> wire.ListToolsResult:
        if cursor_of(params) is not None:
            raise MCPError(wire.INVALID_PARAMS, "The list of tools has one page. List again without a cursor.")
        sent = for_claude_code if is_claude_code(ctx) else listing
        return with_app(sent) if shows_apps(ctx) else sent

    async def on_call_tool(ctx: ServerRequestContext[Any], params: wire.CallToolRequestParams) -> HandlerResult:
        from kairos_mcp.server.dispatch import dispatch

        return await dispatch(ctx, params, get_app, policy)

    features = Features(get_app, schemas)
    server = _Server(
        "kairos-mcp",
        version=__version__,
        title="Kairos",
        description=DESCRIPTION,
        website_url=WEBSITE,
        icons=[ICON],
        instructions=instructions(settings, listing),
        cache_hints={method: CacheHint(ttl_ms=LISTING_TTL_MS, scope="public") for method in FIXED},
        get_tool_input_schema=schemas.get,
        lifespan=partial(serve_sessions, serve_page=serve_page),
        on_list_tools=on_list_tools,
        on_list_resources=features.list_resources,
        on_read_resource=features.read_resource,
        on_list_resource_templates=features.list_resource_templates,
        on_subscribe_resource=features.subscribe,
        on_unsubscribe_resource=features.unsubscribe,
        on_subscriptions_listen=features.listen,
        on_list_prompts=features.list_prompts,
        on_get_prompt=features.get_prompt,
        on_completion=features.complete,
    )
    features.add_skills(server)
    features.add_events(server)
    server.extensions[APPS] = {}
    server.add_request_handler("tools/call", wire.CallToolRequestParams, on_call_tool)
    server.add_request_handler("logging/setLevel", wire.SetLevelRequestParams, features.set_level)
    _add_tasks(server, get_app, policy)
    state_s = settings.approval_hours * 3600.0 if policy.state_s is None else policy.state_s

    async def read_key() -> bytes:
        return await (await get_app()).sealing_key()

    server.middleware.append(RequestStateSealer(read_key, state_s))
    server.middleware.insert(1, _error_redaction(get_app))  # behind the SDK's own, for spans
    if settings.telemetry and not settings.telemetry_content:
        from kairos_mcp.server.request_spans import KnownNames

        known = [tool.name for tool in list_tools("all").tools]  # one that is not listed may still be called
        server.middleware[0] = KnownNames(server, server.middleware[0], known)  # the SDK's own, for spans
    return server


class _Server(Server[ClientSessions]):
    """The SDK's server, which says in every era that its list of resources changes, and its tools and prompts do not:
    from 2026-07-28 on the SDK would say it of all three."""

    @cached_property
    def server_info_stamp(self) -> dict[str, Any]:
        """What each result says of this server. The SDK copies it for each, icons and all; nothing here changes it."""
        return super().server_info_stamp

    def get_capabilities(self, *given: Any, **named: Any) -> wire.ServerCapabilities:
        capabilities = super().get_capabilities(*given, **named)
        for fixed in (capabilities.tools, capabilities.prompts):
            if fixed is not None:
                fixed.list_changed = False
        return capabilities

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *others: Any, **named: Any
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(resources_changed=True)
        return super().create_initialization_options(options, *others, **named)


class TaskParams(wire.RequestParams):
    """Which task a request is about."""

    task_id: str


class UpdateTaskParams(TaskParams):
    """Responses to what a task asks of its client; each is looked at only if its key is known."""

    input_responses: dict[str, Any]


def _add_tasks(server: Server[ClientSessions], get_app: Callable[[], Awaitable[App]], policy: WaitPolicy) -> None:
    """Serve the extension for tasks: its methods, and its notifications."""

    def methods() -> TaskMethods:
        from kairos_mcp.server.task_methods import TaskMethods

        return TaskMethods(get_app, policy)

    async def on_get(ctx: ServerRequestContext[Any], params: TaskParams) -> HandlerResult:
        return await methods().get(ctx, params.task_id)

    async def on_update(ctx: ServerRequestContext[Any], params: UpdateTaskParams) -> HandlerResult:
        return await methods().update(ctx, params.task_id, params.input_responses)

    async def on_cancel(ctx: ServerRequestContext[Any], params: TaskParams) -> HandlerResult:
        return await methods().cancel(ctx, params.task_id)

    async def subscribe(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware: serves the tasks of a subscription; what else it asks for has a handler of its own."""
        match ctx.params:
            case {"notifications": {"taskIds": [*ids]}} if ctx.method == LISTEN:
                return await methods().listen(ctx, call_next, [*map(str, ids)])
            case _:
                return await call_next(ctx)

    server.extensions[TASKS_EXTENSION] = {}
    server.add_request_handler("tasks/get", TaskParams, on_get)
    server.add_request_handler("tasks/update", UpdateTaskParams, on_update)
    server.add_request_handler("tasks/cancel", TaskParams, on_cancel)
    server.middleware.append(subscribe)


def _error_redaction(get_app: Callable[[], Awaitable[App]]) -> ServerMiddleware[Any]:
    """Make a middleware that takes secrets out of errors, which repeat what a client sent.

    A part may be cut already, and half a secret is found by no search. So of a request that held one nothing is
    repeated.
    """

    async def redact(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        try:
            return await call_next(ctx)
        except MCPError as raised:
            error = raised.error
            if isinstance(raised, PlainError):
                raise
            if error.code == wire.METHOD_NOT_FOUND:  # hosts try what a server knows: that opens no app
                raise MCPError(error.code, "Method not found") from None
            from kairos_mcp.app.redact_aside import redact_aside

            redactor = await _find_redactor(get_app)
            _, secrets = await redact_aside(redactor.redact_json, dict(ctx.params or {}))
            if secrets:
                code = {"code": error.data["code"]} if isinstance(error.data, dict) and "code" in error.data else None
                raise MCPError(error.code, NOT_REPEATED, code) from None
            plain, data = redactor.redact_text(error.message).text, redactor.redact_json(error.data)[0]
            raise MCPError(error.code, plain, data) from None

    return redact


async def _find_redactor(get_app: Callable[[], Awaitable[App]]) -> Redactor:
    """Find the app's redactor, which knows more than the environment; that one is taken if the app can't be opened."""
    from kairos_mcp.core.redaction import Redactor

    try:
        return (await get_app()).redactor
    except KairosError:
        return Redactor.from_environ(os.environ)


def list_tools(choice: str, *, read_only: bool = False) -> wire.ListToolsResult:
    """The tools of `--tools`: lean, core, all, or names separated by commas; always in the table's order, and with the
    `_meta` for Claude Code. `read_only`: without those that such a server does not have. Raises ConfigError."""
    listing = wire.ListToolsResult.model_validate_json(LISTING.read_bytes())
    known = tuple(tool.name for tool in listing.tools)
    names = {"lean": LEAN, "core": CORE, "all": known}.get(choice)
    if names is None:
        names = tuple(name.strip() for name in choice.split(","))
    for name in names:
        if name not in known:
            raise ConfigError(
                f"There is no tool {name[:80]!r} to list.",
                f"Use lean, core, all, or names of: {', '.join(known)}.",
            )
    left_out = WRITING_TOOLS if read_only else ()
    return wire.ListToolsResult(
        tools=[tool for tool in listing.tools if tool.name in names and tool.name not in left_out]
    )


def instructions(settings: Settings, listing: wire.ListToolsResult) -> str:
    """Tell the host's model when to use what, and that there are no file tools if no workspace is configured.

    A line that names a tool which is not listed is left out: a model would look for it, or make it up.
    """
    listed = {tool.name for tool in listing.tools}
    hidden = {tool.name for tool in list_tools("all").tools} - listed
    lines = Path(__file__).with_name("instructions.md").read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not hidden.intersection(_TOOL_NAME.findall(line)))
    if settings.read_only:
        text = f"{text}\nThis server is read-only: runs look at things, and change nothing.\n"
    if settings.workspaces:
        return text
    return f"{text}\nNo workspace is configured, so there are no file tools: `--workspace DIR` adds them.\n"


@asynccontextmanager
async def open_when_needed(settings: Settings, *, drives: bool = True) -> AsyncIterator[Callable[[], Awaitable[App]]]:
    """A function that returns the app, opened at its first call; it is closed when the block ends. Importing it takes
    longer than everything else before the first answer. `drives`: whether it drives runs itself.

    With rules of the gate or agents of the user's it is opened at once, to log each rule that fits no tool
    and each agent that is disabled: no client would show that.
    """
    if settings.telemetry:
        start_telemetry(with_content=settings.telemetry_content)  # before the first request, which has a span itself
    stack = AsyncExitStack()
    opened: list[App] = []
    lock = anyio.Lock()

    async def get_app() -> App:
        if opened:
            return opened[0]  # without the lock, which costs each call a turn of the event loop
        async with lock:
            if not opened:
                from kairos_mcp.app.app import App
                from kairos_mcp.app.drive_mode import server_mode

                mode = server_mode(drives=drives, is_shared=settings.store is not None)
                opened.append(await stack.enter_async_context(App.open(settings, via="mcp", mode=mode)))
                app = opened[0]
                for text in (*await app.tools.unused_gate_rules(), *await app.agents.problems()):
                    log.warning("%s", text)
        return opened[0]

    async def log_notes() -> None:
        with suppress(KairosError):  # the first call that needs the app reports the failure
            await get_app()

    async with stack:
        has_notes = settings.gate or has_own_agents(settings)
        task = asyncio.create_task(log_notes()) if has_notes else None
        try:
            yield get_app
        finally:
            if task is not None:
                await asyncio.wait([task])
