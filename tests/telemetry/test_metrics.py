"""Metrics: what they count, that their labels stay few, and who may read them at /metrics."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from support.app import Place, reads, says, start_run
from support.http_server import Site, tokens_of
from support.postgres import on_database
from support.telemetry import Collector, Telemetry

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import StoreUnavailable
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.server.auth import Challenge
from kairos_mcp.server.http_health import MetricsPage
from kairos_mcp.server.sender import set_scopes
from kairos_mcp.telemetry import names
from kairos_mcp.telemetry.recorder import MAX_LABEL_VALUES, Measurement, Recorder

EDIT = {"name": "edit_file", "arguments": {"path": "a.txt", "old_string": "alpha", "new_string": "x"}}
USAGE = {"input_tokens": 1_000, "output_tokens": 10}


def value(telemetry: Telemetry, series: str) -> float:
    """The value of the one series that begins so."""
    (line,) = telemetry.metric_lines(series)
    return float(line.rpartition(" ")[2])


async def test_runs_tokens_and_calls_are_counted(place: Place, telemetry: Telemetry) -> None:
    lines = (reads("a.txt", "b.txt", usage=USAGE), says("done", usage=USAGE))
    async with telemetry.app(place.settings(*lines, telemetry=True)) as app:
        for _ in range(3):
            await start_run(app, key=os.urandom(4).hex())
    assert value(telemetry, 'kairos_runs_ended_total{kairos_run_flow="planner"') == 3
    assert value(telemetry, "gen_ai_execute_tool_duration_seconds_count") == 6
    assert value(telemetry, "gen_ai_client_operation_duration_seconds_count") == 6
    tokens = telemetry.metric_lines("gen_ai_client_token_usage_sum")
    assert {line.partition('token_type="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in tokens} == {
        "input": 6_000,
        "output": 60,
    }


async def test_gauges_are_read_from_the_rows_of_all_servers(place: Place, telemetry: Telemetry) -> None:
    settings = place.settings({"tool_calls": [EDIT]}, says("done"), telemetry=True)
    async with telemetry.app(settings) as app:
        await start_run(app, tools=("edit_file",))
        assert value(telemetry, 'kairos_runs_open{kairos_run_state="waiting"}') == 1
        assert value(telemetry, "kairos_approvals_waiting") == 1


@on_database
async def test_what_waits_is_counted_by_the_database_s_clock(
    place: Place, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's is a year ahead: by it, nobody could be asked any more."""
    settings = place.settings({"tool_calls": [EDIT]}, says("done"), telemetry=True)
    ahead = time.time_ns() + 365 * 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    async with telemetry.app(settings) as app:
        await start_run(app, tools=("edit_file",))
        assert value(telemetry, "kairos_approvals_waiting") == 1


@pytest.mark.parametrize("failing", [False, True])
async def test_a_store_that_can_not_be_read_has_no_figures_and_breaks_no_page(
    place: Place, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: bool
) -> None:
    @contextmanager
    def fail() -> Iterator[None]:
        raise StoreUnavailable("It is away.", "Call again.")
        yield

    settings = place.settings({"tool_calls": [EDIT]}, says("done"), telemetry=True)
    async with telemetry.app(settings) as app:
        await start_run(app, tools=("edit_file",))
        if failing:
            monkeypatch.setattr(app._store, "read_session", fail)
        page = await app.metrics_page()
        assert page is not None
        assert (b"kairos_runs_open{" in page) is not failing
        monkeypatch.undo()
    assert caplog.records == []


def test_names_that_others_make_up_do_not_make_more_and_more_series(telemetry: Telemetry) -> None:
    """Tools of a caller, and models that it asks for, have the names that it gives them."""
    recorder = Recorder(telemetry.providers, Redactor(), with_content=False)
    made_up = [f"tool_{n}" for n in range(MAX_LABEL_VALUES + 20)]
    for _ in range(2):
        recorder.measure([Measurement(names.TOOL_DURATION, 0.1, {names.TOOL: name}) for name in made_up])
    lines = telemetry.metric_lines("gen_ai_execute_tool_duration_seconds_count")
    assert len(lines) == MAX_LABEL_VALUES + 1
    assert value(telemetry, f'gen_ai_execute_tool_duration_seconds_count{{gen_ai_tool_name="{names.OTHER}"}}') == 40


async def test_no_series_is_about_one_run_or_one_step(place: Place, telemetry: Telemetry) -> None:
    settings = place.settings(reads("a.txt", "b.txt"), says("done"), telemetry=True)
    async with telemetry.app(settings, ["run-first"]) as app:
        await start_run(app)
    before = series(telemetry)
    async with telemetry.app(settings) as app:
        for _ in range(10):
            await start_run(app, key=os.urandom(4).hex())
    assert value(telemetry, "kairos_runs_ended_total") == 11
    assert series(telemetry) == before
    labels = {label for name in before for label in re.findall(r"(\w+)=", name)}
    assert labels.isdisjoint({each.name.replace(".", "_") for each in (names.RUN_ID, names.PATH, names.CONVERSATION)})


def series(telemetry: Telemetry) -> set[str]:
    return {line.rpartition(" ")[0] for line in telemetry.metric_lines("") if line and not line.startswith("#")}


@pytest.mark.parametrize(("scopes", "status"), [(("run", "approve"), 403), (("run", "admin"), 200)])
async def test_figures_of_all_principals_take_the_scope_admin(
    place: Place, telemetry: Telemetry, scopes: tuple[str, ...], status: int
) -> None:
    async with telemetry.app(place.settings(telemetry=True)) as app:

        async def get_app() -> App:
            return app

        set_scopes(scopes)
        user = AuthenticatedUser(AccessToken(token="", client_id="x", scopes=list(scopes)))
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [], "user": user}
        await MetricsPage(get_app, Challenge())(scope, None, send)  # type: ignore[arg-type]  # nothing is received
    assert sent[0]["status"] == status
    assert (b"kairos_runs_open" in sent[1]["body"]) is (status == 200)


def site_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Collector, *, telemetry: bool) -> Site:
    for name, setting in receiver.environ().items():
        if name.startswith("OTEL_"):
            monkeypatch.setenv(name, setting)
    place = tmp_path / "place"
    (place / "home").mkdir(mode=0o700, parents=True)
    (place / "home" / "kairos.toml").write_text(f"telemetry = {str(telemetry).lower()}\n")
    return Site.start(place, token=tokens_of(place).add("alice"))


def get(site: Site, *more: str, method: str = "GET", without: tuple[str, ...] = ()) -> tuple[int, str]:
    answer = site.says_to(
        site.head("Connection: close", *more, method=method, path="/metrics", without=without) + b"\r\n"
    )
    return answer.status, answer.body.decode()


@pytest.mark.slow
def test_a_server_shows_its_metrics_to_whom_it_admits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Collector
) -> None:
    site = site_of(tmp_path, monkeypatch, receiver, telemetry=True)
    try:
        assert get(site, without=("Authorization",))[0] == 401
        assert get(site, "Host: 10.1.2.3", without=("Host",))[0] == 421
        assert get(site, method="DELETE")[0] == 405
        status, page = get(site)
        assert status == 200
        assert "kairos_runs_open" in page
    finally:
        site.stop()


@pytest.mark.slow
def test_a_server_without_telemetry_has_no_such_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Collector
) -> None:
    site = site_of(tmp_path, monkeypatch, receiver, telemetry=False)
    try:
        assert get(site)[0] == 404
    finally:
        site.stop()
