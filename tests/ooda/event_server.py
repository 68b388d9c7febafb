"""A server of others that has events, in plain Python: each line of a file is the id of one, its number the cursor.

Arguments: the file of events, the file to which each request is written, and what it answers: `poll`, `stream`. A line
`!end` ends the streams that are open, and `!die` the server.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

EVENTS, ASKED, OFFERED = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
INFO = {"capabilities": {"tools": {}}, "serverInfo": {"name": "builds", "version": "1"}}
streams: dict[Any, int] = {}
lock = threading.Lock()


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def lines() -> list[str]:
    return EVENTS.read_text().splitlines() if EVENTS.exists() else []


def event(number: int, line: str) -> dict[str, Any]:
    told = {"eventId": line, "name": "build.finished", "timestamp": "2026-11-28T12:00:00Z", "data": {}}
    return {**told, "cursor": str(number + 1)}


def notify(stream: Any, name: str, params: dict[str, Any]) -> None:
    meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": stream}}
    send({"method": f"notifications/events/{name}", "params": {**params, **meta}})


def answer(number: Any, method: str, params: dict[str, Any]) -> None:
    known, cursor = lines(), params.get("cursor")
    start = len(known) if cursor is None else int(cursor)
    match method:
        case "initialize":
            send({"id": number, "result": {**INFO, "protocolVersion": params["protocolVersion"]}})
        case "tools/list":
            send({"id": number, "result": {"tools": []}})
        case "events/poll" if "poll" in OFFERED:
            news = [event(at, line) for at, line in enumerate(known) if at >= start and line[0] != "!"]
            send({"id": number, "result": {"events": news, "cursor": str(len(known)), "hasMore": False}})
        case "events/stream" if "stream" in OFFERED:
            notify(number, "active", {"cursor": str(start)})
            streams[number] = start
        case _:
            send({"id": number, "error": {"code": -32601, "message": "unknown"}})


def tell() -> None:
    """Tell each stream what has been added to the file, as long as the server lives."""
    while True:
        time.sleep(0.01)
        with lock:
            known = lines()
            for number, start in list(streams.items()):
                for at, line in list(enumerate(known))[start:]:
                    if line == "!end":
                        del streams[number]
                        send({"id": number, "result": {}})
                        break
                    if line == "!die":
                        os._exit(1)
                    if line[0] != "!":
                        notify(number, "event", event(at, line))
                if number in streams:
                    streams[number] = len(known)


def main() -> None:
    threading.Thread(target=tell, daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        with lock, ASKED.open("a") as asked:
            params = message.get("params", {})
            asked.write(json.dumps([message["method"], params]) + "\n")
            if message["method"] == "notifications/cancelled":
                streams.pop(params.get("requestId"), None)
            elif "id" in message:
                answer(message["id"], message["method"], params)


if __name__ == "__main__":
    main()
