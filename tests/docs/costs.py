"""The page `docs/costs.md`: each input from outside with its bound. Made again by `python tests/docs/costs.py`."""

from __future__ import annotations

from pathlib import Path

from kairos_mcp.app.receivers import REPLY_BYTES
from kairos_mcp.app.redact_aside import SMALL_CHARS
from kairos_mcp.core import (
    flow,
    input_checks,
    json_bounds,
    json_schema,
    masked_file,
    patterns,
    redaction,
    safe_patterns,
    work,
)
from kairos_mcp.core.secret_grammar import MAX_JUDGED
from kairos_mcp.history.format import MAX_LINE_BYTES
from kairos_mcp.models.replies.border import MAX_REPLY_BYTES
from kairos_mcp.page.guard import BODY_BYTES as ACT_BYTES
from kairos_mcp.server.framing import LINE_BYTES
from kairos_mcp.server.http_bounds import RequestBounds
from kairos_mcp.server.oauth import MAX_KEYS_BYTES
from kairos_mcp.server.observer_page import EXCHANGE_BYTES
from kairos_mcp.settings import agents, bounded_files, schema
from kairos_mcp.tools.commands import protected_paths
from kairos_mcp.tools.files import walk
from kairos_mcp.tools.http import client, openapi
from kairos_mcp.tools.mcp_servers import definition, flood_guard
from kairos_mcp.tools.mcp_servers.tool_results import CHECKED_BYTES
from kairos_mcp.tools.skills import HEAD_BYTES

PAGE = Path(__file__).parents[2] / "docs" / "costs.md"
HEAD = """# What an input from outside may cost

Kairos checks what an input from outside could cost, before it does the work. One input keeps the event loop busy for
some 20 ms, and for 50 ms at most, and takes less than 100 MB. What runs in a worker thread may take longer; the loop
goes on meanwhile. The bounds are counts, so that every machine and every replay accepts and refuses the same inputs
([decisions](decisions.md) has the reasons). A refusal says why.

`tests/docs/costs.py` makes this page from the code's own figures; a test finds each parser that it leaves out.

| input | most | where | beyond that |
|---|---|---|---|
"""

_VALUES = f"{json_bounds.MAX_VALUES:,} values"
_MESSAGE = f"{json_bounds.MESSAGE_VALUES:,} values"
_STEPS = f"{work.LOOP_UNITS:,} units of work ({work.THREAD_UNITS:,} in a worker thread)"

ROWS = (
    ("a message of a client, by stdio", f"{LINE_BYTES:,} bytes, {_VALUES}", "server/framing.py", "an error for its id"),
    (
        "a message of a client, by HTTP",
        f"{RequestBounds().body_bytes:,} bytes, {_VALUES}",
        "server/http_guard.py, server/framing.py, server/http_events.py",
        "413, or an error",
    ),
    (
        "arguments of our tools",
        f"{_VALUES}, {input_checks.MAX_DEPTH} levels",
        "server/validation.py",
        "`bad_arguments`",
    ),
    ("an act on the page", f"{ACT_BYTES:,} bytes, {_VALUES}", "page/app.py", "an error"),
    (
        "an answer or a reply that is JSON, and JSON in a text",
        f"{input_checks.REPLY_BYTES:,} bytes, {_VALUES}, {input_checks.MAX_DEPTH} levels",
        "core/input_checks.py, models/written_calls.py",
        "the model is told, and may repair it",
    ),
    (
        "a schema: of a caller, a server, a tool",
        f"{json_schema.SCHEMA_BYTES:,} bytes, {json_schema.SCHEMA_NODES:,} parts, {json_schema.EXPANDED_NODES:,} with "
        f"its refs followed; {json_schema.MAX_PATTERNS} patterns; `unevaluated…` at the top alone",
        "core/json_schema.py",
        "a caller's is refused; a server's tool stays, without what can't be checked, with a note",
    ),
    (
        "a value against a schema",
        _STEPS,
        "core/work.py, core/json_schema_rules.py, core/schema_tests.py",
        "it does not fit; content of a server is shown with a note",
    ),
    (
        "a pattern of a schema",
        f"{safe_patterns.PATTERN_CHARS:,} characters, {safe_patterns.PATTERN_BYTES:,} bytes compiled; a search: the "
        f"product of text and program by {safe_patterns.BYTES_PER_UNIT} a unit",
        "core/safe_patterns.py",
        "as the schema, or the value",
    ),
    (
        "a pattern of a search",
        f"{patterns.PATTERN_CHARS:,} characters, {patterns.PROGRAM_SIZE:,} instructions, {patterns.MAX_MEM:,} bytes",
        "core/patterns.py",
        "`bad_arguments`",
    ),
    (
        "a search in a run's record",
        f"{work.THREAD_UNITS:,} units of work for all its lines; in a worker thread",
        "core/patterns.py, views/trace.py, app/records.py, app/run_steps.py",
        "`bad_arguments`",
    ),
    (
        "a `.gitignore`, in a worker thread",
        f"{walk.IGNORE_BYTES:,} bytes, {walk.MAX_RULES:,} rules of {walk.RULE_CHARS:,} characters and "
        f"{walk.RULE_SETS} sets as `[a-z]`, of which {walk.RULES_AT_ONCE}, or {walk.RULE_CHARS_AT_ONCE:,} characters, "
        "are compiled at once",
        "tools/files/walk.py",
        "later or longer rules count for nothing; the result says so",
    ),
    (
        "the folders of a workspace in which a program runs, before and after it; in a worker thread",
        f"{protected_paths.MAX_FOLDERS:,} folders before, all after, with paths of up to "
        f"{protected_paths.MAX_PATH_CHARS:,} characters; {protected_paths.MAX_SEEN:,} are remembered, and "
        "not listed again while they are unchanged",
        "tools/commands/protected_paths.py",
        "no program runs; a call that nested folders deeper has failed",
    ),
    ("a glob", f"{patterns.GLOB_CHARS} characters, {patterns.GLOB_STARS} times `**`", "core/patterns.py", "as above"),
    (
        "a reply of a provider",
        f"{MAX_REPLY_BYTES:,} bytes; {_MESSAGE} as a whole, or in one event",
        "models/replies/border.py, models/replies/events.py, models/replies/message.py, models/replies/chat.py, "
        "models/replies/calls.py, models/replies/pieces.py, models/replies/errors.py, models/replies/exchange.py",
        "`provider_error`",
    ),
    (
        "a message of an MCP server",
        f"{flood_guard.MAX_MESSAGE_BYTES:,} bytes, {_MESSAGE}",
        "tools/mcp_servers/child.py, tools/mcp_servers/bounded_http.py, tools/mcp_servers/message_repair.py",
        "the connection ends, and the call says why",
    ),
    (
        "the tools that it lists",
        f"{definition.MAX_TOOLS} tools, {definition.MAX_DEFINITION_BYTES:,} bytes each, "
        f"{definition.MAX_LISTING_BYTES:,} in all; read in a worker thread",
        "tools/mcp_servers/definition.py",
        "the rest is left out, with a note",
    ),
    (
        "its structured content against its schema",
        f"{CHECKED_BYTES:,} bytes, {_VALUES}; in a worker thread",
        "tools/mcp_servers/tool_results.py",
        "shown with a note",
    ),
    (
        "a reply to an HTTP tool",
        f"{client.BODY_BYTES:,} bytes, {_MESSAGE}; in a worker thread",
        "tools/http/http_tool.py, tools/http/client.py",
        "cut with a note; a place in it is not looked up",
    ),
    (
        "the reply of a webhook's endpoint to its challenge",
        f"{REPLY_BYTES:,} bytes; in a worker thread",
        "app/receivers.py",
        "it counts as none",
    ),
    ("keys of an OAuth issuer", f"{MAX_KEYS_BYTES:,} bytes", "server/oauth.py", "the issuer's tokens are refused"),
    ("a token that an issuer gives", f"{EXCHANGE_BYTES:,} bytes", "server/observer_page.py", "nobody is signed in"),
    (
        "an agent's file",
        f"{agents.AGENT_BYTES:,} bytes, {agents.HEAD_CHARS:,} characters of YAML, {agents.HEAD_LEVELS} levels, no "
        "references",
        "settings/agents.py",
        "left out, and named",
    ),
    ("the head of a skill", f"{HEAD_BYTES:,} bytes", "tools/skills.py", "left out, and named"),
    (
        "a file that a command reads, in a process of its own: of a host, a mandate, an answer, servers to import",
        f"{bounded_files.FILE_BYTES:,} bytes, of servers to import {json_bounds.DOCUMENT_VALUES:,} values",
        "settings/bounded_files.py, cli/tools_import.py, cli/host_formats.py, core/jsonc.py, cli/mandates.py, "
        "tools/config_import.py",
        "an error",
    ),
    (
        "JSON that a tool answered, where the rules of information flow look at it; in a worker thread",
        _VALUES,
        "core/flow_text.py",
        "it counts as running text",
    ),
    (
        "what a call takes along, where those rules look for it in the rows in view; in a worker thread",
        f"{flow.MAX_SENT:,} characters, {flow.MAX_COMPARED:,} compared",
        "core/flow.py",
        "a person is asked",
    ),
    (
        "a line of an exported run, in a process of its own",
        f"{MAX_LINE_BYTES:,} bytes, {json_bounds.DOCUMENT_VALUES:,} values",
        "history/format.py",
        "an error",
    ),
    (
        "an OpenAPI document, in a process of its own",
        f"{openapi.DOCUMENT_BYTES:,} bytes, {json_bounds.DOCUMENT_VALUES:,} values, no merges of YAML",
        "tools/http/openapi.py",
        "an error",
    ),
    (
        "secrets in what a client brings",
        f"{MAX_JUDGED:,} places of each form; in a worker thread beyond {SMALL_CHARS:,} characters",
        "app/redact_aside.py, core/secret_grammar.py",
        "the rest of the line is masked, whatever it is",
    ),
    (
        "secrets in a file that is read or searched, in a worker thread",
        f"{MAX_JUDGED:,} places of each form; {masked_file.PIECE_BYTES:,} bytes at once, each followed by a look at "
        f"the time that a search has; {redaction.CACHED_BYTES:,} bytes of masked files remembered",
        "core/masked_file.py, core/redaction.py, core/secret_spans.py",
        "a search shows what it found by then, and says so",
    ),
    ("the settings file", f"{schema.SETTINGS_BYTES:,} bytes", "settings/schema.py", "an error"),
)
"""Input, bound, the modules that hold it to that or read it, and what becomes of more."""

OURS = {
    "app/proposals.py",
    "app/answers.py",
    "app/mandate_triggers.py",
    "app/notifier.py",
    "app/server_events.py",
    "app/subscriptions.py",
    "app/tools.py",
    "cli/demo.py",
    "cli/install.py",
    "cli/run.py",
    "cli/tools.py",
    "core/redact_values.py",
    "models/provider_messages.py",
    "server/request_state.py",
    "server/mcp_server.py",
    "server/tasks.py",
    "server/tokens.py",
    "settings/proposal.py",
    "settings/http_tool_table.py",
    "store/mandates.py",
    "store/postgres/copy.py",
    "store/rows.py",
    "store/tasks.py",
    "tools/commands/interrupted_command.py",
    "tools/entry_points.py",
    "tools/files/plans.py",
    "tools/files/transaction.py",
    "tools/mandate_tools.py",
    "tools/stage/apply.py",
    "tools/stage/copies.py",
    "tools/stage/mounter.py",
    "tools/stage/mounts.py",
    "tools/stage/stage.py",
}
"""Modules that parse what this program wrote itself, what was bounded before, or what its own user typed."""


def costs_page() -> str:
    lines = (
        f"| {what} | {most} | {', '.join(f'`{name}`' for name in where.split(', '))} | {beyond} |"
        for what, most, where, beyond in ROWS
    )
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(costs_page())
