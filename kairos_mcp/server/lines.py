"""A result as text, for a model shown nothing else: at most 12 lines, then what waits, whole, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of
from kairos_mcp.server.framing import on_one_line


def run_text(result: JsonObject) -> str:
    return _with_items(list(_run_lines(result)), result["waiting"])


def runs_text(runs: list[JsonObject], following: JsonObject | None) -> str:
    """One run as if it stood alone; several with a line each."""
    if len(runs) == 1:
        return run_text(runs[0])
    lines = [_brief(run) for run in runs] or ["No runs yet."]
    if following is not None:
        lines.append(_next(following))
    return _with_items(lines, [{"run_id": run["run_id"], **item} for run in runs for item in run["waiting"]])


def rows_text(rows: list[JsonObject], following: JsonObject | None, elsewhere: int) -> str:
    """A line for each run of a list."""
    lines = [_row(row) for row in rows] or ["No runs here yet." if elsewhere else "No runs yet."]
    if elsewhere:
        lines.append(f"{count_of(elsewhere, 'run')} of other workspaces: run_status all=true")
    if following is not None:
        lines.append(_next(following))
    return "\n".join(lines)


def error_text(error: JsonObject) -> str:
    again = " Calling again may help." if error["retryable"] else ""
    run = f" Run: {error['run_id']}." if "run_id" in error else ""
    return _one_line(f"{error['code']}: {error['message']} {error['hint']}".rstrip() + again + run)


def _with_items(lines: list[str], items: list[JsonObject]) -> str:
    return "\n".join([*lines, *([f"waiting items: {_json(items)}"] if items else [])])


def _run_lines(run: JsonObject) -> Iterator[str]:
    yield _head(run)
    yield f"goal: {_one_line(run['goal'])}, {_project_line(run)}, seq {run['seq']}"
    if run["summary"] is not None:
        yield f"summary: {_one_line(run['summary'])}"
    if run["output"] is not None:
        yield f"output: {_json(run['output'])}"
    yield f"usage: {_figures(run['usage'])}"
    left = _figures(run["remaining"])
    if left:
        yield f"remaining: {left}"
    if run["calls"]:
        yield "calls: " + "; ".join(_call(call) for call in run["calls"])
    if run["plan"]:
        yield f"plan: {_json(run['plan'])}"
    if run["waiting"]:
        yield "waiting: " + ", ".join(f"{item['key']} ({item['kind']})" for item in run["waiting"])
    if run["degraded"]:
        yield "degraded: " + " | ".join(_one_line(note) for note in run["degraded"])
    if run["next"] is not None:
        yield _next(run["next"])


def _head(run: JsonObject) -> str:
    why = f" ({run['stop_reason']})" if run["stop_reason"] else ""
    model = f", model {run['model']}" if run["model"] else ""
    resume = f", resumes at {run['resume_at']}" if run["resume_at"] else ""
    far = (
        count_of(run["rounds"], "round")
        if run["flow"] == "planner"
        else count_of(run["usage"]["model_calls"], "model call")
    )
    return f"{run['flow']} {run['run_id']}: {run['status']}{why}, {far}, route {run['route']}{model}{resume}"


def _row(run: JsonObject) -> str:
    why = f" ({run['stop_reason']})" if run["stop_reason"] else ""
    waits = ", ".join(f"{item['key']} ({item['kind']})" for item in run["waiting"])
    waiting = f", waiting {waits}" if waits else ""
    stands = f"{run['flow']} {run['run_id']}: {run['status']}{why}, {count_of(run['rounds'], 'round')}{waiting}"
    return f"{stands}, {_project_line(run)}, seq {run['seq']}: {_one_line(run['goal'])}"


def _project_line(run: JsonObject) -> str:
    place = "no workspace" if run["workspace"] is None else f"in {_one_line(run['workspace'])}"
    return f"{place}, since {run['created_at']}"


def _brief(run: JsonObject) -> str:
    keys = ", ".join(item["key"] for item in run["waiting"])
    return (
        _head(run)
        + f", {_project_line(run)}, for {_one_line(run['goal'])}"
        + (f", waiting {keys}" if keys else "")
        + (f": {_one_line(run['summary'])}" if run["summary"] else "")
    )


def _call(call: JsonObject) -> str:
    ok = "ok" if call["ok"] else "failed"
    return f"{call['ref']} {call['name']} {ok} {call['ms']} ms {_one_line(call['preview'])}"


def _next(following: JsonObject) -> str:
    return f"next: {following['tool']} {_json(following['arguments'])}, because {_one_line(following['why'])}"


def _figures(figures: JsonObject) -> str:
    return ", ".join(f"{name} {_figure(value)}" for name, value in figures.items() if value is not None)


def _figure(value: Any) -> str:
    match value:
        case [*names]:
            return " and ".join(names)
        case _:
            return str(value)


def _one_line(text: str) -> str:
    """The text as it is; as a JSON string where it has more than one line: nothing lost, no line added."""
    return text if len(text.splitlines()) <= 1 and not text.endswith("\n") else _json(text)


def _json(value: Any) -> str:
    return on_one_line(to_json(value).decode())
