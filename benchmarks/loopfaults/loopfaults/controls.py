"""Four runtimes that are broken on purpose. A report in which one of them is not caught is void.

All share one loop, which stores its conversation after each step and goes on from there when it is resumed.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

TOOLS = ("read", "append", "approved_append")
GOAL = {"role": "user", "content": "Do what the plan says."}
Message = dict[str, Any]


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


class Loop:
    """A loop that keeps what it did in a file. `caught_by`: the sum of a report that shows what is wrong with it."""

    caught_by: ClassVar[str]

    def __init__(self, folder: Path, url: str) -> None:
        self.file, self.url = folder / "stored.json", url
        self.messages: list[Message] = []
        self.load()

    def load(self) -> None:
        if self.file.exists():
            self.messages = json.loads(self.file.read_text())

    def store(self) -> None:
        self.write(self.messages)

    def write(self, stored: object) -> None:
        written = self.file.with_suffix(".new")
        written.write_text(json.dumps(stored))
        os.replace(written, self.file)

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.store()

    def open(self) -> None:
        """Nothing goes on by itself."""

    def start(self) -> dict[str, str]:
        self.add(GOAL)
        return self.go_on()

    def look(self) -> dict[str, str]:
        is_done = bool(self.messages) and self.messages[-1]["role"] == "assistant" and self.open_call() is None
        return {"status": "ended" if is_done else "idle"}

    def resume(self) -> dict[str, str]:
        return self.go_on() if self.messages else self.start()

    def answer(self, decision: str) -> dict[str, str]:
        return self.go_on(decision == "approve")

    def go_on(self, is_approved: bool = False) -> dict[str, str]:
        while self.look()["status"] != "ended":
            call = self.open_call()
            if call is None:
                self.add(self.ask())
            elif call["function"]["name"] == "approved_append" and not (is_approved or self.approves()):
                return {"status": "waiting"}
            else:
                self.execute(call)
        return {"status": "ended"}

    def open_call(self) -> dict[str, Any] | None:
        calls: list[dict[str, Any]] = self.messages[-1].get("tool_calls") or []
        return calls[0] if calls else None

    def approves(self) -> bool:
        return False

    def ask(self) -> Message:
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in TOOLS]
        body = {"model": "fake", "messages": self.messages, "tools": tools}
        message: Message = post(f"{self.url}/v1/chat/completions", body)["choices"][0]["message"]
        return message

    def effect(self, call: dict[str, Any]) -> str:
        function = call["function"]
        return json.dumps(post(f"{self.url}/effect/{function['name']}", json.loads(function["arguments"])))

    def execute(self, call: dict[str, Any]) -> None:
        self.add({"role": "tool", "tool_call_id": call["id"], "content": self.effect(call)})


class StoresNothing(Loop):
    """Begins anew after each death."""

    caught_by = "effects_twice"

    def store(self) -> None:
        pass


class MarksFirst(Loop):
    """Stores that a call is done before it is."""

    caught_by = "effects_lost"

    def execute(self, call: dict[str, Any]) -> None:
        self.add({"role": "tool", "tool_call_id": call["id"], "content": "done"})
        self.effect(call)


class ApprovesItself(Loop):
    """Takes a question that it finds after a death for one that was answered."""

    caught_by = "unapproved"

    def load(self) -> None:
        super().load()
        found = self.open_call() if self.messages else None
        self.found = found is not None and found["function"]["name"] == "approved_append"

    def approves(self) -> bool:
        return self.found


class RetriesAll(Loop):
    """Stores what its tools returned, and no answer of the model: after a death it asks for all of them again."""

    caught_by = "paid_beyond_flight"

    def load(self) -> None:
        self.results: dict[str, str] = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.messages = [GOAL] if self.file.exists() else []

    def store(self) -> None:
        self.write(self.results)

    def effect(self, call: dict[str, Any]) -> str:
        step = call["function"]["arguments"]
        if step not in self.results:
            self.results[step] = super().effect(call)
        return self.results[step]


CONTROLS: dict[str, type[Loop]] = {
    "stores_nothing": StoresNothing,
    "marks_first": MarksFirst,
    "approves_itself": ApprovesItself,
    "retries_all": RetriesAll,
}


def System(folder: Path, url: str, name: str) -> Loop:  # noqa: N802  a zygote makes one for each case
    return CONTROLS[name](folder, url)
