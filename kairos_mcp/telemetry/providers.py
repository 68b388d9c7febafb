"""The OpenTelemetry SDK of this process: where spans and metrics go, by the standard variables (OTEL_*).

One set of providers serves the whole process, since OpenTelemetry has one for all libraries in it: the spans of MCP's
own SDK go the same way as ours. Importing this file imports the SDK, which is an extra.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from urllib.parse import unquote

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Status
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from kairos_mcp import __version__
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.telemetry.names import SCOPE
from kairos_mcp.telemetry.trace_context import ClientTrace, RunTrace

FLUSH_S = 0.5  # for what was not sent yet when the app closes; a collector that does not answer holds up nobody


class Providers:
    """Makes spans with ids that are known before, and metrics.

    `spans`: the processors that spans go to; `readers`: who reads metrics, besides Prometheus. `receiver_keys`: the
    values of the headers that the receiver is sent.
    """

    def __init__(self, spans: Sequence[SpanProcessor], readers: Sequence[MetricReader]) -> None:
        resource, self._ids, self._registry = describe_process(), _PlannedIds(), CollectorRegistry()
        self._readers = readers
        variables = [f"OTEL_EXPORTER_OTLP_{signal}HEADERS" for signal in ("", "TRACES_", "METRICS_")]
        headers = [header for name in variables for header in os.environ.get(name, "").split(",")]
        self.receiver_keys = tuple(unquote(header.partition("=")[2].strip()) for header in headers)
        # Neither is shut down at exit by the SDK, which would wait for a collector that does not answer.
        self.traces = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        for processor in spans:
            self.traces.add_span_processor(processor)
        prometheus = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)
        self.metrics = MeterProvider([prometheus, *readers], resource, shutdown_on_exit=False)
        self.tracer = self.traces.get_tracer(SCOPE, __version__)
        self.meter = self.metrics.get_meter(SCOPE, __version__)

    @contextmanager
    def next_ids(self, trace_id: int, span_id: int) -> Iterator[None]:
        """Give the span that is begun in this block these ids: the trace's, if it has no parent."""
        self._ids.planned.ids = trace_id, span_id
        try:
            yield
        finally:
            self._ids.planned.ids = None

    def trace_of(self, run_id: str, client: ClientTrace) -> RunTrace:
        """Return the trace of a run, with the sampler's decision about it."""
        found = RunTrace.of_run(run_id, client)
        sampled = self.traces.sampler.should_sample(found.parent_context(), found.trace_id, SCOPE)
        return replace(found, is_sampled=sampled.decision is not Decision.DROP)

    def prometheus_page(self) -> bytes:
        """Return all metrics in the text format of Prometheus; gauges are read now."""
        return generate_latest(self._registry)

    def serve_prometheus(self) -> None:
        """Serve all metrics where the standard variables say, if they choose that: for a process without /metrics.

        Raises ConfigError where it can't listen there.
        """
        if os.environ.get("OTEL_METRICS_EXPORTER", "").strip() != "prometheus":
            return
        host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "").strip() or "localhost"
        port = os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "").strip() or "9464"
        try:
            start_http_server(int(port), host, self._registry)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"The metrics can't be served at {host[:80]}:{port[:10]}: {error}.",
                "OTEL_EXPORTER_PROMETHEUS_PORT names another port; OTEL_METRICS_EXPORTER=none serves none.",
            ) from error

    def flush(self, *, with_metrics: bool) -> None:
        """Send what was not sent yet; blocks for FLUSH_S seconds at most."""

        def send_all() -> None:
            self.traces.force_flush()
            for reader in self._readers if with_metrics else ():
                reader.force_flush()  # not that of Prometheus, which would keep what it collects for its next page

        sending = threading.Thread(target=send_all, name="kairos-telemetry", daemon=True)
        sending.start()
        sending.join(FLUSH_S)


@cache
def process_providers(*, with_content: bool) -> Providers:
    """Return the providers of this process, made at the first call and registered for all libraries in it.

    Raises ConfigError where a variable names an exporter that is not known here.
    """
    check_protocol()
    spans, readers = list[SpanProcessor](), list[MetricReader]()
    if _exporter_name("OTEL_TRACES_EXPORTER", ("otlp", "none")) == "otlp":
        exporter = OTLPSpanExporter()
        spans.append(BatchSpanProcessor(exporter if with_content else ContentFilter(exporter)))
    if _exporter_name("OTEL_METRICS_EXPORTER", ("otlp", "prometheus", "none")) == "otlp":
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    providers = Providers(spans, readers)
    trace.set_tracer_provider(providers.traces)
    metrics.set_meter_provider(providers.metrics)
    return providers


class ContentFilter(SpanExporter):
    """An exporter whose spans of errors say what kind it was and not in which words, which may quote what a client or
    another server sent. Ours never do; other libraries' may."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([_without_words(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _without_words(span: ReadableSpan) -> ReadableSpan:
    if not span.events and span.status.description is None:
        return span
    return ReadableSpan(
        span.name,
        span.context,
        span.parent,
        span.resource,
        span.attributes,
        (),
        span.links,
        span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


class _PlannedIds(RandomIdGenerator):
    """Gives the ids (of a trace, of a span) that are planned in this thread, else random ones."""

    def __init__(self) -> None:
        self.planned = threading.local()

    def generate_trace_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self.planned, "ids", None)
        return super().generate_trace_id() if ids is None else ids[0]

    def generate_span_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self.planned, "ids", None)
        return super().generate_span_id() if ids is None else ids[1]


def _exporter_name(variable: str, known: tuple[str, ...]) -> str:
    name = os.environ.get(variable, "").strip() or "otlp"
    if name not in known:
        raise ConfigError(f"{variable} names the exporter {name[:40]!r}.", f"Known here: {', '.join(known)}.")
    return name


def check_protocol() -> None:
    """Raise ConfigError where a variable names a protocol that is not known here."""
    for signal in ("", "TRACES_", "METRICS_", "LOGS_"):
        variable = f"OTEL_EXPORTER_OTLP_{signal}PROTOCOL"
        name = os.environ.get(variable, "").strip() or "http/protobuf"
        if name != "http/protobuf":
            raise ConfigError(f"{variable} is {name[:40]!r}.", "Only http/protobuf is known here; its port is 4318.")


def describe_process() -> Resource:
    """Describe this process; what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES state goes before ours."""
    stated = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    ours = {"service.version": __version__, "service.instance.id": secrets.token_hex(8)}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        ours["service.name"] = "kairos-mcp"
    return Resource.create({name: value for name, value in ours.items() if f"{name}=" not in stated})
