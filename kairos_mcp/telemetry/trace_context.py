"""Which trace a run belongs to, and the ids of its spans: known before a span ends, and the same in every process.

The trace is the one in which a client called for the run, kept in its spec; without one its id is made of the run's.
Span ids are made of the run's id and of what the span is about. So a server that takes a run over goes on with its
trace, and what was told an id (a provider, another MCP server) was told the right one, whoever sends the span.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kairos_mcp.core.quick_dataclass import dataclass

if TYPE_CHECKING:
    from opentelemetry.context import Context

_W3C = TraceContextTextMapPropagator()
RUN_KEY = "run"
"""The key of a run's own span; other keys begin with the path of a step."""


@dataclass(frozen=True, slots=True)
class ClientTrace:
    """Where a client's trace stood when it called: W3C `traceparent` and `tracestate`."""

    traceparent: str | None = None
    tracestate: str | None = None


def current_trace() -> ClientTrace:
    """Return this call's current trace context; empty without one."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return ClientTrace(carrier.get("traceparent"), carrier.get("tracestate"))


@dataclass(frozen=True, slots=True)
class RunTrace:
    """The trace of a run, and the contexts of its spans. `parent`: the client's span, if there is one. `is_sampled`:
    its spans are sent; the context says so to others, whose spans follow."""

    run_id: str
    trace_id: int
    parent: SpanContext | None = None
    is_sampled: bool = True

    @staticmethod
    def of_run(run_id: str, client: ClientTrace) -> RunTrace:
        """Return the trace of the run with this id, which a client with that trace has started."""
        parent = _remote_span(client)
        return RunTrace(run_id, _digest(run_id, "trace", 16) if parent is None else parent.trace_id, parent)

    def span_id(self, key: str) -> int:
        """Return the id of the span with this key."""
        return _digest(self.run_id, key, 8)

    def context_of(self, key: str) -> Context:
        """Return the context in which the span with this key is the current one."""
        flags = TraceFlags(TraceFlags.SAMPLED if self.is_sampled else TraceFlags.DEFAULT)
        state = None if self.parent is None else self.parent.trace_state
        span = SpanContext(self.trace_id, self.span_id(key), is_remote=False, trace_flags=flags, trace_state=state)
        return set_span_in_context(NonRecordingSpan(span), _empty_context())

    def parent_context(self) -> Context:
        """Return the context that the run's own span stands in: the client's span, or none."""
        if self.parent is None:
            return _empty_context()
        return set_span_in_context(NonRecordingSpan(self.parent), _empty_context())

    def headers_of(self, key: str) -> Mapping[str, str]:
        """Return the HTTP headers that tell another program of the span with this key."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, self.context_of(key))
        return carrier


def attempt_key(path: str, attempt: int) -> str:
    """Return the key of an attempt's span: which one at the step at `path`, from 1."""
    return f"{path}#{attempt}"


def _remote_span(client: ClientTrace) -> SpanContext | None:
    if client.traceparent is None:
        return None
    carrier = {"traceparent": client.traceparent, "tracestate": client.tracestate or ""}
    found = get_current_span(_W3C.extract(carrier, _empty_context())).get_span_context()
    return found if found.is_valid else None


def _empty_context() -> Context:
    from opentelemetry.context import Context

    return Context()


def _digest(run_id: str, key: str, size: int) -> int:
    """Return an id of `size` bytes, never 0."""
    return int.from_bytes(sha256(f"{run_id}\n{key}".encode()).digest()[:size], "big") or 1
