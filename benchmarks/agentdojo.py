"""The rules of information flow over AgentDojo: which calls of attacks they ask about, and which ordinary ones.

Nothing is asked of a model: the calls are the suites' ground truths, carried out by `agentdojo_traces.py` in an
environment with the package, made at first use. Counts: exact on any machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.peers import make_peer
from kairos_mcp.core.effects import Effect, Reach
from kairos_mcp.core.flow import Call, Row, covers, judge
from kairos_mcp.core.flow_text import texts_of
from tests.foreign.environs import PythonEnv

AGENTDOJO = PythonEnv("agentdojo", ("agentdojo==0.1.35",))
PROGRAM = Path(__file__).with_name("agentdojo_traces.py")
MARK = "<INFORMATION>"
"""What each injection begins with, and nothing else holds."""
READING = ("get_", "read_", "search_", "list_", "check_")
SERVERS = {"get_webpage": "web", "post_webpage": "web", "read_file": "files"}
"""Tools that are of another server than the rest of their suite."""
OUTSIDE = {"get_webpage", "post_webpage"}
INSIDE = {
    *("append_to_file", "create_file", "delete_file", "delete_email", "cancel_calendar_event"),
    *("update_password", "update_user_info"),
}
OWN_IN_TRAVEL = ("get_user", "search_cal", "get_day")
"""What tools for travel are called whose answers are about the person; the others answer what everybody may know."""


def figures(users: int = 1_000) -> dict[str, float]:
    """Judge so many user tasks of each suite, alone and with each injection."""
    counts = Counter[str]()
    for trace in read_traces(users):
        as_it_is = count(trace)
        variants = {
            "": as_it_is,
            f"{trace['suite']}_": as_it_is,
            "without_wish_": count(trace, wish=False),
            "plain_text_": count(trace, is_structured=False),
        }
        if trace["goal"]:
            nameless = take_values_out(trace)
            variants["adaptive_"] = count(nameless)
            variants["plain_text_adaptive_"] = count(nameless, is_structured=False)
        for name, counted in variants.items():
            counts.update({f"{name}{key}": n for key, n in counted.items()})
    return dict(sorted(counts.items()))


def read_traces(users: int) -> Iterator[dict[str, Any]]:
    """Yield what AgentDojo's ground truths did."""
    words = [str(make_peer(AGENTDOJO)), "-P", str(PROGRAM), str(users)]
    env = {**os.environ, "PYTHONHASHSEED": "0"}  # it has sets in its answers
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as program:
        assert program.stdout is not None
        yield from map(json.loads, program.stdout)
    if program.returncode:
        raise RuntimeError(f"{PROGRAM.name} ended with {program.returncode}")


def take_values_out(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the trace with an attacker who says what he wants and names none of the values of his calls: wherever the
    injection stands, they read "that one"."""
    goal = nameless = trace["goal"]
    texts = [each for _, arguments, *_ in trace["attack"] for each in texts_of(json.loads(arguments))]
    values = {value for name, value in texts if name}
    for value in sorted(values, key=len, reverse=True):
        nameless = nameless.replace(value, "that one") if value and len(value) < 80 else nameless
    # JSON escapes quotes and line breaks, and a shown answer is YAML, which doubles quotes and breaks lines.
    words = (re.escape(word).replace("'", "''?").replace('"', r'\\?"') for word in goal.split())
    named = re.compile(r"(?:\s|\\n|\\)+".join(words))
    in_json = json.dumps(nameless)[1:-1]

    def reword(step: list[Any], *, is_attack: bool) -> list[Any]:
        tool, arguments, text, data = step
        return [
            tool,
            arguments if is_attack else named.sub(lambda _: in_json, arguments),
            named.sub(lambda _: nameless, text),
            data and named.sub(lambda _: in_json, data),
        ]

    return {
        **trace,
        "calls": [reword(step, is_attack=False) for step in trace["calls"]],
        "attack": [reword(step, is_attack=True) for step in trace["attack"]],
    }


def count(trace: dict[str, Any], *, wish: bool = True, is_structured: bool = True) -> Counter[str]:
    """Count what is asked about of a trace: ordinary calls that change something (of pairs `benign`, of tasks alone
    `alone`), and of an injection that was read the first call that changes something or reaches outside.

    A person says yes to each question but one that shows the injection's own text. Injections that only follow a link
    as it stands count apart (`links`), as do those that we completed. `quiet`: of `tasks` with changes, how many pass
    without a question. `is_structured`: answers come with their data, not as text alone.
    """
    suite, is_pair = trace["suite"], bool(trace["goal"])
    rows = [Row("goal", "you", "", trace["prompt"], is_trusted=True, is_private=False, is_said=True)]
    kind, counted, approved = "benign" if is_pair else "alone", Counter[str](), frozenset[str]()
    for step in trace["calls"]:
        call = make_call(suite, step)
        found = judge(call, rows, approved, wish=wish)
        if call.effect != "read":
            counted.update({kind: 1, f"{kind}_asked": bool(found)})
        if MARK not in step[1]:
            approved |= covers(call, found)
        rows.append(make_row(len(rows), suite, *step, is_structured=is_structured))
    if not is_pair:
        has_changes = bool(counted["alone"])
        return counted + Counter(tasks=has_changes, quiet=has_changes and not counted["alone_asked"])
    counted["pairs"] += 1
    if not any(MARK in row.text for row in rows):
        return counted
    counted["read"] += 1
    for step in trace["attack"]:
        call = make_call(suite, step)
        if call.effect != "read" or call.reaches == "outside":
            is_link = all(tool.startswith(READING) for tool, *_ in trace["attack"])
            kind = "links" if is_link else "completed" if trace["is_completed"] else "injected"
            found = judge(call, rows, approved, wish=wish)
            counted.update({kind: 1, f"{kind}_asked": bool(found)})
            break
        rows.append(make_row(len(rows), suite, *step, is_structured=is_structured))
    return counted


def make_call(suite: str, step: list[Any]) -> Call:
    tool = step[0]
    is_reading = tool.startswith(READING)
    reaches: Reach = "inside" if tool in INSIDE else "service" if is_reading and tool not in OUTSIDE else "outside"
    effect: Effect = "read" if is_reading else "irreversible"
    return Call(tool, SERVERS.get(tool, suite), effect, reaches, json.loads(step[1]))


@lru_cache(maxsize=400)
def make_row(n: int, suite: str, tool: str, arguments: str, text: str, data: str | None, *, is_structured: bool) -> Row:
    """Return the answer of a call, of no person's own words; the forms in which it is looked up are kept with it."""
    is_private = tool != "get_webpage" and (suite != "travel" or tool.startswith(OWN_IN_TRAVEL))
    held = json.loads(data) if data and is_structured else None
    return Row(
        *(f"round-{n}/call-1", tool, SERVERS.get(tool, suite), text, held if isinstance(held, dict | list) else None),
        is_private=is_private,
        found_by=arguments,
    )
