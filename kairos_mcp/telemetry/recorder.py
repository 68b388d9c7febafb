"""Send spans that are known from rows, with their own times, and keep metrics with a bounded number of labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation
from opentelemetry.trace import SpanKind, Status, StatusCode

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.telemetry.names import (
    COUNTED,
    ERROR,
    MAX_LABEL_VALUES,
    MAX_NAME_CHARS,
    METRICS,
    OTHER,
    Attribute,
    MadeUp,
    Metric,
    SpanForm,
)
from kairos_mcp.telemetry.tally import PROCESS_TALLY
from kairos_mcp.telemetry.trace_context import RunTrace

if TYPE_CHECKING:
    from kairos_mcp.telemetry.providers import Providers  # the SDK, which is an extra

Values = Mapping[tuple[str, ...], float]
"""The values of a metric, each by the texts of its labels."""

Value = str | int | float | tuple[str, ...]
MAX_CONTENT_CHARS = 16_000  # of one attribute
_PLACE = re.compile(r"{(.+?)}")  # of an attribute in a span's title
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span that has ended. `key`: what its id is made of; `parent`: its parent's, None for the client's span.

    Times in milliseconds since 1970. Attributes that are None are left out.
    """

    form: SpanForm
    key: str
    parent: str | None
    started_at: int
    ended_at: int
    attributes: Mapping[Attribute, Value | None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A value of a histogram, or what a counter rises by. Labels that are None are left out."""

    metric: Metric
    value: float
    labels: Mapping[Attribute, str | None] = field(default_factory=dict)


class Recorder:
    """Sends spans and keeps metrics. `with_content`: attributes with content are sent too, with secrets masked.
    `has_measured`: a histogram or a counter has a value."""

    def __init__(self, providers: Providers, redactor: Redactor, *, with_content: bool) -> None:
        self.providers = providers
        self.with_content = with_content
        self.has_measured = False
        self._redactor = redactor
        self._label_values: dict[Attribute, set[str]] = {}
        self._instruments: dict[str, Histogram | Counter] = {}
        for metric in METRICS:
            named = metric.name, metric.unit, metric.meaning
            if metric.instrument == "histogram":
                bounds = list(metric.buckets)
                histogram = providers.meter.create_histogram(*named, explicit_bucket_boundaries_advisory=bounds)
                self._instruments[metric.name] = histogram
            elif metric in COUNTED:
                providers.meter.create_observable_counter(
                    metric.name, [_observations(metric, partial(PROCESS_TALLY.read, metric))], *named[1:]
                )
            elif metric.instrument == "counter":
                self._instruments[metric.name] = providers.meter.create_counter(*named)

    def observe(self, metric: Metric, read: Callable[[], Values]) -> None:
        """Have a gauge read by this function, whenever metrics are."""
        self.providers.meter.create_observable_gauge(
            metric.name, [_observations(metric, read)], metric.unit, metric.meaning
        )

    def send(self, trace: RunTrace, spans: Sequence[SpanRecord]) -> None:
        """Send spans of a run."""
        for span in spans:
            parent = trace.parent_context() if span.parent is None else trace.context_of(span.parent)
            shown = {
                attribute.name: self._mask(value) if attribute.is_content else self._bound_name(value)
                for attribute, value in span.attributes.items()
                if value is not None and (self.with_content or not attribute.is_content)
            }
            title = _fill_title(span.form.title, shown)
            with self.providers.next_ids(trace.trace_id, trace.span_id(span.key)):
                started = self.providers.tracer.start_span(
                    title, parent, _KINDS[span.form.kind], shown, start_time=span.started_at * 1_000_000
                )
            if ERROR.name in shown:
                started.set_status(Status(StatusCode.ERROR))
            started.end(max(span.started_at, span.ended_at) * 1_000_000)

    def measure(self, measurements: Iterable[Measurement]) -> None:
        """Add values to metrics."""
        for each in measurements:
            self.has_measured = True
            labels = {
                label.name: self._bound_label(label, value) for label, value in each.labels.items() if value is not None
            }
            match self._instruments[each.metric.name]:
                case Histogram() as histogram:
                    histogram.record(each.value, labels)
                case counter:
                    counter.add(each.value, labels)

    def _bound_label(self, label: Attribute, value: str) -> str:
        known = self._label_values.setdefault(label, set())
        value = OTHER if isinstance(value, MadeUp) else value[:MAX_NAME_CHARS]
        if value in known:
            return value
        if len(known) >= MAX_LABEL_VALUES:
            return OTHER
        known.add(value)
        return value

    def _bound_name(self, value: Value) -> Value:
        match value:
            case MadeUp():
                return self._redactor.redact_text(value).text[:MAX_NAME_CHARS] if self.with_content else OTHER
            case str():
                return value[:MAX_NAME_CHARS]
            case _:
                return value

    def _mask(self, value: Value) -> Value:
        return self._redactor.redact_text(value).text[:MAX_CONTENT_CHARS] if isinstance(value, str) else value


def _observations(metric: Metric, read: Callable[[], Values]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """Return what an instrument is read by: each value with the metric's labels."""

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(value, {label.name: text for label, text in zip(metric.labels, texts, strict=True)})
            for texts, value in read().items()
        ]

    return observe


def _fill_title(title: str, attributes: Mapping[str, Value]) -> str:
    """Return a span's title with the values of the attributes that it names; nothing for one that is not there."""
    return _PLACE.sub(lambda place: str(attributes.get(place[1], "")), title).rstrip()
