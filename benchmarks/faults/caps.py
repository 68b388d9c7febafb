"""`python -m benchmarks.faults.caps`: how close to what a job needs its cap on tokens may be, and what is charged.

A run of thirteen rounds and a team of eight tasks are begun under caps from far above what they need to half of it.
The witness is the provider, and charges what it says that it was asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from loopfaults.mcp import read_mapping
from loopfaults.systems import Zygote
from loopfaults.witness import Job, Witness

from benchmarks.faults.systems import HERE, PEERS, PROGRAM, Kairos

PARTS = (1.6, 1.4, 1.3, 1.2, 1.15, 1.1, 1.05, 0.9, 0.7, 0.5)
BRANCHES = 8
AGENT = "---\nname: reader\ndescription: Reads.\ntools: [read]\nmax_rounds: 8\n---\nRead.\n"


async def main() -> None:
    witness = Witness()
    await witness.open()
    zygote = Zygote(Path(sys.executable), "kairos_server", os.environ, PEERS)
    await zygote.open()
    for kind in ("run", "team"):
        needed = (await play(witness, zygote, kind, None))["charged"]
        print(json.dumps({"kind": kind, "needed": needed}), flush=True)
        for part in PARTS:
            print(json.dumps({"part": part, **await play(witness, zygote, kind, round(needed * part))}), flush=True)
    await zygote.close()
    await witness.close()


async def play(witness: Witness, zygote: Zygote, kind: str, cap: int | None) -> dict[str, Any]:
    """Run one job to its end under a cap. Returns its stop reason and what was charged, also beyond the cap."""
    job = Job(("read",) * 12) if kind == "run" else Job(("read",) * 3, completion_tokens=600)
    witness.jobs[name := f"{kind}-{cap}"] = job
    mapping = read_mapping(HERE / "kairos.toml")
    mapping["server"]["command"][0] = str(PROGRAM)
    with tempfile.TemporaryDirectory(prefix="kairos-caps-") as folder:
        agents = Path(folder) / "home" / "config" / "agents"
        agents.mkdir(parents=True)
        (agents / "reader.md").write_text(AGENT)
        system = Kairos(mapping, Path(folder), witness.url(name), zygote=zygote)
        await system.open()
        limits = {"rounds": 30} | ({"total_tokens": cap} if cap else {})
        told = await system.call(*start(kind, limits))
        while told.get("status") == "working":
            asked = {"run_ids": [told["run_id"]], "until": "attention", "wait_s": 20}
            told = (await system.call("run_status", asked))["runs"][0]
        await system.close()
    charged = sum(event.tokens for event in job.of("asked"))
    ended = told.get("stop_reason") or told.get("code")
    return {"cap": cap, "ended": ended, "charged": charged, "over": max(0, charged - cap) if cap else 0}


def start(kind: str, limits: dict[str, int]) -> tuple[str, dict[str, Any]]:
    if kind == "run":
        return "planner_run", {"goal": "Do what the plan says.", "tools": ["read"], "limits": limits, "wait_s": 20}
    del limits["rounds"]  # of a team: each agent has its own
    tasks = [{"id": f"t{n}", "agent": "reader", "description": f"branch-{n}: read."} for n in range(BRANCHES)]
    plan = {"analysis": "Eight readings.", "strategy": "decomposed", "tasks": tasks}
    return "team_run", {"goal": "Read.", "plan": plan, "max_parallel": BRANCHES, "limits": limits, "wait_s": 20}


if __name__ == "__main__":
    asyncio.run(main())
