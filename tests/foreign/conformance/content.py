"""What the scenarios call and read: tools that our dispatch carries out, resources and prompts.

The names, texts and bytes are those that the scenarios name; `tools-call-image` and the like hold the results against
them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as wire
from mcp.shared.message import ServerMessageMetadata

from kairos_mcp.core.errors import KairosError
from kairos_mcp.server.arguments.base import Arguments
from kairos_mcp.server.call import ServerCall
from kairos_mcp.server.server_tool import ServerTool

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
CLIENT_S = 10.0  # for an answer of the suite's own client


class NoArguments(Arguments):
    pass


class Prompt(Arguments):
    prompt: str


class Question(Arguments):
    message: str


class IntendedError(KairosError):
    code = "intended"


def text_result(text: str) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(text=text)])


def _embed(uri: str, text: str, mime_type: str = "text/plain") -> wire.EmbeddedResource:
    contents = wire.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return wire.EmbeddedResource(resource=contents)


def _returns(*content: Any) -> Callable[[ServerCall, NoArguments], Awaitable[wire.CallToolResult]]:
    async def handle(_call: ServerCall, _arguments: NoArguments) -> wire.CallToolResult:
        return wire.CallToolResult(content=list(content))

    return handle


async def _log(call: ServerCall, text: str) -> None:
    ctx = call.client.ctx
    with warnings.catch_warnings(action="ignore"):  # the SDK marks it as deprecated; clients of today have it
        await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)


async def _with_logging(call: ServerCall, _arguments: NoArguments) -> wire.CallToolResult:
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await _log(call, text)
    return text_result("Tool with logging executed successfully")


async def _with_progress(call: ServerCall, _arguments: NoArguments) -> wire.CallToolResult:
    for done in (0, 50, 100):
        await call.client.ctx.session.report_progress(done, 100, f"Completed step {done} of 100")
    return text_result("done")


async def _fail(_call: ServerCall, _arguments: NoArguments) -> wire.CallToolResult:
    raise IntendedError("This tool intentionally returns an error for testing.", "Nothing needs to be done.")


async def _sample(call: ServerCall, arguments: Prompt) -> wire.CallToolResult:
    message = wire.SamplingMessage(role="user", content=wire.TextContent(text=arguments.prompt))
    request = wire.CreateMessageRequest(params=wire.CreateMessageRequestParams(messages=[message], max_tokens=100))
    answer = await _ask(call, request, wire.CreateMessageResult)
    return text_result(f"LLM response: {answer.content.text}")


async def _elicit(call: ServerCall, message: str, properties: dict[str, Any], *required: str) -> wire.ElicitResult:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    params = wire.ElicitRequestFormParams(message=message, requested_schema=schema)
    answer: wire.ElicitResult = await _ask(call, wire.ElicitRequest(params=params), wire.ElicitResult)
    return answer


async def _ask(call: ServerCall, request: Any, result: type[Any]) -> Any:
    ctx = call.client.ctx
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    return await ctx.session.send_request(request, result, CLIENT_S, related)


async def _elicitation(call: ServerCall, arguments: Question) -> wire.CallToolResult:
    properties = {"response": {"type": "string", "description": "User's response"}}
    answer = await _elicit(call, arguments.message, properties, "response")
    return text_result(f"User response: action={answer.action}, content={json.dumps(answer.content)}")


async def _defaults(call: ServerCall, _arguments: NoArguments) -> wire.CallToolResult:
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    answer = await _elicit(call, "Please review and update the form fields with defaults", properties)
    return text_result(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")


async def _enums(call: ServerCall, _arguments: NoArguments) -> wire.CallToolResult:
    untitled = ["option1", "option2", "option3"]
    titled = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
    properties = {
        "untitledSingle": {"type": "string", "enum": untitled},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": untitled}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    answer = await _elicit(call, "Please select options from the enum fields", properties)
    return text_result(f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}")


async def _reconnection(call: ServerCall, _arguments: NoArguments) -> wire.CallToolResult:
    """Close the stream in the middle of the call; what comes after is replayed to a client that comes back."""
    await _log(call, "Before disconnect")
    close = call.client.ctx.close_sse_stream
    if close is not None:
        await close()
    await _log(call, "After reconnect")
    return text_result("Reconnection test completed")


HANDLERS: dict[str, Callable[[ServerCall, Any], Awaitable[Any]]] = {}


def _tool(name: str, handle: Any, arguments: type[Arguments] = NoArguments) -> ServerTool:
    no_schema: Any = None  # ours all state one; these give content alone, which clients refuse where one is stated
    about = f"For a scenario: {name}."
    HANDLERS[name] = handle
    return ServerTool(name, name, about, "idempotent", arguments, no_schema, search_hint=about)


_PICTURE = wire.ImageContent(data=PNG, mime_type="image/png")
TOOLS = (
    _tool("test_simple_text", _returns(wire.TextContent(text="This is a simple text response for testing."))),
    _tool("test_image_content", _returns(_PICTURE)),
    _tool("test_audio_content", _returns(wire.AudioContent(data=WAV, mime_type="audio/wav"))),
    _tool(
        "test_embedded_resource",
        _returns(_embed("test://embedded-resource", "This is an embedded resource content.")),
    ),
    _tool(
        "test_multiple_content_types",
        _returns(
            wire.TextContent(text="Multiple content types test:"),
            _PICTURE,
            _embed("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json"),
        ),
    ),
    _tool("test_tool_with_logging", _with_logging),
    _tool("test_logging_tool", _with_logging),
    _tool("test_tool_with_progress", _with_progress),
    _tool("test_error_handling", _fail),
    _tool("test_sampling", _sample, Prompt),
    _tool("test_elicitation", _elicitation, Question),
    _tool("test_elicitation_sep1034_defaults", _defaults),
    _tool("test_elicitation_sep1330_enums", _enums),
    _tool("test_reconnection", _reconnection),
)

TEMPLATE = "test://template/{id}/data"
_TEXTS = {
    "test://static-text": "This is the content of the static text resource.",
    "test://watched-resource": "Watched resource content.",
}
RESOURCES = (
    *(wire.Resource(uri=uri, name=uri.rpartition("/")[2], mime_type="text/plain") for uri in _TEXTS),
    wire.Resource(uri="test://static-binary", name="static-binary", mime_type="image/png"),
)


def read(uri: str) -> wire.ReadResourceResult | None:
    """The content of a scenario's resource; None if it is none."""
    begin, end = TEMPLATE.split("{id}")
    contents: wire.TextResourceContents | wire.BlobResourceContents
    if uri in _TEXTS:
        contents = wire.TextResourceContents(uri=uri, mime_type="text/plain", text=_TEXTS[uri])
    elif uri == "test://static-binary":
        contents = wire.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
    elif uri.startswith(begin) and uri.endswith(end):
        number = uri[len(begin) : -len(end)]
        text = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
        contents = wire.TextResourceContents(uri=uri, mime_type="application/json", text=text)
    else:
        return None
    return wire.ReadResourceResult(contents=[contents])


def _argument(name: str) -> wire.PromptArgument:
    return wire.PromptArgument(name=name, description=f"The argument {name}", required=True)


PROMPTS = (
    wire.Prompt(name="test_simple_prompt", description="A prompt without arguments"),
    wire.Prompt(
        name="test_prompt_with_arguments",
        description="A prompt with two arguments",
        arguments=[_argument("arg1"), _argument("arg2")],
    ),
    wire.Prompt(
        name="test_prompt_with_embedded_resource",
        description="A prompt with a resource in it",
        arguments=[_argument("resourceUri")],
    ),
    wire.Prompt(name="test_prompt_with_image", description="A prompt with a picture in it"),
)


def get_prompt(name: str, arguments: dict[str, str]) -> wire.GetPromptResult | None:
    """The messages of a scenario's prompt; None if it is none."""
    content: list[Any]
    match name:
        case "test_simple_prompt":
            content = [wire.TextContent(text="This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            one, two = arguments.get("arg1", ""), arguments.get("arg2", "")
            content = [wire.TextContent(text=f"Prompt with arguments: arg1='{one}', arg2='{two}'")]
        case "test_prompt_with_embedded_resource":
            embedded = _embed(arguments.get("resourceUri", ""), "Embedded resource content for testing.")
            content = [embedded, wire.TextContent(text="Please process the embedded resource above.")]
        case "test_prompt_with_image":
            content = [_PICTURE, wire.TextContent(text="Please analyze the image above.")]
        case _:
            return None
    return wire.GetPromptResult(messages=[wire.PromptMessage(role="user", content=each) for each in content])
