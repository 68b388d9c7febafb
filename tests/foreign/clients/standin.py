"""A provider that stands in for one with a model, on loopback, in four forms: OpenAI's chat completions and responses,
Gemini's generateContent and Anthropic's messages.

Asked by a host's own agent it calls our tools as `follow` says; asked on behalf of a run, through sampling, it is the
run's model.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from host_model import Call, Conversation, follow
from result_text import parse_text
from scripted_model import Json, next_answer, write_in_dialect
from standin_forms import FORMS, Asked

OURS = "planner_run"
READS = "read_mcp_resource"
"""A tool of several hosts' own, by which their model reads a resource."""
CLAUDE_READS = "ReadMcpResourceTool"
SEARCHES = ("ToolSearch", "tool_search")
"""Hosts' tools that load the schemas of others."""


class Provider(ThreadingHTTPServer):
    """Asks its `answer` what the model says to a request."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)

    def answer(self, asked: Asked) -> Json:
        """The answer to a request, in a caller's form."""
        raise NotImplementedError


class Standin(Provider):
    """`calls`: what the host's agent begins, one after the other. What came of each is in `results`.

    `asked`: a word for each request; `shown`: the texts that a host's agent was last shown, without results of tools.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self._host = _converse(calls)
        self._wanted: Call | None = next(self._host, None)
        self._taken = 0  # results of tools
        self._searched = False  # the next result is of the host's search
        self._said: dict[str, None] = {}  # by the model of a run
        self._lock = threading.Lock()
        self.asked: list[str] = []
        self.results: list[Json] = []
        self.shown = ""
        self.done = Event()  # the host's agent has seen its last call's end

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, asked: Asked) -> Json:
        ours = next((name for name in asked.tools if name.endswith(OURS)), None)
        if ours is None:
            self.asked.append("tools" if asked.tools else "plain")
            return self._answer_run(asked)
        with self._lock:
            self.asked.append("host")
            self.shown = asked.text
            return self._answer_host(asked, ours.removesuffix(OURS))

    def _answer_run(self, asked: Asked) -> Json:
        """What a run's model says. Its turn is told by which of its answers it is shown: not every host keeps roles."""
        turns = sum(text in asked.text for text in self._said)
        answer = next_answer(asked.body, turns)
        text = write_in_dialect(answer)
        self._said[text] = None
        return answer if asked.tools else {"content": text}

    def _answer_host(self, asked: Asked, prefix: str) -> Json:
        """What the host's own model does next. A host may ask again with what it has asked before."""
        for text in asked.results[self._taken :]:
            self._taken += 1
            if self._searched:
                self._searched = False
                continue
            is_own = self._wanted is not None and self._wanted[0] in (READS, CLAUDE_READS)
            self.results.append({"text": text} if is_own else parse_text(text))
            self._wanted = _advance(self._host, self.results[-1])
        if self._wanted is None:
            self.done.set()
            return {"content": "done"}
        name, arguments = self._wanted
        whole = name if name in (READS, CLAUDE_READS) else prefix + name
        search = search_for(asked, whole)
        self._searched = search is not None
        return search or call_tools((whole, arguments))


def search_for(asked: Asked, *tools: str) -> Json | None:
    """A call of the host's search for tools whose schemas it has not loaded; None where there is nothing to load."""
    search = next((name for name in asked.tools if name in SEARCHES), None)
    if search is None or set(tools) <= set(asked.tools):
        return None
    return call_tools((search, {"query": f"select:{','.join(tools)}"}))


def call_tools(*calls: Call) -> Json:
    """An answer that makes calls."""
    return {"content": "", "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def _converse(calls: Sequence[Call]) -> Conversation:
    for call in calls:
        if call[0] in (READS, CLAUDE_READS):
            yield call
        else:
            yield from follow(*call)
    return {}


def _advance(conversation: Conversation, result: Json) -> Call | None:
    try:
        return conversation.send(result)
    except StopIteration:
        return None


@contextmanager
def serve_standin(calls: Sequence[Call]) -> Iterator[Standin]:
    with Standin(calls) as standin:
        Thread(target=standin.serve_forever, daemon=True).start()
        yield standin
        standin.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Provider
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        models = [{"id": "scripted", "object": "model", "created": 1, "owned_by": "loopback"}]
        self._send(json.dumps({"object": "list", "data": models}).encode(), "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or "{}")
        path = self.path.partition("?")[0]
        form = next((form for end, form in FORMS.items() if path.endswith(end)), None)
        if form is None:
            self.send_error(404)
            return
        self._send(*form.write(self.server.answer(form.read(body)), is_streamed=form.is_streamed(path, body)))

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_given: Any) -> None:
        """Silence: the last line of a client's output is its report."""
