"""The page for operators, at /observe/: the runs of all principals, what waits, who has spent what, and who lives.

It shows and decides nothing: there is no act among its addresses. Each request for data carries a token with the scope
`observe`, as any request over HTTP carries one; the page's files hold no data. With `[oauth]` and its `client_id` the
page gets its token from the authorization server (a code with PKCE, RFC 7636). This server only exchanges the code, so
that the page asks nobody else for anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import httpx2
from mcp.server.auth.provider import TokenVerifier
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kairos_mcp import __version__
from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.decision_rights import OBSERVER
from kairos_mcp.core.errors import BadArguments, KairosError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.page.app import query_value, read_body, send_file, status_of
from kairos_mcp.page.guard import error_response, with_headers
from kairos_mcp.server.auth import Challenge, KeysUnavailable
from kairos_mcp.server.http_guard import ServerNames, header, refuse
from kairos_mcp.server.sender import has_scope
from kairos_mcp.settings.table_values import OAuthSetting
from kairos_mcp.store.find_runs import RunState, WantedRuns
from kairos_mcp.views.trace import TraceQuery

if TYPE_CHECKING:
    from kairos_mcp.app.app import App

OBSERVE = "/observe"
SIGN_IN = f"{OBSERVE}/api/sign_in"
PAGE_RUNS = 60
SPENDING_DAYS = 7
TEXT_CHARS = 100_000
EXCHANGE_S, EXCHANGE_BYTES = 5.0, 64 * 1024
MAX_SIGNING_IN = 8
FOLDER = Path(__file__).parent.parent / "page" / "observer"
_SHELL, _SCRIPT = "index.html", "observer.js"
_TYPES = {_SHELL: "text/html", _SCRIPT: "text/javascript"}

Answer = Callable[["App", Request], Awaitable[JsonObject]]


async def _me(app: App, _request: Request) -> JsonObject:
    return {"version": __version__, "time_zone": app.settings.time_zone}


async def _runs(app: App, request: Request) -> JsonObject:
    given = request.query_params
    state = next((state for state in get_args(RunState) if state == given.get("status")), None)
    wanted = WantedRuns(given.get("principal"), state=state, model=given.get("model"))
    found = await app.finder.list_runs(wanted, PAGE_RUNS, OBSERVER)
    return {"rows": [await app.observed.row(each.report.run_id) for each in found]}


async def _run(app: App, request: Request) -> JsonObject:
    """Answer with a run and its steps; without them where its `seq` is the one that the page has."""
    run_id, known = query_value(request, "run"), request.query_params.get("seq")
    shown = await app.observed.watch_steps(run_id)
    await app.observed.read_steps(shown)
    steps = [] if known == str(shown.seq) else [step for _, step in shown.since()]
    return {"run": await app.observed.read_run(run_id), "steps": steps, "seq": shown.seq}


async def _text(app: App, request: Request) -> JsonObject:
    query = TraceQuery(ref=query_value(request, "ref"), cursor=request.query_params.get("cursor"), max_chars=TEXT_CHARS)
    return await app.records.trace(query_value(request, "run"), query, OBSERVER)


async def _waits(app: App, _request: Request) -> JsonObject:
    return {"runs": await app.observed.list_waiting()}


async def _budget(app: App, _request: Request) -> JsonObject:
    return await app.records.read_spending_by_day(None, app.now() - SPENDING_DAYS * DAY_MS, None)


async def _servers(app: App, _request: Request) -> JsonObject:
    health = await app.health()
    return {name: health.get(name) for name in ("servers", "open_runs", "paused", "oldest_wait_s", "driving")}


_ANSWERS: Mapping[str, Answer] = {
    "me": _me,
    "runs": _runs,
    "run": _run,
    "text": _text,
    "waits": _waits,
    "budget": _budget,
    "servers": _servers,
}


class ObserverData:
    """The endpoint of what the page reads, once somebody is admitted."""

    def __init__(self, get_app: Callable[[], Awaitable[App]], challenge: Challenge) -> None:
        self._get_app, self._challenge = get_app, challenge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._answer(Request(scope, receive)))(scope, receive, with_headers(send))

    async def _answer(self, request: Request) -> Response:
        answer = _ANSWERS.get(request.path_params["name"])
        if answer is None or request.method != "GET":
            return error_response(404, "not_found", "There is nothing of that name.")
        if not has_scope("observe"):
            return self._challenge.refuse_scope("observe", request.scope["user"].scopes)
        app = await self._get_app()
        try:
            return JSONResponse(await answer(app, request))
        except KairosError as error:
            texts = (app.redactor.redact_text(text).text for text in (error.message, error.hint))
            return error_response(status_of(error), error.code, *texts)


class SignIn:
    """The endpoint at which the page learns how to get a token (GET), and exchanges the code that it got (POST)."""

    def __init__(self, oauth: OAuthSetting | None, verifier: TokenVerifier | None) -> None:
        self._oauth = oauth if oauth is not None and oauth.client_id is not None else None
        self._verifier = verifier
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method == "GET":
            response: Response = JSONResponse({"oauth": self._describe()})
        elif request.method != "POST" or self._oauth is None or self._verifier is None:
            response = error_response(404, "not_found", "No authorization server is set up for this page.")
        elif self._under_way >= MAX_SIGNING_IN:
            response = error_response(503, "busy", "Too many sign in at once.", "Try again in a few seconds.")
        else:
            self._under_way += 1
            try:
                response = await self._exchange(request, self._oauth, self._verifier)
            finally:
                self._under_way -= 1
        await response(scope, receive, with_headers(send))

    def _describe(self) -> JsonObject | None:
        oauth = self._oauth
        if oauth is None:
            return None
        return {"authorize": oauth.authorize_uri, "client_id": oauth.client_id, "resource": oauth.resource}

    async def _exchange(self, request: Request, oauth: OAuthSetting, verifier: TokenVerifier) -> Response:
        try:
            given = await read_body(request)
            form = {name: given.get(name) for name in ("code", "code_verifier", "redirect_uri")}
            if not all(isinstance(value, str) and value for value in form.values()):
                raise BadArguments("A code, its verifier and the address of the page are needed.", "Sign in again.")
            form |= {
                "grant_type": "authorization_code",
                "client_id": oauth.client_id,
                "resource": oauth.resource,
            }
            token = await _ask_for_token(str(oauth.token_uri), form)
            found = None if token is None else await verifier.verify_token(token)
        except KairosError as error:
            return error_response(status_of(error), error.code, error.message, error.hint)
        except KeysUnavailable:
            return error_response(503, "unavailable", "The authorization server's keys can't be had.")
        if found is None:
            return error_response(401, "refused", "The authorization server gave no token that is valid here.")
        if "observe" not in found.scopes:
            return error_response(403, "scope", "Your token has not the scope observe.", "Ask for that role.")
        return JSONResponse({"token": token, "expires_at": found.expires_at})


async def _ask_for_token(uri: str, form: Mapping[str, Any]) -> str | None:
    """Return the access token that a code is exchanged for; None where it is refused, or can't be asked for."""
    try:
        async with (
            httpx2.AsyncClient(timeout=EXCHANGE_S) as client,
            client.stream("POST", uri, data=dict(form), headers={"accept": "application/json"}) as response,
        ):
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > EXCHANGE_BYTES:
                    return None
            answer = from_json(bytes(body)) if response.status_code == 200 else None
    except (httpx2.HTTPError, ValueError):
        return None
    token = answer.get("access_token") if isinstance(answer, dict) else None
    return token if isinstance(token, str) else None


class ObserverFiles:
    """Middleware: answers requests for the page's files, which anybody may have, and passes everything else on.

    A link or the authorization server may lead to the page, so that only its data is refused to other pages.
    """

    def __init__(self, app: ASGIApp, names: ServerNames) -> None:
        self._app, self._names = app, names
        routes = [
            Route(f"{OBSERVE}/", _shell),
            Route(f"{OBSERVE}/{_SCRIPT}", _script),
            Route(f"{OBSERVE}/static/{{name:path}}", _shared_file),
        ]
        self._files = Starlette(routes=routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(OBSERVE) or path.startswith(f"{OBSERVE}/api/"):
            await self._app(scope, receive, send)
        elif not self._names.include(header(scope, b"host"), scope["server"][0] if scope.get("server") else ""):
            await refuse(421, "This server does not answer to that host.")(scope, receive, send)
        elif path == OBSERVE:
            await Response(status_code=308, headers={"location": f"{OBSERVE}/"})(scope, receive, send)
        else:
            await self._files(scope, receive, with_headers(send))


async def _shell(_request: Request) -> Response:
    return _own_file(_SHELL)


async def _script(_request: Request) -> Response:
    return _own_file(_SCRIPT)


def _own_file(name: str) -> Response:
    headers = {"cache-control": "no-cache"}
    return Response((FOLDER / name).read_bytes(), headers=headers, media_type=_TYPES[name])


async def _shared_file(request: Request) -> Response:
    return send_file(request, request.path_params["name"])
