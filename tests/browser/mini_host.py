"""A host of MCP Apps in a few lines: a sandboxed frame, and a real MCP client of either protocol era behind it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mcp import StdioServerParameters
from mcp.client.client import Client, ClientExtension
from mcp.shared.exceptions import MCPError
from support.app import Place

from tests.browser.served_page import WITHIN_S, environ_of

EXTENSION = "io.modelcontextprotocol/ui"
MIME_TYPE = "text/html;profile=mcp-app"
# What the specification has a host set where a document asks for no domain; and no document of ours may need more.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'none'"

HOST = """<!doctype html><meta charset="utf-8"><title>host</title><body>
<iframe sandbox="allow-scripts" width="620" height="300"></iframe>
<script type="module">
const frame = document.querySelector("iframe");
const { document: content, input, result, theme } = await (await fetch("/opened")).json();
window.links = []; window.contexts = []; window.calls = []; window.declines = []; // tools that its user declines
const answers = {
  "ui/initialize": () => ({ protocolVersion: "2026-01-26", hostInfo: { name: "mini", version: "1" },
    hostCapabilities: { openLinks: {}, updateModelContext: {}, serverTools: {} },
    hostContext: { theme, displayMode: "inline", availableDisplayModes: ["inline", "fullscreen"],
      styles: { variables: { "--color-text-primary": "rgb(1, 2, 3)" } } } }),
  "tools/call": async (params) => {
    window.calls.push(params.name);
    if (window.declines.includes(params.name)) throw new Error("The user declined this call.");
    return (await fetch("/call", { method: "POST", body: JSON.stringify(params) })).json();
  },
  "ui/open-link": ({ url }) => (window.links.push(url), {}),
  "ui/update-model-context": (params) => (window.contexts.push(params), {}),
  "ui/request-display-mode": ({ mode }) => ({ mode }),
};
window.tell = (method, params) => frame.contentWindow.postMessage({ jsonrpc: "2.0", method, params }, "*");
addEventListener("message", async ({ source, data }) => {
  if (source !== frame.contentWindow) return;
  if (data.method === "ui/notifications/size-changed") frame.height = data.params.height;
  if (data.method === "ui/notifications/initialized") {
    tell("ui/notifications/tool-input", { arguments: input });
    tell("ui/notifications/tool-result", result);
  }
  if (data.id === undefined || data.method === undefined) return;
  const answer = answers[data.method];
  const reply = await Promise.resolve(data.params).then(answer ?? (() => { throw new Error("Unknown method"); }))
    .then((found) => ({ result: found }), ({ message }) => ({ error: { code: -32000, message } }));
  source.postMessage({ jsonrpc: "2.0", id: data.id, ...reply }, "*");
});
frame.srcdoc = content;
</script>"""


class _ShowsApps(ClientExtension):
    identifier = EXTENSION

    def settings(self) -> dict[str, Any]:
        return {"mimeTypes": [MIME_TYPE]}


class MiniHost:
    """A host whose client is connected to a server of this place; `address` is that of its page."""

    def __init__(self, place: Place, mode: str, variables: Mapping[str, str]) -> None:
        words = ["-m", "kairos_mcp", "serve", "--workspace", str(place.workspace)]
        environ = environ_of(place, **variables)
        self._parameters = StdioServerParameters(command=sys.executable, args=words, env=environ)
        self._mode = mode
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        self._ends = asyncio.Event()
        self.opened: dict[str, Any] = {}
        self.address = ""

    async def run(self, ready: threading.Event) -> None:
        client = Client(self._parameters, mode=self._mode, extensions=[_ShowsApps()])
        async with client as self._client:
            ready.set()
            await self._ends.wait()

    def await_here(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WITHIN_S)

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool, and return its result as it is on the wire."""
        result = self.await_here(self.client.call_tool(name, arguments))
        found: dict[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return found

    def open_app(self, tool: str, arguments: dict[str, Any], theme: str = "light") -> dict[str, Any]:
        """Call a tool as a model does, and show the document that goes with it; return the tool's result."""
        tools = self.await_here(self.client.list_tools()).tools
        (listed,) = [each for each in tools if each.name == tool]
        uri = listed.meta["ui"]["resourceUri"]
        (content,) = self.await_here(self.client.read_resource(uri)).contents
        assert content.mime_type == MIME_TYPE
        policy = f'<meta http-equiv="content-security-policy" content="{POLICY}">'
        result = self.call(tool, arguments)
        document = content.text.replace("<head>", f"<head>{policy}", 1)
        self.opened = {"document": document, "input": arguments, "result": result, "theme": theme}
        return result

    def serve_thread(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.run(ready))
        self._loop.close()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)


@contextmanager
def open_host(place: Place, mode: str, **variables: str) -> Iterator[MiniHost]:
    """A host until the block ends."""
    host, ready = MiniHost(place, mode, variables), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._send(
                json.dumps(host.opened) if self.path == "/opened" else HOST,
                "json" if self.path == "/opened" else "html",
            )

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with suppress(MCPError, BrokenPipeError):  # the host ends while the document waits for news
                self._send(json.dumps(host.call(asked["name"], asked["arguments"])), "json")

        def _send(self, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("content-type", {"json": "application/json", "html": "text/html"}[kind])
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threads = [threading.Thread(target=host.serve_thread, args=(ready,)), threading.Thread(target=server.serve_forever)]
    for thread in threads:
        thread.start()
    try:
        assert ready.wait(WITHIN_S), "the client did not connect"
        host.address = f"http://127.0.0.1:{server.server_address[1]}/"
        yield host
    finally:
        host.end()
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join(WITHIN_S)
