"""Keeps with a call what was protected before its program ran, so that the next server can undo what a killed one left.

The program ended with its server. The time of the last change tells its files from those that people made later: no
program outlives the time limit of its call.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection

from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.tool import ToolContext
from kairos_mcp.store.tool_intents import intent_name
from kairos_mcp.tools.commands.protected_paths import ProtectedEntry, ProtectedSurvey, ProtectionRules
from kairos_mcp.tools.commands.undo_writes import UndoneWrites, WriteWatch
from kairos_mcp.tools.departure import LEFT

MAX_UNVISITED = 1_000  # folders that are named one by one; of more, the folders above them
MAX_PROGRAM_BYTES = 256 * 1024  # kept of repositories that no sandbox covers
CLOCK_MS = 20  # by which the kernel's time of a change may lie before the time that a program is told


def keep_survey(watch: WriteWatch, ctx: ToolContext, lasts_s: float) -> None:
    """Keep what was protected before the program runs: at most `lasts_s` seconds, until the call has its answer."""
    name = intent_name(ctx.path)
    if ctx.memory.recall(name) is not None:
        return  # the second try of a call whose first sandbox could not be made
    now = time.time_ns() // 1_000_000
    kept: JsonObject = {
        "begun": now - CLOCK_MS,
        "until": now + int(lasts_s * 1000),
        "skipped": sorted(watch.skipped),
        "entries": {
            path: [entry.is_repository, entry.link_target, entry.is_bare]
            for path, entry in watch.before.entries.items()
        },
        "unvisited": _shorten(watch.before.unvisited),
        "aside": watch.aside,
        "programs": _encode_programs(watch),
    }
    ctx.memory.keep(name, json.dumps(kept))


def undo_interrupted(root: int, rules: ProtectionRules, ctx: ToolContext) -> UndoneWrites | None:
    """Undo what the program of an interrupted call wrote at protected paths; None if nothing was watched."""
    text = ctx.memory.recall(intent_name(ctx.path))
    if text in (None, LEFT):  # it had not begun, or ran without a sandbox
        return None
    kept = json.loads(text)
    entries = {
        path: ProtectedEntry(is_repository, target, (), is_bare)
        for path, (is_repository, target, is_bare) in kept["entries"].items()
    }
    programs = {
        path: {name: body.encode("latin-1") for name, body in files.items()} for path, files in kept["programs"].items()
    }
    before = ProtectedSurvey(entries, frozenset(kept["unvisited"]))
    watch = WriteWatch(
        root, rules, before, kept["skipped"], unheld_programs=programs, aside=kept.get("aside", ".kairos-aside-")
    )

    def is_of_program(status: os.stat_result) -> bool:
        return bool(kept["begun"] <= status.st_ctime_ns // 1_000_000 <= kept["until"])

    ctx.memory.check_owner()
    return watch.undo(ctx.memory.keep_taken, f"{ctx.path}/taken-out", is_of_program=is_of_program)


def _encode_programs(watch: WriteWatch) -> dict[str, dict[str, str]]:
    left, encoded = MAX_PROGRAM_BYTES, dict[str, dict[str, str]]()
    for path, files in watch.unheld_programs.items():
        left -= sum(len(name) + len(body) for name, body in files.items())
        if left < 0:
            break
        encoded[path] = {name: body.decode("latin-1") for name, body in files.items()}
    return encoded


def _shorten(folders: Collection[str]) -> list[str]:
    """Name the folders above where there are too many: nothing below them is then taken for new."""
    depth = max((folder.count("/") for folder in folders), default=0)
    shortened = set(folders)
    while len(shortened) > MAX_UNVISITED and depth > 1:
        depth -= 1
        shortened = {
            "/".join(folder.split("/")[:depth]) + "/" if folder.count("/") > depth else folder for folder in shortened
        }
    return sorted(shortened)
