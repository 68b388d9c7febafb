"""The audit as OTLP log records: one for each act, sent until it is taken.

A receiver may get one twice, after a failure; its `log.record.uid` is the same then. Importing this file imports the
SDK, which is an extra.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kairos_mcp import __version__
from kairos_mcp.telemetry.names import SCOPE
from kairos_mcp.telemetry.providers import check_protocol, describe_process

EVENT = "kairos.audit"
PREFIX = "kairos.audit."
AGAIN_S = 5.0

log = logging.getLogger(__name__)


class AuditRecords:
    """Sends acts to the receiver that the variables (OTEL_*) name. Raises ConfigError for a protocol that is not
    known."""

    def __init__(self) -> None:
        check_protocol()
        self._exporter = OTLPLogExporter()
        self._resource, self._scope = describe_process(), InstrumentationScope(SCOPE, __version__)

    def send(self, acts: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Send acts, each with its moment (milliseconds since 1970); return once they are taken."""
        records = [ReadableLogRecord(_record(at, fields), self._resource, self._scope) for at, fields in acts]
        while self._exporter.export(records) is not LogRecordExportResult.SUCCESS:
            log.warning("the receiver of the audit takes nothing; it is sent again in %g s", AGAIN_S)
            time.sleep(AGAIN_S)


def _record(at: int, fields: Mapping[str, Any]) -> LogRecord:
    attributes = {f"{PREFIX}{name}": value for name, value in fields.items() if name not in ("at", "id")}
    return LogRecord(
        timestamp=at * 1_000_000,
        observed_timestamp=time.time_ns(),
        severity_number=SeverityNumber.INFO,
        severity_text="INFO",
        event_name=EVENT,
        body=json.dumps(dict(fields), ensure_ascii=False),
        attributes={**attributes, "log.record.uid": fields["id"]},
    )
