"""The model of a host at a terminal: it makes the calls that its person types by name, `DO name`, each name once.

    typed_model.py PORT CALLS LOG

CALLS is a file of JSON, by name the calls of one turn, each a tool and its arguments. LOG has a line of JSON for each
request that came with tools: their names, the results that are new, the end of the other text, and the answer. A host
that loads the schemas of most tools by a search is asked for them first.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from host_model import Call
from scripted_model import Json
from standin import Provider, call_tools, search_for
from standin_forms import Asked

TYPED = re.compile(r"\bDO ([\w/.-]+)")
LAST_CHARS = 4_000


class TypedModel(Provider):
    """Obeys who types."""

    def __init__(self, port: int, calls: Path, log: TextIO) -> None:
        super().__init__(port)
        self._calls, self._log = calls, log
        self._begun, self._taken = set[str](), 0
        self._searched: Sequence[Call] = ()  # their tools are being searched
        self._lock = threading.Lock()

    def answer(self, asked: Asked) -> Json:
        if not asked.tools:
            return {"content": "a title"}
        with self._lock:
            new, self._taken = asked.results[self._taken :], max(self._taken, len(asked.results))
            answer = self._next_calls(asked) or {"content": f"DONE {len(self._begun)}"}
            line = {"tools": list(asked.tools), "results": new, "answer": answer, "text": asked.text[-LAST_CHARS:]}
            self._log.write(json.dumps(line) + "\n")
            return answer

    def _next_calls(self, asked: Asked) -> Json | None:
        calls, self._searched = self._searched, ()
        if not calls:
            typed = next((name for name in TYPED.findall(asked.text) if name not in self._begun), None)
            if typed is None:
                return None
            self._begun.add(typed)
            calls = json.loads(self._calls.read_text())[typed]
            missing = {name for name, _ in calls if not any(each.endswith(name) for each in asked.tools)}
            if (
                missing
                and (
                    search := search_for(asked, *(name if "__" in name else f"mcp__kairos__{name}" for name in missing))
                )
                is not None
            ):
                self._searched = calls
                return search
        found = [(next((each for each in asked.tools if each.endswith(name)), name), given) for name, given in calls]
        return call_tools(*found) if found else None


if __name__ == "__main__":
    port, calls, log = sys.argv[1:]
    with Path(log).open("a", buffering=1) as written:
        TypedModel(int(port), Path(calls), written).serve_forever()
