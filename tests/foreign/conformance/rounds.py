"""What the scenarios ask for that our dispatch has no place for: requests for input that belong to no run, schemas
that no model of arguments has.

They are reached by the same handlers of the same server: our middleware seals what they carry from call to call.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as wire
from mcp.shared.exceptions import MCPError

from tests.foreign.conformance.content import text_result

Result = wire.CallToolResult | wire.InputRequiredResult
Handler = Callable[[Any, wire.CallToolRequestParams], Awaitable[Result]]
NO_ARGUMENTS = {"type": "object", "properties": {}}


def _form(message: str, name: str, kind: str = "string") -> wire.ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return wire.ElicitRequest(params=wire.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sampling(text: str) -> wire.CreateMessageRequest:
    message = wire.SamplingMessage(role="user", content=wire.TextContent(text=text))
    return wire.CreateMessageRequest(params=wire.CreateMessageRequestParams(messages=[message], max_tokens=100))


def _asks(state: str | None = None, **requests: Any) -> wire.InputRequiredResult:
    return wire.InputRequiredResult(input_requests=requests, request_state=state)


def _answer_of(params: Any, key: str, kind: type[Any]) -> Any:
    """The answer under this key if it is of this kind; an answer of another kind is none."""
    answer = (params.input_responses or {}).get(key)
    return answer if isinstance(answer, kind) else None


async def _elicitation(_ctx: Any, params: wire.CallToolRequestParams) -> Result:
    answer = _answer_of(params, "user_name", wire.ElicitResult)
    if answer is None or not isinstance((answer.content or {}).get("name"), str):
        return _asks(user_name=_form("What is your name?", "name"))
    return text_result(f"Hello, {answer.content['name']}!")


async def _sample(_ctx: Any, params: wire.CallToolRequestParams) -> Result:
    answer = _answer_of(params, "capital_question", wire.CreateMessageResult)
    if answer is None:
        return _asks(capital_question=_sampling("What is the capital of France?"))
    return text_result(f"Model said: {answer.content.text}")


async def _roots(_ctx: Any, params: wire.CallToolRequestParams) -> Result:
    answer = _answer_of(params, "client_roots", wire.ListRootsResult)
    if answer is None:
        return _asks(client_roots=wire.ListRootsRequest())
    return text_result(f"The client has {len(answer.roots)} roots.")


async def _state(_ctx: Any, params: wire.CallToolRequestParams) -> Result:
    if params.request_state == "asked" and _answer_of(params, "confirm", wire.ElicitResult):
        return text_result("state-ok")
    return _asks("asked", confirm=_form("Please confirm", "ok", "boolean"))


async def _several(_ctx: Any, params: wire.CallToolRequestParams) -> Result:
    requests = {
        "user_name": _form("What is your name?", "name"),
        "greeting": _sampling("Generate a greeting"),
        "client_roots": wire.ListRootsRequest(),
    }
    if requests.keys() <= (params.input_responses or {}).keys():
        return text_result("All inputs received.")
    return _asks("several", **requests)


async def _rounds(_ctx: Any, params: wire.CallToolRequestParams) -> Result:
    state = json.loads(params.request_state or '{"round": 0}')
    if state["round"] == 1 and (answer := _answer_of(params, "step1", wire.ElicitResult)):
        further = json.dumps({"round": 2, "name": (answer.content or {}).get("name")})
        return _asks(further, step2=_form("Step 2: What is your favourite colour?", "color"))
    if state["round"] == 2 and (answer := _answer_of(params, "step2", wire.ElicitResult)):
        return text_result(f"{state['name']} likes {(answer.content or {}).get('color')}.")
    return _asks(json.dumps({"round": 1}), step1=_form("Step 1: What is your name?", "name"))


async def _by_capability(ctx: Any, _params: wire.CallToolRequestParams) -> Result:
    declared = ctx.session.client_capabilities
    requests: dict[str, Any] = {}
    if declared is not None and declared.sampling is not None:
        requests["sample"] = _sampling("Say hello")
    if declared is not None and declared.elicitation is not None:
        requests["ask"] = _form("What is your name?", "name")
    return _asks("by capability", **requests)


async def _needs_sampling(ctx: Any, _params: wire.CallToolRequestParams) -> Result:
    declared = ctx.session.client_capabilities
    if declared is None or declared.sampling is None:
        data = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(wire.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling.", data)
    return text_result("The client has sampling.")


async def _echo(_ctx: Any, params: wire.CallToolRequestParams) -> Result:
    return text_result(json.dumps(params.arguments))


async def _change_nothing(_ctx: Any, _params: wire.CallToolRequestParams) -> Result:
    """Our lists of tools and prompts never change while a server runs, so there is nothing to tell of: what the
    scenario sees is that nobody is told of what did not happen, and nobody of what they did not ask for."""
    return text_result("Nothing has changed.")


HEADER_SCHEMA = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
HANDLERS: dict[str, Handler] = {
    "test_input_required_result_elicitation": _elicitation,
    "test_streaming_elicitation": _elicitation,
    "test_input_required_result_sampling": _sample,
    "test_input_required_result_list_roots": _roots,
    "test_input_required_result_request_state": _state,
    "test_input_required_result_tampered_state": _state,
    "test_input_required_result_multiple_inputs": _several,
    "test_input_required_result_multi_round": _rounds,
    "test_input_required_result_capabilities": _by_capability,
    "test_missing_capability": _needs_sampling,
    "test_trigger_tool_change": _change_nothing,
    "test_trigger_prompt_change": _change_nothing,
    "test_x_mcp_header": _echo,
    "json_schema_2020_12_tool": _echo,
}
_SCHEMAS = {"test_x_mcp_header": HEADER_SCHEMA, "json_schema_2020_12_tool": SCHEMA_2020_12}
TOOLS = tuple(
    wire.Tool(name=name, description=f"For a scenario: {name}.", input_schema=_SCHEMAS.get(name, NO_ARGUMENTS))
    for name in HANDLERS
)
PROMPT = wire.Prompt(name="test_input_required_result_prompt", description="A prompt that asks the user first")


def answer_prompt(params: wire.GetPromptRequestParams) -> wire.GetPromptResult | wire.InputRequiredResult:
    """The messages of the prompt that asks first, or what it asks."""
    answer = _answer_of(params, "user_context", wire.ElicitResult)
    if answer is None:
        return _asks(user_context=_form("What context should the prompt use?", "context"))
    text = f"Use the following context: {(answer.content or {}).get('context')}"
    return wire.GetPromptResult(messages=[wire.PromptMessage(role="user", content=wire.TextContent(text=text))])
