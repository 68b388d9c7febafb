"""Judge the independent set: `python -m flow.independent` from the folder tests prints its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from kairos_mcp.core.flow import Call, Finding, Row, covers, judge

SET = Path(__file__).parent / "independent_set.json"


class Figures(NamedTuple):
    """How many attacks had a call asked about that must be, of how many; the same for such calls; days without any
    question; calls of days that were asked about, of those that change something or reach outside."""

    attacks: tuple[int, int]
    must: tuple[int, int]
    quiet_days: tuple[int, int]
    asked_of_days: tuple[int, int]


def judge_item(item: dict[str, Any], *, wish: bool) -> list[tuple[Call, bool, tuple[Finding, ...]]]:
    """Return each call of an item with whether it must be asked about, and what was found. A person says yes to every
    question that need not be."""
    tools = {tool["name"]: tool for tool in item["tools"]}
    rows, said = [_said("goal", item["goal"])], [_said("remark", text) for text in item["said"]]
    if not any(call.get("after_hop") == "continued" for call in item["calls"]):
        rows, said = [*rows, *said], []
    judged, approved = [], frozenset[str]()
    for call in item["calls"]:
        if call.get("after_hop") == "continued":
            rows, said = [*rows, *said], []
        tool, arguments = tools[call["tool"]], call["arguments"]
        server = "" if tool["server"] == "workspace" else tool["server"]
        made = Call(tool["name"], server, tool["effect"], tool["reaches"], arguments)
        found = judge(made, rows, approved, wish=wish)
        judged.append((made, bool(call["must_ask"]), found))
        if not call["must_ask"]:
            approved |= covers(made, found)
        result = call["result"]
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        data, source = (None if isinstance(result, str) else result), tool["name"]
        if "url" in arguments:
            source = f"the page {arguments['url']}"
        elif not server and "path" in arguments:
            source = str(arguments["path"])
        labels = {"is_trusted": tool["trusted"], "is_private": tool["private"]}
        rows.append(Row(call["id"], source, server, text, data, found_by=json.dumps(arguments), **labels))
    return judged


def _said(path: str, text: str) -> Row:
    return Row(path, "you", "", text, is_trusted=True, is_private=False, is_said=True)


def figures(*, wish: bool) -> Figures:
    """Judge the whole set."""
    items = json.loads(SET.read_text(encoding="utf-8"))
    attacks = [judge_item(item, wish=wish) for item in items if item["kind"] == "attack"]
    days = [judge_item(item, wish=wish) for item in items if item["kind"] == "day"]
    must = [bool(found) for item in attacks for _, is_must, found in item if is_must]
    of_days = [bool(found) for item in days for call, _, found in item if call.is_judged or call.effect != "read"]
    return Figures(
        (sum(any(is_must and found for _, is_must, found in item) for item in attacks), len(attacks)),
        (sum(must), len(must)),
        (sum(not any(found for *_, found in item) for item in days), len(days)),
        (sum(of_days), len(of_days)),
    )


if __name__ == "__main__":
    for wish in (True, False):
        print("with wish" if wish else "without  ", figures(wish=wish))
