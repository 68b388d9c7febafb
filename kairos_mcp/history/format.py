"""A run as a file that can be carried away: JSON Lines, one thing a line, the format's number in the first.

    head     the format, the program that wrote it, the run
    run      the flow, its version, the frozen spec, who asked, when
    text     a text that the spec or a result refers to, by its hash
    step     what was asked, with its digest; `attempt`: a further try of it; `answer`: what it was answered
    decision what a person or a rule decided about a step, and how much of it a dialog had shown
    message  a turn of the conversation, told from the rows; with the task that it belongs to
    note     what was cut, defaulted or done otherwise than asked
    account  what the run might use, holds and has used
    outcome  how it ended
    masked   where a secret was taken out that was not known to be one when the row was written
    end      how many lines there were, and the hash of all bytes before

What a provider alone may be sent back (`private`) is left out. Whoever changes a line raises FORMAT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from hashlib import sha256
from typing import Annotated, Any, BinaryIO, Literal, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json, to_json

from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.json_bounds import DOCUMENT_VALUES, has_more_values
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.steps import Answer, StoredCall

FORMAT = 1
MAX_LINE_BYTES = 128 * 1024 * 1024  # a reply of a provider has up to 16 MiB, of which JSON may make six times as much

Amounts = dict[str, int]
_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def _export_line(kind: type[_T]) -> type[_T]:
    """A line of the file as a value; what has a field more than it is refused."""
    return with_config(ConfigDict(extra="forbid"))(dataclass(frozen=True, slots=True)(kind))


@_export_line
class ExportHead:
    run: str
    program: str
    format: int = FORMAT
    line: Literal["head"] = "head"


@_export_line
class ExportedRun:
    """Times in milliseconds since 1970. `workspace` is the folder's name alone."""

    id: str
    flow: str
    version: int
    spec: JsonObject
    route: str
    principal: str
    via: str
    client: str
    workspace: str | None
    created_at: int
    ended_at: int | None
    line: Literal["run"] = "run"


@_export_line
class ExportedText:
    hash: str
    body: str
    line: Literal["text"] = "text"


@_export_line
class ExportedStep:
    """`held` null: it waits outside. `call`: one that no turn of a model contains. `judged`: how a call was judged by
    what it takes along."""

    path: str
    kind: str
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    at: int
    held: Amounts | None
    sent: JsonObject
    call: StoredCall | None = None
    judged: JsonObject | None = None
    line: Literal["step"] = "step"


@_export_line
class ExportedAttempt:
    """A later try of the step at `path`; `ended`: how the one before it did, and what that `lost`."""

    path: str
    at: int
    held: Amounts
    lost: Amounts
    ended: str
    waits_outside: bool
    sent: JsonObject
    line: Literal["attempt"] = "attempt"


@_export_line
class ExportedAnswer:
    path: str
    at: int
    by: str
    answer: Annotated[Answer, Field(discriminator="kind")]
    spent: Amounts
    cached: int
    exactness: str | None
    line: Literal["answer"] = "answer"


@_export_line
class ExportedDecision:
    """As in `DecisionRow`: `kind` is approval or settlement, `note` the comment with it."""

    path: str
    kind: str
    said: str
    by: str
    through: str
    client: str
    at: int
    note: str | None
    shown: str | None
    files: list[str] | None = None
    line: Literal["decision"] = "decision"


@_export_line
class ExportedMessage:
    """`path`: the step that brought it. `task` and `parent`: the task whose step that is, `depth` how deep it lies."""

    path: str | None
    task: str | None
    parent: str | None
    depth: int
    role: str
    content: str
    tool_calls: list[JsonObject]
    tool_call_id: str | None
    line: Literal["message"] = "message"


@_export_line
class ExportedNote:
    text: str
    line: Literal["note"] = "note"


@_export_line
class ExportedAccount:
    caps: dict[str, int | None]
    held: Amounts
    spent: Amounts
    line: Literal["account"] = "account"


@_export_line
class ExportedOutcome:
    outcome: JsonObject
    line: Literal["outcome"] = "outcome"


@_export_line
class RedactedPlaces:
    """`texts`: hashes of texts; `paths`: steps whose answers; `beside`: other lines (`run`, `note`, `outcome`)."""

    texts: list[str]
    paths: list[str]
    beside: list[str]
    line: Literal["masked"] = "masked"


@_export_line
class ExportEnd:
    lines: int
    sha256: str
    line: Literal["end"] = "end"


Line = Annotated[
    ExportHead
    | ExportedRun
    | ExportedText
    | ExportedStep
    | ExportedAttempt
    | ExportedAnswer
    | ExportedDecision
    | ExportedMessage
    | ExportedNote
    | ExportedAccount
    | ExportedOutcome
    | RedactedPlaces
    | ExportEnd,
    Field(discriminator="line"),
]


@dataclass(frozen=True, slots=True)
class ExportedHistory:
    """What a file says of a run, in the order in which it was marked. The texts are those of their hashes, but for
    the masked ones."""

    run: ExportedRun
    texts: Mapping[str, str]
    steps: tuple[ExportedStep, ...]
    answers: Mapping[str, ExportedAnswer]
    messages: tuple[ExportedMessage, ...]
    outcome: JsonObject | None
    redacted: RedactedPlaces


def write_lines(lines: Iterable[Any]) -> Iterator[bytes]:
    """The lines as bytes, and the line that ends them."""
    count, folded = 0, sha256()
    for line in lines:
        encoded = to_json({"line": line.line, **_fields(line)}) + b"\n"
        folded.update(encoded)
        count += 1
        yield encoded
    yield to_json({"line": "end", "lines": count, "sha256": folded.hexdigest()}) + b"\n"


def _fields(line: Any) -> JsonObject:
    kind: Any = type(line)
    shown: JsonObject = _adapter(kind).dump_python(line, mode="json")
    return {name: value for name, value in shown.items() if name != "line"}


def list_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, of one that is too long only its beginning: it may have no end."""
    return iter(partial(file.readline, MAX_LINE_BYTES + 1), b"")


def read_lines(lines: Iterable[bytes]) -> ExportedHistory:
    """What the lines of a file say. Raises BadArguments that names the line which is wrong."""
    folded, found = sha256(), list[Any]()
    for number, raw in enumerate(lines, 1):
        line = _parse_line(raw, number)
        if number == 1 and not isinstance(line, ExportHead):
            raise _line_error(
                1, "it is not the first line of an exported run", "Give a file that `kairos-mcp export RUN FILE` wrote."
            )
        found.append(line)
        if isinstance(line, ExportEnd):
            if (line.lines, line.sha256) != (number - 1, folded.hexdigest()):
                raise _line_error(number, "the checksum doesn't match: the file was changed", "Export the run again.")
            continue
        if len(found) > 1 and isinstance(found[-2], ExportEnd):
            raise _line_error(number, "it comes after the end", "One file holds one run.")
        folded.update(raw)
    if not found:
        raise BadArguments("The file is empty.", "Give a file that `kairos-mcp export RUN FILE` wrote.")
    if not isinstance(found[-1], ExportEnd):
        raise BadArguments(f"The file ends after line {len(found)}, before its end.", "Export the run again.")
    return _gather_history(found)


def _parse_line(raw: bytes, number: int) -> Any:
    if len(raw) > MAX_LINE_BYTES:
        raise _line_error(number, f"it is longer than {MAX_LINE_BYTES} bytes", "No exported run has such a line.")
    if has_more_values(raw, DOCUMENT_VALUES):
        raise _line_error(number, f"it has more than {DOCUMENT_VALUES:,} values", "No exported run has such a line.")
    try:
        value = from_json(raw)
    except ValueError as error:
        raise _line_error(number, "it is no JSON", "Give a file that `kairos-mcp export RUN FILE` wrote.") from error
    if number == 1:
        _check_format(value)
    try:
        return _adapter(Line).validate_python(value)
    except ValidationError as error:
        problem = first_problem(error)
        raise _line_error(
            number, f"{problem.place or 'the line'}: {problem.message[:200]}", "Export the run again."
        ) from error


def _check_format(value: Any) -> None:
    match value:
        case {"line": "head", "format": int(number)} if number > FORMAT:
            raise BadArguments(
                f"The file is of format {number}; this program reads up to {FORMAT}.",
                "Install the newer kairos-mcp that wrote it.",
            )
        case _:
            pass


def _gather_history(found: list[Any]) -> ExportedHistory:
    runs = [line for line in found if isinstance(line, ExportedRun)]
    if len(runs) != 1 or found[0].run != runs[0].id:
        raise BadArguments("The file does not hold one run.", "Give a file that `kairos-mcp export RUN FILE` wrote.")
    steps = tuple(line for line in found if isinstance(line, ExportedStep))
    paths = {step.path for step in steps}
    answers = {line.path: line for line in found if isinstance(line, ExportedAnswer)}
    if len(paths) != len(steps) or not answers.keys() <= paths:
        raise BadArguments("A step stands twice in the file, or an answer without its step.", "Export the run again.")
    masked = next((line for line in found if isinstance(line, RedactedPlaces)), RedactedPlaces([], [], []))
    texts = {line.hash: line.body for line in found if isinstance(line, ExportedText)}
    for content_hash, body in texts.items():
        if content_hash not in masked.texts and sha256(body.encode()).hexdigest() != content_hash:
            raise BadArguments(f"The text {content_hash[:12]} is not the one of its hash.", "Export the run again.")
    outcome = next((line.outcome for line in found if isinstance(line, ExportedOutcome)), None)
    said = tuple(line for line in found if isinstance(line, ExportedMessage))
    return ExportedHistory(runs[0], texts, steps, answers, said, outcome, masked)


def _line_error(number: int, why: str, cure: str) -> BadArguments:
    return BadArguments(f"Line {number} of the file: {why}.", cure)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
