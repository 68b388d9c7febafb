"""What an operator is told: figures for every alert, a line of the log for each matter, and rules that name both."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.app import ASK, ME, UNWATCHED, Place, asks, rests, says, start_run
from support.command_words import parse_words
from support.deployment import free_port
from support.operators import Command
from support.postgres import both_stores, database_of
from support.provider_server import refuses, standin, talks
from support.telemetry import Telemetry

from kairos_mcp.app.app import App
from kairos_mcp.app.drive_mode import DriveMode
from kairos_mcp.app.run_models import _log_failure
from kairos_mcp.core.errors import ConfigError, StoreUnavailable
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.core.steps import Failure
from kairos_mcp.server.auth import Refusals
from kairos_mcp.store.gauges import PAUSE_REASONS
from kairos_mcp.store.outage_log import OutageLog
from kairos_mcp.store.ownership import ANY_SERVER
from kairos_mcp.telemetry.names import (
    METRICS,
    PAUSE_REASON,
    PROVIDER_ERRORS,
    STORE_OUTAGE_SECONDS,
    STORE_OUTAGES,
    TOKENS_REFUSED,
)
from kairos_mcp.telemetry.tally import PROCESS_TALLY

ROOT = Path(__file__).parents[2]
DEPLOY, RUNBOOK = ROOT / "deploy", ROOT / "docs" / "runbook.md"
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
NOT_OURS = {"up"}  # Prometheus' own
EDIT = {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha", "new_string": "x"}}
_NAME = re.compile(r"\b(?:kairos|gen_ai)_\w+|\bup\b")


def families(telemetry: Telemetry) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples of each series at /metrics, by the values of their labels in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(telemetry.providers.prometheus_page().decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def series_of(expression: str) -> set[str]:
    """The series that an expression names, without the labels that it matches or groups by."""
    bare = re.sub(r"\{[^}]*\}|\b(?:by|without|on|ignoring)\s*\([^)]*\)|\"[^\"]*\"", "", expression)
    return set(_NAME.findall(bare))


def labels_of(expression: str) -> set[str]:
    inner = re.findall(r"\{([^}]*)\}", expression) + re.findall(
        r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression
    )
    return {name for text in inner for name in re.findall(r"\bkairos_\w+", re.sub(r"\"[^\"]*\"", "", text))}


def panels() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


@both_stores
async def test_every_series_of_rules_and_dashboard_is_at_metrics_with_its_labels(
    place: Place, telemetry: Telemetry
) -> None:
    line = {"tool_calls": [EDIT], "usage": {"input_tokens": 1_000, "output_tokens": 10}}
    settings = place.settings(line, telemetry=True, flow=UNWATCHED, day=Limits(total_tokens=1_000_000))
    _log_failure("run-1", "round-1", Failure("provider_error", "503"))
    async with telemetry.app(settings) as app:
        await start_run(app, tools=("edit_file",))
        await rests(app, await app.runs.start_call("read_file", {"path": "a.txt"}, ME))
    found = families(telemetry)
    rare = {"kairos_takeovers_total"}  # a counter that begins with the first takeover
    for expression in [*(rule["expr"] for rule in ALERTS), *panels()]:
        assert series_of(expression) - NOT_OURS - rare <= set(found), expression
        known = {label.name.replace(".", "_") for metric in METRICS for label in metric.labels} | {"kairos_step_kind"}
        assert labels_of(expression) <= known, expression


@both_stores
async def test_gauges_say_what_waits_why_and_what_is_left(
    place: Place, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kairos_mcp.app.run_tracing.FRESH_S", 0.0)
    settings = place.settings(
        {"tool_calls": [EDIT]}, telemetry=True, flow=UNWATCHED, day=Limits(total_tokens=50_000, model_calls=3)
    )
    async with telemetry.app(settings) as app:
        run_id = await start_run(app, tools=("edit_file",))
        place.rows("update approval set asked_at = asked_at - 5000")
        found = families(telemetry)
        assert found["kairos_wait_age_seconds"][("approval",)] >= 5
        assert found["kairos_wait_age_seconds"][("settlement",)] == 0
        assert found["kairos_servers_living"] == {("server",): 1, ("worker",): 0}
        assert found["kairos_budget_left"][("model_calls", "local")] == 2
        assert found["kairos_budget_spent"][("model_calls", "local")] == 1
        await app.control.pause(run_id, ME)
        assert families(telemetry)["kairos_runs_paused"][("person",)] == 1


def test_a_worker_serves_its_metrics_where_the_variables_say(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(port))
    monkeypatch.delenv("OTEL_METRICS_EXPORTER", raising=False)
    telemetry.providers.serve_prometheus()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"http://localhost:{port}/metrics")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "prometheus")
    telemetry.providers.serve_prometheus()
    assert httpx2.get(f"http://localhost:{port}/metrics").status_code == 200
    with pytest.raises(ConfigError):  # it is taken
        telemetry.providers.serve_prometheus()


def test_a_wrong_token_is_counted_and_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    before = PROCESS_TALLY.read(TOKENS_REFUSED)[("invalid",)]
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for _ in range(3):
        refusals.note("invalid", "192.0.2.1")
    refusals.note("invalid", "192.0.2.2")
    now[0] = 61.0
    refusals.note("invalid", "192.0.2.1")
    assert PROCESS_TALLY.read(TOKENS_REFUSED)[("invalid",)] == before + 5
    assert [record.args for record in caplog.records if record.name == "kairos_mcp.server.auth"] == [
        ("192.0.2.1", "its token is wrong, revoked, or none of this server (invalid)", ""),
        ("192.0.2.2", "its token is wrong, revoked, or none of this server (invalid)", ""),
        ("192.0.2.1", "its token is wrong, revoked, or none of this server (invalid)", " (2 more since the last line)"),
    ]


def test_an_outage_is_told_with_its_true_beginning_and_length(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("kairos_mcp.store.outage_log.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    outages, uncounted = OutageLog("kairos_mcp.store"), OutageLog("kairos_mcp.server.auth")
    outages.on_change = PROCESS_TALLY.note_outage
    before = {metric: PROCESS_TALLY.read(metric)[()] for metric in (STORE_OUTAGES, STORE_OUTAGE_SECONDS)}
    outages.note(StoreUnavailable("gone", ""), began=988.0)
    outages.note(StoreUnavailable("still gone", ""))
    uncounted.note(StoreUnavailable("gone", ""))
    assert PROCESS_TALLY.store_away_since == 988.0
    now[0] = 1_000.4
    outages.end()
    outages.end()
    assert PROCESS_TALLY.store_away_since is None
    assert PROCESS_TALLY.read(STORE_OUTAGES)[()] - before[STORE_OUTAGES] == 1
    assert PROCESS_TALLY.read(STORE_OUTAGE_SECONDS)[()] - before[STORE_OUTAGE_SECONDS] == pytest.approx(12.4)
    (ended,) = [record for record in caplog.records if "again" in record.msg]
    assert isinstance(ended.args, tuple)
    assert ended.args[0] == pytest.approx(12.4)


def test_a_failure_of_a_provider_is_counted_by_its_code_and_told(caplog: pytest.LogCaptureFixture) -> None:
    before = PROCESS_TALLY.read(PROVIDER_ERRORS).get(("provider_busy",), 0)
    _log_failure("run-1", "round-2", Failure("provider_busy", "429 of the provider"))
    assert PROCESS_TALLY.read(PROVIDER_ERRORS)[("provider_busy",)] == before + 1
    (record,) = caplog.records
    assert record.args == ("round-2", "run-1", "429 of the provider", "provider_busy")


async def test_a_run_whose_provider_fails_is_counted_and_told(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    before = PROCESS_TALLY.read(PROVIDER_ERRORS).get(("provider_error",), 0)
    async with standin() as server:
        server.will(refuses(503, retry_after="0"), talks("done", finish="stop"))
        settings = place.settings(model="openai:small", base_url=server.openai, flow=UNWATCHED)
        async with App.open(settings, via="mcp") as app:
            run_id = await start_run(app)
            assert (await app.runs.report(run_id, ME)).status == "completed"
    assert PROCESS_TALLY.read(PROVIDER_ERRORS)[("provider_error",)] == before + 1
    (told,) = [record.args for record in caplog.records if "the provider failed" in record.msg]
    assert isinstance(told, tuple)
    assert (told[0], told[1], told[3]) == ("round-1", run_id, "provider_error")


async def test_a_takeover_is_told_with_the_runs_and_the_server_that_ended(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with App.open(place.settings(asks("Which?"), flow=UNWATCHED), via="mcp") as app:
        run_id = await start_run(app, caller_tools=(ASK,))
    place.rows("insert into owner(lock, pid, via, started_at) values ('gone', 1, 'mcp', 1)")
    ((dead,),) = place.rows("select id from owner where lock = 'gone'")
    place.rows("update run set owner = ?", dead)
    async with App.open(place.settings(), via="mcp") as app:
        await app.runs.start_call("read_file", {"path": "a.txt"}, ME)
        await rests(app, run_id)
    (told,) = [record.args for record in caplog.records if "took over" in record.msg]
    assert told == ("1 run", dead, run_id)


@both_stores
async def test_what_a_server_leaves_at_its_end_is_no_takeover(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    settings, mode = place.settings(says("done", delay_s=1.0), flow=UNWATCHED), DriveMode(finish_s=0.0)
    async with App.open(settings, via="work", mode=mode) as app:
        run_id = (await app.runs.start(PlannerRequest("look around"), ME)).run_id
        assert place.rows("select owner > 0 from run") == [(1,)]
    assert place.rows("select owner, outcome from run") == [(ANY_SERVER, None)]
    async with App.open(settings, via="work") as app:
        await app.begin_work()
        assert (await rests(app, run_id)).status == "completed"
    assert [record for record in caplog.records if "took over" in record.msg] == []


@both_stores
async def test_a_server_that_drives_nothing_is_listed_before_its_first_call(place: Place, command: Command) -> None:
    settings = place.settings()
    async with App.open(settings, via="mcp", mode=DriveMode(drives=False)) as app:
        await app.begin_sending()
        shown = await asyncio.to_thread(command.json, "status")
        text = await asyncio.to_thread(command, "status")
    (server,) = shown["servers"]
    assert (server["drives"], server["machine"]) == (False, socket.gethostname() if settings.store else None)
    assert shown["driving"] == {"servers": 0, "workers": 0, "free_slots": 0}
    assert "0 open runs, drives none" in text


@pytest.mark.unreplayed  # rows are changed by hand
def test_a_queue_that_nobody_serves_is_in_status_and_named_by_doctor(place: Place, command: Command) -> None:
    async def start() -> None:
        async with App.open(place.settings(asks("Which?"), flow=UNWATCHED), via="mcp") as app:
            await start_run(app, caller_tools=(ASK,))

    asyncio.run(start())
    place.rows("delete from waiting")
    place.rows("update run set owner = ?, created_at = created_at - 60000", ANY_SERVER)
    place.rows("update step set at = at - 60000")
    place.rows("update answer set at = at - 60000")
    health = command.json("status")
    assert (health["open_runs"]["queued"], health["driving"]["workers"]) == (1, 0)
    assert health["oldest_wait_s"]["server"] >= 60
    (finding,) = [each for each in command.json("doctor", "--offline")["findings"] if each["matter"] == "workers"]
    state = "note" if database_of(place.root) is None else "bad"  # there workers are counted on
    assert (finding["state"], "1 run could go on" in finding["text"]) == (state, True)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_leads_to_its_section_of_the_runbook(rule: dict[str, Any]) -> None:
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert ROOT / file == RUNBOOK
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    sections = re.split(r"^## ", RUNBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    (section,) = [each for each in sections if each.splitlines()[0].lower() == anchor]
    assert rule["alert"].lower() == anchor
    assert "kairos-mcp " in section or "```" in section  # it says what to do


def test_the_reasons_of_pauses_are_those_that_are_documented() -> None:
    assert [reason for reason in PAUSE_REASONS if reason not in PAUSE_REASON.meaning] == []


def test_the_runbook_has_no_section_without_an_alert() -> None:
    headings = re.findall(r"^## (Kairos\w+)$", RUNBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(headings) == sorted(rule["alert"] for rule in ALERTS)


def test_the_commands_of_the_runbook_are_taken_as_they_stand() -> None:
    text = RUNBOOK.read_text(encoding="utf-8")
    found = [found.split()[1:] for found in re.findall(r"`(kairos-mcp [^`…]+)`", text)]
    assert len(found) > 20
    for words in found:
        parse_words([*words, "4"] if words[-1] == "--slots" else words)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("check", "rules"), DEPLOY / "prometheus" / "alerts.yaml"),
        (("test", "rules"), Path(__file__).with_name("alerts_test.yaml")),
    ],
    ids=["check", "test"],
)
def test_promtool_takes_the_rules_which_fire_and_are_resolved(words: tuple[str, ...], file: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    done = subprocess.run([program, *words, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
