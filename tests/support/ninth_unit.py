"""Run in a process of its own: Kairos with one unit more, `checks`, in its class of amounts, and a migration for it.

Arguments: the root of a place, the id of a run to go on with or nothing, and the text that answers what it waits for.
Prints, as JSON: how the run ended, what is damaged in the store, and what the run's account holds of the unit.
"""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

NAME = "kairos_mcp.core.limits"
AFTER_THE_LAST_FIELD = "\n\n\nUNITS: Mapping"
UNIT = (
    'Unit("checks", "checks", "checks", held="after", order=99,'
    ' measured=lambda answer: len(getattr(answer, "content", "")))'
)
MIGRATION = "; ".join(
    f"alter table account add column {kind}_checks integer {default} check({kind}_checks >= 0)"
    for kind, default in (("cap", ""), ("held", "not null default 0"), ("spent", "not null default 0"))
)


def add_unit() -> None:
    """Load the module of amounts with one unit more, before anything imports it."""
    found = importlib.util.find_spec(NAME)
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text()
    assert source.count(AFTER_THE_LAST_FIELD) == 1
    module = importlib.util.module_from_spec(found)
    sys.modules[NAME] = module
    field = f"\n    checks: Annotated[T, {UNIT}] = _NONE"
    changed = source.replace(AFTER_THE_LAST_FIELD, field + AFTER_THE_LAST_FIELD)
    exec(compile(changed, found.origin, "exec"), module.__dict__)


async def finish_run(root: Path, run_id: str, text: str) -> dict[str, object]:
    from kairos_mcp.app.app import App
    from kairos_mcp.core.limits import Limits
    from kairos_mcp.core.outcomes import Outcome
    from kairos_mcp.core.run_spec import PlannerRequest
    from support.app import ME, Place, reads

    place = Place(root)
    (place.workspace / "a.txt").write_text("long enough" * 50)
    refused = {"tool_calls": [{"id": "1", "name": "nothing", "arguments": {}}]}  # answered without a reservation
    lines = () if run_id else (refused, reads("a.txt"), reads("a.txt"), {"for": "closing", "content": text})
    settings = place.settings(*lines)
    async with App.open(settings, via="mcp") as app:
        if not run_id:
            limits = Limits(checks=500)
            run_id = (await app.runs.start(PlannerRequest("go", tools=("read_file",), limits=limits), ME)).run_id
        else:
            await app.answers.submit(run_id, {"round-2": {"content": text}}, ME)
        await app.runs.wait([run_id], until="done", wait_s=20, caller=ME)
        report = await app.runs.report(run_id, ME)
    return {
        "status": report.status,
        "summary": report.summary,
        "remaining": report.remaining,
        "damage": place.store().find_damage(Outcome),
        "accounts": place.rows("select cap_checks, held_checks, spent_checks from account where scope = 'run'"),
        "content": [len(json.loads(body).get("content") or "") for (body,) in place.rows("select body from answer")],
        "calls": [call["ok"] for call in report.calls],
        "spent": [json.loads(text) for (text,) in place.rows("select spent from answer order by step")],
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    add_unit()
    from kairos_mcp.store import schema

    schema.MIGRATIONS = (*schema.MIGRATIONS, MIGRATION)
    root, run, answer = sys.argv[1:]
    print(json.dumps(asyncio.run(finish_run(Path(root), run, answer))))
