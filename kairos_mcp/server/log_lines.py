"""What this process logs: to stderr, one line for each record, as text or JSON, with secrets redacted.

Records of libraries count too, from warnings on; of our own, also what a server says of itself.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kairos_mcp.core.redaction import Redactor

LogFormat = Literal["text", "json"]
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {9: "\\t", 10: "\\n"}


class LineFormatter(logging.Formatter):
    """Formats a record, its traceback included, as one line.

    `form`: `AT LEVEL LOGGER: MESSAGE`, where characters that begin a line, turn the direction of writing or can't be
    seen are escaped; or an object with `at, level, logger, message` and perhaps `traceback`.
    """

    def __init__(self, environ: Mapping[str, str], form: LogFormat) -> None:
        super().__init__()
        self._environ = environ
        self._form = form

    @cached_property
    def _redactor(self) -> Redactor:
        from kairos_mcp.core.redaction import Redactor  # at the first record: most processes log nothing

        return Redactor.from_environ(self._environ)

    def format(self, record: logging.LogRecord) -> str:
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
        level, message = record.levelname.lower(), self._redact(record.getMessage())
        traceback = self._redact(self.formatException(record.exc_info)) if record.exc_info else ""
        if self._form == "json":
            fields = {"at": at, "level": level, "logger": record.name, "message": message}
            return json.dumps(fields | ({"traceback": traceback} if traceback else {}))
        line = f"{at} {level} {record.name}: {message}" + (f"\n{traceback}" if traceback else "")
        line = line.translate(_ESCAPES)
        if line.isascii():
            return line
        from kairos_mcp.core.hidden_text import spell_out_hidden  # at the first such line

        return spell_out_hidden(line)

    def _redact(self, text: str) -> str:
        return self._redactor.redact_text(text).text


def is_of_interest(record: logging.LogRecord) -> bool:
    """False where a client ended its session while a message of it was being read: the SDK logs that as an error of the
    server."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None or record.name != "mcp.server.streamable_http":
        return True
    from anyio import ClosedResourceError  # at the first such record

    return not isinstance(error, ClosedResourceError)


def write_log_lines(environ: Mapping[str, str], form: LogFormat) -> None:
    """Write what is logged from now on to stderr in this form, and nothing of it elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(environ, form))
    handler.addFilter(is_of_interest)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("kairos_mcp").setLevel(logging.INFO)
