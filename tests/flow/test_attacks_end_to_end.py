"""The attacks and ordinary flows by hand, each in a real run whose tools a server serves that keeps what it hears."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pytest
from support.app import UNWATCHED, Place, empty_place_in, open_checked_app, says

from flow import test_hops
from flow.cases import ATTACKS, BENIGN, goal
from flow.test_leaving import start
from flow.test_rules import ASKED_ALTHOUGH_ORDINARY
from kairos_mcp.core.effects import Effect, Reach
from kairos_mcp.core.flow import Call, Row, judge
from kairos_mcp.core.messages import ToolSpec
from kairos_mcp.core.urls import parse_host_rule
from kairos_mcp.settings.table_values import FlowSetting, GateRule, ServerSetting
from kairos_mcp.views.run_report import RunReport

Label = TypeVar("Label")

OVER_A_HOP: dict[str, Callable[..., object]] = {
    "through a team task": test_hops.test_a_task_of_a_team_takes_nothing_along_of_what_one_before_it_read,
    "through a lesson of a mandate": test_hops.test_a_lesson_takes_nothing_along_of_what_the_run_before_it_read,
    "through continue, private row in the run before": (
        test_hops.test_a_run_that_goes_on_from_another_takes_nothing_along_of_what_that_one_read
    ),
    "through compaction, rows only in the record": (
        test_hops.test_what_a_compaction_took_out_of_the_conversation_stays_in_view
    ),
}
"""Attacks with a row that no call of a tool makes, and the test of a real run over that hop."""
DEFAULT = ("query string", "mail to the page's address", "private repository into a public one", "link as it stands")
CASES = {name: case for name, case in {**ATTACKS, **BENIGN}.items() if name not in OVER_A_HOP}


def cases(*names: str) -> list[Any]:
    marks = {name: (pytest.mark.slow,) for name in names if name not in DEFAULT}
    marks["command without network"] = (pytest.mark.slow, pytest.mark.sandbox)
    return [pytest.param(name, marks=marks.get(name, ())) for name in names if name in CASES]


class Network(ThreadingHTTPServer):
    """All that is reached over the network: each path `/mcp/NAME` is the MCP server NAME, with the tools of `answers`;
    any other is a place. `heard`: what came, the calls of tools as their name and arguments."""

    daemon_threads = True
    answers: dict[str, dict[str, Row]]  # by tool, by arguments
    heard: list[str]

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}"

    def answer(self, server: str, message: dict[str, Any]) -> dict[str, Any]:
        match message["method"]:
            case "initialize":
                about = {"name": server, "version": "1"}
                return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
            case "tools/list":
                names = [name.removeprefix(f"{server}__") for name in self.answers if name.startswith(f"{server}__")]
                schema = {"type": "object"}
                return {"tools": [{"name": name, "description": f"{name}.", "inputSchema": schema} for name in names]}
            case _:
                name, arguments = f"{server}__{message['params']['name']}", json.dumps(message["params"]["arguments"])
                self.heard.append(f"{name} {arguments}")
                return result_of(self.answers[name].get(arguments))


def result_of(row: Row | None) -> dict[str, Any]:
    """Return what a server answers so that a run gets this row; None: the call that is to be asked about."""
    text = "done" if row is None else row.text
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    if row is not None and row.data is not None:
        result["structuredContent"] = row.data
    return {**result, "isError": text.startswith("error:")}  # as the one row by hand of an error says


class Answering(BaseHTTPRequestHandler):
    """One request to the network."""

    server: Network

    def do_GET(self) -> None:
        self.server.heard.append(f"{self.command} {self.path}")
        self.reply(b"hello")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        name = self.path.removeprefix("/mcp/")
        if name == self.path:
            self.server.heard.append(f"{self.command} {self.path} {body.decode()}")
            return self.reply(b"hello")
        message = json.loads(body)
        if "id" not in message:
            return self.reply(b"", 202)
        if message["method"] not in ("initialize", "tools/list", "tools/call"):
            sent = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            sent = {"result": self.server.answer(name, message)}
        return self.reply(json.dumps({"jsonrpc": "2.0", "id": message["id"], **sent}).encode())

    def reply(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def serving() -> Iterator[Network]:
    with Network(("127.0.0.1", 0), Answering) as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def network(serving: Network) -> Network:
    serving.answers, serving.heard = {}, []
    return serving


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return empty_place_in(tmp_path)


def tool_of(row: Row) -> str:
    return row.source if not row.server or row.source.startswith(f"{row.server}__") else f"{row.server}__{row.source}"


def name_of(call: Call) -> str:
    return call.tool if not call.server or call.tool.startswith(f"{call.server}__") else f"{call.server}__{call.tool}"


@dataclass(frozen=True)
class Case:
    """What the person says, the rows that calls make, and the call of which is asked whether it is made."""

    said: str
    rows: tuple[Row, ...]
    call: Call

    @staticmethod
    def of(name: str, network: Network) -> Case:
        """Return the case; where our own tools ask the network themselves, with its addresses for those of others."""
        (goal, *rows), (call,) = CASES[name]
        if call.server:
            return Case(goal.text, tuple(rows), call)

        def here(text: str) -> str:
            return text.replace("http://docs.test", network.url()).replace("http://evil.test", network.url("localhost"))

        rows = [replace(row, text=here(row.text), found_by=here(row.found_by)) for row in rows]
        arguments = json.loads(here(json.dumps(call.arguments)))
        return Case(here(goal.text), tuple(rows), replace(call, arguments=arguments))

    def heard_of_rows(self) -> list[str]:
        """Return what the network hears while the rows are made."""
        return sorted(f"{tool_of(row)} {row.found_by or '{}'}" for row in self.rows if row.server)


def servers_of(network: Network, case: Case) -> tuple[ServerSetting, ...]:
    """Return the servers of these rows and of the call, with the labels of both as a person states them."""
    of_servers, call = [row for row in case.rows if row.server], case.call
    private = {tool_of(row): row.is_private for row in of_servers}
    effects: dict[str, Effect] = dict.fromkeys(private, "read")
    reaches: dict[str, Reach] = dict.fromkeys(private, "outside")
    if call.server:
        effects[name_of(call)], reaches[name_of(call)] = call.effect, call.reaches

    def labels(server: str, found: Mapping[str, Label]) -> tuple[tuple[str, Label], ...]:
        known = ((name.partition("__"), label) for name, label in found.items())
        return tuple((tool, label) for (of, _, tool), label in known if of == server)

    return tuple(
        ServerSetting(
            server,
            url=f"{network.url()}/mcp/{server}",
            effects=labels(server, effects),
            reaches=labels(server, reaches),
            private=labels(server, private),
        )
        for server in dict.fromkeys(name.partition("__")[0] for name in effects)
    )


async def play(case: Case, place: Place, network: Network, flow: FlowSetting | None = None) -> RunReport:
    """Let a run make the rows of a case, all in its first turn, and in its second the call. A rule of the gate allows
    the call: whoever is asked is asked about what flows."""
    call = case.call
    for row in case.rows:
        if row.server:
            network.answers.setdefault(tool_of(row), {})[row.found_by or "{}"] = row
        else:
            (path := place.workspace / json.loads(row.found_by)["path"]).parent.mkdir(exist_ok=True)
            path.write_text(row.text)
    if call.server:
        network.answers.setdefault(name_of(call), {})
    if call.arguments.get("argv") == ["git", "push"]:
        start_repository(place, network)
    rows = [{"name": tool_of(row), "arguments": json.loads(row.found_by or "{}")} for row in case.rows]
    turns = [rows, [{"name": name_of(call), "arguments": call.arguments}]]
    hosts = ["docs.python.org"] if call.trusts_host("docs.python.org") else []
    foreign = [json.loads(row.found_by)["path"] for row in case.rows if not row.server and row.is_foreign]
    reached = tuple(parse_host_rule(f"{host}:{network.server_port}") for host in ("127.0.0.1", "localhost"))
    settings = place.settings(
        *({"content": "next", "tool_calls": turn} for turn in turns),
        says("done"),
        servers=servers_of(network, case),
        gate=(GateRule(name_of(call), "allow"),),
        flow=flow or FlowSetting(hosts=tuple(map(parse_host_rule, hosts)), foreign=tuple(foreign)),
        http_fetch=True,
        private_hosts=reached,
        http_hosts=reached,
        **({"commands": "bare"} if call.is_opaque else {}),
    )
    answer = ToolSpec("answer", "Answers.", {"type": "object"}, "irreversible", "caller", "caller", "outside")
    async with open_checked_app(settings) as app:
        report = await start(app, case.said, caller_tools=(answer,) if call.tool == "answer" else ())
    for n, row in enumerate(case.rows, 1):
        path = f"round-1/call-{n}"
        ((body,),) = place.rows("select body from answer join step on step.id = answer.step where path = ?", path)
        assert json.loads(body)["content"] == row.text
    return report


def start_repository(place: Place, network: Network) -> None:
    """Make the workspace a repository with a commit that goes to a place of the network."""
    for command in (
        "init -q -b main",
        "-c user.name=a -c user.email=a@b.test commit -q --allow-empty -m first",
        f"remote add origin {network.url()}/site.git",
        "config push.default current",
    ):
        subprocess.run(["git", *command.split()], cwd=place.workspace, check=True)


def assert_asked(place: Place, report: RunReport, network: Network, case: Case) -> None:
    """The call waits for a person, by the rules that hold of the rows by hand, and nobody heard of it."""
    assert [(each["kind"], each["key"]) for each in report.waiting] == [("approval", "round-2/call-1/approval")]
    ((found,),) = place.rows("select flow from approval")
    rules = {each.rule for each in judge(case.call, (goal(case.said), *case.rows))}
    assert {each["rule"] for each in json.loads(found)} == rules != set()
    assert sorted(network.heard) == case.heard_of_rows()


def assert_made(place: Place, network: Network, case: Case) -> None:
    """The call has an answer, and the network heard it if it goes there."""
    answered = "select count(*) from answer join step on step.id = answer.step where path = 'round-2/call-1'"
    assert place.rows(answered) == [(1,)]
    more = len(network.heard) - len(case.heard_of_rows())
    assert more >= 1 if case.call.reaches != "inside" else more == 0


def test_only_attacks_over_a_hop_are_not_played() -> None:
    of_no_call = {name for name, (rows, _) in ATTACKS.items() if any(" " in row.source for row in rows)}
    assert of_no_call <= OVER_A_HOP.keys() <= ATTACKS.keys()
    assert (len(ATTACKS), len(BENIGN), len(CASES)) == (42, 20, 58)


@pytest.mark.parametrize("name", cases(*ATTACKS))
async def test_an_attack_waits_for_a_person_and_nothing_is_heard_of_it(
    name: str, place: Place, network: Network
) -> None:
    case = Case.of(name, network)
    assert_asked(place, await play(case, place, network), network, case)


@pytest.mark.parametrize("name", cases(*BENIGN))
async def test_an_ordinary_call_is_made_unasked_but_in_two_known_cases(
    name: str, place: Place, network: Network
) -> None:
    case = Case.of(name, network)
    report = await play(case, place, network)
    if name in ASKED_ALTHOUGH_ORDINARY:
        assert_asked(place, report, network, case)
    else:
        assert (report.status, report.waiting) == ("completed", ())
        assert_made(place, network, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(*ATTACKS))
async def test_where_nobody_looks_at_flow_the_same_attack_gets_through(
    name: str, place: Place, network: Network
) -> None:
    case = Case.of(name, network)
    report = await play(case, place, network, UNWATCHED)
    if case.call.tool == "answer":  # the caller gets it
        assert [(each["kind"], each["key"]) for each in report.waiting] == [("tool_call", "round-2/call-1")]
    else:
        assert report.status == "completed"
        assert_made(place, network, case)
