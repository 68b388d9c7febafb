"""What a person does on the page, from the link in the terminal to the row in the store."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from support.app import Place
from support.forked_program import start
from support.page_runs import approve_in_a_dialog
from support.reviewers import STEP

from tests.browser.chromium import wait_until
from tests.browser.served_page import (
    EDITED,
    ServedPage,
    asks_to_edit,
    environ_of,
    looks,
    run_until_rest,
    says,
    serve_page,
    wait_for_rows,
)

MEND = "Which pages name the installation? Mend what is wrong"
TOOLS = ("read_file", "search_files", "edit_file")
LINES = (looks(), looks(2), asks_to_edit(), says("The guide leads to install.md now."))
APPROVE = "[data-approve]:not([disabled])"


def waits_for_edit(place: Place, goal: str = MEND) -> str:
    run_id = run_until_rest(place, goal, LINES, *TOOLS)
    assert place.rows("select verdict from approval") != []
    return run_id


def test_a_link_opens_the_page_once_and_leaves_no_trace(served: ServedPage, new_context: Callable[..., Any]) -> None:
    context = new_context()
    page = context.new_page()
    page.goto(served.link)
    page.wait_for_selector("nav")
    assert "enter" not in page.url
    assert context.cookies() == []  # they would go to every port of this machine

    page.reload()
    page.wait_for_selector("nav")  # the session goes on

    stranger = new_context().new_page()
    stranger.goto(served.link)
    assert "locked" in stranger.inner_text(".locked h1")
    assert stranger.evaluate("fetch('api/runs').then((answer) => answer.status)") == 401


def test_no_runs_yet_names_the_command(enter: Callable[..., Any]) -> None:
    assert "kairos-mcp demo" in enter().inner_text(".empty pre")


def test_list_run_step_reload_and_back(site: Place, enter: Callable[..., Any]) -> None:
    run_id = run_until_rest(site, "Look around", [looks(), says("Nothing is wrong.")], *TOOLS)
    page = enter()
    page.click(".runs a")
    page.wait_for_selector(".summary")
    assert page.inner_text(".run h1") == "Look around"
    page.click(".step.call .row")
    assert page.url.endswith(f"#/runs/{run_id}/round-1/call-1")
    assert "word1." in page.inner_text(".details")
    page.reload()
    page.wait_for_selector(".details")
    page.click(".row[aria-expanded=true]")
    page.wait_for_selector(".details", state="detached")
    page.go_back()
    page.wait_for_selector(".runs")


def test_an_edit_is_approved_by_keys_alone(site: Place, enter: Callable[..., Any]) -> None:
    waits_for_edit(site)
    page = enter()
    page.wait_for_selector(".runs li")
    page.keyboard.press("w")
    page.wait_for_selector(".diff .add")
    assert page.inner_text(".waiting h2").endswith(f"May it change {EDITED}?")
    (before,) = re.findall(r"before ([0-9a-f]{12}), after [0-9a-f]{12}", page.text_content(".codes"))
    assert before not in page.inner_text(".diff")  # it is no line of the file
    assert page.inner_text(".diff .add td:last-child").lstrip("+") == "Start with [the installation](install.md)."
    page.wait_for_selector(APPROVE)
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    page.wait_for_selector(".pill.completed")
    assert "(install.md)" in (site.workspace / EDITED).read_text()
    ((verdict, through),) = site.rows("select verdict, through from approval")
    assert (verdict, through) == ("approve", "page")


def test_a_step_tells_what_the_dialog_showed_in_which_it_was_decided(site: Place, enter: Callable[..., Any]) -> None:
    with ThreadPoolExecutor() as beside:  # in this thread a browser is driven
        run_id = beside.submit(asyncio.run, approve_in_a_dialog(site)).result()
    page = enter(f"#/runs/{run_id}/{STEP}")
    assert "approve · local · through elicitation · which showed 2 of 2 lines (" in page.inner_text(".details")


def test_a_denial_reaches_the_model_with_its_reason(site: Place, enter: Callable[..., Any]) -> None:
    run_id = waits_for_edit(site)
    page = enter(f"#/runs/{run_id}")
    page.fill(".decision input", "The page is being renamed: leave it.")
    page.wait_for_selector(".no:not([disabled])")
    page.click(".no")
    page.wait_for_selector(".pill.completed")
    assert "(instal.md)" in (site.workspace / EDITED).read_text()
    ((body,),) = site.rows("select body from answer join step on step.id = answer.step where path = 'round-3/call-1'")
    assert "The page is being renamed: leave it." in body


def test_approve_is_armed_a_moment_after_its_card_came(site: Place, enter: Callable[..., Any]) -> None:
    run_id = waits_for_edit(site)
    page = enter()
    page.evaluate("""() => new MutationObserver((_, observer) => {
        const button = document.querySelector("[data-approve]");
        if (!button) return;
        observer.disconnect();
        window.came = performance.now();
        window.wasArmed = !button.disabled;
        new MutationObserver(() => { window.armed ??= performance.now(); }).observe(button, { attributes: true });
    }).observe(document.body, { childList: true, subtree: true })""")
    page.evaluate(f"location.hash = '#/runs/{run_id}'")
    page.wait_for_selector(APPROVE)
    assert page.evaluate("window.wasArmed") is False
    assert page.evaluate("window.armed - window.came") >= 690


def test_what_changed_since_it_was_shown_is_not_approved(site: Place, enter: Callable[..., Any]) -> None:
    run_id = waits_for_edit(site)
    page = enter(f"#/runs/{run_id}")
    page.wait_for_selector(APPROVE)
    page.route("**/api/act", lambda route: route.continue_(post_data=_with_other_digest(route.request.post_data)))
    page.click(APPROVE)
    page.wait_for_selector(".failure")
    assert site.rows("select verdict from approval") == [(None,)]


def _with_other_digest(body: str) -> str:
    at = body.index('"digest":"') + len('"digest":"')
    return body[:at] + ("0" if body[at] != "0" else "1") + body[at + 1 :]


def test_the_inbox_leads_from_one_to_the_next(site: Place, enter: Callable[..., Any]) -> None:
    first, second = waits_for_edit(site, "Mend the guide"), waits_for_edit(site, "Mend it again")
    page = enter("#/waits")
    page.wait_for_selector(APPROVE)
    assert page.title().startswith("(2)")
    assert page.inner_text(".of-run a") == "Mend the guide"
    page.wait_for_selector(".no:not([disabled])")
    page.click(".no")
    wait_until(page, "document.querySelector('.of-run a')?.textContent === 'Mend it again'")
    page.wait_for_selector(".no:not([disabled])")
    page.click(".no")
    page.wait_for_selector(".empty")
    verdicts = dict(site.rows("select run.id, verdict from approval join run on run.n = approval.run"))
    assert verdicts == {first: "deny", second: "deny"}


def test_the_files_of_a_stage_whose_boxes_are_left_are_applied(site: Place, enter: Callable[..., Any]) -> None:
    names = ("one.txt", "two.txt")
    lines = [{"tool_calls": [{"name": "write_file", "arguments": {"path": name, "content": name}}]} for name in names]
    run_id = run_until_rest(site, "Write both", [*lines, says("Done.")], "write_file", KAIROS_STAGE="true")
    page = enter(f"#/runs/{run_id}")
    page.wait_for_selector(APPROVE)
    assert page.locator("details.file summary").all_text_contents() == [f"create {name}" for name in names]
    assert page.locator("details.file[open] .add .sign + *, details.file[open] .add td:last-child").count() == 2
    page.click(".files summary")
    page.click(".files .link")  # none of them
    assert page.locator("[data-approve]").is_disabled()
    page.click(".files label:has-text('two.txt')")
    assert page.text_content(APPROVE) == "Approve 1 of 2 files"
    page.click(APPROVE)
    page.wait_for_selector(".pill.completed")
    assert [name for name in names if (site.workspace / name).exists()] == ["two.txt"]
    assert site.rows("select verdict, files from approval") == [("approve", '["two.txt"]')]


def test_an_approval_is_remembered_for_the_project(site: Place, enter: Callable[..., Any]) -> None:
    run_id = waits_for_edit(site)
    page = enter(f"#/runs/{run_id}")
    page.select_option(".decision select", "project")
    page.click(APPROVE)
    page.wait_for_selector(".pill.completed")
    assert site.rows("select count(*) from rule") == [(1,)]
    page.goto(page.url.split("#")[0] + "#/tools")
    page.wait_for_selector(".rule")
    page.click(".rule button")
    page.wait_for_selector(".rule", state="detached")
    page.click("a[href='#/tools/edit_file']")
    assert page.text_content(".details .quiet") == "reaches inside · trusted · private"


def test_a_run_of_another_process_is_seen_as_it_moves(
    site: Place, enter: Callable[..., Any], move: Callable[..., Any]
) -> None:
    page = enter()
    driving = move(
        "Look at every page", [looks(n, delay_s=0.3) for n in range(1, 8)] + [says("All were looked at.")], *TOOLS
    )
    page.wait_for_selector(".runs .pill.working")
    page.click(".runs a")
    page.wait_for_selector(".group:nth-child(2)")
    shown = page.locator(".group").count()
    wait_until(page, f"document.querySelectorAll('.group').length > {shown}")
    page.wait_for_selector(".pill.completed")
    assert driving.wait(30) == 0
    assert page.locator(".step.call").count() == 14


def test_pause_extend_resume_and_cancel(site: Place, enter: Callable[..., Any], move: Callable[..., Any]) -> None:
    move("Take long", [looks(n, delay_s=0.4) for n in range(1, 60)] + [says("Done.")], *TOOLS)
    ((run_id,),) = wait_for_rows(site, "select id from run")
    page = enter(f"#/runs/{run_id}")
    page.click("button:has-text('Pause')")
    page.wait_for_selector(".pill.paused")
    ((before,),) = site.rows("select cap_rounds from account join run on run.account = account.id")
    page.click("button:has-text('Extend')")
    page.fill("dialog input", "5")
    page.click("dialog .yes")
    page.wait_for_selector("dialog", state="detached")
    wait_for_rows(site, "select 1 from account join run on run.account = account.id where cap_rounds > ?", before - 1)
    page.click("button:has-text('Resume')")
    page.wait_for_selector(".pill.working")
    page.click("button:has-text('Cancel run')")
    page.click("dialog .danger")
    page.wait_for_selector(".pill.cancelled")
    ((outcome,),) = site.rows("select outcome from run")
    assert '"cancelled"' in outcome


def test_a_run_that_waits_for_its_caller_is_answered(site: Place, enter: Callable[..., Any]) -> None:
    run_id = run_until_rest(site, "Say what is there", [], route="caller")
    page = enter(f"#/runs/{run_id}")
    page.click("text=Show what is asked")
    page.wait_for_selector("text=Say what is there")
    page.fill(".decision textarea", "Two files, and a guide.")
    page.click(APPROVE)
    page.wait_for_selector(".pill.completed")
    assert page.inner_text(".summary p") == "Two files, and a guide."
    ((outcome,),) = site.rows("select outcome from run")
    assert "Two files, and a guide." in outcome


def test_a_run_is_started_and_forked(site: Place, new_context: Callable[..., Any]) -> None:
    script = site.root / "page.jsonl"
    lines = [looks(), says("All is well.")]
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with serve_page(site, KAIROS_SCRIPT=str(script), KAIROS_ROUTE="scripted") as served:
        page = new_context().new_page()
        page.goto(served.link)
        page.click("text=Start …")
        page.fill("form textarea", "Look around")
        page.fill("[placeholder='read_file, search_*']", "read_file, search_files")
        page.click("form .yes")
        page.wait_for_selector(".pill.completed")
        assert page.inner_text(".run h1") == "Look around"
        page.click("button:has-text('Fork')")
        page.fill("dialog textarea", "Look again")
        page.click("dialog .yes")
        page.wait_for_selector(".run h1:has-text('Look again')")
        page.wait_for_selector(".pill.completed")
    assert site.rows("select count(*), count(outcome) from run") == [(2, 2)]


def test_a_mandate_is_saved_edited_and_removed(site: Place, enter: Callable[..., Any]) -> None:
    page = enter("#/mandates")
    assert "mandate save" in page.inner_text(".empty pre")
    page.click("text=New …")
    page.click("dialog .yes")
    page.click("a.card")
    page.click("text=Edit …")
    page.fill("dialog textarea", '{"goal": 3}')
    page.click("dialog .yes")
    page.wait_for_selector("dialog .failure")
    page.fill("dialog textarea", '{"id": "links", "goal": ')
    page.click("dialog .yes")
    assert "JSON" in page.inner_text("dialog .failure")
    page.fill("dialog textarea", '{"id": "links", "goal": "Every page has a title."}')
    page.click("dialog .yes")
    page.wait_for_selector("text=Every page has a title.")
    ((body,),) = site.rows("select body from mandate")
    assert "Every page has a title." in body
    page.click("text=Remove …")
    page.click("dialog .danger")
    page.wait_for_selector(".empty")
    assert site.rows("select count(*) from mandate") == [(0,)]


def test_newcomers_watch_the_demo_and_let_it_change_its_file(site: Place, enter: Callable[..., Any]) -> None:
    page = enter()
    demo = start(("demo", "--slow"), cwd=site.workspace, env=environ_of(site), stdout=DEVNULL, stderr=DEVNULL)
    page.click(".runs a")
    page.wait_for_selector(".now:has-text('thinks')")
    page.wait_for_selector(".diff .add")
    ((folder,),) = site.rows("select workspace from run where json_extract(spec, '$.goal') like 'Mend%'")
    guide = Path(folder, "docs", "guide.md")
    assert "(instal.md)" in guide.read_text()
    page.click(APPROVE)
    page.wait_for_selector(".pill.completed")
    assert "(install.md)" in guide.read_text()
    assert demo.wait(30) == 3  # it said that it waits, and left it to the page


def test_a_search_finds_goals_and_results(site: Place, enter: Callable[..., Any]) -> None:
    run_until_rest(site, "Look around", [says("The frobnicator is upside down.")])
    run_until_rest(site, "Look elsewhere", [says("Nothing.")])
    page = enter()
    page.wait_for_selector("#search")
    page.keyboard.press("/")
    page.keyboard.type("frobnicator")
    page.wait_for_selector(".goal small")
    assert page.locator(".runs li").count() == 1
    assert page.inner_text(".goal").startswith("Look around")


def test_everything_is_reached_by_keys(site: Place, enter: Callable[..., Any]) -> None:
    run_until_rest(site, "Look around", [looks(), says("Done.")], *TOOLS)
    run_until_rest(site, "Look elsewhere", [says("Nothing.")])
    page = enter()
    page.wait_for_selector(".runs li:nth-child(2)")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".step")
    assert page.inner_text(".run h1") == "Look around"
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".details")
    page.keyboard.press("u")
    page.wait_for_selector(".runs")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
