"""The files in deploy/, and what they start, as processes of this machine: servers and workers behind HAProxy."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
import yaml

import kairos_mcp
from support import forked_program
from support.forked_program import Forked
from support.http_server import META, MODERN
from support.waiting import wait_until

DEPLOY = Path(kairos_mcp.__file__).parent.parent / "deploy"
NAME = "kairos.example.com"  # by which clients know the servers
STORE, STORE_PASSWORD, MODEL, MODEL_KEY = "KAIROS_STORE", "KAIROS_STORE_PASSWORD", "KAIROS_MODEL", "KAIROS_MODEL_KEY"
START_S = 60.0


def compose() -> dict[str, Any]:
    """The compose file."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return found


def manifest() -> list[dict[str, Any]]:
    """The objects of the Kubernetes manifest."""
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))


def require_haproxy() -> str:
    """The program, without which a test is skipped."""
    program = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("needs haproxy: apt-get install haproxy")
    return program


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


@dataclass
class Deployment:
    """What the compose file starts, on ports of this machine: the folder `root` has what its volumes and secrets have.

    `database`: where the rows are. `script`: the model's completions, in place of the provider's. `ports`: of the
    servers; `port`: of the proxy.
    """

    root: Path
    database: str
    script: Path
    ports: list[int]
    token: str = ""
    web: list[Forked] = field(default_factory=list)
    work: list[Forked] = field(default_factory=list)
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def environ(self, service: str) -> dict[str, str]:
        """What the file sets for a service, but for the database, the model and the folder of the files."""
        given = dict(compose()["services"][service]["environment"])
        assert {given.pop(name).partition(":")[0] for name in (STORE_PASSWORD, MODEL_KEY)} == {"file"}
        assert given.pop(MODEL)
        here = {STORE: self.database, "KAIROS_SCRIPT": str(self.script), "KAIROS_WORKSPACE": self._here("/files")}
        here["OTEL_EXPORTER_PROMETHEUS_PORT"] = str(free_port())  # a container has addresses of its own
        plain = {name: value for name, value in os.environ.items() if not name.startswith("KAIROS_")}
        return plain | given | here

    def words(self, service: str) -> list[str]:
        """The command of a service, as the file has it."""
        return [str(word) for word in compose()["services"][service]["command"]]

    def run(self, service: str, *words: str) -> str:
        """Run a service's command, or these words in its place, to its end; return what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "kairos_mcp", *(words or self.words(service)), *self._home(service)],
            env=self.environ(service),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_web(self, number: int) -> Forked:
        """Start a server, on its port of this machine."""
        at = {"0.0.0.0": "127.0.0.1", "8765": str(self.ports[number])}
        words = [at.get(word, word) for word in self.words("web")]
        return self._start(f"web-{number}", words, "web")

    def start_work(self, number: int) -> Forked:
        return self._start(f"work-{number}", self.words("work"), "work")

    def _start(self, name: str, words: list[str], service: str) -> Forked:
        log = (self.root / f"{name}.log").open("ab")
        with log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            return forked_program.start([*words, *self._home(name)], env=self.environ(service), **streams)

    def _home(self, name: str) -> list[str]:
        return ["--home", self._here(f"/state-{name}")]

    def _here(self, path: str) -> str:
        folder = Path(f"{self.root}{path}")
        folder.mkdir(mode=0o700, exist_ok=True)
        return str(folder)

    @property
    def trusted(self) -> ssl.SSLContext:
        """What a client trusts that knows the proxy."""
        return ssl.create_default_context(cafile=str(self.root / "authority.pem"))

    def wait_until_ready(self, url: str, log: str) -> None:
        """Return once a server, or the proxy for one, says that it is ready; else fail with what is in its log."""

        def is_ready() -> bool:
            try:
                return httpx2.get(f"{url}/readyz", verify=self.trusted).status_code == 200
            except httpx2.HTTPError:
                return False

        wait_until(is_ready, START_S, (self.root / log).read_text)

    def ask(self, server: int, method: str, params: dict[str, Any], declared: dict[str, Any]) -> Any:
        """Return the result of a request that one of the servers is sent, by a client that declares this."""
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": declared}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Host": NAME,
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "MCP-Method": method,
            "MCP-Name": params.get("name") or params.get("taskId") or "",
        }
        url = f"http://127.0.0.1:{self.ports[server]}/mcp"
        return httpx2.post(url, json=body, headers=headers, timeout=START_S).json()["result"]

    def last_server(self) -> int:
        """Which server the proxy has sent the newest request to, from 0."""
        found = re.findall(r"servers/web(\d+) .*/mcp", (self.root / "proxy.log").read_text())
        return int(found[-1]) - 1

    def proxy_config(self) -> str:
        """The file for HAProxy, with the port of this place and its servers in place of their name."""
        text = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
        servers = "\n".join(f"    server web{n} 127.0.0.1:{port}" for n, port in enumerate(self.ports, 1))
        text, places = re.subn(r"^ +server-template .*$", servers, text, flags=re.MULTILINE)
        text, binds = re.subn(r"^( +bind) :443 ", rf"\1 127.0.0.1:{self.port} ", text, flags=re.MULTILINE)
        assert (places, binds) == (2, 1)
        return text


@contextmanager
def deployed(root: Path, database: str, script: Path, servers: int = 2) -> Iterator[Deployment]:
    """What the compose file starts, but for the proxy, until the block ends: tables, servers, two workers."""
    place = Deployment(root, database, script, ports=[free_port() for _ in range(servers)])
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(root / "tls.pem"))
    authority.cert_pem.write_to_path(str(root / "authority.pem"))
    place.run("migrate")
    place.token = place.run("migrate", "token", "add", "me").split()[-1]
    try:
        place.web = [place.start_web(number) for number in range(servers)]
        place.work = [place.start_work(number) for number in range(2)]
        for number, port in enumerate(place.ports):
            place.wait_until_ready(f"http://127.0.0.1:{port}", f"web-{number}.log")
        yield place
    finally:
        for process in [*place.web, *place.work]:
            process.kill()
            process.wait()


@contextmanager
def deployed_behind_proxy(root: Path, database: str, script: Path) -> Iterator[Deployment]:
    """All that the compose file starts, until the block ends."""
    haproxy = require_haproxy()
    with deployed(root, database, script) as place, (root / "proxy.log").open("wb") as log:
        config = root / "haproxy.cfg"
        config.write_text(place.proxy_config(), encoding="utf-8")
        environ = {**os.environ, "TLS_PEM": str(root / "tls.pem"), "SERVERS": "web"}
        proxy = subprocess.Popen([haproxy, "-db", "-f", str(config)], env=environ, stdout=log, stderr=log)
        try:
            place.wait_until_ready(place.url, "proxy.log")
            yield place
        finally:
            proxy.kill()
            proxy.wait()
