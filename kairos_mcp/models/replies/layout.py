"""Find the parts of a chat completion where servers put them: under other names, one level up, or in a wrapper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.models.replies.finishes import is_end

_WRAPPERS = ("result", "data", "output", "response")  # in which gateways put a whole reply
_CAPITAL = re.compile(r"(?<=[a-z])[A-Z]")


def snake_keys(value: JsonObject) -> JsonObject:
    """Return an object in which a name as `toolCalls` also stands as `tool_calls`, unless that has a value."""
    added: JsonObject = {}
    for name in value:
        if not name.islower():
            added[_CAPITAL.sub(r"_\g<0>", name).lower()] = value[name]
    return {**added, **{name: held for name, held in value.items() if held is not None or name not in added}}


def unwrap_reply(reply: JsonObject) -> JsonObject:
    """Return a reply or an event of a stream without what a gateway has put around it."""
    reply = snake_keys(reply)
    if "choices" in reply or "message" in reply:
        return reply
    inner = next((held for name in _WRAPPERS if isinstance(held := reply.get(name), dict) and "choices" in held), None)
    return reply if inner is None else {**reply, **snake_keys(inner)}


def find_choice(reply: JsonObject) -> JsonObject:
    """Return the first choice, empty if absent. A message that stands without one, as Ollama and Cohere
    send it natively, is made one."""
    choices = reply.get("choices")
    if isinstance(choices, dict):
        choices = [choices] if choices.keys() & {"message", "delta", "text"} else list(choices.values())
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            return snake_keys(choice)
    if "choices" not in reply and isinstance(message := reply.get("message"), dict):
        finish = (
            reply.get("finish_reason") or reply.get("done_reason") or ("stop" if reply.get("done") is True else None)
        )
        # Each line of Ollama's stream holds the next piece as a message.
        return {"delta" if "done" in reply else "message": message, "finish_reason": finish}
    return {}


def held_in(choice: JsonObject, name: str) -> JsonObject:
    """Return the message or the delta of a choice, empty if absent."""
    held = choice.get(name)
    return snake_keys(held) if isinstance(held, dict) else {}


def finish_of(reply: JsonObject, choice: JsonObject) -> Any:
    """Return the word by which a reply or a stream ends, wherever it stands; None where it has not ended."""
    held = (choice, held_in(choice, "delta"), held_in(choice, "message"), reply)
    for name in ("finish_reason", "stop_reason"):
        for holder in held:
            word = holder.get(name)
            if is_end(word):
                return word
    return None


def usages_of(reply: JsonObject, choice: JsonObject) -> Iterator[object]:
    """Yield every place in which a usage may be; `usages` of a stream that was put together."""
    yield from usages if isinstance(usages := reply.get("usages"), list) else ()
    for holder in (reply, choice, held_in(choice, "message"), held_in(choice, "delta"), reply.get("x_groq")):
        if isinstance(holder, dict):
            yield holder.get("usage")
    yield reply.get("usage_metadata")
    if "eval_count" in reply:  # Ollama's own form
        yield reply
