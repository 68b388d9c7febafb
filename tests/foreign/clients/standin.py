"""A provider that stands in for one with a model: OpenAI's chat completions on loopback, from the scripted model.

Asked by a host's own agent it calls our tools; asked on behalf of a run, through sampling, it is the run's model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from result_text import next_call, parse_text
from scripted_model import Json, next_answer, write_in_dialect

START = "planner_run"


class Standin(ThreadingHTTPServer):
    """`arguments`: what the host's agent gives planner_run beside the goal.

    What it was shown: `asked`, a word for each request; `results`, what the host's agent saw of our tools.
    """

    def __init__(self, arguments: Json) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._arguments = arguments
        self.asked: list[str] = []
        self.results: list[Json] = []
        self.done = Event()  # the host's agent has seen its run end

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, body: Json) -> Json:
        """The assistant's message."""
        names = [tool["function"]["name"] for tool in body.get("tools") or []]
        ours = next((name for name in names if name.endswith(START)), None)
        answer = self._as_host(body, ours.removesuffix(START)) if ours else self._as_model(body, bool(names))
        calls = [
            {
                "id": f"call_{len(self.asked)}_{n}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for n, call in enumerate(answer.get("tool_calls", ()))
        ]
        return {"role": "assistant", "content": answer.get("content")} | ({"tool_calls": calls} if calls else {})

    def _as_host(self, body: Json, prefix: str) -> Json:
        """What the host's own model does: starts a run, answers it while it waits, and says that it is done."""
        self.asked.append("host")
        returned = [_text(message["content"]) for message in body["messages"] if message["role"] == "tool"]
        if returned:
            self.results.append(parse_text(returned[-1]))
        call = next_call(returned, self._arguments)
        if call is None:
            self.done.set()
            return {"content": "done"}
        name, arguments = call
        return {"tool_calls": [{"name": prefix + name, "arguments": arguments}]}

    def _as_model(self, body: Json, tools: bool) -> Json:
        """What a run's model says."""
        self.asked.append("tools" if tools else "plain")
        answer = next_answer(body, sum(message["role"] == "assistant" for message in body["messages"]))
        return answer if tools else {"content": write_in_dialect(answer)}


@contextmanager
def serve_standin(arguments: Json) -> Iterator[Standin]:
    with Standin(arguments) as standin:
        Thread(target=standin.serve_forever, daemon=True).start()
        yield standin
        standin.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Standin
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(json.dumps({"object": "list", "data": [{"id": "scripted", "object": "model"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = self.server.reply(body)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        head = {"id": "c1", "created": 0, "model": body.get("model", "scripted")}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            completion = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            self._send(json.dumps(completion).encode())
            return
        calls = [{"index": n, **call} for n, call in enumerate(message.get("tool_calls", ()))]
        delta = {**message, "tool_calls": calls} if calls else message
        parts: list[Any] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {"choices": [], "usage": usage},
        ]
        lines = [json.dumps({**head, "object": "chat.completion.chunk", **part}) for part in parts]
        sent = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
        self._send(sent.encode(), "text/event-stream")

    def _send(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_given: Any) -> None:
        """Silence: the last line of a client's output is its report."""


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
