"""Telemetry as it arrives: an OTLP receiver on loopback, which reads protobuf; apps whose spans are kept in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any
from unittest import mock

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kairos_mcp.app.app import App
from kairos_mcp.app.run_tracing import RunTracing
from kairos_mcp.settings.settings import Settings
from kairos_mcp.telemetry.providers import ContentFilter, Providers

CLIENT_TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT_SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"


@dataclass(frozen=True)
class SeenSpan:
    """A span as it was sent: ids in hex, times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    scope: str
    started: int
    ended: int
    attributes: dict[str, Any]
    has_error: bool
    words: tuple[str, ...] = ()  # of its status and its events

    @property
    def path(self) -> str:
        return str(self.attributes.get("kairos.step.path", ""))

    def text(self) -> str:
        """All that stands in it."""
        return json.dumps([self.name, self.attributes, self.words])


@dataclass
class Collector:
    """What an OTLP receiver got. `refusals`: how many requests it does not take from now on."""

    port: int = 0
    spans: list[SeenSpan] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)
    logs: list[dict[str, Any]] = field(default_factory=list)
    refusals: int = 0

    def environ(self) -> dict[str, str]:
        """The variables of a server that sends here, and soon."""
        return {
            "KAIROS_TELEMETRY": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }

    def ours(self) -> list[SeenSpan]:
        """The spans of the program itself, each once: one that was sent again has the same id."""
        return list({span.id: span for span in list(self.spans) if span.scope == "kairos-mcp"}.values())

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.ours() if span.name == name]

    def take_traces(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans += [_received(span, scope.scope.name) for span in scope.spans]

    def take_logs(self, body: bytes) -> None:
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    attributes = {each.key: _value(each.value) for each in record.attributes}
                    self.logs.append({"event": record.event_name, "at": record.time_unix_nano, **attributes})

    def take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics |= {metric.name for metric in scope.metrics}


@contextmanager
def collector() -> Iterator[Collector]:
    """A receiver that listens until the block ends."""
    found = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers["content-type"] == "application/x-protobuf"
            is_taken = found.refusals == 0
            found.refusals = max(0, found.refusals - 1)
            if is_taken:
                takes = {"/v1/traces": found.take_traces, "/v1/logs": found.take_logs}
                takes.get(self.path, found.take_metrics)(body)
            self.send_response(200 if is_taken else 400)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        found.port = server.server_address[1]
        listening = Thread(target=server.serve_forever, daemon=True)
        listening.start()
        try:
            yield found
        finally:
            server.shutdown()
            listening.join()


def _received(span: Any, scope: str) -> SeenSpan:
    attributes = {each.key: _value(each.value) for each in span.attributes}
    words = (span.status.message, *(event.name for event in span.events))
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    times = span.start_time_unix_nano, span.end_time_unix_nano
    return SeenSpan(span.name, *ids, scope, *times, attributes, span.status.code == 2, tuple(filter(None, words)))


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return tuple(_value(each) for each in found.values) if kind == "array_value" else found


@dataclass
class Telemetry:
    """The spans and metrics of apps in this process, as the SDK has them."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    providers: Providers = field(init=False)

    def __post_init__(self) -> None:
        self.providers = Providers([SimpleSpanProcessor(ContentFilter(self.exporter))], [])

    def spans(self) -> list[SeenSpan]:
        return [_finished(span) for span in self.exporter.get_finished_spans()]

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans() if span.name == name]

    def metric_lines(self, name: str) -> list[str]:
        page = self.providers.prometheus_page().decode()
        return [line for line in page.splitlines() if line.startswith(name)]

    @asynccontextmanager
    async def app(self, settings: Settings, ids: Sequence[str] = ()) -> AsyncIterator[App]:
        """An app that sends here. `ids`: of the runs that it starts, in order."""
        given, numbers = iter(ids), count(1)
        to_here = partial(RunTracing, providers=self.providers)
        with mock.patch("kairos_mcp.app.run_tracing.RunTracing", to_here):
            app = App(settings, "mcp", None, lambda: next(given, f"run-{next(numbers)}"))
        try:
            yield app
        finally:
            await app._close()


def _finished(span: ReadableSpan) -> SeenSpan:
    assert span.context is not None
    assert span.instrumentation_scope is not None
    return SeenSpan(
        span.name,
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
        "" if span.parent is None else f"{span.parent.span_id:016x}",
        span.instrumentation_scope.name,
        span.start_time or 0,
        span.end_time or 0,
        dict(span.attributes or {}),
        not span.status.is_ok and not span.status.is_unset,
        tuple(filter(None, (span.status.description, *(event.name for event in span.events)))),
    )
