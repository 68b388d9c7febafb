"""The page as an application: the shell and its files, what it reads as JSON, the line of changes, one door for acts.

It is at the root of a server of its own, or beside MCP at /ui/.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos_mcp import __version__
from kairos_mcp.app.operations.starts import own_route
from kairos_mcp.core import errors
from kairos_mcp.core.decision_rights import person_on_page
from kairos_mcp.core.errors import BadArguments, KairosError, NotFound
from kairos_mcp.core.input_checks import Undecodable, parse_strict_json
from kairos_mcp.core.limits_table import set_limits_to_json
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.page.acts import carry_out, parse_act
from kairos_mcp.page.files import SHELL, compressed_files
from kairos_mcp.page.guard import BODY_BYTES, CODE_USED, Guard, Sessions, error_response
from kairos_mcp.page.live import Live
from kairos_mcp.store.page_files import use_code
from kairos_mcp.views.trace import TraceQuery

if TYPE_CHECKING:
    from kairos_mcp.app.app import App

log = logging.getLogger(__name__)

PAGE_RUNS, MAX_PAGE_RUNS = 60, 200
TEXT_CHARS = 200_000
MAX_ENTERING = 32
BODY_S = 10.0  # for all of a body to arrive
COMPRESSED_BYTES = 1_000  # an answer of this size or more is compressed
_STATUS: tuple[tuple[tuple[type[KairosError], ...], int], ...] = (
    ((errors.UnknownRun, errors.UnknownTool, errors.UnknownAgent, errors.UnknownMandate, NotFound), 404),
    ((errors.ApprovalMismatch, errors.ApprovalExpired, errors.NotWaiting, errors.AlreadyAnswered), 409),
    ((errors.Stale, errors.Busy), 409),
    ((errors.ApprovalRequired, errors.Denied, errors.PathDenied, errors.EgressDenied), 403),
    ((BadArguments, errors.ConfigError), 400),
    ((errors.TooLarge,), 413),
    ((errors.StoreBusy, errors.StoreUnavailable, errors.NoSpace), 503),
)

Handler = Callable[["App", Request], Awaitable[Any]]


def status_of(error: KairosError) -> int:
    """Return the status of HTTP that an error is answered with."""
    return next((status for kinds, status in _STATUS if isinstance(error, kinds)), 500)


class Page:
    """The page of one server. `port`: where it listens; `serves`: whether it is all that is served there."""

    def __init__(
        self, get_app: Callable[[], Awaitable[App]], home: Path, port: int, serves: Literal["ui", "http"]
    ) -> None:
        self._get_app, self._home, self._serves = get_app, home, serves
        self._sessions = Sessions()
        self._entering = 0  # requests of browsers that nobody knows yet
        self._driving: set[asyncio.Task[None]] = set()
        self.live = Live(get_app)
        read = {
            "me": self._me,
            "runs": _runs,
            "search": _search,
            "run": _run,
            "text": _text,
            "export": _export,
            "item": _item,
            "waits": _waits,
            "budget": _budget,
            "mandates": _mandates,
            "mandate": _mandate,
            "tools": _tools,
            "tool": _tool,
            "agents": _agents,
            "rules": _rules,
        }
        routes = [
            Route("/", self._shell),
            Route("/static/{name:path}", _file),
            Route("/api/enter", self._answer(self._enter), methods=["POST"]),
            Route("/api/events", self._answer(self._events)),
            Route("/api/act", self._answer(self._act), methods=["POST"]),
            *(Route(f"/api/{name}", self._answer(handler)) for name, handler in read.items()),
        ]
        app = Starlette(routes=routes)
        app.router.redirect_slashes = False
        self.asgi: ASGIApp = Guard(app, port, self._sessions)

    def _answer(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            app = await self._get_app()
            try:
                found = await handler(app, request)
            except KairosError as error:
                return error_response(
                    status_of(error), error.code, *(_redact(app, text) for text in (error.message, error.hint))
                )
            return found if isinstance(found, Response) else _json_response(request, found)

        return answer

    async def _shell(self, request: Request) -> Response:
        return send_file(request, SHELL)

    async def _enter(self, _app: App, request: Request) -> Response:
        if self._entering >= MAX_ENTERING:
            return error_response(503, "busy", "Too many browsers enter at once.", "Try again in a few seconds.")
        self._entering += 1
        try:
            code = (await read_body(request)).get("code")
        finally:
            self._entering -= 1
        if not isinstance(code, str) or not await asyncio.to_thread(use_code, self._home, code):
            return CODE_USED.response()
        return _json_response(request, {"secret": self._sessions.enter()})

    async def _me(self, app: App, _request: Request) -> JsonObject:
        settings = app.settings
        try:
            route: str | None = await own_route(app)
        except KairosError:
            route = None
        agents = await app.agents.list_all(person_on_page())
        return {
            "version": __version__,
            "serves": self._serves,
            "home": str(settings.home),
            "workspaces": [str(folder) for folder in settings.workspaces],
            "approvals": settings.approvals,
            "time_zone": settings.time_zone,
            "time": app.now(),
            "keep_days": settings.keep_days,
            "route": route,
            "model": settings.model,
            "agents": [each.agent.name for each in agents.agents],
            "limits": set_limits_to_json(settings.limits),
            "default_rounds": settings.default_rounds,
        }

    async def _events(self, _app: App, request: Request) -> Response:
        if self.live.is_full:
            return error_response(503, "busy", "Too many pages are open.", "Close some.")
        after = request.headers.get("last-event-id", request.query_params.get("after", ""))
        compress = _takes_gzip(request)
        line = await self.live.open_line(
            request.query_params.get("run"),
            int(after) if after.isdecimal() and len(after) < 16 else None,
            compress=compress,
        )
        headers = {"x-accel-buffering": "no"} | ({"content-encoding": "gzip"} if compress else {})
        return StreamingResponse(line, headers=headers, media_type="text/event-stream")

    async def _act(self, app: App, request: Request) -> JsonObject:
        operation = parse_act(await read_body(request))
        done = await carry_out(operation, app)
        if operation.kind.moves and done.run_id is not None:
            task = asyncio.create_task(_drive(app, done.run_id))
            self._driving.add(task)
            task.add_done_callback(self._driving.discard)
        return {"ok": True, "said": done.said} | ({} if done.run_id is None else {"run_id": done.run_id})


async def _drive(app: App, run_id: str) -> None:
    """See to it that somebody goes on with a run; the answer to the act that wants it was given already."""
    try:
        await app.control.drive(run_id)
    except KairosError as error:
        log.warning("run %s: %s", run_id, error.message)


class Mounted:
    """Serves the page below a prefix of a server, and everything else by `app`."""

    def __init__(self, page: Page, prefix: str, app: ASGIApp) -> None:
        self._page, self._prefix, self._app = page.asgi, prefix, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == self._prefix or path.startswith(f"{self._prefix}/")):
            await self._app(scope, receive, send)
        elif path == self._prefix:
            await Response(status_code=308, headers={"location": f"{self._prefix}/"})(scope, receive, send)
        else:
            await self._page({**scope, "root_path": self._prefix}, receive, send)


# -- what the page reads ------------------------------------------------------------------------------------------


async def _runs(app: App, request: Request) -> JsonObject:
    asked = request.query_params.get("limit", str(PAGE_RUNS))
    limit = min(int(asked), MAX_PAGE_RUNS) if asked.isdecimal() and len(asked) < 6 else PAGE_RUNS
    found = await app.overview.newest(limit + 1, request.query_params.get("before"))
    return {"rows": [await app.overview.row(each.run_id) for each in found[:limit]], "more": len(found) > limit}


async def _search(app: App, request: Request) -> JsonObject:
    return await app.overview.search(query_value(request, "q"))


async def _run(app: App, request: Request) -> JsonObject:
    run_id = query_value(request, "run")
    shown = await app.overview.watch_steps(run_id)
    await app.overview.read_steps(shown)
    steps = [step for _, step in shown.since()]
    return {"run": await app.overview.read_run(run_id), "steps": steps, "seq": shown.seq}


async def _text(app: App, request: Request) -> JsonObject:
    run_id, cursor = query_value(request, "run"), request.query_params.get("cursor")
    query = TraceQuery(ref=query_value(request, "ref"), cursor=cursor, max_chars=TEXT_CHARS)
    return await app.records.trace(run_id, query, await app.overview.find_caller(run_id))


async def _export(app: App, request: Request) -> Response:
    """The run as a file, as `kairos-mcp export` writes it: read as fast as the browser takes it."""
    run_id = query_value(request, "run")
    lines = await app.records.export(run_id, await app.overview.find_caller(run_id))
    headers = {"content-disposition": f'attachment; filename="{quote(run_id)}.jsonl"'}
    return StreamingResponse(lines, headers=headers, media_type="application/jsonl")


async def _item(app: App, request: Request) -> JsonObject:
    return {"item": await app.overview.read_item(query_value(request, "run"), query_value(request, "key"))}


async def _waits(app: App, _request: Request) -> JsonObject:
    runs, definitions = await app.overview.list_waiting(), await app.tools.describe_waiting()
    return {"runs": runs, "definitions": definitions, "count": len(runs) + len(definitions)}


async def _budget(app: App, _request: Request) -> JsonObject:
    caller = person_on_page()
    return {"today": await app.records.read_spending(None, caller), "days": await app.records.read_days(caller)}


async def _mandates(app: App, _request: Request) -> JsonObject:
    return await app.mandates.list_all(person_on_page())


async def _mandate(app: App, request: Request) -> JsonObject:
    found = await app.mandates.read_whole(
        query_value(request, "id"), request.query_params.get("workspace"), person_on_page()
    )
    return found | {"runs": [await app.overview.row(run_id) for run_id in found["runs"]]}


async def _tools(app: App, _request: Request) -> JsonObject:
    tools, notes = await app.tools.list_all()
    return {"tools": [tool.as_json() for tool in tools], "notes": list(notes)}


async def _tool(app: App, request: Request) -> JsonObject:
    return (await app.tools.details(query_value(request, "name"))).as_json()


async def _agents(app: App, _request: Request) -> JsonObject:
    return (await app.agents.list_all(person_on_page())).as_json()


async def _rules(app: App, _request: Request) -> JsonObject:
    return {"rules": [rule.as_json() for rule in await app.answers.list_rules(person_on_page(), everywhere=True)]}


def query_value(request: Request, name: str) -> str:
    """Return a parameter of the address. Raises BadArguments where it is missing."""
    value = request.query_params.get(name)
    if not value or len(value) > TEXT_CHARS:
        raise BadArguments(f"The address names no {name}.", "Load the page again.")
    return value


# -- requests and answers -----------------------------------------------------------------------------------------


async def read_body(request: Request) -> JsonObject:
    """Return the JSON object of a request. Raises BadArguments; TooLarge beyond BODY_BYTES."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_BYTES:
                    raise errors.TooLarge(f"An act has at most {BODY_BYTES:,} bytes.", "Say it shorter.")
    except TimeoutError:
        raise BadArguments("What was sent took too long to arrive.", "Try again.") from None
    try:
        value = parse_strict_json(body.decode())
    except (UnicodeDecodeError, Undecodable) as error:
        raise BadArguments("What was sent is not JSON.", "Load the page again.") from error
    if not isinstance(value, dict):
        raise BadArguments("What was sent is not a JSON object.", "Load the page again.")
    return value


def _redact(app: App, text: str) -> str:
    return app.complete_commands(app.redactor.redact_text(text).text, person_on_page())


def _json_response(request: Request, value: Any) -> Response:
    body, headers = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(), {}
    if len(body) >= COMPRESSED_BYTES and _takes_gzip(request):
        body, headers = gzip.compress(body, 6), {"content-encoding": "gzip"}
    return Response(body, headers=headers, media_type="application/json")


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


async def _file(request: Request) -> Response:
    return send_file(request, request.path_params["name"])


def send_file(request: Request, name: str) -> Response:
    found = compressed_files().get(name)
    if found is None or (name == SHELL and request.url.path.rpartition("/")[2]):
        return error_response(404, "not_found", "There is no such file.")
    content, media_type = found
    headers = {"cache-control": "no-cache", "vary": "accept-encoding"}
    if _takes_gzip(request):
        return Response(content, headers=headers | {"content-encoding": "gzip"}, media_type=media_type)
    return Response(gzip.decompress(content), headers=headers, media_type=media_type)
