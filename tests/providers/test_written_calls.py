"""A call that a model writes as its text: taken only where it is the whole reply, names an offered tool and fits."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support.provider_calls import READ, ask_model, asking, step_of
from support.provider_server import Standin, chat, message, says, sends
from support.provider_streams import chat_events, streams

from kairos_mcp.core.json_bounds import MAX_VALUES
from kairos_mcp.core.messages import Completion, ToolSpec
from kairos_mcp.core.model import ModelInput
from kairos_mcp.core.steps import RequestCompletion, Sent
from kairos_mcp.models.written_calls import take_written_call

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOL = ToolSpec("read_file", "Reads.", SCHEMA, "read")
GIVEN = json.dumps({"path": "a"})
CALL = json.dumps({"name": "read_file", "arguments": {"path": "a"}})
TAKEN = [
    CALL,
    f"  {CALL}\n",
    f"```json\n{CALL}\n```",
    f"```\n{CALL}\n```",
    f"```tool_code\n{CALL}\n```",
    f"<tool_call>\n{CALL}\n</tool_call>",
    f"<tool_call>{CALL}</tool_call>",
    f"<function_call>{CALL}</function_call>",
    f"<|tool_call|>{CALL}<|/tool_call|>",
    f"<|python_tag|>{CALL}",
    f"[TOOL_CALLS] [{CALL}]",
    f"[TOOL_CALLS]{CALL}",
    f"<think>\nI read it.\n</think>\n\n{CALL}",
    f"<think>hm</think>```json\n{CALL}\n```",
    f"```xml\n<tool_call>\n{CALL}\n</tool_call>\n```",
    '{"name": "read_file", "parameters": {"path": "a"}}',
    '{"tool": "read_file", "args": {"path": "a"}}',
    '{"function": "read_file", "arguments": {"path": "a"}}',
    '{"type": "function", "name": "read_file", "parameters": {"path": "a"}}',
    '{"type": "function", "function": {"name": "read_file", "arguments": "{\\"path\\": \\"a\\"}"}}',
    '{"id": "call_1", "name": "read_file", "arguments": {"path": "a"}}',
    '{"name": "read_file", "arguments": "{\\"path\\": \\"a\\"}"}',
    '{"tool_calls": [{"name": "read_file", "arguments": {"path": "a"}}]}',
    "<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>",
    "<tool_call>\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
    '<function_calls>\n<invoke name="read_file">\n<parameter name="path">a</parameter>\n</invoke>\n</function_calls>',
    # DeepSeek
    f"<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>read_file\n```json\n{GIVEN}\n```<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>",
    f"<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>read_file<\uff5ctool▁sep\uff5c>{GIVEN}<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>",
    '<\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke name="read_file">\n'
    '<\uff5cDSML\uff5cparameter name="path" string="true">a'
    "</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5cfunction_calls>",
    # Kimi
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>"
    f"{GIVEN}<|tool_call_end|><|tool_calls_section_end|>",
    # Mistral
    f"[TOOL_CALLS]read_file{GIVEN}",
    f"[TOOL_CALLS]read_file[ARGS]{GIVEN}</s>",
    f"[TOOL_CALLS]read_file[CALL_ID]abcdefghi[ARGS]{GIVEN}",
    # GLM
    "<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
    "<tool_call>read_file<arg_key>path</arg_key><arg_value>a</arg_value></tool_call>",
    # gpt-oss
    f"<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{GIVEN}<|call|>",
    f"<|start|>assistant<|channel|>commentary to=functions.read_file json<|message|>{GIVEN}",
    f"<|start|>assistant to=functions.read_file<|channel|>commentary<|message|>{GIVEN}<|call|>",
    # MiniMax, Seed
    '<minimax:tool_call>\n<invoke name="read_file">\n<parameter name="path">a</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "<seed:tool_call>\n<function=read_file>\n<parameter=path>a</parameter>\n</function>\n</seed:tool_call>",
    # Granite, Nemotron, Jamba, Hunyuan, Cohere
    f"<tool_call>[{CALL}]</tool_call>",
    f"<|tool_call|>[{CALL}]",
    f"<TOOLCALL>[{CALL}]</TOOLCALL>",
    f"<tool_calls>[{CALL}]</tool_calls>",
    f"<tool_calls><tool_call>{CALL}</tool_call></tool_calls>",
    f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "read_file", "parameters": {GIVEN}}}]<|END_ACTION|>',
    # Llama, and what ends early or late
    f"<function=read_file>{GIVEN}</function>",
    f"{CALL}<|eot_id|>",
    f"<tool_call>\n{CALL}\n</tool_call><|im_end|>",
    f"<tool_call>\n{CALL}",
    f"{CALL}\n</tool_call>",
    "<tool_call>\n<function=read_file>\n<parameter=path>\na\n</parameter>\n</tool_call>",
    "<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
]
LEFT = [
    "It says: " + CALL,
    f"{CALL}\nThat reads it.",
    f"{CALL}\n{CALL}",
    f"```json\n{CALL}\n```\n\n```json\n{CALL}\n```",
    f"Use this:\n```json\n{CALL}\n```",
    json.dumps([json.loads(CALL)]),
    '{"name": "write_file", "arguments": {"path": "a"}}',  # not offered
    '{"name": "read_file"}',
    '{"name": "read_file", "arguments": {"path": "a"}, "note": "as asked"}',
    '{"name": "read_file", "version": "1.0", "arguments": {}}',
    '{"name": "read_file", "arguments": {}, "parameters": {}}',
    '{"path": "a"}',
    '{"name": "read_file", "arguments": {"path": "a"}',
    "{'name': 'read_file', 'arguments': {'path': 'a'}}",
    "read_file(path='a')",
    f"read_file{GIVEN}",
    f"<tool_call>read_file{GIVEN}read_file{GIVEN}</tool_call>",
    f"<tool_call>write_file{GIVEN}</tool_call>",  # not offered
    f"<tool_call>{CALL}</tool_call> and <tool_call>{CALL}</tool_call>",
    f"<tool_call>[{CALL}, 7]</tool_call>",
    f'{{"tool_calls": [{CALL}], "say": "as asked"}}',
    "<function=read_file><parameter=path>a</parameter></function> and "
    "<function=read_file><parameter=path>b</parameter></function>",
    "<function=read_file>",
    f"It reads.\n<tool_call>\n{CALL}\n</tool_call>",
    "<tool_call>read_file<arg_key>path</arg_key><arg_value>a</arg_value> and more</tool_call>",
    f"The call is to=functions.read_file<|message|>{GIVEN}",
    "",
    "Well.",
]
MORE = CALL.replace('"a"', '"b"')
GIVEN_MORE = json.dumps({"path": "b"})
SEVERAL = [
    f"<tool_call>{CALL}</tool_call><tool_call>{MORE}</tool_call>",
    f"<tool_call>\n{CALL}\n</tool_call>\n\n<tool_call>\n{MORE}\n</tool_call><|im_end|>",
    f"<tool_call>{CALL}</tool_call>\n<tool_call>{MORE}",
    f"<tool_call>[{CALL}, {MORE}]</tool_call>",
    f"<tool_calls>\n<tool_call>{CALL}</tool_call>\n<tool_call>{MORE}</tool_call>\n</tool_calls>",
    f"[TOOL_CALLS] [{CALL}, {MORE}]",
    f"[TOOL_CALLS]read_file{GIVEN}[TOOL_CALLS]read_file{GIVEN_MORE}",
    f"[TOOL_CALLS]read_file[ARGS]{GIVEN}[TOOL_CALLS]read_file[ARGS]{GIVEN_MORE}</s>",
    f'{{"tool_calls": [{CALL}, {MORE}]}}',
    "<function=read_file><parameter=path>a</parameter></function>\n"
    "<function=read_file><parameter=path>b</parameter></function>",
    '<function_calls>\n<invoke name="read_file">\n<parameter name="path">a</parameter>\n</invoke>\n'
    '<invoke name="read_file">\n<parameter name="path">b</parameter>\n</invoke>\n</function_calls>',
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>"
    f"{GIVEN}<|tool_call_end|><|tool_call_begin|>functions.read_file:1<|tool_call_argument_begin|>"
    f"{GIVEN_MORE}<|tool_call_end|><|tool_calls_section_end|>",
    f"<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>read_file<\uff5ctool▁sep\uff5c>{GIVEN}<\uff5ctool▁call▁end\uff5c>\n<\uff5ctool▁call▁begin\uff5c>read_file<\uff5ctool▁sep\uff5c>{GIVEN_MORE}<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>",
]
UNFIT = [
    "<tool_call>read_file</tool_call>",
    '<tool_call>{"name": "read_file"}</tool_call>',
    f'<tool_call>{CALL}</tool_call><tool_call>{{"name": "read_file"}}</tool_call>',
    '{"name": "read_file", "arguments": {}}',
    '{"name": "read_file", "arguments": {"file": "a"}}',
    '{"name": "read_file", "arguments": {"path": 7}}',
    '{"name": "read_file", "arguments": ["a"]}',
    '{"name": "read_file", "arguments": "a"}',
    '{"name": "read_file", "arguments": null}',
    "<function=read_file></function>",
]


def taken(text: str, step: RequestCompletion | None = None, **more: Any) -> tuple[Completion, list[str]]:
    notes: list[str] = []
    asked = step or step_of(tools=(TOOL,))
    return take_written_call(Completion(text, finish="stop", **more), asked, "round-1", notes.append), notes


@pytest.mark.parametrize("text", TAKEN)
def test_a_whole_reply_that_is_one_call_is_that_call(text: str) -> None:
    answer, notes = taken(text)
    assert [(call.id, call.name, call.arguments) for call in answer.tool_calls] == [
        ("round-1/call-1", "read_file", {"path": "a"})
    ]
    assert (answer.content, answer.finish, answer.unreadable, len(notes)) == ("", "tool_calls", None, 1)


@pytest.mark.parametrize("text", SEVERAL)
def test_a_whole_reply_that_is_several_calls_in_tags_is_those_calls(text: str) -> None:
    answer, notes = taken(text)
    assert [(call.id, call.name, call.arguments) for call in answer.tool_calls] == [
        ("round-1/call-1", "read_file", {"path": "a"}),
        ("round-1/call-2", "read_file", {"path": "b"}),
    ]
    assert (answer.content, answer.finish, len(notes)) == ("", "tool_calls", 1)


@pytest.mark.parametrize("text", ["<tool_call>look</tool_call>", '<tool_call>\n{"name": "look"}\n</tool_call>'])
def test_a_name_in_a_tag_is_the_call_of_a_tool_without_arguments(text: str) -> None:
    step = step_of(tools=(ToolSpec("look", "Looks.", {"type": "object", "properties": {}}, "read"),))
    assert [(call.name, call.arguments) for call in taken(text, step)[0].tool_calls] == [("look", {})]


def test_beside_a_call_of_what_was_not_offered_none_is_taken() -> None:
    answer, notes = taken(f"<tool_call>{CALL}</tool_call><tool_call>{CALL.replace('read', 'write')}</tool_call>")
    assert (answer.tool_calls, answer.unreadable, notes) == ((), None, [])


def test_a_call_that_writes_tags_is_one_call() -> None:
    text = json.dumps({"name": "read_file", "arguments": {"path": "</tool_call><tool_call>[TOOL_CALLS]<function=x>"}})
    for whole in (text, f"<tool_call>{text}</tool_call>", f"[TOOL_CALLS][{text}]"):
        (call,) = taken(whole)[0].tool_calls
        assert call.arguments == json.loads(text)["arguments"]


@pytest.mark.parametrize("text", LEFT)
def test_anything_else_is_left_as_it_is(text: str) -> None:
    answer, notes = taken(text)
    assert (answer, notes) == (Completion(text, finish="stop"), [])


@pytest.mark.parametrize("text", UNFIT)
def test_a_call_whose_arguments_do_not_fit_is_asked_back(text: str) -> None:
    answer, _ = taken(text)
    assert answer.tool_calls == ()
    assert "read_file" in (answer.unreadable or "")


def test_texts_of_a_tag_become_what_the_schema_says() -> None:
    answer, _ = taken("<function=read_file><parameter=path>7</parameter><parameter=lines>7</parameter></function>")
    assert answer.tool_calls[0].arguments == {"path": "7", "lines": 7}


def test_a_tag_that_holds_too_many_values_is_asked_back() -> None:
    """Each of its parameters alone holds fewer."""
    names = [f"p{n}" for n in range(4)]
    schema = {"type": "object", "properties": {name: {"type": "array"} for name in names}, "required": names}
    step = step_of(tools=(ToolSpec("read_file", "Reads.", schema, "read"),))
    for values, is_call in ((MAX_VALUES // 5, True), (MAX_VALUES // 3, False)):
        parts = (f"<parameter={name}>[{'0,' * values}0]</parameter>" for name in names)
        answer, _ = taken(f"<function=read_file>{''.join(parts)}</function>", step)
        assert len(answer.tool_calls) == is_call
        assert (answer.unreadable is None) == is_call


@pytest.mark.parametrize(
    "text",
    [
        "<function_calls>" + " " * 90_000 + "x",
        "<function_calls>" + " " * 40_000 + "<invoke" + " " * 40_000 + "</function_calls>",
        "<think>" * 14_000,
        "<tool_call>" * 9_000,
        "[TOOL_CALLS]" + " " * 40_000 + "{}" * 25_000,
        "<|python_tag|>" * 7_000,
        "```\n" + "\n    " * 19_000 + "```x",
        "<function=a>" + "<parameter=a>" * 7_000,
        "<function=a><parameter=a>" + "\n" * 90_000 + "</function>",
        "<tool_call>a" + " " * 90_000 + "x",
        "<tool_call>a<arg_key>a</arg_key>" + " " * 90_000 + "x",
        "<tool_call>a" + "<arg_key>a</arg_key><arg_value>" * 3_000,
        "<|im_end|>" * 9_000,
        "<tool_call>x" * 8_000,
        "<tool_call>{}</tool_call>" * 4_000,
        "<tool_calls>" + "<tool_call>[TOOL_CALLS]" * 4_000,
        "<function=a>x" * 7_000,
        "<tool_call>" + '[{"name":"a"},' * 6_000 + "]",
    ],
)
def test_no_text_that_begins_like_a_call_takes_long(text: str) -> None:
    began = time.process_time()
    assert taken(text)[0].tool_calls == ()
    assert time.process_time() - began < 0.5  # of a pattern that could split it in many ways, hours


@pytest.mark.parametrize("fence", ["{}", "```json\n{}\n```"])
@pytest.mark.parametrize(
    ("schema", "is_answer"),
    [
        ({"type": "object"}, True),
        ({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}, True),
        ({"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}, False),
    ],
)
def test_what_the_schema_of_the_run_admits_is_its_answer(schema: dict[str, Any], is_answer: bool, fence: str) -> None:
    answer, _ = taken(fence.replace("{}", CALL), step_of(tools=(TOOL,), output_schema=schema))
    assert (answer.tool_calls == ()) == is_answer


def test_nothing_is_a_call_where_no_tool_is_offered_or_the_turn_was_cut_off() -> None:
    assert taken(CALL, step_of(tools=()))[0].tool_calls == ()
    cut_off = Completion(CALL, finish="length")
    assert take_written_call(cut_off, step_of(tools=(TOOL,)), "round-1", print) is cut_off


OWN_CALL = json.dumps({"name": READ.name, "arguments": {"path": "a"}})


@pytest.mark.parametrize("dialect", ["native", "text"])
@pytest.mark.parametrize("name", ["openai:small", "anthropic:claude-standin"])
async def test_it_is_taken_in_both_dialects_of_both_forms(server: Standin, name: str, dialect: Any) -> None:
    is_openai = name.startswith("openai")
    server.will(sends(chat(OWN_CALL) if is_openai else message(says(OWN_CALL))))
    async with asking(name, server.openai if is_openai else server.address, dialect=dialect) as model:
        answer = await ask_model(model, step_of())
    assert isinstance(answer, Completion)
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("read_file", {"path": "a"})]
    assert answer.usage is not None


async def test_it_is_taken_from_a_stream(server: Standin) -> None:
    server.will(streams(list(chat_events(chat(f"```json\n{OWN_CALL}\n```")))))
    async with asking("openai:small", server.openai) as model:
        asked = step_of()
        answer = await model(ModelInput(asked.name, asked, Sent("provider"), on_text=lambda _: None))
    assert isinstance(answer, Completion)
    assert [call.name for call in answer.tool_calls] == ["read_file"]
