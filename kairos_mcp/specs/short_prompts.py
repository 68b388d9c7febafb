"""When a planner run gets the short prompts, which small models follow better, and what is added to its first message.

A small model answers from memory without looking at a file, or loses the goal in a long prompt. So the short form says
that nothing is known of the workspace, shows the names of its files and lines with words of the goal (`goal_lines.py`),
and a first answer without any look is asked back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kairos_mcp.core.messages import ToolResult, ToolSet
from kairos_mcp.flows.planner_input import check_template, quote_lines, render_prompt
from kairos_mcp.settings.settings import Settings

SMALL_CONTEXT_TOKENS = 16_000
SMALL_BILLIONS = 4.0  # of parameters
MAX_TREE_CHARS = 2_000
FILE_TOOLS = ("read_file", "search_files", "list_files", "file_tree")
FIRST_TOOLS = ("read_file", "search_files")  # in what a small model is offered
UNNEEDED_TOOLS = ("file_tree", "read_skill", "request_more_rounds")  # the first message has the files; skills are long

_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])")


def takes_short_prompts(settings: Settings, route: str, model: str | None) -> bool:
    """Whether a run with this model gets the short prompts: as the settings say, or by itself with a provider's model
    that is known as small or whose context is."""
    if settings.prompts != "auto":
        return settings.prompts == "short"
    return route == "provider" and (settings.context_tokens <= SMALL_CONTEXT_TOKENS or is_small_model(model or ""))


def is_small_model(name: str) -> bool:
    """Whether a model's name tells a size of at most 4 billion parameters, as `qwen2.5-coder:1.5b` does. Of several
    sizes in a name, as of a mixture of experts, the largest counts."""
    sizes = [float(number) / (1 if unit == "b" else 1_000) for number, unit in _SIZE.findall(name.lower())]
    return bool(sizes) and max(sizes) <= SMALL_BILLIONS


def offers_files(tools: ToolSet) -> bool:
    """Whether a run can look at files."""
    return any(tools.find(name) is not None for name in FILE_TOOLS)


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of a workspace's files as a tool lists them. `is_whole`: each file's path is there, and fits."""

    text: str = ""
    is_whole: bool = False

    @classmethod
    def of_result(cls, result: ToolResult) -> FileNames:
        """Take them from a result of list_files or file_tree, whose data say how many are shown, and of how many."""
        match result.data:
            case {"shown": int(shown), "partial": bool(partial), **rest} if shown:
                return cls(result.content, rest.get("total") == shown and not partial and _fits(result.content))
            case _:
                return cls()


def select_few_tools(tools: ToolSet, files: FileNames) -> ToolSet:
    """Return the tools of a run that named none: a small model takes one of the first, and does better with fewer."""
    left_out = {*UNNEEDED_TOOLS, *(("list_files",) if files.is_whole else ())}
    kept = [tool for tool in tools if tool.source != "builtin" or tool.name not in left_out]
    first = [tool for name in FIRST_TOOLS for tool in kept if tool.name == name]
    return ToolSet([*first, *(tool for tool in kept if tool.name not in FIRST_TOOLS)])


def add_file_names(user: str, template: str, files: FileNames) -> str:
    """Return the first message with the names of the workspace's files after it, at most 2,000 characters of them."""
    check_template("planner-tree", template, ("tree",))
    shown, rest = _cut_lines(files.text)
    lines = quote_lines(shown) + (f"\n[{rest} more lines; a tool shows them]" if rest else "")
    return f"{user}\n\n{render_prompt(template.strip(), tree=lines)}"


def _fits(text: str) -> bool:
    return _cut_lines(text)[1] == 0


def _cut_lines(text: str) -> tuple[str, int]:
    """The first lines that fit into MAX_TREE_CHARS, and how many are left."""
    lines, size = text.splitlines(), 0
    for number, line in enumerate(lines):
        size += len(line) + 1
        if size > MAX_TREE_CHARS:
            return "\n".join(lines[:number]), len(lines) - number
    return text, 0
