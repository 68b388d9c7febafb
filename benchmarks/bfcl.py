"""The rules of information flow over BFCL's ordinary days: how many calls that change something they ask about.

Two hundred days of several turns at eight services, none of them with an attack. Nothing is asked of a model: the
calls are the ground truths, carried out by `bfcl_traces.py` in an environment with the package, made at first use.
Counts: exact on any machine.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import make_peer
from kairos_mcp.core.flow import Call, Row, covers, judge
from tests.foreign.environs import PythonEnv

BFCL = PythonEnv("bfcl", ("--no-deps", "bfcl-eval==2026.3.23", "mpmath==1.3.0"))
"""Without what it needs to ask models, which is several gigabytes."""
PROGRAM = Path(__file__).with_name("bfcl_traces.py")
READING = (
    *(
        "get_",
        "list_",
        "search_",
        "view_",
        "filter_",
        "compute_",
        "check",
        "estimate_",
        "find_",
        "verify_",
        "retrieve_",
    ),
    *("trading_get", "ticket_get", "travel_get", "posting_get", "message_get", "display", "gallon", "liter"),
)
SIGNING_IN = ("authenticate", "login", "logout", "message_login", "trading_login", "ticket_login")
INSIDE = {"VehicleControlAPI"}
NOT_SERVICES = {"GorillaFileSystem", "MathAPI"}
"""Of these no call is judged: one is the workspace, the other changes nothing."""


def figures(days: int = 1_000) -> dict[str, float]:
    """Judge the calls of the first `days` days."""
    counts = Counter[str]()
    for n, turns in enumerate(read_days()):
        if n < days:
            counts += count(turns, wish=True)
            counts.update({f"without_wish_{key}": value for key, value in count(turns, wish=False).items()})
    return dict(sorted(counts.items()))


def read_days() -> Iterator[list[dict[str, Any]]]:
    """Yield the turns of each day."""
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    words = [str(make_peer(BFCL)), "-P", str(PROGRAM)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as program:
        assert program.stdout is not None
        yield from map(json.loads, program.stdout)
    if program.returncode:
        raise RuntimeError(f"{PROGRAM.name} ended with {program.returncode}")


def count(turns: list[dict[str, Any]], *, wish: bool) -> Counter[str]:
    """Count the calls of a day that change something (`changing`, and of each service), those that are asked about, and
    whether the day has such calls (`days`) and passes without a question (`quiet`). A person says yes to each."""
    rows, counted, approved = list[Row](), Counter[str](), frozenset[str]()
    for turn in turns:
        rows.append(Row(f"turn-{len(rows)}", "you", "", turn["said"], is_private=False, is_said=True))
        for service, function, arguments, answer in turn["calls"]:
            if service not in NOT_SERVICES and not function.startswith((*READING, *SIGNING_IN)):
                reaches = "inside" if service in INSIDE else "outside"
                call = Call(function, service, "irreversible", reaches, json.loads(arguments))
                found = judge(call, rows, approved, wish=wish)
                approved |= covers(call, found)
                keys = ("changing", service)
                counted.update(keys)
                counted.update({f"{key}_asked": bool(found) for key in keys})
            held = json.loads(answer)
            data = held if isinstance(held, dict | list) else None
            rows.append(Row(f"round-{len(rows)}/call-1", function, service, answer, data, found_by=arguments))
    return counted + Counter(days=bool(counted["changing"]), quiet=counted["changing"] > 0 == counted["changing_asked"])
