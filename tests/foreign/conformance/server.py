"""Our server with what the scenarios ask for beside our own: `python -m tests.foreign.conformance.server`, with the
words of `kairos-mcp serve` that name its folders.

Everything else is the program's: the command's transport, guard, sessions, middleware and dispatch, and all of our
tools, resources and prompts, which stay in the lists.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as wire
from mcp.server.lowlevel import Server

from kairos_mcp.app.app import App
from kairos_mcp.server.dispatch import TOOLS_BY_NAME
from kairos_mcp.server.handlers import HANDLERS
from kairos_mcp.server.http import ListenOptions, serve
from kairos_mcp.server.log_lines import write_log_lines
from kairos_mcp.server.mcp_server import build_server
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from tests.foreign.conformance import content, rounds, tasks

Handler = Callable[[Any, Any], Awaitable[Any]]


def build_with_content(*given: Any) -> Server[Any]:
    """Build our server and add what the scenarios call, read and get."""
    server = build_server(*given)
    _add_tools(server, given[0])
    _add_resources(server)
    _add_prompts(server)
    _replace(server, "completion/complete", wire.CompleteRequestParams, _complete)
    for method, params in (
        ("logging/setLevel", wire.SetLevelRequestParams),
        ("resources/subscribe", wire.SubscribeRequestParams),
        ("resources/unsubscribe", wire.UnsubscribeRequestParams),
    ):
        _replace(server, method, params, _take)
    return server


def _replace(server: Server[Any], method: str, params: type[Any], handle: Callable[..., Awaitable[Any]]) -> None:
    """Put `handle` before our server's handler of a method, which it is given first; None if we have none."""
    entry = server.get_request_handler(method)
    server.add_request_handler(method, params, partial(handle, None if entry is None else entry.handler))


def _add_tools(server: Server[Any], get_app: Callable[[], Awaitable[App]]) -> None:
    tools = (*(tool.as_tool() for tool in content.TOOLS), *rounds.TOOLS, *tasks.TOOLS)
    schemas = {tool.name: tool.input_schema for tool in tools}
    TOOLS_BY_NAME.update({tool.name: tool for tool in content.TOOLS})
    HANDLERS.update(content.HANDLERS)
    our_schema = server.get_tool_input_schema
    assert our_schema is not None
    server.get_tool_input_schema = lambda name: schemas.get(name) or our_schema(name)

    async def list_tools(ours: Handler, ctx: Any, params: Any) -> wire.ListToolsResult:
        listing: wire.ListToolsResult = await ours(ctx, params)
        return listing.model_copy(update={"tools": [*listing.tools, *tools]})

    async def call_tool(ours: Handler, ctx: Any, params: wire.CallToolRequestParams) -> Any:
        if params.name in tasks.HANDLERS:
            return await tasks.call_tool(get_app, ctx, params)
        return await rounds.HANDLERS.get(params.name, ours)(ctx, params)

    _replace(server, "tools/list", wire.PaginatedRequestParams, list_tools)
    _replace(server, "tools/call", wire.CallToolRequestParams, call_tool)


def _add_resources(server: Server[Any]) -> None:
    async def list_resources(ours: Handler, ctx: Any, params: Any) -> wire.ListResourcesResult:
        listing: wire.ListResourcesResult = await ours(ctx, params)
        if listing.next_cursor is not None:
            return listing
        return listing.model_copy(update={"resources": [*listing.resources, *content.RESOURCES]})

    async def list_templates(ours: Handler, ctx: Any, params: Any) -> wire.ListResourceTemplatesResult:
        listing: wire.ListResourceTemplatesResult = await ours(ctx, params)
        template = wire.ResourceTemplate(uri_template=content.TEMPLATE, name="template", mime_type="application/json")
        return listing.model_copy(update={"resource_templates": [*listing.resource_templates, template]})

    async def read_resource(ours: Handler, ctx: Any, params: wire.ReadResourceRequestParams) -> Any:
        return content.read(str(params.uri)) or await ours(ctx, params)

    _replace(server, "resources/list", wire.PaginatedRequestParams, list_resources)
    _replace(server, "resources/templates/list", wire.PaginatedRequestParams, list_templates)
    _replace(server, "resources/read", wire.ReadResourceRequestParams, read_resource)


def _add_prompts(server: Server[Any]) -> None:
    async def list_prompts(ours: Handler | None, ctx: Any, params: Any) -> wire.ListPromptsResult:
        listing = wire.ListPromptsResult(prompts=[]) if ours is None else await ours(ctx, params)
        prompts = [*listing.prompts, *content.PROMPTS, rounds.PROMPT]
        return listing.model_copy(update={"prompts": prompts})

    async def get_prompt(ours: Handler | None, ctx: Any, params: wire.GetPromptRequestParams) -> Any:
        if params.name == rounds.PROMPT.name:
            return rounds.answer_prompt(params)
        found = content.get_prompt(params.name, params.arguments or {})
        return await ours(ctx, params) if found is None and ours is not None else found

    _replace(server, "prompts/list", wire.PaginatedRequestParams, list_prompts)
    _replace(server, "prompts/get", wire.GetPromptRequestParams, get_prompt)


async def _complete(ours: Handler | None, ctx: Any, params: wire.CompleteRequestParams) -> Any:
    if ours is not None and getattr(params.ref, "name", "").startswith("test_") is False:
        return await ours(ctx, params)
    found = [value for value in ("paris", "park", "party") if value.startswith(params.argument.value)]
    return wire.CompleteResult(completion=wire.Completion(values=found, total=len(found), has_more=False))


async def _take(ours: Handler | None, ctx: Any, params: Any) -> Any:
    uri = str(getattr(params, "uri", ""))
    return wire.EmptyResult() if ours is None or uri.startswith("test://") else await ours(ctx, params)


def main() -> None:
    """Serve over HTTP on a free port."""
    words = argparse.ArgumentParser()
    words.add_argument("--home", required=True)
    words.add_argument("--workspace", required=True)
    words.add_argument("--no-auth", action="store_true")
    given, _ = words.parse_known_args()
    script = Path(given.workspace).parent / "tasks.jsonl"
    script.touch()
    environ = {**os.environ, "KAIROS_SCRIPT": str(script)}
    settings = load_settings(Flags(home=given.home, workspaces=(given.workspace,)), environ)
    write_log_lines(environ, settings.log_format)
    serve(settings, ListenOptions(port=0, no_auth=given.no_auth), build=build_with_content)


if __name__ == "__main__":
    main()
