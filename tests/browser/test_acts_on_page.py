"""Acts that a browser has to carry: forms, dialogs, what is typed and clicked; each looked at in the rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from subprocess import DEVNULL
from typing import Any

import pytest
from support.app import Place
from support.forked_program import start
from support.waiting import wait_until

from kairos_mcp.app.app import App
from kairos_mcp.core.decision_rights import Caller
from tests.browser.gallery import TOOL
from tests.browser.served_page import environ_of, run_until_rest, says, serve_page, start_run, wait_for_rows

APPROVE = "[data-approve]:not([disabled])"
GOAL = "Touch the mark"
SLEEPS = {"tool_calls": [{"name": "run_command", "arguments": {"argv": ["sh", "-c", "touch begun; sleep 2"]}}]}
TOUCHES = {"tool_calls": [{"name": "run_command", "arguments": {"argv": ["touch", "step"]}}]}
MANDATE = '{"id": "links", "goal": "Every page has a title."}'
PLAN = {
    "analysis": "One question.",
    "strategy": "decomposed",
    "tasks": [{"id": "look", "agent": "search_specialist", "kind": "search", "description": "Look.", "depends_on": []}],
}


def allow_commands(place: Place, *rules: str) -> None:
    """Let commands run without a sandbox, unasked where a rule says so."""
    place.home.mkdir(parents=True, exist_ok=True)
    (place.home / "kairos.toml").write_text("\n".join(['commands = "bare"', *rules]))


def run_apart(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run in a thread: Playwright keeps a loop running in its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, coroutine).result()


@pytest.fixture
def commands_are_asked_about(site: Place) -> None:
    """Written before the page is served, which reads it too."""
    allow_commands(site)


@pytest.fixture
def commands_are_allowed(site: Place) -> None:
    allow_commands(site, "[[gate]]", 'tools = "run_command"', 'verdict = "allow"')


@pytest.mark.usefixtures("commands_are_asked_about")
def test_what_can_t_be_undone_is_approved_once_its_name_is_typed(site: Place, enter: Callable[..., Any]) -> None:
    run_id = run_until_rest(site, GOAL, [TOUCHES, says("Touched.")], "run_command")
    page = enter(f"#/runs/{run_id}")
    page.wait_for_selector(".no:not([disabled])")  # so much time has passed that either could be clicked
    assert page.is_disabled("[data-approve]")
    page.keyboard.press("a")
    page.keyboard.type("run_comman")
    assert page.is_disabled("[data-approve]")
    page.keyboard.type("d")
    page.click(APPROVE)
    page.wait_for_selector(".pill.completed")
    assert (site.workspace / "step").exists()
    assert site.rows("select verdict, through from approval") == [("approve", "page")]


@pytest.mark.usefixtures("commands_are_allowed")
def test_a_call_that_its_server_did_not_survive_is_settled(site: Place, enter: Callable[..., Any]) -> None:
    process = start_run(site, GOAL, [SLEEPS, says("It slept.")], "run_command")
    wait_until((site.workspace / "begun").exists)
    process.kill()
    process.wait(10)
    ((run_id,),) = site.rows("select id from run")
    start(("resume", run_id), cwd=site.workspace, env=environ_of(site), stdout=DEVNULL, stderr=DEVNULL).wait(60)
    page = enter("#/waits")
    page.wait_for_selector("h2:has-text('Nobody knows how run_command ended')")
    page.fill(".decision input", "It was only a pause.")
    page.click("button:has-text('It took effect'):not([disabled])")
    page.wait_for_selector(".empty")
    wait_for_rows(site, "select 1 from run where outcome is not null")
    ((body,),) = site.rows("select body from inbox where kind = 'settle'")
    assert "already_done" in body
    assert "It was only a pause." in body


def test_a_run_is_sent_to_another_route(site: Place, enter: Callable[..., Any]) -> None:
    run_id = run_until_rest(site, "Say it", [says("Said by the script.")], route="caller")
    page = enter(f"#/runs/{run_id}")
    page.click("button:has-text('Reroute')")
    assert "whoever calls the server" in page.inner_text("dialog p")
    page.select_option("dialog select", "scripted")
    page.click("dialog .yes")
    page.wait_for_selector(".pill.completed")
    assert page.inner_text(".summary p") == "Said by the script."
    assert site.rows("select route from run") == [("scripted",)]


def test_a_team_and_a_mandate_are_started(site: Place, new_context: Callable[..., Any]) -> None:
    script = site.root / "page.jsonl"
    lines = [{"for": "plan", **says(json.dumps(PLAN))}, {"for": "task-1/try-1/round-1", **says("All is there.")}]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with serve_page(site, KAIROS_SCRIPT=str(script), KAIROS_ROUTE="scripted") as served:
        page = new_context().new_page()
        page.goto(served.link)
        page.click("text=Start …")
        page.click("text=a team")
        page.fill("form textarea", "Look around, all of you")
        page.fill("form input[type=number] >> nth=1", "7")
        page.click("form .yes")
        page.wait_for_selector(".task:has-text('search_specialist')")
        assert page.inner_text(".run h1") == "Look around, all of you"
        page.click("nav >> text=Mandates")
        page.click("text=New …")
        page.fill("dialog textarea", MANDATE)
        page.click("dialog .yes")
        page.click("a.card")
        page.click("text=Run now")
        page.wait_for_selector(".run h1:has-text('Every page has a title.')")
    rows = site.rows("select flow, via, run.route, mandate from run order by n")
    assert rows == [("team", "page", "scripted", None), ("ooda_run", "page", "scripted", "links")]
    assert site.rows("select cap_rounds from account join run on run.account = account.id order by n")[0] == (7,)


def test_a_run_is_started_in_the_project_that_is_chosen(site: Place, new_context: Callable[..., Any]) -> None:
    other = site.root / "other" / site.workspace.name
    other.mkdir(parents=True)
    script = site.root / "page.jsonl"
    script.write_text(json.dumps(says("All is there.")) + "\n")
    with serve_page(site, others=[other], KAIROS_SCRIPT=str(script), KAIROS_ROUTE="scripted") as served:
        page = new_context().new_page()
        page.goto(served.link)
        names = page.locator("select.scope option").all_inner_texts()
        assert len(set(names)) == 3  # two projects of one name are told apart
        page.select_option("select.scope", str(other))
        page.click("text=Start …")
        page.fill("form textarea", "Look around")
        page.click("form .yes")
        page.wait_for_selector(".run h1:has-text('Look around')")
    assert site.rows("select workspace from run") == [(str(other),)]


def test_a_definition_that_an_agent_proposed_is_approved(site: Place, enter: Callable[..., Any]) -> None:
    async def propose() -> None:
        async with App.open(site.settings(), via="mcp") as app:
            await app.tools.propose(TOOL, Caller(via="mcp", client="an agent"))

    run_apart(propose())
    page = enter()
    page.wait_for_selector(".badge:has-text('1')")
    page.keyboard.press("w")
    page.wait_for_selector("h2:has-text('create_issue')")
    page.click(APPROVE)
    page.wait_for_selector(".empty")
    assert site.rows("select count(*) from definition where state = 'approved'") == [(1,)]


def test_a_run_is_downloaded(site: Place, enter: Callable[..., Any]) -> None:
    run_id = run_until_rest(site, "Say it", [says("Said.")])
    page = enter(f"#/runs/{run_id}")
    with page.expect_download() as download:
        page.click("text=Download this run")
    assert download.value.suggested_filename == f"{run_id}.jsonl"
    lines = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert run_id in json.dumps(lines[0])


def test_a_paused_run_is_resumed_from_the_inbox(site: Place, enter: Callable[..., Any]) -> None:
    run_id = run_until_rest(site, "Say it", [says("Said by the script.")], route="caller")
    page = enter(f"#/runs/{run_id}")
    page.click("button:has-text('Pause')")
    page.wait_for_selector(".still:has-text('somebody asked for it')")
    page.click("nav >> text=Runs")
    page.wait_for_selector(".call-out:has-text('One run waits for you')")
    assert page.inner_text(".tabs a:has-text('for you') small").strip() == page.inner_text(".badge").split()[0] == "1"
    page.click(".call-out")
    page.click(APPROVE)
    page.wait_for_selector(".empty")
    assert site.rows("select paused from run") == [(None,)]
