"""Turn reports into tool results: structured content, and a text that says the same to a model that sees only that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import mcp_types as wire
from pydantic_core import to_json

from kairos_mcp.core.text import count_of
from kairos_mcp.server.truncation import ITEMS_CHARS, RESULT_CHARS, fit_result
from kairos_mcp.specs.kinds import kind_of
from kairos_mcp.views.cuts import size
from kairos_mcp.views.run_report import FIELDS
from kairos_mcp.views.team_tree import tree_lines
from kairos_mcp.views.words import as_json, in_one_line, next_words, place_words, status_words, work_words

if TYPE_CHECKING:
    from kairos_mcp.core.errors import KairosError
    from kairos_mcp.core.messages import JsonObject
    from kairos_mcp.core.redaction import Redactor
    from kairos_mcp.views.run_report import RunReport

NEWEST = 10  # runs that run_status lists when none is named: these rows fit a result
MIN_RUN_CHARS = 1_100  # of one run among several


def run_result(report: RunReport, *, steered: bool = False) -> wire.CallToolResult:
    """The result for one run. For a run of a single tool call, the result is an error if that call failed; but not if
    the run was `steered`, since then it was run_control that was called."""
    if report.is_delta:
        body = _delta_body(report)
        return _result(body, _delta_text(report, body))
    full = report.as_json()
    kind = kind_of(report.flow)
    body = fit_result(full | {"output": None} if kind.keeps_output else full)
    body["output"] = full["output"] if kind.keeps_output else body["output"]
    is_call = kind.is_call and not steered and isinstance(report.output, dict)
    return _result(body, run_text(body), is_error=is_call and report.output.get("is_error") is True)


def _delta_body(report: RunReport) -> JsonObject:
    """The run for a caller that has read it up to some keys: what changed since then, and nothing that is empty.

    A call's preview is left out: its result stands in the new messages.
    """
    calls = [{name: value for name, value in call.items() if name != "preview"} for call in report.calls]
    new = [name for name, field in FIELDS.items() if field.in_delta]
    full = {name: value if name in new else None for name, value in report.as_json().items()}
    fitted = fit_result(full | {"calls": [], "plan": []}) | {"calls": calls}
    return {name: value for name in new if (value := fitted[name]) not in (None, [])}


def _delta_text(report: RunReport, body: JsonObject) -> str:
    head = f"run {report.run_id}: {report.status}, {report.work}, route {report.route}, seq {report.seq}"
    return _with_items([head, *_field_lines({**body, "waiting": None})], body.get("waiting", []))


def runs_result(reports: Sequence[RunReport], *, brief: bool = False, elsewhere: int = 0) -> wire.CallToolResult:
    """The result for several runs, each in full or, `brief`, as a row. `elsewhere`: runs of workspaces not shown."""
    share = max(MIN_RUN_CHARS, RESULT_CHARS // max(1, len(reports)))
    runs: list[JsonObject] = []
    room, told = ITEMS_CHARS, set[str]()
    for report in reports:
        if brief:
            runs.append(report.as_row())
        elif report.is_delta:
            runs.append(_delta_body(report))
            del runs[-1]["next"]  # it stands beside the runs
        else:
            runs.append(fit_result(report.as_json(), share, room, told))
            room = max(0, room - sum(map(size, runs[-1]["waiting"])))
    next_call = next((report.next for report in reports if report.next is not None), None)
    more: JsonObject = {"elsewhere": elsewhere} if elsewhere else {}
    match reports:
        case [report] if report.is_delta and not brief:  # `after` is for one run
            text = _delta_text(report, {**runs[0], "next": next_call})
        case _:
            text = rows_text(reports, next_call, elsewhere) if brief else runs_text(runs, next_call)
    return _result({"runs": runs, "next": next_call, **more}, text)


def plain_result(body: JsonObject) -> wire.CallToolResult:
    """The result for a body that is short by itself: the text is its JSON."""
    return _result(body, to_json(body).decode())


def error_result(
    error: KairosError, redactor: Redactor, complete_commands: Callable[[str], str] = lambda text: text
) -> wire.CallToolResult:
    """The result for an error. Its texts may quote the call, so secrets are redacted; `complete_commands` makes the
    commands in them ready to paste."""
    body: JsonObject = {
        "code": error.code,
        "message": complete_commands(redactor.redact_text(error.message).text),
        "hint": complete_commands(redactor.redact_text(error.hint).text),
        "retryable": error.retryable,
    }
    if error.run_id is not None:
        body["run_id"] = error.run_id
    retry = " Calling again may help." if body["retryable"] else ""
    run = f" Run: {body['run_id']}." if "run_id" in body else ""
    text = in_one_line(f"{body['code']}: {body['message']} {body['hint']}".rstrip() + retry + run)
    return _result(body, text, is_error=True)


def _result(body: JsonObject, text: str, *, is_error: bool = False) -> wire.CallToolResult:
    return wire.CallToolResult(
        content=[wire.TextContent(type="text", text=text)], structured_content=body, is_error=is_error
    )


def run_text(result: JsonObject) -> str:
    """Render a run: at most 12 summary lines, one or two per task, then the waiting items as JSON."""
    lines = [
        _status_line(result),
        f"goal: {in_one_line(result['goal'])}, {_format_place(result)}, seq {result['seq']}",
    ]
    lines += _field_lines(result)
    if result["plan"] or result.get("phase") is not None:
        lines += map(in_one_line, tree_lines(result["plan"], result.get("phase"), result["waiting"]))
    return _with_items(lines, result["waiting"])


def runs_text(runs: list[JsonObject], next_call: JsonObject | None) -> str:
    """One run as by `run_text`; several with a line each."""
    if len(runs) == 1:
        return run_text(runs[0])
    lines = [_brief_line(run) for run in runs] or ["No runs yet."]
    if next_call is not None:
        lines.append(f"next: {next_words(next_call)}")
    return _with_items(lines, [{"run_id": run["run_id"], **item} for run in runs for item in run["waiting"]])


def rows_text(reports: Sequence[RunReport], next_call: JsonObject | None, elsewhere: int) -> str:
    """A line for each run of a list."""
    lines = [_format_row(report) for report in reports] or ["No runs here yet." if elsewhere else "No runs yet."]
    if elsewhere:
        lines.append(f"{count_of(elsewhere, 'run')} of other workspaces: run_status all=true")
    if next_call is not None:
        lines.append(f"next: {next_words(next_call)}")
    return "\n".join(lines)


def _with_items(lines: list[str], items: list[JsonObject]) -> str:
    return "\n".join([*lines, *([f"waiting items: {as_json(items)}"] if items else [])])


def _field_lines(result: JsonObject) -> Iterator[str]:
    """Yield a line for each field that has one and is not empty."""
    for name, field in FIELDS.items():
        value = result.get(name)
        if field.words is not None and value is not None and (words := field.words(value)) is not None:
            yield f"{name}: {words}"


def _status_line(run: JsonObject) -> str:
    model = f", model {run['model']}" if run["model"] else ""
    resume = f", resumes at {run['resume_at']}" if run["resume_at"] else ""
    status = status_words(run["status"], run["stop_reason"])
    work = work_words(run["flow"], run["rounds"], run["usage"]["model_calls"])
    return f"{run['flow']} {run['run_id']}: {status}, {work}, route {run['route']}{model}{resume}"


def _format_row(report: RunReport) -> str:
    row, awaited = report.as_row(), report.describe_waiting()
    status = f"{status_words(report.status, report.stop_reason)}, {report.work}"
    waiting = f", waits {awaited}" if awaited else ""
    place = f"{_format_place(row)}, seq {report.seq}: {in_one_line(report.goal)}"
    return f"{report.flow} {report.run_id}: {status}{waiting}, {place}"


def _format_place(run: JsonObject) -> str:
    return f"{place_words(run['workspace'])}, since {run['created_at']}"


def _brief_line(run: JsonObject) -> str:
    keys = ", ".join(item["key"] for item in run["waiting"])
    return (
        _status_line(run)
        + f", {_format_place(run)}, for {in_one_line(run['goal'])}"
        + (f", waiting {keys}" if keys else "")
        + (f": {in_one_line(told)}" if (told := run["summary"] or run["record"]) else "")
    )
