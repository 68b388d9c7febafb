"""Word a run's report for a terminal: from a report to lines of text, each with the commands that come next."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kairos_mcp.cli.terminal import DiffLine, Line, Prose, Reply, Signs, columns_of, one_line, signs_of
from kairos_mcp.core.input_checks import Placeholder
from kairos_mcp.core.limits import UNITS, Unit
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.steps import task_of
from kairos_mcp.core.text import count_of, format_age, truncate
from kairos_mcp.settings.settings import Flags
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.views.command_text import CommandLine, name_commands, terminal_command_line
from kairos_mcp.views.question import part_question
from kairos_mcp.views.team_tree import tree_lines
from kairos_mcp.views.words import cost_words, status_words

if TYPE_CHECKING:
    from kairos_mcp.views.run_report import RunReport

CALL_SIGNS = Signs("+", "", "!")
_MESSAGE_CHARS = 2_000
_PREVIEW_CHARS = 60
DIGEST_CHARS = 16  # as many are shown, and suffice to say what was shown


def report_lines(report: RunReport, flags: Flags) -> Iterator[Line]:
    """All of a run, as `show` prints it, and the commands with which it goes on."""
    yield _heading(report)
    yield Prose(purpose_line(report, report.workspace or "no workspace"))
    yield f"route {report.route}" + (f" · model {report.model}" if report.model else "")
    for call in report.calls:
        yield call_line(call, columns_of(sys.stdout), signs_of(sys.stdout, CALL_SIGNS))
    yield from team_lines(report)
    yield from _note_lines(report)
    yield Prose(usage_line(report))
    yield from _output_lines(report)
    if report.record:
        yield ""
        yield Prose(report.record)
    yield from _next_lines(report, flags)


def cause_lines(report: RunReport, flags: Flags) -> Iterator[Line]:
    """Why a run was cut short or failed: what happened, why, and what to do now; then what was done, where no model
    said it. Of any other run, what was done alone."""
    if was_cut_short(report):
        reason = f": {report.stop_words}" if report.stop_words else ""
        yield Prose(f"{report.status}{reason}")
        yield from _note_lines(report)
        if (words := _words_to_go_on(report)) is not None:
            yield f"to go on:\n  {shell_command(flags, *words)}"
    if report.record:
        yield Prose(report.record)


def was_cut_short(report: RunReport) -> bool:
    """Whether a run ended before it was done."""
    return report.status in ("stopped", "failed")


def _words_to_go_on(report: RunReport) -> tuple[str, ...] | None:
    """Return the words of the command that goes on where a run was cut short; None where nothing can."""
    match report.next:
        case {"tool": "planner_run", "arguments": {"continues": str(run_id), "from": str(path)}}:
            return ("run", "--continue", run_id, "--from", path, "Go on.")
        case {"tool": "planner_run", "arguments": {"continues": str(run_id)}}:
            return ("run", "--continue", run_id, "Go on.")
        case {"tool": "ooda_run", "arguments": {"mandate_id": str(name)}}:
            return ("mandate", "run", name)
        case _:
            return None


def ending_lines(report: RunReport, flags: Flags, *, was_heard: bool = False) -> Iterator[Line]:
    """A run that has ended or waits: its output, notes and usage, and the commands with which it goes on.

    `cause_lines` has the notes of one that was cut short. `was_heard`: its summary is shown already.
    """
    yield from _output_lines(report, was_heard=was_heard)
    yield ""
    yield from team_lines(report)
    if not was_cut_short(report):
        yield from _note_lines(report)
    yield Prose(usage_line(report))
    yield _heading(report)
    if report.waiting:
        yield Prose(purpose_line(report, workspace_name(report.workspace)))
    yield from _next_lines(report, flags)


def team_lines(report: RunReport) -> Iterator[str]:
    """The tasks of a team, on lines that fit the terminal."""
    return tree_lines(report.plan, report.phase, report.waiting, columns_of(sys.stdout))


def call_line(call: JsonObject, columns: int | None = None, signs: Signs = CALL_SIGNS) -> str:
    """A tool call that was executed: whether it succeeded, or was an error, which the model was shown; of one that a
    remembered approval let through, its name. The line is cut to fit into as many columns."""
    sign = signs.good if call["ok"] else signs.bad
    task = f"{task_of(call['ref'])} " if task_of(call["ref"]) else ""
    phase = f"{' '.join(call['ref'].split('/')[:-1][:2]):<15}"
    where = f"{task}round {call['round']}" if call["round"] else phase
    rule = f"[{call['rule']}] " if "rule" in call else ""
    result = one_line(f"{rule}{call['preview']}", _PREVIEW_CHARS)
    line = f"  {sign} {where}  {call['name']:<14} {call['ms']:>5} ms  {result}"
    return line if columns is None else truncate(line, columns - 1)


_OPEN_CALLS = {"open": "(waits: it has no result yet)", "begun": "(was begun: it has no result yet)"}


def trace_line(item: JsonObject) -> str:
    """An item of a run's record: its place, its fields, its text."""
    if "tries" in item:
        return "\n".join(_planned_task_lines(item))
    if "diff" in item:
        return f"{item['ref']} {item['name'] or ''}\n{item['diff']}\n"
    if "role" in item:
        calls = "".join(f"\ncalls {_format_call(call)}" for call in item.get("tool_calls", ()))
        where = f"{item['path']} " if "path" in item else ""
        text = _OPEN_CALLS[item["state"]] if "state" in item else item["content"]
        return f"{where}{item['role']}: {text}{calls}".replace("\n", "\n    ")
    ref = item.get("ref", "")
    rest = {name: value for name, value in item.items() if name not in ("ref", "text", "content", "digest", "at")}
    if "decided" in rest:
        rest["decided"] = ", ".join(map(_format_decision, rest["decided"]))
    text = one_line(str(item.get("text") or item.get("content") or ""), 80)
    fields = " ".join(f"{name}={_format_field(value)}" for name, value in rest.items() if value not in (None, []))
    return f"{ref:<20} {fields}  {text}".rstrip()


def _planned_task_lines(task: JsonObject) -> Iterator[str]:
    """A task of a plan with its tries, as the view of a plan shows it."""
    after = f" after {', '.join(task['depends_on'])}" if task["depends_on"] else ""
    yield f"{task['path']} {task['id']}: {task['status']}{after}"
    yield f"    {one_line(task['description'], 160)}"
    for each in task["tries"]:
        amounts = f"{count_of(each['rounds'], 'round')}, {count_of(each['tokens'], 'token')}, ${each['usd']:.4f}"
        yield f"    {each['path']} {each['agent']}: {each['status']}, {amounts}"
    for name in ("found", "open", "ref"):
        if task[name]:
            yield f"    {name}: {one_line(task[name], 300)}"
    for key in task["waiting"]:
        yield f"    waits: {key}"


def age_since(moment: str) -> str:
    """How long ago a moment was, given in ISO 8601 as in a report."""
    return format_age((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def workspace_name(workspace: str | None) -> str:
    """The last part of a workspace's path, for a list."""
    return "-" if workspace is None else Path(workspace).name


def shell_command(flags: Flags, *words: str) -> str:
    """A command to paste, with the state folder and settings file that this one was given."""
    return command_line_for(flags).format_command(*words)


def command_line_for(flags: Flags) -> CommandLine:
    """How commands are worded for whoever gave these flags."""
    given = (("--home", flags.home), ("--config", flags.config))
    return terminal_command_line(word for name, value in given if value for word in (name, value))


def _heading(report: RunReport) -> str:
    return f"run {report.run_id} · {report.flow} · {status_words(report.status, report.stop_words)}"


def purpose_line(report: RunReport, where: str) -> str:
    """What a run is for, how old it is, and where it works."""
    return f"goal: {one_line(report.goal, 80)} · {age_since(report.created_at)} old · {where}"


def question_lines(tool: str, effect: str, preview: str) -> Iterator[str | DiffLine]:
    """What a person is asked about a call, laid out as in a client's dialog, with room for all of it."""
    asked = part_question(f"{tool} ({effect})", tool, preview)
    yield asked.heading
    yield from map(DiffLine, asked.list_all())


def usage_line(report: RunReport) -> str:
    usage = report.usage
    used = {**usage, "rounds": report.rounds, "total_tokens": usage["input_tokens"] + usage["output_tokens"]}
    units = [unit for unit in sorted(UNITS.values(), key=lambda unit: unit.order) if unit.in_line]
    if not report.rounds and kind_of(report.flow).counts != "rounds":
        units = [unit for unit in units if unit.name != "rounds"]
    return " · ".join(_format_used(unit, used[unit.name], usage) for unit in units)


def _format_used(unit: Unit, amount: float, usage: JsonObject) -> str:
    match unit:
        case Unit(words="$"):
            return cost_words(amount, usage["unpriced"])
        case Unit(held="time", words=words):
            return f"{amount:.1f} {words}"
        case Unit(held="tokens", noun=noun):
            return f"{count_of(int(amount), noun.removesuffix('s'))} ({usage['exactness']})"
        case Unit(noun=noun):
            return count_of(int(amount), noun.removesuffix("s"))


def _note_lines(report: RunReport) -> Iterator[Line]:
    for text in report.degraded:
        yield Prose(f"note: {name_commands(text, report.run_id)}", has_times=True)
    if report.status == "paused" and report.next is not None:
        is_checkpoint = (
            isinstance(report.output, dict) and report.output.get("mandate_status") == "paused_at_checkpoint"
        )
        why = "a checkpoint; the next cycle begins when you say so" if is_checkpoint else report.next["why"]
        yield Prose(f"paused: {why}", has_times=True)


def _output_lines(report: RunReport, *, was_heard: bool = False) -> Iterator[Line]:
    """Summary and output. Of a mandate's run only the mandate's status and the lessons: its summary or record has the
    cycles, and --json has everything."""
    if report.summary and not was_heard:
        yield ""
        yield Reply(report.summary)
    output: Any = report.output
    match output:
        case None | report.summary:
            return
        case {"tasks": [*tasks]} if kind_of(report.flow).tells_tasks:  # the answer is the summary
            opened = [(task["id"], task["open"]) for task in tasks if task["open"]]
            yield from (Prose(f"open: {name}: {why}") for name, why in opened)
        case {"mandate_id": str(name), "mandate_status": str(status)}:
            yield ""
            yield f"mandate {name}: {status}" + (f" ({output['reason']})" if "reason" in output else "")
            if report.summary is None and report.record is None:
                yield from (_cycle_line(cycle) for cycle in output.get("cycles", ()))
            yield from (Prose(f"lesson: {lesson}") for lesson in output.get("lessons", ()))
        case _:
            yield ""
            yield "output " + json.dumps(output, ensure_ascii=False, indent=2)


def _cycle_line(cycle: JsonObject) -> str:
    """A cycle of a run that has not ended, worded as in the summary of its end."""
    decision, reflection = cycle.get("decision", {}), cycle.get("reflection")
    action = " ".join(str(decision[name]) for name in ("action", "target", "tool") if name in decision)
    status = cycle["status"] if action in ("", cycle["status"]) else f"{action}: {cycle['status']}"
    verdict = f"; {reflection['assessment']}, confidence {reflection['confidence']:g}" if reflection is not None else ""
    return f"- cycle {cycle['cycle']}: {status}{verdict}"


def _next_lines(report: RunReport, flags: Flags) -> Iterator[Line]:
    """What a run waits for, and the commands with which a person goes on."""
    for item in report.waiting:
        yield ""
        yield from _waiting_lines(report.run_id, item, flags)
    match report.status, report.output:
        case "paused", {"mandate_id": str(), "mandate_status": "paused_goal_drift"}:
            yield f"\n  {shell_command(flags, 'cancel', report.run_id)}"
        case "paused", {"mandate_id": str(name), "mandate_status": "paused_at_checkpoint" | "paused_risk_exceeded"}:
            yield f"\n  {shell_command(flags, 'mandate', 'run', name, '--resume')}"
        case "paused", _ if report.next is not None and report.next["tool"] in ("run_control", "run_status"):
            if report.next["arguments"].get("action", "resume") == "resume":
                yield f"\n  {shell_command(flags, 'resume', report.run_id)}"


def _waiting_lines(run_id: str, item: JsonObject, flags: Flags) -> Iterator[Line]:
    """A waiting item, and the exact command that answers it."""
    if item.keys() == {"key", "kind"}:  # the run's flow has changed since: nobody can answer it, the report says why
        yield Prose(f"waiting: {item['key']} ({item['kind']})")
        return
    if item["kind"] == "approval":
        yield Prose(
            f"waiting: {item['key']} (approval of {item['name']}, until {item['expires_at']})",
            has_times=True,
        )
        yield from _task_lines(item)
        yield from question_lines(item["name"], item["effect"], item["preview"])
        yield f"digest {item['digest'][:DIGEST_CHARS]}"
        yield ""
        yield from _either_command(item["command"], "approve", "deny")
        return
    yield Prose(f"waiting: {item['key']} ({item['kind']})")
    yield from _task_lines(item)
    match item["kind"]:
        case "completion":
            yield from _conversation_lines(item["messages"])
            if item["tools"]:
                yield Prose(f"  tools: {', '.join(tool['name'] for tool in item['tools'])}")
            templates: list[JsonObject] = [{"content": Placeholder.TEXT}, *_call_templates(item["tools"])]
        case "tool_call":
            yield f"  {item['name']} {json.dumps(item['arguments'], ensure_ascii=False)}"
            templates = [{"content": Placeholder.RESULT}]
        case _:
            yield f"  {item['name']}: nobody knows whether this call was carried out"
            yield ""
            yield from _either_command(item["command"], "already_done", "reattempt")
            return
    yield ""
    for template in templates:
        yield f"  {shell_command(flags, 'answer', run_id, item['key'], json.dumps(template))}"
    yield "the whole request:"
    yield f"  {shell_command(flags, 'show', run_id, '--json')}"


def _task_lines(item: JsonObject) -> Iterator[Line]:
    """Whose task a waiting item belongs to, and what that is about; nothing outside of tasks."""
    if "about" in item:
        yield Prose(f"  for {item.get('agent', 'a task')}: {item['about']}")


def _call_templates(tools: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """An answer that calls a tool, where one is offered: the first that takes no argument, else the first one."""
    needed = [(tool, tool["input_schema"].get("required", ())) for tool in tools]
    for tool, names in sorted(needed, key=lambda each: bool(each[1]))[:1]:
        yield {"tool_calls": [{"name": tool["name"], "arguments": {name: f"<{name}>" for name in names}}]}


def _either_command(command: str, decision: str, other: str) -> Iterator[str]:
    """A command that decides, and the same with the other decision; each alone on its line, to be pasted."""
    yield f"  {command}"
    words = shlex.split(command)
    words[words.index(decision)] = other
    yield f"  {shlex.join(words)}"


def _conversation_lines(messages: Iterable[JsonObject]) -> Iterator[Line]:
    for message in messages:
        shown = truncate(message["content"], _MESSAGE_CHARS, "… ({left_out} characters left out)")
        yield Prose(f"  {message['role']}: {shown}".replace("\n", "\n    "), margin=4)
        for call in message.get("tool_calls") or ():
            yield f"    calls {_format_call(call)}"


def _format_call(call: JsonObject) -> str:
    return f"{call['name']} {one_line(json.dumps(call['arguments'], ensure_ascii=False), 90)}"


def _format_decision(decision: JsonObject) -> str:
    """A decision about a step: what was said, and by what; a remembered approval is named."""
    through = decision["client"] if decision["through"] == "rule" else decision["through"]
    seen = f", which showed {decision['shown']}" if "shown" in decision else ""
    return f"{decision['said']} ({through}{seen})"


def _format_field(value: object) -> str:
    return value if isinstance(value, str) else one_line(json.dumps(value, ensure_ascii=False), 60)
