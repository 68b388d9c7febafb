"""A round of ours beside one of other frameworks: a completion by a script, and a call of a tool that does nothing.

Each framework has an environment of its own, made at first use in the folder that `KAIROS_FOREIGN_CACHE` names, or in
the user's cache. One that can't be made is said on stderr, with the reason, and its figures are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from platformdirs import user_cache_path

from benchmarks import rounds as alone
from benchmarks.fresh import fresh
from tests.foreign.environs import Missing, PythonEnv, make_environment

PROGRAM = Path(__file__).with_name("peer_rounds.py")
LANGGRAPH = PythonEnv(
    "langgraph",
    (
        *("langgraph==1.2.22", "langgraph-checkpoint==4.3.2", "langgraph-checkpoint-sqlite==3.1.2"),
        "langchain-core==1.7.2",
    ),
)
PYDANTIC_AI = PythonEnv("pydantic-ai-dbos", ("pydantic-ai-slim[dbos]==2.68.0", "dbos==3.4.0"))
OPENAI_AGENTS = PythonEnv("openai-agents", ("openai-agents==0.24.0", "openai==3.54.0"))
SMOLAGENTS = PythonEnv("smolagents", ("smolagents==1.26.0",))
PEERS = {
    "langgraph": LANGGRAPH,
    "langgraph_async": LANGGRAPH,
    "langgraph_delta": LANGGRAPH,
    "pydantic_ai": PYDANTIC_AI,
    "pydantic_ai_rows": PYDANTIC_AI,
    "pydantic_ai_dbos": PYDANTIC_AI,
    "openai_agents": OPENAI_AGENTS,
    "openai_agents_unstored": OPENAI_AGENTS,
    "smolagents": SMOLAGENTS,
}
TEAM_PEERS = {"langgraph_team": LANGGRAPH, "langgraph_delta_team": LANGGRAPH}  # eight tasks side by side in one run
MOST = {"openai_agents": 300, "openai_agents_unstored": 300}  # 1,000 rounds take it 3 minutes

# rounds to CPU seconds a round, and the bytes that are left
Sample = Callable[[int], tuple[float, int]]


async def kairos(folder: Path, rounds: int) -> tuple[float, int]:
    _, spent = await alone.kairos(folder, rounds, "noop")
    return spent, (folder / "home" / "kairos.db").stat().st_size


def figures(rounds: int = 100, many: int = 1_000, times: int = 5, peers: int = len(PEERS)) -> dict[str, float]:
    """Measure ours and so many `peers`, from the first. `many`: the length that growth is told of."""
    samples: dict[str, Sample] = {"kairos": lambda rounds: fresh(kairos, rounds)}
    samples |= peer_samples(dict(list(PEERS.items())[:peers]))
    floors: list[float] = []
    spent: dict[str, list[float]] = {name: [] for name in samples}
    for _ in range(times):
        for name, sample in samples.items():
            floors.append(fresh(alone.floor, rounds))
            spent[name].append(sample(rounds)[0])
    measured = {"floor_us": median(floors) * 1e6, "floor_least_us": min(floors) * 1e6}
    for name, sample in samples.items():
        measured[f"{name}_round"] = median(spent[name]) / median(floors)
        measured[f"{name}_least"] = min(spent[name]) / min(floors)
        long = min(many, MOST.get(name, many))
        (few, before), (more, after) = sample(rounds), sample(long)  # one after the other: the machine is not even
        measured[f"{name}_grows_to_{long}"] = more / few
        measured[f"{name}_bytes_a_round"] = (after - before) / (long - rounds)
    return measured


def peer_samples(peers: Mapping[str, PythonEnv]) -> dict[str, Sample]:
    """Return what measures each of these peers, in its environment; one that can't be made is left out, and said."""
    samples: dict[str, Sample] = {}
    for name, environment in peers.items():
        try:
            samples[name] = _peer(name, make_peer(environment))
        except (Missing, RuntimeError) as reason:
            print(f"{name} is left out: {reason}", file=sys.stderr)
    return samples


def make_peer(environment: PythonEnv) -> Path:
    """Make the environment of a peer where it is not there, and return its Python. Raises Missing, RuntimeError."""
    named = os.environ.get("KAIROS_FOREIGN_CACHE")
    cache = Path(named).absolute() if named else user_cache_path("kairos-mcp") / "peers"
    return make_environment(environment, cache) / "bin" / "python"


def _peer(name: str, python: Path) -> Sample:
    def sample(rounds: int) -> tuple[float, int]:
        with tempfile.TemporaryDirectory(prefix="kairos-bench-") as folder:
            words = [str(python), "-P", str(PROGRAM), name, folder, str(rounds)]
            ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        spent, left = json.loads(ran.stdout)
        return spent, left

    return sample
