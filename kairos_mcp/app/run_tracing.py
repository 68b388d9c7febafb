"""Telemetry of the runs that this server moves: a moment after a commit, what its rows say has ended is sent.

Nothing of it exists while the setting telemetry is off.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pydantic_core import to_json

from kairos_mcp.core.calendar import day_at
from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.messages import Completion
from kairos_mcp.core.model import ModelInput, RemoteModel
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.run_spec import Spec
from kairos_mcp.core.steps import Failure
from kairos_mcp.settings.settings import Settings
from kairos_mcp.store import gauges, queries, span_rows
from kairos_mcp.store.database import Store
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Session, decode, read_together
from kairos_mcp.telemetry import names, start_telemetry
from kairos_mcp.telemetry.recorder import Measurement, Recorder, SpanRecord, Values
from kairos_mcp.telemetry.tally import PROCESS_TALLY
from kairos_mcp.telemetry.trace_context import RUN_KEY, ClientTrace, RunTrace, attempt_key, current_trace
from kairos_mcp.views.gauge_values import GAUGES_OF_ROWS, NOTHING_STORED, gauge_values
from kairos_mcp.views.run_spans import Cursor, RunSpans, read_run_spans

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from kairos_mcp.telemetry.providers import Providers

LOOK_S = 0.05  # from a commit to the look that follows it: many commits are one look
MAX_FOLLOWED = 1_024  # runs at rest are remembered so that none of their spans is sent twice
FRESH_S = 1.0  # what gauges were read as holds so long


@dataclass(slots=True)
class FollowedRun:
    """A run of this server: how far its spans were read, its trace once it is known, what its models were asked in
    attempts that have not ended, by their keys, and the span of a takeover that was not sent yet."""

    cursor: Cursor
    trace: RunTrace | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    takeover: SpanRecord | None = None


class ReadGauges(NamedTuple):
    """What the gauges show, and when it was read (`time.monotonic`)."""

    read_s: float
    values: Mapping[str, Values]


class RunTracing:
    """Sends the spans of this server's runs, counts, and tells others which trace a call belongs to."""

    def __init__(
        self, settings: Settings, store: Store, redactor: Redactor, providers: Providers | None = None
    ) -> None:
        content, self._configured_model = settings.telemetry_content, settings.model
        self.providers = start_telemetry(with_content=content) if providers is None else providers
        for key in self.providers.receiver_keys:
            redactor.learn(key)
        self._store = store
        self._recorder = Recorder(self.providers, redactor, with_content=content)
        self._followed: OrderedDict[str, FollowedRun] = OrderedDict()  # by run id
        self._committed: set[str] = set()  # runs with something to read
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._gauges = ReadGauges(-FRESH_S, gauge_values(NOTHING_STORED, 0, []))
        self._reading = threading.Lock()
        for gauge in GAUGES_OF_ROWS:
            self._recorder.observe(gauge, partial(self._read_gauge, gauge))
        self._recorder.observe(names.STORE_AWAY, PROCESS_TALLY.read_outage)
        self._time_zone = settings.time_zone

    # -- which runs --------------------------------------------------------------------------------------------

    def follow(self, run: RunRow, fence: int) -> None:
        """Send the spans of this run while this server has it under this fence."""
        known = self._followed.get(run.id)
        if known is None or fence > known.cursor.fence + 1:  # another server has had it meanwhile
            self._followed[run.id] = FollowedRun(Cursor(run.n, fence, fence))
        else:
            known.cursor = replace(known.cursor, fence=max(fence, known.cursor.fence))
        self._followed.move_to_end(run.id)
        while len(self._followed) > MAX_FOLLOWED:
            self._followed.popitem(last=False)
        self.note_commit(run.id)

    def follow_takeover(self, run: RunRow, fence: int, mine: int) -> None:
        """Follow a run that this server, whose number is `mine`, took over from one that has ended."""
        at = self._store.now()
        attributes = {
            names.RUN_ID: run.id,
            names.CONVERSATION: run.id,
            names.PREVIOUS_OWNER: run.owner,
            names.OWNER: mine,
        }
        takeover = SpanRecord(names.TAKEOVER, f"takeover-{fence}", RUN_KEY, at, at, attributes)
        self._followed[run.id] = FollowedRun(Cursor(run.n, fence, fence, is_takeover=True), takeover=takeover)
        self.note_commit(run.id)

    def note_commit(self, run_id: str) -> None:
        """Look at this run soon, if it is followed."""
        if run_id in self._followed:
            self._committed.add(run_id)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._look_soon())

    async def close(self) -> None:
        """Send what there is."""
        self._closing.set()
        if self._task is not None:
            await self._task  # it may be reading what has ended
        await self._look()
        await asyncio.to_thread(self.providers.flush, with_metrics=self._recorder.has_measured)

    # -- what others receive -----------------------------------------------------------------------------------

    def mark_spec(self, spec: Spec) -> Spec:
        """Return the spec of a new run with the trace in which it is started."""
        now = current_trace()
        return replace(spec, traceparent=now.traceparent, tracestate=now.tracestate)

    def trace_model(self, model: RemoteModel, run: RunRow) -> RemoteModel:
        """Wrap a model so that its provider gets the trace in HTTP headers."""

        async def complete(model_input: ModelInput) -> Completion | Failure:
            path = model_input.path
            try:
                key = await self._store.read(lambda session: _current_attempt(session, run.id, path))
                headers = self._trace_of(run).headers_of(key)
            except KairosError:  # the call counts more than its trace
                return await model(model_input)
            if self._recorder.with_content and (followed := self._followed.get(run.id)) is not None:
                followed.inputs[key] = _input_messages(model_input)
            return await model(replace(model_input, headers=headers))

        return complete

    def context_of_call(self, run_id: str, path: str) -> Context | None:
        """Return the context of the attempt under way at a call; None where the store can't say. Asked in a thread."""
        try:
            with self._store.read_session() as session:
                run = queries.run_by_id(session, run_id)
                key = _current_attempt(session, run_id, path)
            return self._trace_of(run).context_of(key)
        except KairosError:
            return None

    def _trace_of(self, run: RunRow) -> RunTrace:
        followed = self._followed.get(run.id)
        trace = None if followed is None else followed.trace
        if trace is None:
            spec: Spec = decode(Spec, run.spec)
            trace = self.providers.trace_of(run.id, ClientTrace(spec.traceparent, spec.tracestate))
            if followed is not None:
                followed.trace = trace
        return trace

    # -- looking -----------------------------------------------------------------------------------------------

    async def _look_soon(self) -> None:
        while self._committed and not self._closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._closing.wait()
            await self._look()

    async def _look(self) -> None:
        committed, self._committed = self._committed, set()
        for run_id in committed:
            followed = self._followed.get(run_id)
            if followed is None:
                continue
            try:
                await self._send_spans(run_id, followed)
            except KairosError as error:
                if error.retryable:
                    self._committed.add(run_id)
                else:  # its rows can't be read, or the file: its report says so
                    del self._followed[run_id]

    async def _send_spans(self, run_id: str, followed: FollowedRun) -> None:
        cursor, inputs, model = followed.cursor, dict(followed.inputs), self._configured_model

        def read(session: Session) -> tuple[RunRow, RunSpans]:
            return queries.run_by_number(session, cursor.n), read_run_spans(session, cursor, inputs, model)

        run, found = await self._store.read(read, one_state=True)
        if followed.cursor.fence != cursor.fence:  # taken anew while it was read
            self._committed.add(run_id)
            return
        followed.cursor = found.cursor
        for span in found.spans:
            followed.inputs.pop(span.key, None)
        trace, takeover, followed.takeover = self._trace_of(run), followed.takeover, None
        if takeover is not None:
            self._recorder.send(trace, [takeover])
            self._recorder.measure([Measurement(names.TAKEOVERS, 1)])
        self._recorder.send(trace, found.spans)
        self._recorder.measure(found.measurements)
        if found.has_ended and self._followed.get(run_id) is followed:
            del self._followed[run_id]

    def _read_gauge(self, metric: names.Metric) -> Values:
        """Return what a gauge shows; asked in a thread. No figures while the store can't be read."""
        with self._reading:
            if time.monotonic() - self._gauges.read_s >= FRESH_S and self._store.exists:
                try:
                    values = self._read_gauges()
                except KairosError:
                    values = {}
                self._gauges = ReadGauges(time.monotonic(), values)
            return self._gauges.values.get(metric.name, {})

    def _read_gauges(self) -> Mapping[str, Values]:
        owners, own, at = self._store.owners, self._store.owner_number, self._store.now()
        day = day_at(at, self._time_zone).name
        with self._store.read_session() as session:
            stands, approvals, used = read_together(
                session,
                lambda session: gauges.read_gauges(session, owners, own, at),
                lambda session: span_rows.count_waiting_approvals(session, at),
                lambda session: gauges.list_day_use(session, day),
            )
        return gauge_values(stands, approvals, used)


def _current_attempt(session: Session, run_id: str, path: str) -> str:
    """Return the key of the newest attempt at the step at this path. Raises UnknownRun."""
    n = queries.run_by_id(session, run_id).n  # a run has no number yet when its worker is made
    step = queries.step_at(session, n, path)
    return attempt_key(path, 1 + (0 if step is None else step.further_attempts))


def _input_messages(model_input: ModelInput) -> str:
    """Return what a model is asked, in the form that the conventions give messages."""
    messages = [
        {"role": message.role, "parts": [{"type": "text", "content": message.content}]}
        for message in model_input.step.conversation
    ]
    return to_json(messages).decode()
