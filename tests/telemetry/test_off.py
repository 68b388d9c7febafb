"""Telemetry that is off costs nothing: no function of it is called, nothing of it is allocated, imported or stored."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import opentelemetry.trace
import pytest
from support.app import ME, Place, open_checked_app, reads, says, start_run
from support.telemetry import Telemetry

import kairos_mcp
from kairos_mcp.app.app import App
from kairos_mcp.core.errors import ConfigError

ROUNDS = 5
OURS = Path(kairos_mcp.__file__).parent
OF_TELEMETRY = (
    str(OURS / "telemetry"),
    str(OURS / "app" / "run_tracing.py"),
    str(OURS / "views" / "run_spans.py"),
    str(OURS / "store" / "span_rows.py"),
    str(Path(opentelemetry.trace.__file__).parent.parent),
)
LINES = [*(reads("a.txt") for _ in range(ROUNDS - 1)), says("done")]


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Counts the calls of Python functions in the block, by file."""
    found: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found[frame.f_code.co_filename] += 1

    sys.setprofile(count)
    try:
        yield found
    finally:
        sys.setprofile(None)


def of_telemetry(found: Counter[str]) -> int:
    return sum(calls for file, calls in found.items() if file.startswith(OF_TELEMETRY))


async def test_no_round_calls_or_allocates_anything_of_telemetry_that_is_off(place: Place) -> None:
    async with open_checked_app(place.settings(*LINES)) as app:
        filters = [tracemalloc.Filter(True, f"{name}*") for name in OF_TELEMETRY]
        tracemalloc.start()
        with counted_calls() as found:
            run_id = await start_run(app)
        allocated = tracemalloc.take_snapshot().filter_traces(filters).statistics("lineno")
        tracemalloc.stop()
        assert (await app.runs.report(run_id, ME)).status == "completed"
    assert place.rows("select count(*) from step where kind = 'round'") == [(ROUNDS,)]
    assert found[str(OURS / "execution" / "worker.py")] > ROUNDS
    assert of_telemetry(found) == 0
    assert [str(each) for each in allocated] == []
    ((spec,),) = place.rows("select spec from run")
    assert not {"traceparent", "tracestate"} & json.loads(spec).keys()


async def test_that_count_sees_telemetry_that_is_on(place: Place, telemetry: Telemetry) -> None:
    async with telemetry.app(place.settings(*LINES, telemetry=True)) as app:
        with counted_calls() as found:
            await start_run(app)
    assert of_telemetry(found) > ROUNDS


@pytest.mark.slow
def test_the_sdk_is_not_imported_by_a_server_without_telemetry() -> None:
    program = "import sys, kairos_mcp.app.app, kairos_mcp.server.http; print('opentelemetry.sdk' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_without_the_extra_the_error_names_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kairos_mcp.telemetry.providers", None)
    with pytest.raises(ConfigError, match="telemetry") as refused:
        App(place.settings(telemetry=True), "mcp", lambda: 0, lambda: "run-1")
    assert "kairos-loop[telemetry]" in refused.value.hint
