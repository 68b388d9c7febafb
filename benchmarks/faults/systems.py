"""The systems that are put to the test, each in its documented durable configuration."""

from __future__ import annotations

import atexit
import json
import os
import subprocess as processes
import sys
import tempfile
from asyncio import create_subprocess_exec, subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from loopfaults.mcp import McpSystem, read_mapping
from loopfaults.sweep import Subject
from loopfaults.systems import Died, Forked, State, Zygote

from benchmarks.peers import LANGGRAPH, OPENAI_AGENTS, make_peer
from tests.foreign.environs import Missing, PythonEnv

HERE = Path(__file__).parent
PEERS = HERE / "peers"
PROGRAM = Path(sys.executable).with_name("kairos-mcp")
POSTGRES = "FAULTS_POSTGRES"


class Databases:
    """A PostgreSQL server, with a database for each case, which is dropped when the next one begins."""

    def __init__(self) -> None:
        """Raises Missing."""
        if POSTGRES not in os.environ:
            raise Missing(f"{POSTGRES}, the address of a PostgreSQL server without a database")
        self.template, self._case = "template1", ""
        atexit.register(self._drop_all)

    def locate(self, name: str) -> str:
        """Return where the database of a case is, which is made for the first process of the case."""
        if name != self._case:
            self._execute(f'drop database if exists "{self._case or name}" with (force)')
            self._execute(f'create database "{name}" template "{self.template}"')
            self._case = name
        return f"{os.environ[POSTGRES].rstrip('/')}/{quote(name)}"

    def make_template(self, migrate: Callable[[str], None]) -> None:
        """Let the databases begin with the tables that are made here."""
        migrate(self.locate(name := f"kairos-faults-{os.getpid()}"))
        self.template, self._case = name, ""

    def _drop_all(self) -> None:
        for name in {self._case, self.template} - {"", "template1"}:
            self._execute(f'drop database if exists "{name}" with (force)')

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(f"{os.environ[POSTGRES].rstrip('/')}/postgres", autocommit=True) as connection:
            connection.execute(statement)


class Kairos(McpSystem):
    """`serve` on stdio. A server that stands still keeps its runs until a person takes them from it."""

    async def resume(self) -> State:
        if "id" in self.values:
            result = await self.call("run_control", {"run_id": self.values["id"], "action": "resume"})
            if result.get("code") == "busy":
                await self._release_others()
        return await super().resume()

    async def _release_others(self) -> None:
        listed = json.loads(await self._command("status", "--json"))
        for server in listed["servers"]:
            if server.get("pid") != self.pid:
                await self._command("status", "--release", str(server["number"]))

    async def _command(self, *words: str) -> bytes:
        """Run a command of the program on the state of this case, as a person at a terminal does."""
        pipe = subprocess.PIPE
        own = (self.words[0], *words, *self.words[2:])
        ran = await create_subprocess_exec(*own, stdout=pipe, stderr=pipe, env=self.env)
        printed, _ = await ran.communicate()
        return printed


class KairosWork(Kairos):
    """`kairos-mcp work` beside it, which drives what servers leave: it is killed, and started again as by a supervisor.

    Nobody calls anything after that. How the job stands is read by `kairos-mcp show`.
    """

    async def open(self) -> State:
        own = (self.words[0], "work", *self.words[2:])
        with (self.folder / "log").open("ab") as log:
            self._worker = await create_subprocess_exec(*own, stdout=log, stderr=log, env=self.env)
        self.pid = self._worker.pid
        known = self.folder / "run"
        if not known.exists():
            return State("idle")
        self.values["id"] = known.read_text()
        return await self.look()

    async def look(self) -> State:
        if "id" not in self.values:
            return State("idle")
        state = State("idle")
        for _ in range(60):
            shown = json.loads(await self._command("show", self.values["id"], "--json"))
            if self._worker.returncode is not None:
                raise Died
            state = self.read(shown)
            if state.status != "idle":
                break
        return state

    async def start(self) -> State:
        return await self._by_server("start")

    resume = look

    async def answer(self, decision: str) -> State:
        return await self._by_server("answer", decision)

    async def settle(self, happened: bool) -> State:
        return await self._by_server("settle", happened)

    async def _by_server(self, verb: str, *given: Any) -> State:
        """Make a call through a server that lives as long as the call, as a host's does."""
        only = {name: value for name, value in self.mapping[verb].items() if name != "then"}
        server = McpSystem({**self.mapping, verb: only}, self.folder, self.values["url"], values=self.values)
        await server.open()
        try:
            await getattr(server, verb)(*given)
        finally:
            await server.leave()
        self.values |= {name: value for name, value in server.values.items() if name == "id"}
        (self.folder / "run").write_text(self.values["id"])
        return await self.look()


DBOS_AGENTS = PythonEnv(
    "openai-agents-dbos", ("openai-agents==0.24.0", "dbos-openai-agents==0.3.0", "dbos==3.4.0", "openai==3.54.0")
)
LANGGRAPH_OPENAI = PythonEnv("langgraph-openai", (*LANGGRAPH.packages, "langchain-openai"))
PYDANTIC_RESTATE = PythonEnv(
    "pydantic-ai-restate", ("pydantic-ai-slim[openai,mcp]==2.68.0", "restate-sdk==1.2.0", "hypercorn==0.18.0")
)
PYDANTIC_DBOS = PythonEnv("pydantic-ai-dbos-openai", ("pydantic-ai-slim[dbos,openai]==2.68.0", "dbos==3.4.0"))
SMOLAGENTS_OPENAI = PythonEnv("smolagents-openai", ("smolagents[openai]==1.26.0",))
FASTMCP = PythonEnv("fastmcp-tasks", ("fastmcp[tasks]==4.1.4", "openai==3.54.0"))
DURABL = PythonEnv("durabl", ("durabl==0.1.0", "openai==3.54.0"))


@dataclass(frozen=True, slots=True)
class Peer:
    """A framework by its module in `peers`. `contract`: what its own documents promise after a crash.

    `service`: the setting of the environment that names the running server which it needs, with spaces between several
    addresses; a PostgreSQL server is given a database for each case.
    """

    title: str
    environment: PythonEnv
    module: str
    contract: str
    options: tuple[str, ...] = ()
    has_approval: bool = True
    notes: str = ""
    service: str = ""


AT_LEAST_ONCE = "steps at least once: what had begun and was not stored runs again"
PEER_SYSTEMS = {
    "langgraph": Peer("LangGraph, SqliteSaver, `sync`", LANGGRAPH_OPENAI, "peer_langgraph", AT_LEAST_ONCE, ("sync",)),
    "langgraph_async": Peer(
        "LangGraph, SqliteSaver, `async`", LANGGRAPH_OPENAI, "peer_langgraph", AT_LEAST_ONCE, ("async",)
    ),
    "pydantic_dbos": Peer("pydantic-ai with DBOS, SQLite", PYDANTIC_DBOS, "peer_pydantic_dbos", AT_LEAST_ONCE),
    "pydantic_dbos_postgres": Peer(
        "pydantic-ai with DBOS, PostgreSQL", PYDANTIC_DBOS, "peer_pydantic_dbos", AT_LEAST_ONCE, service=POSTGRES
    ),
    "pydantic_restate": Peer(
        "pydantic-ai with Restate",
        PYDANTIC_RESTATE,
        "peer_pydantic_restate",
        AT_LEAST_ONCE,
        notes="restate-server 1.7.12 beside it, which is not killed",
        service="FAULTS_RESTATE",
    ),
    "openai_agents": Peer(
        "openai-agents, SQLiteSession",
        OPENAI_AGENTS,
        "peer_agents",
        "the conversation is kept; a run that died is begun again on it",
    ),
    "agents_dbos": Peer(
        "openai-agents with DBOS",
        DBOS_AGENTS,
        "peer_dbos_agents",
        AT_LEAST_ONCE,
        has_approval=False,
        notes="its runner fails with a KeyError where a run goes on from a RunState, so nobody is asked",
    ),
    "durabl": Peer(
        "durabl, effects AT_MOST_ONCE",
        DURABL,
        "peer_durabl",
        "effects at most once; what is unclear ends the run",
        has_approval=False,
        notes="no approval, and no verb to settle; where the other end honours keys, a tool would be IDEMPOTENT",
    ),
    "fastmcp": Peer(
        "fastmcp tasks, memory",
        FASTMCP,
        "peer_fastmcp",
        "a task is lost with its process",
        ("memory://",),
        has_approval=False,
        notes="the loop is written by hand inside a task",
    ),
    "fastmcp_redis": Peer(
        "fastmcp tasks, Redis",
        FASTMCP,
        "peer_fastmcp",
        "a task at least once: one whose worker died is begun again",
        has_approval=False,
        notes="the loop is written by hand inside a task; redelivered after 3 s, where the default is 300",
        service="FAULTS_REDIS",
    ),
    "smolagents": Peer(
        "smolagents",
        SMOLAGENTS_OPENAI,
        "peer_smolagents",
        "stores nothing",
        has_approval=False,
    ),
}
QUIET = {
    "LANGSMITH_TRACING": "false",
    "DO_NOT_TRACK": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "none",
}


def make_subject(name: str) -> Subject:
    """Return a system by its name, in its environment. Raises Missing, RuntimeError, KeyError."""
    return _make_kairos(name) if name.startswith("kairos") else _make_peer_subject(name, PEER_SYSTEMS[name])


def _make_kairos(name: str) -> Subject:
    mapping = read_mapping(HERE / "kairos.toml")
    mapping["server"]["command"][0] = str(PROGRAM)
    about = {"version": version("kairos-loop"), "contract": "effects at most once; a person settles what is unclear"}
    if name == "kairos_work":  # processes of its own, as a supervisor starts them
        about |= {"title": "Kairos, `work` beside it"}
        return Subject(name, lambda folder, url: KairosWork(mapping, folder, url), about=about)
    zygote = Zygote(Path(sys.executable), "kairos_server", os.environ, PEERS)
    about |= {"title": mapping["server"]["title"]}
    files = mapping["server"]["files"]
    if is_keyed := "keyed" in name:  # the other end carries out once what comes with one key
        files["kairos.toml"] = files["kairos.toml"].replace('"irreversible"', '"keyed"')
        about |= {"title": "the same, effects `keyed`", "contract": "effects once, where the other end honours keys"}
    locate = _no_database
    if "postgres" in name:
        files["kairos.toml"] = 'store = "{database}"\n' + files["kairos.toml"]
        about |= {"title": f"{about['title']}, PostgreSQL"}
        databases = Databases()
        databases.make_template(_migrate)
        locate = databases.locate
    return Subject(
        name,
        lambda folder, url: Kairos(mapping, folder, url, zygote=zygote, values={"database": locate(folder.name)}),
        zygote,
        about,
        is_keyed=is_keyed,
    )


def _no_database(_case: str) -> str:
    return ""


def _migrate(database: str) -> None:
    with tempfile.TemporaryDirectory(prefix="kairos-faults-") as folder:
        settings = Path(folder) / "kairos.toml"
        settings.write_text(f'store = "{database}"\n', encoding="utf-8")
        words = [PROGRAM, "store", "migrate", "--home", f"{folder}/home", "--config", settings]
        processes.run(words, check=True, capture_output=True)


def _make_peer_subject(name: str, peer: Peer) -> Subject:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **QUIET}
    zygote = Zygote(make_peer(peer.environment), peer.module, env, PEERS)
    about: Mapping[str, Any] = {
        "title": peer.title,
        "version": ", ".join(peer.environment.packages),
        "contract": peer.contract,
        "notes": peer.notes,
    }
    if peer.service and peer.service not in os.environ:
        raise Missing(peer.service)
    databases = Databases() if peer.service == POSTGRES else None
    addresses = tuple(os.environ.get(peer.service, "").split())

    def make(folder: Path, url: str) -> Forked:
        options = (databases.locate(folder.name),) if databases else (*peer.options, *addresses)
        return Forked(zygote, folder, url, options)

    return Subject(name, make, zygote, about, has_approval=peer.has_approval)
