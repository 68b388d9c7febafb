"""Private words on their way to a listening server, over what comes between calls: it hears none of them unasked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.app import (
    ME,
    PERSON,
    UNWATCHED,
    Place,
    answer_run,
    assert_all_lawful,
    meet_servers,
    open_checked_app,
    place_in,
    reads,
    rests,
    says,
    start_run,
)
from support.cycles import MANDATE, judgement_line, noop, orientation_line
from support.network import Peer, leads_to, text
from support.team_lines import at, plan_of, task

from flow.test_leaving import FETCH, INJECTED, calls, server, start
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import CyclesRequest, MandateRef, PlannerRequest, TakenOver, TeamRequest
from kairos_mcp.core.urls import parse_host_rule
from kairos_mcp.settings.table_values import FlowSetting, GateRule

SECRET = "/c?q=ACME+pays+1.2M"


def settings(place: Place, web: Peer, *lines: dict[str, Any], **more: Any) -> Any:
    fetch = server(place, FETCH, {"fetch": INJECTED.format(port=web.port)})
    return place.settings(*lines, says("done"), servers=(fetch,), **more)


def fetch(web: Peer, path: str) -> dict[str, Any]:
    return calls("web__fetch", url=web.url(path))


async def test_a_task_of_a_team_takes_nothing_along_of_what_one_before_it_read(place: Place, web: Peer) -> None:
    lines = (
        at("task-1/try-1/round-1", fetch(web, "/howto")),
        at("task-1/try-1/round-2", reads("customers.md")),
        at("task-1/try-1/round-3", says("They pay 1.2M, says ACME.")),
        at("task-2/try-1/round-1", fetch(web, SECRET)),
    )
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True)
    text = "---\nname: reader\ndescription: Reads.\ntools: [read_file, web__fetch]\n---\nYou read.\n"
    (folder / "reader.md").write_text(text)
    async with open_checked_app(settings(place, web, *lines)) as app:
        plan = plan_of(task("a", "reader"), task("b", "reader", after=("a",)))
        request = TeamRequest(f"Sum up {web.url('/howto')}", plan, limits=Limits(rounds=30))
        report = await rests(app, (await (await meet_servers(app)).runs.start(request, ME)).run_id)
        (waiting,) = report.waiting
    assert waiting["key"] == "task-2/try-1/round-1/call-1/approval"
    assert waiting["preview"].startswith('! takes along "acme" of customers.md (task-1/try-1/round-2/call-1)')
    assert [each.target for each in web.heard] == ["/howto"]


async def test_a_run_that_goes_on_from_another_takes_nothing_along_of_what_that_one_read(
    place: Place, web: Peer
) -> None:
    first = settings(place, web, fetch(web, "/howto"), reads("customers.md"))
    async with open_checked_app(first) as app:
        run_id = (await start(app, f"Sum up {web.url('/howto')}")).run_id
    async with open_checked_app(settings(place, web, fetch(web, SECRET))) as app:
        (waiting,) = (await start(app, "Go on.", continues=run_id)).waiting
        assert waiting["key"] == "round-1/call-1/approval"
        (waiting,) = (await start(app, "Otherwise.", continues=run_id, from_round="round-3")).waiting
        assert waiting["key"] == "round-1/call-1/approval"
    assert [each.target for each in web.heard] == ["/howto"]


async def test_what_a_run_goes_on_with_is_whose_it_was_in_the_run_before(place: Place, web: Peer) -> None:
    """One that read own files alone is asked about their words alone; so is one after it."""
    async with open_checked_app(settings(place, web, reads("customers.md"))) as app:
        run_id = (await start(app, "Look at the customers.")).run_id
    open_words = fetch(web, "/q?release+date")
    async with open_checked_app(settings(place, web, open_words, {**fetch(web, SECRET), "content": "and"})) as app:
        (waiting,) = (await start(app, "Go on.", continues=run_id)).waiting
        assert waiting["key"] == "round-2/call-1/approval", waiting["preview"]
        assert waiting["preview"].startswith('! takes along "acme" of customers.md (earlier/call-1)')
        await app.answers.decide(waiting_run(place), waiting["key"], "deny", None, PERSON)
        assert (await rests(app, waiting_run(place))).status == "completed"
        await assert_all_lawful(app)
    heard = [each.target for each in web.heard]
    assert heard == ["/q?release+date"]
    async with open_checked_app(settings(place, web, fetch(web, SECRET))) as app:
        (waiting,) = (await start(app, "Again.", continues=waiting_run(place))).waiting
        assert waiting["preview"].startswith('! takes along "acme" of customers.md (earlier/call-1)')


def waiting_run(place: Place) -> str:
    ((run_id,),) = place.rows("select id from run order by n desc limit 1")
    return str(run_id)


async def test_a_fork_of_a_team_takes_over_whose_its_results_were(place: Place, web: Peer) -> None:
    lines = (
        at("task-1/try-1/round-1", reads("customers.md")),
        at("task-1/try-1/round-2", fetch(web, "/howto")),
        at("task-1/try-1/round-3", says("Done.")),
    )
    folder = place.home / "config" / "agents"
    folder.mkdir(parents=True)
    text = "---\nname: reader\ndescription: Reads.\ntools: [read_file, web__fetch]\n---\nYou read.\n"
    (folder / "reader.md").write_text(text)
    async with open_checked_app(settings(place, web, *lines)) as app:
        plan = plan_of(task("a", "reader"), task("b", "reader"))
        request = TeamRequest(f"Sum up {web.url('/howto')}", plan, limits=Limits(rounds=30))
        first = await rests(app, (await (await meet_servers(app)).runs.start(request, ME)).run_id)
        forked = await rests(app, await start_run(app, "", continues=first.run_id, from_round="synthesis"))
        run = await app.runs._context.find_run(forked.run_id, ME)
        (point,) = (await app._context.factory.specs.load(run)).forks
    result = "task-1/try-1/round-{}/call-1".format
    assert point.whose == {
        result(1): TakenOver("customers.md", True, True),
        result(2): TakenOver(f"the page {web.url('/howto')}", False, False),
    }


async def test_what_a_compaction_took_out_of_the_conversation_stays_in_view(place: Place, web: Peer) -> None:
    (place.workspace / "long.txt").write_text("".join(f"line {n}, {'word ' * 20}\n" for n in range(50)))
    async with open_checked_app(settings(place, web, context_tokens=3_200)) as app:
        request = PlannerRequest("Look", tools=("read_file", "web__fetch"), route="caller", limits=Limits(rounds=9))
        run_id = (await (await meet_servers(app)).runs.start(request, ME)).run_id
        await rests(app, run_id)
        await answer_run(app, run_id, round_1=reads("customers.md"))
        await answer_run(app, run_id, round_2=reads("long.txt"))
        report = await answer_run(app, run_id, round_3=reads("long.txt"))
        assert place.rows("select count(*) from step where kind = 'compact'") > [(0,)]
        (item,) = report.waiting
        assert "ACME" not in str(item["messages"])
        (waiting,) = (await answer_run(app, report.run_id, round_4=fetch(web, SECRET))).waiting
        assert waiting["preview"].startswith('! takes along "acme" of customers.md (round-1/call-1)')
    assert web.heard == []


async def test_a_lesson_takes_nothing_along_of_what_the_run_before_it_read(place: Place, web: Peer) -> None:
    learns = (orientation_line(), reads("customers.md"), noop(), judgement_line(lessons=("They pay 1.2M, says ACME.",)))
    sends = (orientation_line(), fetch(web, SECRET), noop(), judgement_line())
    request = CyclesRequest(MandateRef(mandate={**MANDATE, "max_cycles": 1}))
    async with open_checked_app(place.settings(*learns)) as app:
        await rests(app, (await app.runs.start(request, ME)).run_id)
    async with open_checked_app(settings(place, web, *sends)) as app:
        report = await rests(app, (await (await meet_servers(app)).runs.start(request, ME)).run_id)
    (waiting,) = report.waiting
    assert waiting["key"] == "cycle-1/decide/read-2/call-1/approval"
    assert waiting["preview"].startswith('! takes along "1.2m" of lessons of earlier runs (lessons)')
    assert web.heard == []


async def test_neither_a_redirector_nor_a_redirect_takes_anything_along_to_another_place(
    place: Place, web: Peer, other: Peer
) -> None:
    """At a place that the person said, and that the settings list."""
    page, link, rules = web.url("/howto"), web.url("/next"), (parse_host_rule(f"127.0.0.1:{web.port}"),)
    lines = (
        *(calls("http_fetch", url=page), reads("customers.md"), calls("http_fetch", url=link)),
        *(calls("http_fetch", url=web.url(f"/go?to={other.url(SECRET)}")), says("done")),
    )
    web.will(text(f"See {link}"), leads_to(other.url("/c?q=")))
    async with open_checked_app(place.settings(*lines, http_fetch=True, http_hosts=rules, private_hosts=rules)) as app:
        (waiting,) = (await start(app, f"Sum up {page}")).waiting
    assert waiting["key"] == "round-4/call-1/approval"
    assert waiting["preview"].startswith('! takes along "acme" of customers.md (round-2/call-1)')
    assert [each.target for each in web.heard] == ["/howto", "/next"]
    assert other.heard == []


async def test_a_command_that_fetched_what_others_wrote_lets_no_further_one_run_unasked(
    place: Place, web: Peer
) -> None:
    """Without a sandbox a rule's allow is worth as much as what steers the model."""
    (place.workspace / "get.py").write_text(
        "import sys, urllib.request as requests\nprint(requests.urlopen(sys.argv[1]).read())\n"
    )
    fetching = calls("run_command", argv=[sys.executable, "get.py", web.url("/howto")])
    lines = (reads("customers.md"), fetching, calls("run_command", argv=["cat", "customers.md"]))
    rules = (GateRule("run_command", "allow"),)
    async with open_checked_app(settings(place, web, *lines, gate=rules, commands="bare")) as app:
        (waiting,) = (await start(app, f"Run get.py on {web.url('/howto')}")).waiting
    assert waiting["key"] == "round-3/call-1/approval"
    assert "! takes along whatever it can read\n" in waiting["preview"]
    assert [each.target for each in web.heard] == ["/howto"]


def make_coding_task(
    k: int, argv: Sequence[str] = ("cat", "test_all.py", "m0.py")
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Files and the turns of an ordinary task of coding: edits, tests by a command in between, now and then a new
    file."""
    files = {f"m{n}.py": f"# module {n}\nVALUE = {n}\nLIMIT = {10 * n}\n" for n in range(k + 1)}
    files["test_all.py"] = "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): pass\n"
    tests, lines = calls("run_command", argv=list(argv)), list[dict[str, Any]]()
    for n in range(k + 3):
        path = f"m{n % (k + 1)}.py"
        field = "VALUE" if n <= k else "LIMIT"
        old = n if n <= k else 10 * (n % (k + 1))
        edit = calls("edit_file", path=path, old_string=f"{field} = {old}\n", new_string=f"{field} = {old + 100}\n")
        lines += [reads(path), edit if n % 5 < 4 else calls("write_file", path=f"n{n}.py", content=f"NEW = {n}\n")]
        lines += [tests] if n % 3 == 1 else []
    return files, [*lines, tests, *([calls("run_command", argv=["rm", "m0.py"])] if k % 2 else [])]


@pytest.mark.parametrize("k", [1, 6, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 2, 3, 4, 5, 7, 8, 9))])
async def test_a_run_of_ordinary_coding_asks_no_question_more(k: int, place: Place) -> None:
    """Also without a sandbox: what a program of the workspace prints is no sign that others had their say."""
    files, lines = make_coding_task(k)
    for path, content in files.items():
        (place.workspace / path).write_text(content)
    rules = tuple(GateRule(name, "allow") for name in ("edit_file", "write_file", "run_command"))
    async with open_checked_app(place.settings(*lines, says("done"), gate=rules, commands="bare")) as app:
        report = await start(app, "Correct the constants", limits=Limits(rounds=60))
    assert report.status == "completed"
    assert place.rows("select count(*) from approval") == [(0,)]
    judged = place.rows("select count(*) from step where judged is not null")
    assert judged == place.rows("select count(*) from step where judged is not null and kind = 'call'") != [(0,)]
    assert place.rows("select count(*) from foreign_file") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("k", range(10))
async def test_a_person_is_asked_the_same_of_ordinary_coding_with_flow_and_without(k: int, tmp_path: Path) -> None:
    """The same tasks without a rule and with their tests really run: each change and each program is approved."""
    argv = (sys.executable, "-B", "-m", "unittest", "-q")
    asked = []
    for name, flow in {"with": FlowSetting(), "without": UNWATCHED}.items():
        files, lines = make_coding_task(k, argv)
        files["test_all.py"] = (
            "import unittest\nfrom pathlib import Path\nprint([p.read_text() for p in Path().glob('*')])\n"
        )
        place = place_in(tmp_path / name)
        for path, content in files.items():
            (place.workspace / path).write_text(content)
        async with open_checked_app(place.settings(*lines, says("done"), flow=flow, commands="bare")) as app:
            report = await start(app, "Correct the constants", limits=Limits(rounds=60))
            while report.waiting:
                (waiting,) = report.waiting
                await app.answers.decide(report.run_id, waiting["key"], "approve", None, PERSON)
                report = await rests(app, report.run_id)
        assert report.status == "completed"
        asked.append(place.rows("select key, flow, preview like '! %' from approval order by step, n"))
    assert asked[0] == asked[1] != []
