"""Any MCP server on stdio, by a mapping: a TOML file that says which tools are the verbs, and how a result is read.

[server]  command, env, folders, files   words may name {folder}, {url} and {host} of the witness, {program}
[start], [look], [resume], [answer], [settle], [find]
          tool and arguments; strings in them may also name {id}, {decision}, {happened} and what is kept
[report]  at: where a report stands in a result, as JSON Pointers of which the first that leads somewhere counts
          id: a pointer in it; step: a regular expression over it; error: pointers; keep: names to pointers
[[report.is]]  status, and `when`: pointers to the values that it is told by; the first that fits counts
[happened]  yes and no: what {happened} stands for
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .systems import LINE_LIMIT, STATUSES, Died, State, Zygote, end_process

PROTOCOL = "2025-06-18"


class BadMapping(Exception):
    """A mapping can't be used; its text says what to change."""


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a mapping and look it over. Raises BadMapping."""
    try:
        mapping = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadMapping(f"{path}: {error}") from None
    for name in ("server", "start", "look", "report"):
        if name not in mapping:
            raise BadMapping(f"{path} has no [{name}].")
    if not mapping["server"].get("command"):
        raise BadMapping(f"{path}: [server] needs a command, as a list of words.")
    for rule in mapping["report"].get("is", []):
        if rule.get("status") not in STATUSES:
            raise BadMapping(f"{path}: the status of a [[report.is]] is one of {', '.join(STATUSES)}.")
    return mapping


def point_at(value: Any, pointer: str) -> Any:
    """Follow a JSON Pointer (RFC 6901). Returns None where it leads nowhere."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return None
    return value


def fill_in(template: Any, values: Mapping[str, Any]) -> Any:
    """Put values in the place of `{name}` in the strings, keys too, of a JSON value."""
    if isinstance(template, dict):
        return {fill_in(key, values): fill_in(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [fill_in(value, values) for value in template]
    if isinstance(template, str):
        return re.sub(r"\{([a-z_]+)\}", lambda found: str(values.get(found[1], found[0])), template)
    return template


class McpSystem:
    """Drives an MCP server by its tools. The server is the mapping's command, or what a zygote forks in its place."""

    def __init__(
        self,
        mapping: Mapping[str, Any],
        folder: Path,
        url: str,
        *,
        zygote: Zygote | None = None,
        values: Mapping[str, str] | None = None,
    ) -> None:
        """Write the server's files into its folder. `values`: what `{name}` stands for beside the usual."""
        self.mapping, self.folder, self._zygote = mapping, folder, zygote
        self.values: dict[str, Any] = {"folder": str(folder), "url": url, "host": url.split("/")[2], **(values or {})}
        server = fill_in(mapping["server"], self.values)
        self.words: list[str] = server["command"]
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder), **server.get("env", {})}
        for name in server.get("folders", []):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, text in server.get("files", {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        self.pid, self._sent = 0, 0
        self._process: asyncio.subprocess.Process | None = None

    async def open(self) -> State:
        if self._zygote:
            asked = {"words": self.words[1:], "env": self.env}
            self.pid, self._reader, self._writer = await self._zygote.fork(self.folder, asked)
        else:
            await self._start_process()
        client = {"name": "loopfaults", "version": "1"}
        await self.request("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return State("idle")

    async def _start_process(self) -> None:
        pipe = asyncio.subprocess.PIPE
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.words,
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                env=self.env,
                limit=LINE_LIMIT,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid, self._reader, self._writer = self._process.pid, self._process.stdout, self._process.stdin

    async def start(self) -> State:
        return await self._do("start")

    async def look(self) -> State:
        if "id" not in self.values and "find" in self.mapping:
            await self._do("find")
        if "id" not in self.values and self._names("look", "id"):
            return State("idle")  # nothing is known of a job, not even that it was begun
        return await self._do("look")

    async def resume(self) -> State:
        if "resume" not in self.mapping or ("id" not in self.values and self._names("resume", "id")):
            return await self.start()
        return await self._do("resume")

    async def answer(self, decision: str) -> State:
        self.values["decision"] = decision
        return await self._do("answer")

    async def settle(self, happened: bool) -> State:
        words = self.mapping.get("happened", {"yes": "yes", "no": "no"})
        self.values["happened"] = words["yes" if happened else "no"]
        return await self._do("settle")

    async def close(self) -> None:
        if self.pid:
            end_process(self.pid)
            self._writer.close()
        if self._process:
            await self._process.wait()

    async def leave(self) -> None:
        """Close its stdin, as a host that ends, and wait until it has ended by itself."""
        self._writer.close()
        if self._process:
            await self._process.wait()

    def _names(self, verb: str, value: str) -> bool:
        return f"{{{value}}}" in json.dumps(self.mapping[verb])

    async def _do(self, verb: str) -> State:
        """Make a verb's call, then look where the mapping says so (`then = "look"`)."""
        told = self.mapping[verb]
        result = await self.call(told["tool"], fill_in(told.get("arguments", {}), self.values))
        state = self.read(result)
        return await self.look() if told.get("then") == "look" and state.status != "failed" else state

    def read(self, result: dict[str, Any]) -> State:
        """Read how the job stands off a tool's result, and keep what later arguments name."""
        report = self.mapping["report"]
        found: Any = next((each for at in report.get("at", [""]) if (each := point_at(result, at)) is not None), {})
        kept = {"id": report.get("id", "/id"), **report.get("keep", {})}
        self.values |= {name: value for name, at in kept.items() if (value := point_at(found, at)) is not None}
        errors = [str(value) for at in report.get("error", []) if (value := point_at(found, at))]
        status = "failed" if result.get("isError") else "idle"
        for rule in report.get("is", []):
            if all(point_at(found, at) == value for at, value in rule.get("when", {}).items()):
                status = rule["status"]
                break
        if status == "unsure":
            at, expression = report["step"]
            step = re.search(expression, json.dumps(point_at(found, at)))
            return State(status, int(step[1])) if step else State("failed", error="it does not show which call")
        return State(status, error="" if status in ("ended", "waiting") else "; ".join(errors)[:500])

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool. Returns its structured content, or the text of its content, with `isError` where it failed."""
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        told: dict[str, Any] = result.get("structuredContent") or _read_text(result)
        return told | ({"isError": True} if result.get("isError") else {})

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises Died."""
        self._sent += 1
        with suppress(ConnectionError):
            self._send({"jsonrpc": "2.0", "id": self._sent, "method": method, "params": params})
            await self._writer.drain()
            while line := await self._reader.readline():
                message = json.loads(line)
                if message.get("id") == self._sent and "method" not in message:
                    if "error" in message:
                        return {"isError": True, "structuredContent": {"error": message["error"]}}
                    result: dict[str, Any] = message["result"]
                    return result
        raise Died

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")


def _read_text(result: dict[str, Any]) -> dict[str, Any]:
    text = "".join(part.get("text", "") for part in result.get("content", []))
    with suppress(ValueError):
        read = json.loads(text)
        return read if isinstance(read, dict) else {"text": text}
    return {"text": text}
