"""The built-in tools: one row each, with all that the rest of the program knows of a tool by its name.

What a model sees of a tool, and its function, are in the tool's own file under `tools/`, which makes its spec from its
row. The names and effects are stored with runs: they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from kairos_mcp.core.effects import Effect, Reach
from kairos_mcp.core.messages import SEARCH, JsonObject, ToolSet, ToolSpec

MAX_SUBMITTED_FILES = 2_000  # in one question

Needs = Literal["nothing", "workspace", "commands", "web", "skills", "many_tools", "team", "mandate", "stage"]
"""What a tool can't exist without: `commands` is a workspace whose settings allow programs, `web` the setting that
switches http_fetch on, `many_tools` a run that has more tools than it is shown, `stage` a run that works in a stage."""


class BuiltinTool(NamedTuple):
    name: str
    effect: Effect = "read"
    needs: Needs = "workspace"
    made_in: str | None = None
    """Of a tool for files, the module of `tools/files` whose `make_tools` makes it."""
    is_denied: bool = False
    """Denied until a rule of the gate allows it or asks."""
    lists_names: bool = False
    """Shows names of files, and nothing that depends on their text, as a size does: so `.env` is listed unasked."""
    edits: Literal["none", "one", "many", "plans"] = "none"
    """How many files a call may change; `plans` changes none yet. No mandate observes with such a tool or runs it by
    `run_tool`, which would bypass its limits and the hashes of what was read. The gate takes `many` and `plans` for a
    medium risk, whatever paths a call names."""
    is_tracked: bool = False
    """The other tasks of a team learn of its changes, and no two change one file at once. Where neither `path` nor
    `edits[].path` names the files, `SiblingChanges` needs a case."""
    is_look: bool = False
    """A task that called it has seen the files as they are now: it needs a case in `SiblingChanges.end`."""
    is_ooda_step: bool = False
    """OODA calls it by name, so the spec of each phase and cycle has it."""
    claude_name: str | None = None
    """The tool of Claude Code for which it stands in files of agents. `--write` and `--shell` offer such tools only."""
    search_words: str = ""
    """What people and models call such a tool, apart from its own name: a search for tools finds it by these."""
    for_small: Literal["first", "usual", "never"] = "usual"
    """Its place among the tools that a model with a small context is offered where nobody named any."""
    reaches: Reach | None = None
    """How far what a call takes along can get; None: it counts as outside."""
    trusted: bool = False
    """Nobody else wrote what it gives: files count as the person's own, unless they are known to hold others' text."""
    is_open: bool = False
    """What it gives may leave unasked."""

    def spec(self, description: str, input_schema: JsonObject, category: str) -> ToolSpec:
        """Make the tool's spec: no other place makes a spec of a built-in tool."""
        labels = self.reaches, self.trusted, not self.is_open
        return ToolSpec(self.name, description, input_schema, self.effect, category, "builtin", *labels)

    def is_tool(self, spec: ToolSpec | None) -> bool:
        """Whether the spec is this tool's, and not that of a caller or a server with the same name."""
        return spec is not None and (spec.name, spec.source) == (self.name, "builtin")


_ROWS = (
    BuiltinTool(
        "list_files",
        made_in="listings",
        lists_names=True,
        claude_name="Glob",
        search_words="ls dir glob find",
        reaches="inside",
        trusted=True,
    ),
    BuiltinTool(
        "file_tree",
        made_in="listings",
        lists_names=True,
        claude_name="Glob",
        search_words="ls dir",
        for_small="never",
        reaches="inside",
        trusted=True,
    ),
    BuiltinTool(
        "read_file",
        made_in="read_tools",
        is_look=True,
        claude_name="Read",
        search_words="cat open view show head tail",
        for_small="first",
        reaches="inside",
        trusted=True,
    ),
    BuiltinTool(
        "search_files",
        made_in="search_tool",
        claude_name="Grep",
        search_words="grep rg find",
        for_small="first",
        reaches="inside",
        trusted=True,
    ),
    BuiltinTool(
        "edit_file",
        "checked",
        made_in="edit_tools",
        edits="one",
        is_tracked=True,
        is_ooda_step=True,
        claude_name="Edit",
        search_words="change replace str_replace patch",
        reaches="inside",
        trusted=True,
    ),
    BuiltinTool(
        "write_file",
        "checked",
        made_in="edit_tools",
        edits="one",
        is_tracked=True,
        is_ooda_step=True,
        claude_name="Write",
        search_words="create save new",
        reaches="inside",
        trusted=True,
    ),
    BuiltinTool(
        "plan_edits",
        made_in="plans",
        edits="plans",
        is_look=True,
        claude_name="MultiEdit",
        reaches="inside",
        trusted=True,
    ),
    BuiltinTool(
        "apply_edit_plan",
        "checked",
        made_in="plans",
        edits="many",
        is_tracked=True,
        claude_name="MultiEdit",
        reaches="inside",
        trusted=True,
    ),
    BuiltinTool(
        "apply_edits", "checked", made_in="plans", edits="many", is_ooda_step=True, reaches="inside", trusted=True
    ),
    BuiltinTool(
        "run_command",
        "irreversible",
        "commands",
        is_ooda_step=True,
        claude_name="Bash",
        search_words="shell terminal execute program script test",
        reaches="inside",
    ),
    BuiltinTool("read_result", needs="nothing", reaches="inside", trusted=True),
    BuiltinTool("read_skill", needs="skills", for_small="never", reaches="inside", trusted=True),
    BuiltinTool(
        "request_more_rounds", "idempotent", "nothing", for_small="never", reaches="inside", trusted=True, is_open=True
    ),
    BuiltinTool("delete_file", "checked", "stage", search_words="remove rm unlink", reaches="inside", trusted=True),
    BuiltinTool("move_file", "checked", "stage", search_words="rename mv", reaches="inside", trusted=True),
    BuiltinTool("submit_changes", "checked", "stage", reaches="inside", trusted=True),
    BuiltinTool(
        "http_fetch",
        "irreversible",
        "web",
        is_denied=True,
        claude_name="WebFetch",
        search_words="curl wget url web download request",
        reaches="outside",
        is_open=True,
    ),
    BuiltinTool(SEARCH, needs="many_tools", reaches="inside", trusted=True, is_open=True),
    BuiltinTool("report_plan_problem", needs="team", reaches="inside", trusted=True),
    BuiltinTool("read_mandate", needs="mandate", is_ooda_step=True, reaches="inside", trusted=True),
    BuiltinTool("check_file", needs="mandate", is_ooda_step=True, reaches="inside", trusted=True),
)
BUILTIN = MappingProxyType({tool.name: tool for tool in _ROWS})


def names_where(is_wanted: Callable[[BuiltinTool], bool]) -> tuple[str, ...]:
    """Return the names of the rows that are wanted, in the order of the table."""
    return tuple(tool.name for tool in _ROWS if is_wanted(tool))


# The tools that code calls, or treats apart, by name.
LIST_FILES = BUILTIN["list_files"]
FILE_TREE = BUILTIN["file_tree"]
READ_FILE = BUILTIN["read_file"]
SEARCH_FILES = BUILTIN["search_files"]
EDIT_FILE = BUILTIN["edit_file"]
WRITE_FILE = BUILTIN["write_file"]
PLAN_EDITS = BUILTIN["plan_edits"]
APPLY_EDIT_PLAN = BUILTIN["apply_edit_plan"]
APPLY_EDITS = BUILTIN["apply_edits"]
RUN_COMMAND = BUILTIN["run_command"]
DELETE_FILE = BUILTIN["delete_file"]
MOVE_FILE = BUILTIN["move_file"]
SUBMIT_CHANGES = BUILTIN["submit_changes"]
READ_RESULT = BUILTIN["read_result"]
READ_SKILL = BUILTIN["read_skill"]
REQUEST_MORE_ROUNDS = BUILTIN["request_more_rounds"]
HTTP_FETCH = BUILTIN["http_fetch"]
REPORT_PLAN_PROBLEM = BUILTIN["report_plan_problem"]
READ_MANDATE = BUILTIN["read_mandate"]
CHECK_FILE = BUILTIN["check_file"]

HOST_TOOLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        name: tuple(tool.name for tool in _ROWS if tool.claude_name == name)
        for name in dict.fromkeys(tool.claude_name for tool in _ROWS if tool.claude_name is not None)
    }
    | {"LS": (LIST_FILES.name, FILE_TREE.name)}
)
"""Names that hosts give their tools, and ours that do the same."""

NAME_LISTING_TOOLS = frozenset(names_where(lambda tool: tool.lists_names))
WORKSPACE_TOOLS = frozenset(names_where(lambda tool: tool.needs in ("workspace", "commands")))
MULTI_FILE_EDITS = frozenset(names_where(lambda tool: tool.edits in ("many", "plans")))
EDIT_TOOLS = frozenset(names_where(lambda tool: tool.edits != "none"))
DENIED_BY_DEFAULT = frozenset(names_where(lambda tool: tool.is_denied))
STAGE_TOOLS = frozenset(names_where(lambda tool: tool.needs == "stage"))
CONTAINED_TOOLS = frozenset(
    {*names_where(lambda tool: tool.edits in ("one", "many")), RUN_COMMAND.name, DELETE_FILE.name, MOVE_FILE.name}
)
"""The tools that write nothing but the stage, in a run that has one."""


def withhold_more_rounds(tools: ToolSet) -> ToolSet:
    """Return the tools without request_more_rounds."""
    return ToolSet([spec for spec in tools if not REQUEST_MORE_ROUNDS.is_tool(spec)])
