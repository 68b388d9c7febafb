"""A run of one tool call: how its spec is built and loaded."""

from __future__ import annotations

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.routes import SERVER_ROUTE
from kairos_mcp.core.run_spec import RunRequest, Spec
from kairos_mcp.flows import tool_calls
from kairos_mcp.specs.build import BuiltSpec, SpecBuilder, narrow_limits
from kairos_mcp.specs.flow_specs import FlowSpecs, StartSources
from kairos_mcp.specs.kinds import CALL
from kairos_mcp.specs.load import LoadedSpec, SpecTexts
from kairos_mcp.store.rows import encode


@dataclass(frozen=True, slots=True)
class CallRequest(RunRequest):
    """The arguments of registry_call: a tool by its name, and what it is called with."""

    name: str
    arguments: JsonObject

    @property
    def wanted_tools(self) -> tuple[str, ...]:
        return (self.name,)


def _build(request: CallRequest, sources: StartSources) -> BuiltSpec:
    """Build the spec of a single call. Raises UnknownTool; BadArguments where the arguments don't fit."""
    name, registry = request.name, sources.registry
    offered = registry.select((name,))
    tool = registry.find(name)
    if tool is None:  # a glob, where one name is meant
        raise BadArguments(f"{name[:80]!r} is not the name of a tool.", "registry_search lists the names.")
    given = {key: value for key, value in request.arguments.items() if value is not None}
    problems = tool.schema.problems(given)
    if problems:
        raise BadArguments(f"{name}: {'; '.join(problems)}.", f'registry_search names=["{name}"] shows the schema.')
    builder = SpecBuilder()
    spec = Spec(CALL.name, name, SERVER_ROUTE, builder.keep(encode(tuple(offered))), arguments=given)
    limits, cut = narrow_limits(Limits(), sources.settings)
    notes = (*cut, *registry.notes((name,)))
    return BuiltSpec(spec, tuple(builder.texts.items()), limits._replace(rounds=None), notes)


def _load(texts: SpecTexts[Spec]) -> LoadedSpec:
    spec = texts.spec
    return texts.load(lambda: tool_calls.single_call(spec.goal, spec.arguments or {}))


SPECS = FlowSpecs(tool_calls.SINGLE_CALL_VERSION, _load, CallRequest, _build)
