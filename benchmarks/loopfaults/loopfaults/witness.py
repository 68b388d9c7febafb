"""The witness: the model's provider, the tools' effects and the trigger of every fault, in one process outside.

It lives through all kills, and what it saw is the only truth that is counted: which completions were asked for, and
would be billed; which effects were executed. It answers nothing before a point has passed, so a kill at a point is
exact.

    POST /JOB/v1/chat/completions     an OpenAI-compatible provider that goes by the job's plan
    POST /JOB/effect/NAME  {"step"}   executes an effect: one entry in the ledger
    GET  /JOB/effect/read?step=N      the same for what only reads
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

MODEL_S, TOOL_S = 0.010, 0.004
"""How long a completion and an effect take."""


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` is a point that the witness sees, `waiting` or `refused`; `step` the call of the plan that it is of."""

    kind: str
    step: int
    name: str = ""
    tokens: int = 0
    key: str = ""
    at: float = field(default_factory=time.monotonic)


@dataclass
class Job:
    """What one job has to do, and what was seen of it. `trigger` is told each point and its number among its kind.

    `unheard`: the completions whose answer could not be sent, since who asked was dead.
    """

    plan: tuple[str, ...]
    trigger: Callable[[str, int], Awaitable[None]] | None = None
    refuse: tuple[int, ...] = ()
    completion_tokens: int = 20
    honours_keys: bool = False
    events: list[Event] = field(default_factory=list)
    unheard: list[Event] = field(default_factory=list)
    approved_at: float | None = None
    kills: int = 0

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def in_flight(self) -> tuple[list[Event], set[int]]:
        """Find the completions, and the calls that change something, whose result the system has not visibly used yet.

        It uses a completion by a call or a question to a person, and a call by asking for the next completion.
        """
        kinds = [event.kind for event in self.events]
        since = self.events[len(kinds) - kinds[::-1].index("asked") - 1 :] if "asked" in kinds else []
        called = [event for event in since if event.kind == "called"]
        is_asked = not any(event.kind in ("called", "waiting") for event in since)
        return since[:1] if is_asked else [], {event.step for event in called if event.name != "read"}

    async def see(self, event: Event) -> None:
        self.events.append(event)
        if self.trigger:
            await self.trigger(event.kind, len(self.of(event.kind)))


class _Connection:
    """One client's connection. It is dead once its job's process was killed: its end itself may be read later."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.since: int | None = None

    def belong_to(self, job: Job) -> None:
        if self.since is None:
            self.since = job.kills

    def is_dead(self, job: Job) -> bool:
        return job.kills != self.since or self.reader.at_eof() or self.writer.is_closing()

    async def send(self, status: int, body: dict[str, Any], *headers: str) -> None:
        encoded = json.dumps(body).encode()
        head = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(encoded)}", *headers]
        self.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + encoded)
        await self.writer.drain()


class Witness:
    """Serves any number of jobs, each below its own name, on a port of the loopback interface."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._ids = itertools.count(1)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()

    def url(self, job: str) -> str:
        return f"http://127.0.0.1:{self.port}/{job}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").rstrip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(connection, first.split(" ")[1], headers, body)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, connection: _Connection, target: str, headers: dict[str, str], body: bytes) -> None:
        parts = urlsplit(target)
        name, _, rest = parts.path.lstrip("/").partition("/")
        if (job := self.jobs.get(name)) is None:
            await connection.send(404, {"error": {"message": f"no job {name}"}})
            return
        connection.belong_to(job)
        given = json.loads(body) if body else {key: value[0] for key, value in parse_qs(parts.query).items()}
        if rest.startswith("effect/"):
            await self._execute(connection, job, rest.removeprefix("effect/"), given, headers)
        elif rest == "v1/chat/completions":
            await self._complete(connection, job, given, len(body))
        else:
            await connection.send(404, {"error": {"message": f"no such path: {rest}"}})

    async def _execute(
        self, connection: _Connection, job: Job, name: str, given: dict[str, Any], headers: dict[str, str]
    ) -> None:
        """An effect that was only called happens where its caller still lives, as a local write would."""
        step, key = int(given["step"]), headers.get("idempotency-key", "")
        await job.see(Event("called", step, name, key=key))
        await asyncio.sleep(TOOL_S)
        if connection.is_dead(job):
            return
        if not (job.honours_keys and key and any(each.key == key for each in job.of("recorded"))):
            await job.see(Event("recorded", step, name, key=key))
        if connection.is_dead(job):
            return
        await connection.send(200, {"effect": next(self._ids), "step": step})
        await job.see(Event("replied", step, name))

    async def _complete(self, connection: _Connection, job: Job, given: dict[str, Any], size: int) -> None:
        messages = given["messages"]
        if wrong := find_unanswered(messages):
            await job.see(Event("refused", 0))
            await connection.send(400, {"error": {"message": wrong, "type": "invalid_request_error"}})
            return
        step = 1 + _count_results(messages)
        number = len(job.of("asked")) + len(job.of("refused")) - 2  # of its requests from the third on
        status = job.refuse[number] if 0 <= number < len(job.refuse) else None
        if status:
            await job.see(Event("refused", step))
            error = {"error": {"message": f"fault {status}", "type": "server_error"}}
            await connection.send(status, error, *(["retry-after: 1"] if status == 429 else []))
            return
        most = given.get("max_completion_tokens") or given.get("max_tokens") or job.completion_tokens
        read, written = size // 4, min(job.completion_tokens, most)
        await job.see(asked := Event("asked", step, tokens=read + written))
        await asyncio.sleep(3600 if status == 0 else MODEL_S)
        if connection.is_dead(job):
            job.unheard.append(asked)
            return
        message = self._message(job, step, given)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        used = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        reply = {
            "id": f"chatcmpl-{next(self._ids)}",
            "object": "chat.completion",
            "created": 1,
            "usage": used,
            "model": given["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        }
        await connection.send(200, reply)
        await job.see(Event("answered", step))

    def _message(self, job: Job, step: int, given: dict[str, Any]) -> dict[str, Any]:
        calls = [(name, f'{{"step": {each}}}') for each, name in find_round(job.plan, step)]
        if not calls and "final_answer" in json.dumps(given.get("tools")):  # how smolagents ends
            calls = [("final_answer", '{"answer": "done"}')]
        if not (calls and given.get("tools")):
            return {"role": "assistant", "content": "done"}
        functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        made = [{"id": f"call_{next(self._ids)}", "type": "function", "function": each} for each in functions]
        return {"role": "assistant", "content": None, "tool_calls": made}


def find_round(plan: tuple[str, ...], step: int) -> list[tuple[int, str]]:
    """Return the calls of the round that begins with a step of a plan, each with its own step."""
    begins = 1
    for calls in plan:
        names = calls.split("+")
        if begins == step:
            return list(enumerate(names, step))
        begins += len(names)
    return []


def _count_results(messages: list[dict[str, Any]]) -> int:
    """How many calls a conversation has behind it. smolagents tells results as a user's words."""
    results = sum(message["role"] == "tool" for message in messages)
    told = json.dumps([message for message in messages if message["role"] != "system"])
    return results or told.count("Observation:")


def find_unanswered(messages: list[dict[str, Any]]) -> str | None:
    """Say why OpenAI would refuse a conversation: a result without its call, or a call without its result."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            break
        else:
            open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return "an assistant message with 'tool_calls' must be followed by tool messages" if open_calls else None
