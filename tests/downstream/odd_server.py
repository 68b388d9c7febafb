"""A downstream server that deviates from the protocol as a behaviour says: in memory, or as a process driven by a file.

A behaviour is a JSON object; each key is one deviation, and `answer_line` shows what each means.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

GOOD_TOOL: dict[str, Any] = {
    "name": "echo",
    "description": "Says it.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}
RAW = "the JSON of `raw_result`"
FINE: dict[str, Any] = {"content": [{"type": "text", "text": "fine"}]}


def answer_line(behaviour: dict[str, Any], line: str) -> Iterator[bytes]:
    """Yield the lines that the server writes to stdout when it reads a line."""
    message = json.loads(line)
    number, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if number is None and method is not None:  # a notification
        for part in behaviour.get("to_notifications", []):
            yield _encode(behaviour, part)
    if method is None or number is None:
        return
    for part in (*behaviour.get("before", []), *behaviour.get("before_of", {}).get(method, [])):
        yield _encode(behaviour, part)
    if "wrong_id" in behaviour:
        stray = {"content": [{"type": "text", "text": "stray"}], "tools": []}
        yield _encode(behaviour, _envelope(behaviour, behaviour["wrong_id"], {"result": stray}))
    answer = _answer(behaviour, method, params)
    for _ in range(0 if answer is None else behaviour.get("times", 1)):
        yield _encode(behaviour, _envelope(behaviour, number, answer))
    for part in behaviour.get("after", []):
        yield _encode(behaviour, part)


def _answer(behaviour: dict[str, Any], method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "server/discover" and "discover" in behaviour:
        return behaviour["discover"]
    if method in behaviour.get("errors", {}):
        return {"error": behaviour["errors"][method]}
    match method:
        case "initialize":
            plain = {
                "protocolVersion": params.get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
            return {"result": behaviour.get("handshake", plain | behaviour.get("handshake_more", {}))}
        case "tools/list":
            pages = behaviour.get("pages", [{"tools": behaviour.get("tools", [GOOD_TOOL])}])
            cursors = behaviour.get("cursors", [str(number) for number in range(len(pages))])
            cursor = params.get("cursor")
            page = pages[cursors.index(cursor) if cursor in cursors else 0]
            return {"error": page["error"]} if isinstance(page, dict) and "error" in page else {"result": page}
        case "tools/call" if "no_result" in behaviour:
            return {}
        case "tools/call":
            return {"result": RAW if "raw_result" in behaviour else behaviour.get("result", FINE)}
    return {"error": {"code": -32601, "message": "Method not found"}}


def _envelope(behaviour: dict[str, Any], number: Any, answer: dict[str, Any]) -> Any:
    id_as = {"text": str, "float": float}.get(behaviour.get("id_as", ""), lambda same: same)
    whole = {"jsonrpc": "2.0", "id": id_as(number), **behaviour.get("envelope", {}), **answer}
    for key in behaviour.get("without", []):
        del whole[key]
    return [*behaviour.get("batch_more", []), whole] if "batch" in behaviour else whole


def _encode(behaviour: dict[str, Any], message: Any) -> bytes:
    if isinstance(message, str):  # no message, but a line of text
        return message.encode("utf-8", "surrogatepass")
    text = json.dumps(message, ensure_ascii=behaviour.get("ascii", True), indent=behaviour.get("indent"))
    if isinstance(message, dict) and message.get("result") == RAW:
        text = text.replace(json.dumps(RAW), behaviour["raw_result"])
    encoding = behaviour.get("encoding", "utf-8")
    if '"content"' in text:
        encoding = behaviour.get("call_encoding", encoding)
    encoded = (behaviour.get("prefix", "") + text).encode(encoding, "surrogatepass")
    return encoded + behaviour.get("suffix", "").encode()


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        behaviour = json.load(file)
    for word in behaviour.get("stderr", []):
        sys.stderr.write(f"{word}\n")
    sys.stderr.flush()
    for word in behaviour.get("banner", []):
        sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
    if "exit" in behaviour:
        sys.exit(behaviour["exit"])
    for number, line in enumerate(sys.stdin):
        if number == 0 and "expects" in behaviour and json.loads(line).get("method") != behaviour["expects"]:
            sys.exit("it expected another first request")
        is_last = json.loads(line).get("method") == behaviour.get("exits_after", "")
        written = behaviour.get("between", "\n").encode().join(answer_line(behaviour, line))
        sys.stdout.buffer.write(written + (b"\n" if written and not is_last else b""))
        sys.stdout.buffer.flush()
        if is_last:
            return


if __name__ == "__main__":
    main()
