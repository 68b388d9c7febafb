"""Complete what a person types: the arguments of prompts, and the names in the URIs of resources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from kairos_mcp.app.runs import LISTED_RUNS
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.routes import RouteName
from kairos_mcp.core.text import truncate
from kairos_mcp.server.prompts import PROMPTS
from kairos_mcp.server.resources import KINDS, GetApp, protocol_error
from kairos_mcp.server.result_schema import SCHEMAS
from kairos_mcp.server.sender import current_principal

if TYPE_CHECKING:
    from kairos_mcp.app.app import App

MAX_VALUES = 100  # of one answer, by the protocol
OF_URI = {
    ("run", "id"): "runs",
    ("answer", "id"): "runs",
    ("diff", "id"): "runs",
    ("trace", "id"): "runs",
    ("mandate", "id"): "mandates",
    ("agent", "name"): "agents",
    ("schema", "name"): "schemas",
    ("skill", "name"): "skills",
    ("skill-file", "name"): "skills",
    ("skill-file", "path"): "skill files",
}
"""What stands for a name in the URIs of a kind of resource."""


async def complete(params: wire.CompleteRequestParams, get_app: GetApp) -> wire.CompleteResult:
    """The values that begin with, or else hold, what was typed. Raises MCPError for what this server does not have."""
    given = params.argument.value
    names, is_list = _find_source(params)
    known = dict((params.context.arguments or {}) if params.context is not None else {})
    typed = given.rpartition(",")[2].lstrip() if is_list else given
    app, caller = await get_app(), Caller(current_principal())
    try:
        values = await _list_values(names, typed, known, app, caller)
    except KairosError as error:
        raise protocol_error(error, app, caller) from error
    found = _select(values, typed)
    before = given[: len(given) - len(typed)]
    shown = [f"{before}{value}" for value in found[:MAX_VALUES]]
    completion = wire.Completion(values=shown, total=len(found), has_more=len(found) > MAX_VALUES)
    return wire.CompleteResult(completion=completion)


def _find_source(params: wire.CompleteRequestParams) -> tuple[str | None, bool]:
    """What the argument names, None where it is free text; and whether several may stand in it."""
    name = params.argument.name
    match params.ref:
        case wire.PromptReference(name=prompt_name):
            prompt = next((each for each in PROMPTS if each.name == prompt_name), None)
            if prompt is None:
                known = ", ".join(each.name for each in PROMPTS)
                raise MCPError(
                    wire.INVALID_PARAMS, f"There is no prompt {truncate(prompt_name, 60)!r}. There are: {known}."
                )
            argument = next((each for each in prompt.arguments if each.name == name), None)
            if argument is None:
                raise _unknown_argument(name, [each.name for each in prompt.arguments])
            return argument.names, argument.is_list
        case wire.ResourceTemplateReference(uri=uri):
            kind = next((each for each in KINDS if each.uri == uri), None)
            if kind is None:
                known = ", ".join(each.uri for each in KINDS if each.variables)
                raise MCPError(wire.INVALID_PARAMS, f"There is no template {truncate(uri, 120)!r}. There are: {known}.")
            if name not in kind.variables:
                raise _unknown_argument(name, kind.variables)
            return OF_URI[kind.name, name], False


def _unknown_argument(name: str, known: Sequence[str]) -> MCPError:
    there = ", ".join(known) or "none"
    return MCPError(wire.INVALID_PARAMS, f"It has no argument {truncate(name, 60)!r}. It has: {there}.")


async def _list_values(names: str | None, typed: str, known: dict[str, str], app: App, caller: Caller) -> Sequence[str]:
    match names:
        case "runs":
            return await app.runs.newest_ids(caller, LISTED_RUNS)
        case "waiting runs":
            return await app.overview.list_waiting_ids(caller)
        case "mandates":
            return await app.mandates.list_ids(caller)
        case "agents":
            return [each.agent.name for each in (await app.agents.list_all(caller)).agents]
        case "tools":
            return await app.tools.list_names()
        case "paths":
            return await app.tools.list_paths(typed)
        case "routes":
            routes: tuple[str, ...] = get_args(RouteName)
            return routes
        case "schemas":
            return list(SCHEMAS)
        case "skills":
            return [skill.name for skill in await app.agents.list_skills()]
        case "skill files" if "name" in known:
            return [file.path for file in (await app.agents.read_manifest(known["name"])).files]
        case _:
            return ()


def _select(values: Sequence[str], typed: str) -> list[str]:
    """Those that begin with what was typed, then those that hold it; upper and lower case are the same."""
    wanted = typed.casefold()
    first = [value for value in values if value.casefold().startswith(wanted)]
    return first + [value for value in values if wanted in value.casefold() and value not in first]
