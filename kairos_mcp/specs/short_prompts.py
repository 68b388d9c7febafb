"""What the short prompts add to a first message: names of the workspace's files, and lines with words of the goal.

A small model answers from memory without looking at a file, from the first file that it reads, or loses the goal in a
long prompt. So the short form says that nothing is known of the workspace, shows which files there are and which speak
of what the goal is about, offers few tools, and a first answer without any look is asked back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from kairos_mcp.core.builtin_tools import LIST_FILES, names_where
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSet
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import count_of, truncate
from kairos_mcp.flows.planner_input import quote_lines, render_prompt
from kairos_mcp.flows.prompt_texts import check_template

MAX_LINES_CHARS = 1_000
MAX_LINE_CHARS = 160  # of one line; the rest is left out
MAX_FILE_LINES = 3  # of one file, so that it does not hide the others
MAX_WORDS = 12
MIN_WORD_CHARS = 3
COMMON_LINES = 50  # a word that more lines hold says little about where to look
SEARCH_LINES = 500  # taken from one search

_WORD = re.compile(r"[^\W_][\w-]*(?:[./]\w[\w-]*)*")
_HIT = re.compile(r"(?P<path>.+?):(?P<number>\d+): (?P<text>.*)")
# English alone, and only to save lines: in other languages such words are left out where they stand in many lines.
_EMPTY_WORD = re.compile(
    "about|all|and|any|are|can|does|files?|find|for|from|give|has|have|how|into|its|list|many|most|much|must|names?|not|"
    "one|project|say|should|show|tell|than|that|the|their|them|then|there|these|they|this|was|were|what|when|where|"
    "which|who|whose|why|will|with|work|write|you|your"
)


def goal_words(goal: str) -> tuple[str, ...]:
    """Return the words of a goal that may tell where to look, in lower case and without their endings, at most 12: the
    longest, since the short ones are the common ones."""
    words = dict.fromkeys(
        _stem(word.lower())
        for word in _WORD.findall(goal)
        if len(word) >= MIN_WORD_CHARS and not _EMPTY_WORD.fullmatch(word.lower())
    )
    longest = sorted(words, key=len, reverse=True)[:MAX_WORDS]
    return tuple(word for word in words if word in longest)


def _stem(word: str) -> str:
    """Cut what a plain word may end in, so that `removed` finds `remove` and `recipes` finds `recipe`."""
    if not word.isalpha() or len(word) < 5:
        return word
    return word[:-2] if len(word) > 5 else word[:-1]


def search_arguments(words: Sequence[str]) -> JsonObject:
    """Return what search_files is asked for."""
    return {"pattern": f"(?i)({'|'.join(map(re.escape, words))})", "max_results": SEARCH_LINES}


@dataclass(frozen=True, slots=True)
class FoundLines:
    """What a search for the words of a goal found: lines as path, number and text. `is_cut`: there are more lines;
    `is_partial`: the time ran out before every file was searched."""

    lines: tuple[tuple[str, int, str], ...] = ()
    is_cut: bool = False
    is_partial: bool = False

    @classmethod
    def of_result(cls, result: ToolResult) -> FoundLines:
        """Take them from a result of search_files, whose data say how many of its lines are hits."""
        match result.data:
            case {"matches": int(matches), "stopped_at_most": bool(is_cut), "partial": bool(is_partial)}:
                hits = map(_HIT.fullmatch, result.content.split("\n")[:matches])
                return cls(
                    tuple((hit["path"], int(hit["number"]), hit["text"]) for hit in hits if hit), is_cut, is_partial
                )
            case _:
                return cls()

    def count(self, words: Iterable[str]) -> Counter[str]:
        """Count the lines that hold each word."""
        return Counter(word for _, _, text in self.lines for word in words if word in text.lower())


def drop_commonest(words: Sequence[str], found: FoundLines) -> tuple[str, ...]:
    """Return the words without the one that most of the lines hold: it left no room for the others."""
    ((commonest, _),) = found.count(words).most_common(1) or [("", 0)]
    return tuple(word for word in words if word != commonest)


@dataclass(frozen=True, slots=True)
class GoalLines:
    """Lines for the first message, each as `path:line: text`. `is_whole`: every file was searched to its end."""

    text: str = ""
    is_whole: bool = True


def choose_lines(words: Sequence[str], found: FoundLines) -> GoalLines:
    """Return the lines with the rarest words, in the order in which they were found, at most 1,000 characters of them;
    the more of the words a line holds, and the fewer lines hold them, the sooner it is taken."""
    counts = found.count(words)
    weights = {word: 1 / count for word, count in counts.items() if count <= COMMON_LINES}
    weighed = [
        (sum(weight for word, weight in weights.items() if word in text.lower()), position)
        for position, (_, _, text) in enumerate(found.lines)
    ]
    chosen, of_file, left = list[tuple[int, str]](), Counter[str](), MAX_LINES_CHARS
    for weight, position in sorted(weighed, key=lambda item: (-item[0], item[1])):
        path, number, text = found.lines[position]
        line = f"{path}:{number}: {truncate(text.strip(), MAX_LINE_CHARS)}"
        if weight and of_file[path] < MAX_FILE_LINES and len(line) < left:
            chosen.append((position, line))
            of_file[path] += 1
            left -= len(line) + 1
    text = "\n".join(line for _, line in sorted(chosen))
    return GoalLines(text, not (found.is_cut or found.is_partial))


def add_goal_lines(user: str, template: str, lines: GoalLines) -> str:
    """Return the first message with these lines after it."""
    check_template("planner-lines", template, ("lines",))
    shown = quote_lines(lines.text) + ("" if lines.is_whole else "\n[not every file was searched; a tool does it]")
    return f"{user}\n\n{render_prompt(template.strip(), lines=shown)}"


MAX_TREE_CHARS = 2_000
FILE_TOOLS = names_where(lambda tool: (tool.needs, tool.effect, tool.edits) == ("workspace", "read", "none"))
FIRST_TOOLS = names_where(lambda tool: tool.for_small == "first")
UNNEEDED_TOOLS = names_where(lambda tool: tool.for_small == "never")  # the first message has the files; skills are long


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
    left_out = {*UNNEEDED_TOOLS, *((LIST_FILES.name,) if files.is_whole else ())}
    kept = [tool for tool in tools if tool.source != "builtin" or tool.name not in left_out]
    first = [tool for name in FIRST_TOOLS for tool in kept if tool.name == name]
    return ToolSet([*first, *(tool for tool in kept if tool.name not in FIRST_TOOLS)])


def add_file_names(user: str, template: str, files: FileNames) -> str:
    """Return the first message with the names of the workspace's files after it, at most 2,000 characters of them."""
    check_template("planner-tree", template, ("tree",))
    shown, rest = _cut_lines(files.text)
    lines = quote_lines(shown) + (
        f"\n[{count_of(rest, 'more line')}; a tool shows {'it' if rest == 1 else 'them'}]" if rest else ""
    )
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
