"""Redact what comes from outside and becomes rows, by one function for each kind of value.

Of a model's own turn only known values are redacted: what it writes into a file has to stay what it wrote, and a text
with the shape of a key may be an example.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from kairos_mcp.core.messages import Completion, JsonObject, ToolCall, ToolResult
from kairos_mcp.core.redaction import Redacted, Redactor, may_name_secret
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.secret_values import is_variable, names_key
from kairos_mcp.core.steps import Failure

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    R = TypeVar("R", bound=DataclassInstance)
else:
    R = TypeVar("R")

Texts = tuple[tuple[str, str], ...]  # by content hash
LABEL_CHARS = 200  # of what a client calls itself
_LABEL_READ = 2_000  # of it that are looked at
_JSON = json.JSONEncoder(ensure_ascii=False)


def redact_result(result: ToolResult, redactor: Redactor) -> ToolResult:
    """Redact the result of a tool, or one that a caller brings for a tool."""
    content = redactor.redact_text(result.content)
    if not (content.count or (result.data is not None and _may_hold_secrets(result.data, redactor, _names_shown))):
        return result  # as most do; one search of each text has shown it
    return replace(result, content=content.text, data=redactor.redact_data(result.data)[0])


def redact_known_result(result: ToolResult, redactor: Redactor) -> ToolResult:
    """Redact known values in a result whose texts were masked before."""
    content, data = redactor.redact_known(result.content), redact_value(result.data, redactor)
    return result if not content.count and data == result.data else replace(result, content=content.text, data=data)


def redact_completion(turn: Completion, redactor: Redactor) -> Completion:
    """Redact known values in a model's turn, and in the private content that its provider wants back.

    That content repeats the turn. What is signed in it is thinking, which was never shown a key.
    """
    content, calls = (
        redactor.redact_known(turn.content),
        tuple(_redact_call(call, redactor) for call in turn.tool_calls),
    )
    private = turn.private
    if private is not None and (body := redactor.redact_known(private.body)).count:
        private = replace(private, body=body.text)
    if content.count == 0 and calls == turn.tool_calls and private is turn.private:
        return turn
    return replace(turn, content=content.text, tool_calls=calls, private=private)


def redact_failure(failure: Failure, redactor: Redactor) -> Failure:
    """Redact the reason of a failed model call: a provider may repeat what it was sent."""
    message = redactor.redact_text(failure.message)
    return replace(failure, message=message.text) if message.count else failure


def redact_answer(answer: object, redactor: Redactor) -> object:
    """Redact what a caller brings for an open step: a result, or a turn with the calls to be made."""
    match answer:
        case {"tool_calls": calls, **rest}:
            return {**redactor.redact_json(rest)[0], "tool_calls": redact_value(calls, redactor)}
        case _:
            return redactor.redact_json(answer)[0]


def redact_arguments(arguments: JsonObject, redactor: Redactor) -> tuple[JsonObject, int]:
    """Redact the arguments of a call from outside; also return how many secrets they held."""
    return redactor.redact_json(arguments)


def redact_value(value: Any, redactor: Redactor) -> Any:
    """Redact known values in each text of a JSON value, names included: a model wrote them."""
    match value:
        case str():
            return redactor.redact_known(value).text
        case dict():
            return {redactor.redact_known(name).text: redact_value(item, redactor) for name, item in value.items()}
        case list():
            return [redact_value(item, redactor) for item in value]
        case _:
            return value


def redact_request(request: R, redactor: Redactor) -> tuple[R, int]:
    """Redact all that a run is started with; also return how many secrets it held.

    The folder stays as it is: it is compared with those of this server, and not stored.
    """
    plain, count = dict[str, Any](), 0
    for each in fields(request):
        value = getattr(request, each.name)
        if each.name == "workspace":
            continue
        if each.metadata.get("as_written"):
            plain[each.name] = redact_value(value, redactor)
        else:
            plain[each.name], found = _redact_given(value, redactor)
            count += found
    return replace(request, **plain), count


def redact_label(name: str, redactor: Redactor) -> str:
    """Redact a client's name for itself, then cut it: half a secret would not be found."""
    return redactor.redact_text(name[:_LABEL_READ]).text.strip()[:LABEL_CHARS]


def redact_spec(spec: Spec, texts: Texts, redactor: Redactor) -> tuple[Spec, Texts, int]:
    """Redact all that the row of a new run will hold; also return how many secrets were found in what it was given.

    Every start comes through here, and with it every field that a spec has or will have: only texts that are
    declared `as_written`, and a model's turns in a conversation, are rid of known values alone.
    """
    values = {field.name: getattr(spec, field.name) for field in fields(spec)}
    as_written = {field.name for field in fields(spec) if field.metadata.get("as_written")}
    given = {value for name, value in values.items() if name.endswith("_text") and name not in as_written}
    written = {values[name] for name in as_written} - given
    count, named, bodies = 0, dict[str, str](), list[tuple[str, str]]()
    for name, body in texts:
        found = redactor.redact_known(body) if name in written else _redact_given_text(body, redactor)
        count += 0 if name in written else found.count
        named[name] = sha256(found.text.encode()).hexdigest() if found.count else name
        bodies.append((named[name], found.text))
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if name.endswith("_text"):
            plain[name] = named.get(value, value)
        else:
            plain[name], found_here = _redact_given(value, redactor)
            count += found_here
    return (replace(spec, **plain) if plain != values else spec), tuple(bodies), count


def _redact_given_text(body: str, redactor: Redactor) -> Redacted:
    """Redact a text that a run is given; of one that is JSON, each text in it, so that it stays JSON."""
    if body[:1] not in ("[", "{"):
        return redactor.redact_text(body)
    try:
        value = json.loads(body)
    except ValueError:
        return redactor.redact_text(body)
    if not _may_hold_secrets(value, redactor, _names_secret):
        return Redacted(body, 0)
    parts = [_redact_given_part(part, redactor) for part in (value if isinstance(value, list) else [value])]
    plain = [part for part, _ in parts]
    count = sum(found for _, found in parts)
    return Redacted(_JSON.encode(plain if isinstance(value, list) else plain[0]), count) if count else Redacted(body, 0)


def _may_hold_secrets(value: Any, redactor: Redactor, is_named: Callable[[str], bool]) -> bool:
    """Whether `redact_json`, or `redact_data`, may find something in a JSON value; `is_named` knows their names.

    One search of all texts is much quicker than one of each. They stand there as they are, a line each: in JSON a
    letter comes before what follows a tab, and a key behind a letter is none.
    """
    texts = list[str]()
    return _collect_texts(value, texts, is_named) or redactor.redact_text("\n".join(texts)).count > 0


def _collect_texts(value: Any, texts: list[str], is_named: Callable[[str], bool]) -> bool:
    """Add each text in a JSON value, names included; stop and return True at a text whose name is a key's."""
    match value:
        case str():
            texts.append(value)
        case dict():
            texts += value
            return any(
                (isinstance(item, str) and is_named(name)) or _collect_texts(item, texts, is_named)
                for name, item in value.items()
            )
        case list() | tuple():
            return any(_collect_texts(item, texts, is_named) for item in value)
    return False


@lru_cache(1_000)
def _names_secret(name: str) -> bool:
    return is_variable(name) or names_key(name) or "cookie" in name.casefold()


def _names_shown(name: str) -> bool:
    return _names_secret(name) or may_name_secret(name)


def _redact_given_part(value: Any, redactor: Redactor) -> tuple[Any, int]:
    match value:
        case {"role": "assistant"}:
            plain = redact_value(value, redactor)
            return plain, int(plain != value)
        case _:
            return redactor.redact_json(value)


def _redact_given(value: Any, redactor: Redactor) -> tuple[Any, int]:
    match value:
        case str():
            found = redactor.redact_text(value)
            return found.text, found.count
        case dict() | list():
            return redactor.redact_json(value)
        case tuple():
            parts = [_redact_given(item, redactor) for item in value]
            count = sum(found for _, found in parts)
            return (tuple(plain for plain, _ in parts), count) if count else (value, 0)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return redact_request(value, redactor)
        case _:
            return value, 0


def redaction_note(count: int) -> str:
    """Return the note for a run whose start held secrets."""
    what = "one secret was" if count == 1 else f"{count} secrets were"
    return f"{what} taken out of what this run was started with; a tool is given a key by its configuration."


def _redact_call(call: ToolCall, redactor: Redactor) -> ToolCall:
    name, found = redactor.redact_known(call.name).text, redact_value(call.arguments, redactor)
    return call if (name, found) == (call.name, call.arguments) else replace(call, name=name, arguments=found)
