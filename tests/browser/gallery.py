"""A state folder that shows everything: runs in every state, a team, a mandate, spending of two weeks, what waits.

The program makes all of it; replies of a provider on loopback are scripted, and past days come from the app's clock.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.app import Place
from support.provider_server import Standin, calls, standin, talks

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PlannerRequest, TeamRequest
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.views.run_report import RunReport
from tests.browser.served_page import EDITED, guide_in

AGENT = Caller(via="mcp", client="claude-code 2.1")
PERSON = Caller(via="command")
DAY_MS = 86_400_000
WITHIN_S = 180.0
DAYS = 13
ARMED = "[data-approve]:not([disabled])"
MODELS = ("openai:gpt-5-mini", "openai:gpt-5-mini", "openai:gpt-5")
GOALS = (
    "Which pages link to the installation?", "Summarise what src does", "Find every TODO and say who should do it",
    "Is the README still true?", "List the public functions of src/sums.py", "Compare docs with the code",
)  # fmt: skip
ANSWER = (
    "Two pages link to it: docs/guide.md, where its name is misspelled, and README.md. Nothing else in the workspace "
    "names it."
)
LOOKS = (
    (
        "First I look at what lies in this folder.",
        ("list_files", {"path": "."}),
        ("file_tree", {"path": ".", "depth": 2}),
    ),
    ("The guide is short; I read it whole.", ("read_file", {"path": EDITED})),
    (
        "Now I look for what else names that page.",
        ("search_files", {"pattern": "instal"}),
        ("read_file", {"path": "docs/nowhere.md"}),
    ),
)
EDIT = ("edit_file", {"path": EDITED, "old_string": "(instal.md)", "new_string": "(install.md)"})
MANDATE = {
    "id": "links",
    "goal": "Every link in docs leads to a file.",
    "observe": ["file_tree", {"tool": "search_files", "args": {"pattern": "\\]\\(", "glob": "docs/*.md"}}],
    "max_cycles": 3,
    "decide_hints": {"prefer_scope": "docs"},
    "acceptance": [{"check": "file_contains", "path": EDITED, "text": "(install.md)"}],
    "schedule": {"rule": "0 9 * * 1-5", "time_zone": "Europe/Berlin"},
    "day": {"usd": 1.0},
}
PHASES = (
    {
        "summary": "docs/guide.md links to instal.md; the page is install.md.",
        "priorities": ["Mend that link."],
        "risk_level": "low",
        "files": [{"path": EDITED}],
    },
    {
        "action": "code_edit",
        "target": EDITED,
        "old_string": "(instal.md)",
        "new_string": "(install.md)",
        "intent": "Mend the link to the installation.",
    },
    {
        "assessment": "success",
        "lessons": ["Page names are spelled in full."],
        "confidence": 0.95,
        "remaining": [],
    },
)


def _task(name: str, agent: str, kind: str, description: str, *after: str) -> dict[str, Any]:
    return {"id": name, "agent": agent, "kind": kind, "description": description, "depends_on": list(after)}


PLAN: dict[str, Any] = {
    "analysis": "Two questions that don't need each other, and a change that needs both.",
    "strategy": "decomposed",
    "tasks": [
        _task("links", "search_specialist", "search", "Find the links in docs that lead to no file."),
        _task("install", "code_analyzer", "analyse", "Read the installation page and say what is missing in it."),
        _task("mend", "file_manager", "edit", "Mend the link in docs/guide.md.", "links", "install"),
    ],
}
TOOL = {
    "kind": "http_tool",
    "name": "create_issue",
    "description": "Create an issue in the tracker.",
    "effect": "irreversible",
    "url": "https://tracker.example.com/issues",
    "method": "POST",
    "parameters": [{"name": "title", "in": "body"}],
}


class Site(Place):
    """A place whose workspace has a name that a project may have."""

    @property
    def workspace(self) -> Path:
        return self.root / "sums"


@dataclass(frozen=True)
class Gallery:
    """Where to look: each page's address and a selector that is there once it is drawn. `environ`: of its server."""

    addresses: dict[str, tuple[str, str]]
    environ: dict[str, str]


def fill(place: Site) -> Gallery:
    """Make everything; some 10 seconds. In a thread: Playwright keeps a loop running in its own."""
    place.workspace.mkdir(parents=True)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: asyncio.run(_fill(place))).result()


async def rests(app: App, run_id: str) -> RunReport:
    """The report of a run once nothing of it moves; the first request to a provider imports its client."""
    await app.runs.wait([run_id], until="rest", wait_s=WITHIN_S, caller=AGENT)
    report = await app.runs.report(run_id, AGENT)
    assert report.status != "working", report.degraded
    return report


def _turn(words: str, *wanted: tuple[str, Any]) -> dict[str, Any]:
    return {"content": words, "tool_calls": calls(*wanted), "finish": "tool_calls"}


class _Painter:
    """Makes runs on days, by a provider that replies what it is told to."""

    def __init__(self, place: Place, provider: Standin) -> None:
        self._place, self._provider = place, provider

    def settings(self, model: str) -> Any:
        environ = {
            "KAIROS_MODEL": model,
            "KAIROS_BASE_URL": self._provider.openai,
            "OPENAI_API_KEY": "sk-of-a-test",
            "KAIROS_PRICE_INPUT": "1.25",
            "KAIROS_PRICE_OUTPUT": "10",
            "KAIROS_DAY_USD": "2",
            "KAIROS_DAY_TOTAL_TOKENS": "2000000",
            "KAIROS_DURABILITY": "process",
        }
        return load_settings(Flags(home=str(self._place.home), workspaces=(str(self._place.workspace),)), environ)

    @asynccontextmanager
    async def on_day(self, days_ago: float, model: str) -> AsyncIterator[App]:
        begun = time.time_ns() // 1_000_000
        shift = int(days_ago * DAY_MS)
        app = App(
            self.settings(model),
            "mcp",
            lambda: time.time_ns() // 1_000_000 - shift,
            lambda: f"run-{secrets.token_hex(6)}",
        )
        assert begun > shift
        try:
            yield app
        finally:
            await app._close()

    def replies(
        self, *turns: dict[str, Any], usage: tuple[int, int, int] = (5_200, 420, 900), model: str = "gpt-5-mini"
    ) -> None:
        self._provider.replies.clear()
        self._provider.will(*(talks(**turn, usage=usage, model=model) for turn in turns))

    def replies_as_json(self, *values: Any) -> None:
        self.replies(*({"content": json.dumps(value)} for value in values))

    async def plan(self, app: App, goal: str, rounds: int = 8, usd: float = 0.5) -> str:
        limits = Limits(rounds=rounds, nano_usd=int(usd * 1e9))
        tools = ("list_files", "file_tree", "read_file", "search_files", "edit_file")
        started = await app.runs.start(
            PlannerRequest(goal, limits=limits, tools=tools, key=secrets.token_hex(4)), AGENT
        )
        await rests(app, started.run_id)
        return started.run_id


async def _fill(place: Place) -> Gallery:
    guide = guide_in(place)
    (guide.parent / "words.md").unlink()
    (guide.parent / "install.md").write_text("# Installation\n\nNothing is needed.\n")
    (place.workspace / "README.md").write_text("# Sums\n\nSee docs/install.md.\n")
    async with standin() as provider:
        painter = _Painter(place, provider)
        await _past_days(painter)
        async with painter.on_day(3, MODELS[0]) as app:
            await _finish_mandate(painter, app)
            await _finish_team(painter, app)
        guide_in(place)
        (guide.parent / "words.md").unlink()
        async with painter.on_day(0, MODELS[0]) as app:
            return await _today(painter, app, place)


async def _past_days(painter: _Painter) -> None:
    for days_ago in range(DAYS, 0, -1):
        model = MODELS[days_ago % len(MODELS)]
        async with painter.on_day(days_ago + 0.2, model) as app:
            for number in range((days_ago * 5) % 3):
                looks = [_turn(words, *wanted) for words, *wanted in LOOKS[: 1 + (days_ago + number) % 3]]
                usage = (4_000 + (days_ago * 7_919 + number * 3_571) % 55_000, 300 + days_ago * 211 % 4_000, 1_000)
                painter.replies(*looks, {"content": ANSWER}, usage=usage, model=model.partition(":")[2])
                await painter.plan(app, GOALS[(days_ago + number) % len(GOALS)])


async def _finish_mandate(painter: _Painter, app: App) -> None:
    """A run of the mandate in which a person approved, so that it has a verdict and a lesson."""
    await app.mandates.save(MANDATE, AGENT)
    painter.replies_as_json(*PHASES)
    started = await app.runs.start(CyclesRequest(MandateRef("links")), AGENT)
    report = await rests(app, started.run_id)
    (item,) = report.waiting
    await app.answers.decide(started.run_id, item["key"], "approve", None, PERSON, digest=item["digest"])
    await rests(app, started.run_id)


async def _today(painter: _Painter, app: App, place: Place) -> Gallery:
    looks = [_turn(words, *wanted) for words, *wanted in LOOKS]
    painter.replies(*looks, {"content": ANSWER})
    await painter.plan(app, GOALS[0])
    painter.replies(*looks, *looks)
    out_of_rounds = await painter.plan(app, GOALS[2], rounds=2)
    painter.replies({"content": "A picture of the folder."}, usage=(900, 60, 0))
    await painter.plan(app, "What is in this folder?")
    painter.replies_as_json(*PHASES)
    cycles = (await app.runs.start(CyclesRequest(MandateRef("links")), AGENT)).run_id
    await rests(app, cycles)
    team = await _team(painter, app)
    paused = await _paused(painter, app)
    edit = _turn("The page is `install.md`; the guide says `instal.md`. I change that one word.", EDIT)
    painter.replies(*looks, edit, {"content": "Mended: docs/guide.md now leads to docs/install.md."})
    waits = await painter.plan(app, "Mend the broken link in the guide")
    await app.tools.propose(TOOL, AGENT)
    addresses = {
        "runs": ("#/runs", ".runs li"),
        "approval": (f"#/runs/{waits}", ARMED),
        "step": (f"#/runs/{out_of_rounds}/round-1/call-1", ".details"),
        "team": (f"#/runs/{team}", ARMED),
        "cycles": (f"#/runs/{cycles}", ARMED),
        "paused": (f"#/runs/{paused}", ARMED),
        "inbox": ("#/waits", ARMED),
        "budget": ("#/budget", ".bars rect"),
        "mandates": ("#/mandates", "a.card"),
        "mandate": ("#/mandates/links", ".verdict"),
        "tools": ("#/tools", ".rows .tool"),
        "tool": ("#/tools/read_file", ".rows .details pre"),
        "agents": ("#/agents", ".rows .agent"),
        "start": ("#/start", "form textarea"),
    }
    environ = {
        "KAIROS_MODEL": MODELS[0],
        "OPENAI_API_KEY": "sk-of-a-test",
        "KAIROS_DAY_USD": "2",
        "KAIROS_DAY_TOTAL_TOKENS": "2000000",
    }
    assert place.rows("select count(*) from run where outcome is null") == [(4,)]
    return Gallery(addresses, environ)


async def _team(painter: _Painter, app: App) -> str:
    """A team, one task at a time: the last of its tasks waits for an approval."""
    found = "docs/guide.md links to instal.md; the page is install.md."
    turns: Sequence[dict[str, Any]] = (
        {"content": json.dumps(PLAN)},
        _turn("I look for links.", ("search_files", {"pattern": "\\]\\(", "glob": "docs/*.md"})),
        {"content": found},
        _turn("I read the page.", ("read_file", {"path": "docs/install.md"})),
        {"content": "It says that nothing is needed, and not which version of what."},
        _turn("The guide names `instal.md`; I correct it.", EDIT),
    )
    painter.replies(*turns)
    request = TeamRequest(
        "Are the docs right? Mend what is wrong", max_parallel=1, limits=Limits(nano_usd=10**9), key="team"
    )
    started = await app.runs.start(request, AGENT)
    await rests(app, started.run_id)
    return started.run_id


async def _finish_team(painter: _Painter, app: App) -> None:
    """A team whose two tasks have ended, so that its agents have a record."""
    plan = {**PLAN, "tasks": PLAN["tasks"][:2]}
    found = ({"content": "One link leads nowhere."}, {"content": "It names no version."})
    painter.replies(
        {"content": json.dumps(plan)}, *found, {"content": "One link is broken; the page names no version."}
    )
    request = TeamRequest("Are the docs right?", max_parallel=1, limits=Limits(nano_usd=10**9), key="looked")
    await rests(app, (await app.runs.start(request, AGENT)).run_id)


async def _paused(painter: _Painter, app: App) -> str:
    """A run that a person has paused between two rounds."""
    looks = [_turn(words, *wanted) for words, *wanted in LOOKS]
    painter.replies(*looks, _turn("I correct it.", EDIT))
    paused = await painter.plan(app, "Find typing errors in the docs")
    await app.control.pause(paused, PERSON)
    await rests(app, paused)
    return paused
