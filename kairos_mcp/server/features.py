"""The handlers of requests that are no calls of tools: resources, subscriptions, the log, skills, prompts, completion.

What answers them is imported at the first use: many starts of a server only ask for the list of the tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

import mcp_types as wire
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.server.event_protocol import PollParams, SubscribeParams
from kairos_mcp.server.sender import current_principal

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel import Server

    from kairos_mcp.app.app import App
    from kairos_mcp.server.event_methods import EventMethods

SKILLS = "io.modelcontextprotocol/skills"
EVENTS = "io.modelcontextprotocol/events"
Params = wire.PaginatedRequestParams | None


class GetSkillParams(wire.RequestParams):
    """The parameters of skills/get."""

    uri: str


class Features:
    """The handlers of a server. `tools`: the names of those that it lists; a prompt leads to no other."""

    def __init__(self, get_app: Callable[[], Awaitable[App]], tools: Collection[str]) -> None:
        self._get_app = get_app
        self._tools = tools

    async def list_resources(self, ctx: ServerRequestContext[Any], params: Params) -> wire.ListResourcesResult:
        from kairos_mcp.server.resources import list_resources
        from kairos_mcp.server.subscriptions import subscribe_to_list

        listed = await list_resources(self._get_app, cursor_of(params))
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            await subscribe_to_list(ctx, self._get_app)
        return listed

    async def read_resource(self, _ctx: object, params: wire.ReadResourceRequestParams) -> wire.ReadResourceResult:
        from kairos_mcp.server.resources import read_resource

        return await read_resource(self._get_app, str(params.uri))

    async def list_resource_templates(self, _ctx: object, params: Params) -> wire.ListResourceTemplatesResult:
        from kairos_mcp.server.resources import list_templates

        return list_templates(cursor_of(params))

    async def subscribe(self, ctx: ServerRequestContext[Any], params: wire.SubscribeRequestParams) -> wire.EmptyResult:
        from kairos_mcp.server.subscriptions import subscribe

        return await subscribe(ctx, str(params.uri), self._get_app)

    async def unsubscribe(
        self, ctx: ServerRequestContext[Any], params: wire.UnsubscribeRequestParams
    ) -> wire.EmptyResult:
        from kairos_mcp.server.subscriptions import unsubscribe

        return unsubscribe(ctx, str(params.uri))

    async def set_level(self, ctx: ServerRequestContext[Any], params: wire.SetLevelRequestParams) -> wire.EmptyResult:
        from kairos_mcp.server.log_messages import set_level

        return set_level(ctx, params.level, self._get_app, Caller(current_principal()))

    async def listen(
        self, ctx: ServerRequestContext[Any], params: wire.SubscriptionsListenRequestParams
    ) -> wire.SubscriptionsListenResult:
        from kairos_mcp.server.subscriptions import listen

        return await listen(ctx, params, self._get_app)

    async def list_prompts(self, _ctx: object, params: Params) -> wire.ListPromptsResult:
        from kairos_mcp.server.prompts import list_prompts

        return list_prompts(self._tools, cursor_of(params))

    async def get_prompt(self, _ctx: object, params: wire.GetPromptRequestParams) -> wire.GetPromptResult:
        from kairos_mcp.server.prompts import get_prompt

        return await get_prompt(params.name, params.arguments, self._get_app)

    async def complete(self, _ctx: object, params: wire.CompleteRequestParams) -> wire.CompleteResult:
        from kairos_mcp.server.argument_completion import complete

        return await complete(params, self._get_app)

    def add_skills(self, server: Server[Any]) -> None:
        """Declare the skills extension, which the SDK does not know, and answer its methods."""

        async def on_list_skills(_ctx: object, params: wire.PaginatedRequestParams) -> dict[str, Any]:
            from kairos_mcp.server.skills import list_skills

            return await list_skills(self._get_app, params.cursor)

        async def on_get_skill(_ctx: object, params: GetSkillParams) -> dict[str, Any]:
            from kairos_mcp.server.skills import get_skill

            return await get_skill(self._get_app, params.uri)

        server.extensions[SKILLS] = {}
        server.add_request_handler("skills/list", wire.PaginatedRequestParams, on_list_skills)
        server.add_request_handler("skills/get", GetSkillParams, on_get_skill)

    def add_events(self, server: Server[Any]) -> None:
        """Declare the extension for events, which the SDK does not know, and answer its methods."""

        async def methods() -> EventMethods:
            from kairos_mcp.server.event_methods import open_methods

            return await open_methods(self._get_app)

        async def on_list(_ctx: object, params: wire.PaginatedRequestParams) -> dict[str, Any]:
            from kairos_mcp.server.event_methods import list_events

            return list_events(params.cursor)

        async def on_poll(_ctx: object, params: PollParams) -> dict[str, Any]:
            return await (await methods()).poll(params)

        async def on_stream(ctx: ServerRequestContext[Any], params: PollParams) -> dict[str, Any]:
            return await (await methods()).stream(ctx, params)

        async def on_subscribe(_ctx: object, params: SubscribeParams) -> dict[str, Any]:
            return await (await methods()).subscribe(params)

        async def on_unsubscribe(_ctx: object, params: SubscribeParams) -> dict[str, Any]:
            return await (await methods()).unsubscribe(params)

        async def declare(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
            """Middleware: says what the SDK's type of capabilities has no field for."""
            result = await call_next(ctx)
            if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
                result = {**result, "capabilities": {**result.get("capabilities", {}), "events": {}}}
            return result

        server.extensions[EVENTS] = {}
        server.middleware.append(declare)
        server.add_request_handler("events/list", wire.PaginatedRequestParams, on_list)
        server.add_request_handler("events/poll", PollParams, on_poll)
        server.add_request_handler("events/stream", PollParams, on_stream)
        server.add_request_handler("events/subscribe", SubscribeParams, on_subscribe)
        server.add_request_handler("events/unsubscribe", SubscribeParams, on_unsubscribe)


def cursor_of(params: Params) -> str | None:
    """The cursor of a request for a page, if it has one."""
    return None if params is None else params.cursor
