"""A run as a person reads it in a terminal: from a report to lines of text, nothing else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kairos_mcp.app.command_text import CommandLine, for_this_terminal
from kairos_mcp.cli.speech import line_of, say, say_diff
from kairos_mcp.core import placeholders
from kairos_mcp.core.counting import count_of, format_age
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import truncate
from kairos_mcp.settings.settings import Flags
from kairos_mcp.views.run_report import RunReport

_MARKS = {True: "+", False: "!"}
_SHOWN_CHARS = 2_000


def heading_of(report: RunReport) -> str:
    said = report.stop_reason not in (None, report.status)
    reason = f" ({report.stop_reason})" if said else ""
    return f"run {report.run_id} · {report.flow} · {report.status}{reason}"


def purpose_line(report: RunReport, where: str) -> str:
    """What a run is for, how old it is, and where it works."""
    return f"for {line_of(report.goal, 80)} · {age_of(report.created_at)} old · {where}"


def age_of(moment: str) -> str:
    """How long ago a moment of a report was."""
    return format_age((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def project_of(workspace: str | None) -> str:
    """The name of a workspace in a list."""
    return "-" if workspace is None else Path(workspace).name


def call_line(call: JsonObject) -> str:
    """One executed call: `+` went well, `!` is an error that the model was shown."""
    mark = _MARKS[bool(call["ok"])]
    said = line_of(call["preview"], 60)
    where = f"round {call['round']}" if call["round"] else f"{' '.join(call['ref'].split('/')[:-1][:2]):<15}"
    return f"  {mark} {where}  {call['name']:<14} {call['ms']:>5} ms  {said}"


def usage_line(report: RunReport) -> str:
    usage = report.usage
    tokens = usage["input_tokens"] + usage["output_tokens"]
    rounds = f"{count_of(report.rounds, 'round')} · " if report.rounds or report.flow == "planner" else ""
    return (
        f"{rounds}{count_of(usage['model_calls'], 'model call')} · "
        f"{count_of(usage['tool_calls'], 'tool call')} · {count_of(tokens, 'token')} ({usage['exactness']}) · "
        f"{dollars(usage['usd'], usage['unpriced'])} · {usage['seconds']:.1f} s"
    )


def dollars(amount: float, unpriced: list[str] | None) -> str:
    """What was spent, as far as that is known: a model without a known price has not been free."""
    if not unpriced:
        return f"${amount:.4f}"
    return f"at least ${amount:.4f}" if amount else "price unknown"


def ending_of(report: RunReport) -> Iterator[str]:
    """What is said of a run that rests: summary, output, what was done otherwise than asked, the sums."""
    yield from _came_to(report)
    yield ""
    yield from _remarks(report)
    yield usage_line(report)
    yield heading_of(report)
    if report.waiting:
        yield purpose_line(report, project_of(report.workspace))


def report_of(report: RunReport) -> Iterator[str]:
    """All of a run, as `show` prints it before what it waits for."""
    yield heading_of(report)
    yield purpose_line(report, report.workspace or "no workspace")
    yield f"route {report.route}" + (f" · model {report.model}" if report.model else "")
    for call in report.calls:
        yield call_line(call)
    yield from _remarks(report)
    yield usage_line(report)
    yield from _came_to(report)


def _came_to(report: RunReport) -> Iterator[str]:
    """Summary and output. Of a mandate's run the word for the mandate and what was learned: the summary has its cycles,
    and --json has all of it."""
    if report.summary:
        yield ""
        yield report.summary
    output: Any = report.output
    match output:
        case None | report.summary:
            return
        case {"mandate_id": str(name), "mandate_status": str(status)}:
            yield ""
            yield f"mandate {name}: {status}" + (f" ({output['reason']})" if "reason" in output else "")
            if report.summary is None:
                yield from (_cycle_line(cycle) for cycle in output.get("cycles", ()))
            yield from (f"lesson: {lesson}" for lesson in output.get("lessons", ()))
        case _:
            yield ""
            yield "output " + json.dumps(output, ensure_ascii=False, indent=2)


def _cycle_line(cycle: JsonObject) -> str:
    """A cycle of a mandate that has not ended, as the summary of its end will have it."""
    decided, seen = cycle.get("decision", {}), cycle.get("reflection")
    what = " ".join(str(decided[name]) for name in ("action", "target", "tool") if name in decided)
    came = cycle["status"] if what in ("", cycle["status"]) else f"{what}: {cycle['status']}"
    judged = f"; {seen['assessment']}, confidence {seen['confidence']:g}" if seen is not None else ""
    return f"- cycle {cycle['cycle']}: {came}{judged}"


def say_waiting(run_id: str, item: JsonObject, flags: Flags) -> None:
    """A waiting item, and the exact command that answers it. Of one that can't be answered any more, since the
    run's flow has changed, no more is known than its key; the report says how to go on."""
    if item.keys() == {"key", "kind"}:
        say(f"\nwaiting: {item['key']} ({item['kind']})")
        return
    if item["kind"] != "approval":
        for line in _waiting_of(run_id, item, flags):
            say(line)
        return
    say(f"\nwaiting: {item['key']} (approval of {item['name']}, {item['effect']}, until {item['expires_at']})")
    say_diff(item["preview"])
    say("")
    for line in _decisions(item["command"], "approve", "deny"):
        say(f"  {line}")


def _decisions(command: str, one: str, other: str) -> Iterator[str]:
    """A command that decides, and the one that decides otherwise: nothing stands beside them, so that both can be
    pasted."""
    yield command
    words = shlex.split(command)
    yield shlex.join([*words[: (at := words.index(one))], other, *words[at + 1 :]])


def _waiting_of(run_id: str, item: JsonObject, flags: Flags) -> Iterator[str]:
    yield ""
    yield f"waiting: {item['key']} ({item['kind']})"
    match item["kind"]:
        case "completion":
            yield from _conversation(item["messages"])
            if item["tools"]:
                yield f"  tools: {', '.join(tool['name'] for tool in item['tools'])}"
            template: JsonObject = {"content": placeholders.ANSWER}
        case "tool_call":
            yield f"  {item['name']} {json.dumps(item['arguments'], ensure_ascii=False)}"
            template = {"content": placeholders.RESULT}
        case _:
            yield f"  {item['name']}: nobody knows whether this call was carried out"
            yield ""
            yield from (f"  {line}" for line in _decisions(item["command"], "already_done", "reattempt"))
            return
    yield ""
    yield f"  {command(flags, 'answer', run_id, item['key'], json.dumps(template))}"
    yield "the whole request:"
    yield f"  {command(flags, 'show', run_id, '--json')}"


def say_paused(report: RunReport, flags: Flags) -> None:
    """Where a run stands still, the command with which a person goes on."""
    match report.status, report.output:
        case "paused", {"mandate_id": str(), "mandate_status": "paused_goal_drift"}:
            say(f"\n  {command(flags, 'cancel', report.run_id)}")
        case "paused", {"mandate_id": str(name), "mandate_status": "paused_at_checkpoint" | "paused_risk_exceeded"}:
            say(f"\n  {command(flags, 'mandate', 'run', name, '--resume')}")
        case "paused", _ if report.next is not None and report.next["tool"] in ("run_control", "run_status"):
            if report.next["arguments"].get("action", "resume") == "resume":
                say(f"\n  {command(flags, 'resume', report.run_id)}")


def traced_line(item: JsonObject) -> str:
    """An item of the record: where it stands, then what it says, then what it carries."""
    if "role" in item:
        calls = "".join(f"\ncalls {_called(call)}" for call in item.get("tool_calls", ()))
        where = f"{item['path']} " if "path" in item else ""
        return f"{where}{item['role']}: {item['content']}{calls}".replace("\n", "\n    ")
    ref = item.get("ref", "")
    rest = {name: value for name, value in item.items() if name not in ("ref", "text", "content", "digest", "at")}
    said = line_of(str(item.get("text") or item.get("content") or ""), 80)
    figures = " ".join(f"{name}={_short(value)}" for name, value in rest.items() if value not in (None, []))
    return f"{ref:<20} {figures}  {said}".rstrip()


def command(flags: Flags, *words: str) -> str:
    """A command line to copy, with the options that this one was given."""
    return commands_of(flags).words(*words)


def commands_of(flags: Flags) -> CommandLine:
    """How commands are worded for whoever gave these flags."""
    given = (("--home", flags.home), ("--config", flags.config))
    return for_this_terminal(word for name, value in given if value for word in (name, value))


def _remarks(report: RunReport) -> Iterator[str]:
    for text in report.degraded:
        yield f"note: {text}"
    if report.status == "paused" and report.next is not None:
        yield f"paused: {report.next['why']}"


def _conversation(messages: Iterable[JsonObject]) -> Iterator[str]:
    for message in messages:
        shown = truncate(message["content"], _SHOWN_CHARS, "… ({left_out} characters left out)")
        yield f"  {message['role']}: {shown}".replace("\n", "\n    ")
        for call in message.get("tool_calls") or ():
            yield f"    calls {_called(call)}"


def _called(call: JsonObject) -> str:
    return f"{call['name']} {line_of(json.dumps(call['arguments'], ensure_ascii=False), 90)}"


def _short(value: object) -> str:
    return value if isinstance(value, str) else line_of(json.dumps(value, ensure_ascii=False), 60)
