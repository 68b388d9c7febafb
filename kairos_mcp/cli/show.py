"""`show`: look at a run, or at whatever an id names: a step, an approval, an MCP task, a mandate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags, AsJson, Principal, complete_run
from kairos_mcp.cli.output import report_lines, shell_command, trace_line
from kairos_mcp.cli.session import person_for, with_app
from kairos_mcp.cli.settings import read_settings, settings_for_list
from kairos_mcp.cli.terminal import Line, Prose, diff_lines, emit
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.settings import Flags, Settings

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.finder import NamedThing
    from kairos_mcp.views.run_report import RunReport
    from kairos_mcp.views.trace import View

ReportOrView = Literal["report", "events", "calls", "messages", "usage", "plan", "diff"]

_PAGE_CHARS = 1_000_000  # so that no item of a page is cut
Thing = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its id, a unique beginning of its id, or `last` (the newest here). Also RUN/PATH, a step, an "
        "approval or a task of it; an approval's digest; a mandate's id.",
        autocompletion=complete_run,
    ),
]


def show(
    run: Thing,
    *,
    view: Annotated[ReportOrView, typer.Option(help="The result, or a part of the record.")] = "report",
    ref: Annotated[str | None, typer.Option(metavar="REF", help="A long text, by its ref.")] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser, as `ui` does.")] = False,
    principal: Principal = None,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Show one run: its status, what it did, what it waits for. Or whatever else the id names."""
    from kairos_mcp.app.overview import LAST

    if opens and (view != "report" or ref is not None or as_json):
        raise BadArguments("--open shows the page, which has everything.", "Leave out --view, --ref and --json.")
    settings = read_settings(flags)

    async def find(app: App) -> NamedThing:
        return await app.finder.find(run, principal)

    thing = with_app(settings_for_list(flags) if run == LAST else settings, find)
    if thing.kind != "run" or thing.run is None:
        if opens or view != "report" or ref is not None:
            raise BadArguments(f"{run[:60]} is a {thing.kind}.", "--open, --view and --ref are for runs.")
        return _show_other(settings, flags, thing, as_json=as_json)
    run_id, caller = thing.run.run_id, person_for(thing.principal)
    if opens:
        from kairos_mcp.cli.ui import open_page

        return open_page(flags, opens=True, place=f"/runs/{run_id}")
    if view == "report" and ref is None:

        async def read_report(app: App) -> RunReport:
            return await app.runs.report(run_id, caller)

        report = with_app(settings, read_report)
        emit(report.as_json(), report_lines(report, flags), as_json=as_json)
        return COMPLETED

    async def read_trace(app: App) -> JsonObject:
        return await _read_all_pages(app, run_id, "events" if view == "report" else view, ref, caller)

    traced = with_app(settings, read_trace)
    lines = [traced["text"]] if ref is not None else map(trace_line, traced["items"])
    emit(traced, lines, as_json=as_json)
    return COMPLETED


def _show_other(settings: Settings, flags: Flags, thing: NamedThing, *, as_json: bool) -> int:
    """Show what is no run, and say what it is."""

    async def read(app: App) -> JsonObject:
        return await app.finder.show(thing)

    found = with_app(settings, read)
    emit(found, _thing_lines(found, flags), as_json=as_json)
    return COMPLETED


def _thing_lines(found: JsonObject, flags: Flags) -> Iterator[Line]:
    if found["kind"] == "mandate":
        yield f"mandate {found['mandate_id']}"
        yield json.dumps(found["mandate"], ensure_ascii=False, indent=2)
        return
    name = found.get("task_id") or found.get("key") or found["path"]
    yield f"{found['kind']} {name} of run {found['run_id']}"
    left_out = {"kind", "run_id", "task_id", "key", "preview", "text", "arguments"}
    for label, value in found.items():
        if label not in left_out and value is not None:
            yield Prose(f"  {label.replace('_', ' '):<14} {value}", has_times=True)
    if found.get("arguments"):
        yield f"  arguments      {json.dumps(found['arguments'], ensure_ascii=False)}"
    if found.get("text"):
        yield Prose(found["text"])
    yield from diff_lines(found.get("preview") or "")
    yield f"its run:\n  {shell_command(flags, 'show', found['run_id'])}"


async def _read_all_pages(app: App, run_id: str, view: View, ref: str | None, caller: Caller) -> JsonObject:
    """All pages of a trace as one: a terminal scrolls, and what is long can be piped."""
    from kairos_mcp.views.trace import TraceQuery

    items: list[JsonObject] = []
    text, cursor = "", None
    while True:
        page = await app.records.trace(
            run_id, TraceQuery(view=view, ref=ref, cursor=cursor, max_chars=_PAGE_CHARS), caller
        )
        items += page.get("items", ())
        text += page.get("text", "")
        cursor = page["next_cursor"]
        if cursor is None:
            return {"run_id": run_id, "ref": ref, "text": text} if ref is not None else page | {"items": items}
