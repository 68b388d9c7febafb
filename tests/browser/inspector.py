"""The inspector's web page as a host of MCP Apps that others wrote, on a server of this program over stdio."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.app import Place

from tests.browser.served_page import WITHIN_S, environ_of, free_port
from tests.foreign.cells import INSPECTOR_PAGE, Era
from tests.foreign.environs import make_environment

LAUNCHER = Path("node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js")
ADDRESS = re.compile(r"http://\S+_TOKEN=\S+")


@contextmanager
def open_inspector(place: Place, cache: Path, era: Era, **variables: str) -> Iterator[str]:
    """The inspector's own server until the block ends; the address for a browser. Raises Missing."""
    folder = make_environment(INSPECTOR_PAGE.environ, cache)
    own = {name: value for name, value in environ_of(place, **variables).items() if name.startswith("KAIROS_")}
    words = ["-m", "kairos_mcp", "serve", "--workspace", str(place.workspace)]
    entry = {"type": "stdio", "command": sys.executable, "args": words, "env": own, "protocolEra": era}
    servers = place.root / "servers.json"
    servers.write_text(json.dumps({"mcpServers": {"kairos": entry}}))
    environ = {
        **os.environ,
        "HOME": str(place.root),
        "CLIENT_PORT": str(free_port()),
        "MCP_AUTO_OPEN_ENABLED": "false",
        "MCP_SANDBOX_PORT": "0",
        "MCP_INSPECTOR_SECRET_STORE": "memory",
    }
    command = [INSPECTOR_PAGE.environ.program(folder), str(folder / LAUNCHER), "--web", "--config", str(servers)]
    log = place.root / "inspector.log"
    with log.open("w") as output:
        program = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield _read_address(program, log)
    finally:
        os.killpg(program.pid, signal.SIGTERM)
        program.wait(WITHIN_S)


def _read_address(program: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(int(WITHIN_S * 10)):
        if found := ADDRESS.search(log.read_text()):
            return found[0]
        try:
            program.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(log.read_text())


def open_app(page: Any, address: str, title: str, arguments: Mapping[str, Any]) -> Any:
    """Call the tool of this title in the inspector's page as its user does; return the frame that shows its app."""
    page.goto(address)
    page.get_by_role("switch").first.click(force=True)  # connects to the one server that it knows
    page.get_by_text("Apps", exact=True).first.click()
    page.get_by_text(title, exact=True).first.click()
    page.get_by_role("switch", name="Edit as JSON").click(force=True)
    page.locator(".ace_content").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(json.dumps(arguments))
    page.get_by_role("button", name="Open App").click()
    return page.frame_locator("iframe").frame_locator("iframe")
