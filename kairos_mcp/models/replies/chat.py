"""Make a chat completion well-formed, as OpenAI defines it: the form that most servers claim to speak.

A whole reply is repaired here, and a stream once its events are put together (events.py), so both come out alike. What
has one meaning is repaired and noted; what has none raises BadProviderReply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.calls import (
    arguments_of,
    arguments_text,
    calls_of,
    function_of,
    is_call_block,
    once_each,
    repair_call_id,
    repair_name,
)
from kairos_mcp.models.replies.errors import error_of, read_error
from kairos_mcp.models.replies.exchange import (
    BadProviderReply,
    BrokenOff,
    ErrorInReply,
    Exchange,
    mend_surrogates,
)
from kairos_mcp.models.replies.finishes import Meaning, read_finish
from kairos_mcp.models.replies.layout import find_choice, finish_of, held_in, unwrap_reply, usages_of
from kairos_mcp.models.replies.usage import TokenReport, UnreadableUsage, largest_report, read_usage

LATEST_TIME = 2**33  # in seconds, of the year 2242: what a library makes a date of
_FINISH_WORDS: Mapping[str, str] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "refusal": "content_filter",
}
_END_OF_THINKING = re.compile(r"(?:\A|\n)[ \t]*</think(?:ing)?>[ \t]*(?:\n|\Z)")


def repair_chat(reply: JsonObject, exchange: Exchange) -> JsonObject:
    """Return a chat completion with nothing in it but what its definition has. Raises BadProviderReply."""
    reply = unwrap_reply(reply)
    choice = find_choice(reply)
    take_usage(exchange, usages_of(reply, choice))
    message = _find_message(reply, choice, exchange)
    calls = _repair_calls(message, choice, reply, exchange)
    text, thinking = _read_content(message)
    text, stray_thinking = _without_stray_thinking(text, exchange)
    field, reasoning = _read_reasoning(message)
    reasoning = reasoning or thinking or stray_thinking
    content = message.get("content")
    keeps_parts = exchange.keeps_parts and isinstance(content, list) and not any(map(is_call_block, content))
    refusal = message.get("refusal")
    repaired = {
        "role": "assistant",
        "content": content if keeps_parts else text or None,
        "refusal": refusal if isinstance(refusal, str) and refusal else None,
        **({field: reasoning} if reasoning and not keeps_parts else {}),
        **({"tool_calls": calls} if calls else {}),
    }
    meaning = take_finish(exchange, finish_of(reply, choice))
    finish = _FINISH_WORDS.get(str(meaning), "tool_calls" if calls else "stop")
    return {
        "id": _text(reply.get("id")) or "reply",
        "object": "chat.completion",
        "created": created if is_time(created := reply.get("created")) else 0,
        "model": _text(reply.get("model")),
        "choices": [{"index": 0, "message": repaired, "finish_reason": finish, "logprobs": None}],
        **_plain_usage(exchange.usage),
    }


def take_usage(exchange: Exchange, usages: Iterator[object], *, cache_is_apart: bool = False) -> bool:
    """Read what a reply reports, each report being of all so far. Return False, with a note, where it can't be read."""
    exchange.has_usage = True
    reports, unreadable = [], ""
    for usage in usages:
        try:
            report = read_usage(usage, cache_is_apart=cache_is_apart)
        except UnreadableUsage as error:
            unreadable = error.reason
        else:
            reports += [] if report is None else [report]
    exchange.usage = largest_report(reports)
    exchange.reports_usage = bool(reports or unreadable)
    if exchange.usage is None and unreadable:
        exchange.note(f"The provider's usage can't be read ({unreadable}): the most that a call may cost is charged.")
        return False
    return True


def take_finish(exchange: Exchange, word: object) -> Meaning | None:
    """Keep what the finish reason of a reply means; note an unknown one. Raises BrokenOff."""
    meaning = exchange.finish = read_finish(word)
    if meaning == "broken":
        raise BrokenOff(str(word))
    if meaning == "unknown":
        exchange.note(f"The provider ended a reply with an unknown finish reason: {str(word)[:60]!r}.")
    return meaning


def _find_message(reply: JsonObject, choice: JsonObject, exchange: Exchange) -> JsonObject:
    """Return the message of the reply. Raises ErrorInReply, and BadProviderReply if absent."""
    found = held_in(choice, "message") or held_in(choice, "delta")
    if (error := error_of(choice) or error_of(reply)) is not None:
        raise ErrorInReply(error, has_begun=bool(found) or exchange.reports_usage)
    if found or any(isinstance(choice.get(name), dict) for name in ("message", "delta")):
        return found
    for name in ("text", "message"):  # of the older form, without messages
        if isinstance(choice.get(name), str):
            return {"content": choice[name]}
    if calls_of((choice, reply)):
        return {}
    if (provider := _foreign_form(reply)) is not None:
        raise BadProviderReply(f"it is of the form of {provider}")
    if not choice and read_error(reply).words:
        raise ErrorInReply(reply, has_begun=exchange.reports_usage)
    if "choices" in reply and not choice:
        raise BadProviderReply("it has no choice, so no answer", retryable=True)
    raise BadProviderReply("it is not a chat completion")


def _foreign_form(reply: JsonObject) -> str | None:
    """Return which provider's own form this is, with the setting that it needs."""
    if {"content", "stop_reason"} <= reply.keys():
        return "Anthropic; set KAIROS_MODEL=anthropic:NAME"
    if isinstance(reply.get("candidates"), list):
        return "Google; set KAIROS_MODEL=google:NAME"
    if isinstance(reply.get("output"), list):
        return "OpenAI's responses; set KAIROS_MODEL=openai-responses:NAME"
    if isinstance(reply.get("response"), str) and "done" in reply:
        return "Ollama's generate; set KAIROS_BASE_URL to the address that ends in /v1"
    return None


def _plain_usage(report: TokenReport | None) -> JsonObject:
    if report is None:
        return {}
    return {
        "usage": {
            "prompt_tokens": report.input_tokens,
            "completion_tokens": report.output_tokens,
            "total_tokens": report.total_tokens,
            "prompt_tokens_details": {"cached_tokens": report.cached_tokens},
        }
    }


def _read_content(message: JsonObject) -> tuple[str, str]:
    """Return the text and the thinking of a content that is a text, or a list of parts, or one part."""
    content = message.get("content")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        match part:
            case str():
                texts.append(part)
            case {"type": "thinking" | "reasoning" as kind, **rest}:
                thoughts += [text for text in _texts_in(rest.values()) if text != kind]
            case {"text": str(text)}:
                texts.append(text)
            case _:
                pass
    return "".join(texts), "".join(thoughts)


def _texts_in(values: Iterable[object]) -> Iterator[str]:
    """Yield the texts of a part that holds thinking: as a text, or as parts of its own."""
    for value in values:
        match value:
            case str():
                yield value
            case list(parts):
                yield from (inner["text"] for inner in parts if isinstance(inner, dict) and _text(inner.get("text")))
            case _:
                pass


def _read_reasoning(message: JsonObject) -> tuple[str, str]:
    """Return the reasoning with the name of the field that it goes back in."""
    for name in ("reasoning", "reasoning_content", "thinking"):
        if text := _text(message.get(name)):
            return "reasoning" if name == "reasoning" else "reasoning_content", text
    details = message.get("reasoning_details")
    texts = [_text(each.get("text") or each.get("summary")) for each in details or () if isinstance(each, dict)]
    return "reasoning_content", "".join(texts) if isinstance(details, list) else ""


def _without_stray_thinking(content: str, exchange: Exchange) -> tuple[str, str]:
    """Return the answer, and the thinking before a `</think>` that stands on a line of its own without its beginning:
    templates of reasoning models begin the thinking in the prompt."""
    found = _END_OF_THINKING.search(content)
    if found is None or "<think" in content[: found.start() + 1] or content.count("```", 0, found.start()) % 2:
        return content, ""
    exchange.note_repair("thinking that ended with </think> is no part of the answer")
    return content[found.end() :].lstrip("\n"), content[: found.start()]


def _repair_calls(message: JsonObject, choice: JsonObject, reply: JsonObject, exchange: Exchange) -> list[JsonObject]:
    details = message.get("reasoning_details")
    if isinstance(details, list) and details:  # they go into the record as they are
        exchange.reasoning_details = json.loads(mend_surrogates(json.dumps(details, ensure_ascii=False)))
    calls = calls_of((message,))
    if not calls and (calls := calls_of((choice, reply))):
        exchange.note_repair("calls that stood beside their message were taken")
    taken: set[str] = set()
    calls = once_each(calls, exchange)
    return [_repair_call(call, number, taken, exchange) for number, call in enumerate(calls, 1)]


def _repair_call(call: JsonObject, number: int, taken: set[str], exchange: Exchange) -> JsonObject:
    function = function_of(call)
    name = repair_name(function.get("name"), exchange)
    repaired: JsonObject = {
        "id": repair_call_id(call.get("id"), number, taken, exchange),
        "type": "function",
        "function": {"name": name, "arguments": arguments_text(arguments_of(function), exchange)},
    }
    # What Gemini wants back with a call.
    return repaired | ({"extra_content": extra} if isinstance(extra := call.get("extra_content"), dict) else {})


def is_time(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < LATEST_TIME


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
