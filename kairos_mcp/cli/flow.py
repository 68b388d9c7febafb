"""`flow`: what each call of a run would have been asked about for what it takes along."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags, AsJson, Run
from kairos_mcp.cli.session import find_target, with_app
from kairos_mcp.cli.terminal import emit
from kairos_mcp.core.text import count_of

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.execution.flow_view import JudgedCall


def flow(run: Run, *, as_json: AsJson = False, flags: AllFlags) -> int:
    """Show what each call of a run would be asked about for what it takes along, by the settings as they are now."""
    target = find_target(flags, run)

    async def judge(app: App) -> list[JudgedCall]:
        return await app.records.flow(target.run_id, target.caller)

    judged = with_app(target.settings, judge)
    shown = {"run_id": target.run_id, "calls": [each.as_json() for each in judged]}
    emit(shown, _lines(judged), as_json=as_json)
    return COMPLETED


def _lines(judged: Sequence[JudgedCall]) -> Iterator[str]:
    for each in judged:
        yield f"{each.path}  {each.tool}  {'asks' if each.found else 'clean'}"
        yield from (f"  {finding['says']}" for finding in each.as_json()["findings"])
    asked = sum(bool(each.found) for each in judged)
    yield f"{asked} of {count_of(len(judged), 'call')} that may take something along would be asked about."
