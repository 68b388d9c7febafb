"""The matrix of features: what each client does beside a run, in one session with the server, and what it can't."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.foreign.cells import (
    CLAUDE_CODE,
    CODEX,
    COPILOT,
    FAST_AGENT,
    FASTMCP,
    GEMINI,
    INSPECTOR_CLI,
    INSPECTOR_PAGE,
    LANGCHAIN,
    MCP_AGENT,
    MCP_REMOTE,
    MCPC,
    OLD,
    OPENAI_AGENTS,
    OPENCODE,
    PYDANTIC_AI,
    PYTHON_1,
    PYTHON_2,
    TYPESCRIPT_1,
    TYPESCRIPT_2,
    Client,
    Era,
)
from tests.foreign.served import Transport

FEATURES = ("approval", "OODA cycle", "team run", "task", "prompt", "resource", "completion")


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """What one connection of a client is asked to do: all features but those it `lacks`, each with the reason."""

    client: Client
    transport: Transport
    era: Era
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join((self.client.name.replace(",", "").replace(" ", "_"), self.transport, self.era))

    @property
    def features(self) -> tuple[str, ...]:
        """Those that are tried."""
        return tuple(name for name in FEATURES if name not in self.lacks)


OLDER = {"task": "tasks are of protocol 2026-07-28"}
NO_COMPLETION = {"completion": "asks for none"}
TOOLS_ONLY = {
    "prompt": "asks for the list of tools alone",
    "resource": "asks for the list of tools alone",
    **NO_COMPLETION,
}
NO_PROMPTS = {"prompt": "never asks for their list"}
REFUSES_TASKS = {"task": "refuses every result that is neither complete nor input_required"}
NO_TASKS_HEADLESS = {"task": "tried at a terminal alone, where it follows them"}
NO_TASKS = {"task": "does not declare tasks"}

SESSIONS = (
    Session(PYTHON_2, "stdio", "modern"),
    Session(PYTHON_2, "http", "modern"),
    Session(PYTHON_2, "http", "legacy", OLDER),
    Session(PYTHON_1, "stdio", "legacy", OLDER),
    Session(PYTHON_1, "http", "legacy", OLDER),
    Session(OLD, "stdio", "legacy", OLDER),
    Session(TYPESCRIPT_1, "stdio", "legacy", OLDER),
    Session(TYPESCRIPT_1, "http", "legacy", OLDER),
    Session(TYPESCRIPT_2, "stdio", "modern", REFUSES_TASKS),
    Session(TYPESCRIPT_2, "http", "modern", REFUSES_TASKS),
    Session(TYPESCRIPT_2, "http", "legacy", OLDER),
    Session(FASTMCP, "stdio", "modern"),
    Session(FASTMCP, "http", "modern"),
    Session(FASTMCP, "http", "legacy", OLDER),
    Session(PYDANTIC_AI, "stdio", "modern", NO_COMPLETION),
    Session(PYDANTIC_AI, "http", "modern", NO_COMPLETION),
    Session(FAST_AGENT, "stdio", "modern", NO_TASKS | NO_COMPLETION),
    Session(FAST_AGENT, "http", "legacy", OLDER | NO_COMPLETION),
    Session(LANGCHAIN, "stdio", "legacy", OLDER | NO_COMPLETION),
    Session(LANGCHAIN, "http", "legacy", OLDER | NO_COMPLETION),
    Session(OPENAI_AGENTS, "stdio", "modern", NO_TASKS | NO_COMPLETION),
    Session(OPENAI_AGENTS, "http", "modern", NO_TASKS | NO_COMPLETION),
    Session(MCP_AGENT, "stdio", "legacy", OLDER | NO_COMPLETION),
    Session(MCP_AGENT, "http", "legacy", OLDER | NO_COMPLETION),
    Session(MCPC, "stdio", "legacy", OLDER | NO_COMPLETION),
    Session(MCPC, "http", "legacy", OLDER | NO_COMPLETION),
    Session(INSPECTOR_CLI, "stdio", "legacy", OLDER | NO_COMPLETION),
    Session(INSPECTOR_CLI, "http", "modern", NO_COMPLETION),
    Session(INSPECTOR_PAGE, "http", "modern"),
    Session(MCP_REMOTE, "http", "modern"),
    Session(MCP_REMOTE, "http", "legacy", OLDER),
    Session(COPILOT, "stdio", "modern", NO_TASKS | TOOLS_ONLY),
    Session(CLAUDE_CODE, "stdio", "modern", NO_TASKS_HEADLESS | NO_COMPLETION),
    Session(CODEX, "stdio", "legacy", OLDER | NO_PROMPTS | NO_COMPLETION),
    Session(CODEX, "http", "legacy", OLDER | NO_PROMPTS | NO_COMPLETION),
    Session(GEMINI, "stdio", "legacy", OLDER | NO_COMPLETION),
    Session(GEMINI, "http", "legacy", OLDER | NO_COMPLETION),
    Session(OPENCODE, "stdio", "legacy", OLDER | NO_COMPLETION),
)


@dataclass(frozen=True, slots=True, eq=False)
class Harm:
    """Something that clients do which would hurt a run, the sessions that it was tried in, and what comes of it."""

    name: str
    outcome: str
    places: tuple[Session, ...]
    cell: str = ""  # the feature whose test shows it; empty: a test of its own

    @property
    def recorded_as(self) -> str:
        return self.cell or self.name


GIVES_UP = Harm(
    "gives up on each call before its model has answered, and calls again",
    "what was asked lives on; the run ends, and its model is asked once a round",
    tuple(Session(PYTHON_1, transport, "legacy") for transport in ("stdio", "sse", "http")),
)
GIVES_UP_AFTER_5_S = Harm(
    "gives up a call after 5 s, and makes it again",
    "the second call attaches to the run of the first, and nothing is done twice",
    (Session(OPENAI_AGENTS, "stdio", "modern"),),
)
DECLINES = Harm(
    "declares dialogs, and declines each by itself when nobody sits before it (`codex exec`, `copilot -p`)",
    "the run waits, and a person decides by the command that the result shows",
    (Session(CODEX, "stdio", "legacy"), Session(COPILOT, "stdio", "modern")),
    "approval",
)
FILLS_IN = Harm(
    "asks for a prompt with placeholders (`$1`, `$2`) as arguments, and puts what its user types in their place",
    "the text keeps those of what the prompt needs and leaves out the others: once they are filled in, it is whole",
    (Session(OPENCODE, "stdio", "legacy"),),
    "prompt",
)
HARMS = (GIVES_UP, GIVES_UP_AFTER_5_S, DECLINES, FILLS_IN)
