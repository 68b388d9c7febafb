"""Read agents from Markdown files with a YAML front matter: ours, and the user's over them, as whole files.

A file that is wrong disables its own agent and no other. Which tools there are is not known here: tools/agent_files.py
holds the globs of an agent against the registry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, ValidationError

from kairos_mcp.core.agent import MAX_ROUNDS, PLANNER, Agent
from kairos_mcp.core.errors import BadArguments, ConfigError, UnknownAgent
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import printable_name
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import decode_text, nearest_names, truncate
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.tables import StrictTable

OURS = (PLANNER, "code_analyzer", "file_manager", "search_specialist", "system_operator", "general")
"""Our own agents, in the order in which they are listed, and chosen where several fit."""

AGENT_BYTES = 64 << 10  # of one file
MAX_LEFT_OUT = 20  # keys and tools of a file that are named
MAX_AGENTS = 300  # files that are read of one folder
HEAD_CHARS, HEAD_LINES, HEAD_LEVELS = 8_192, 120, 8  # of a front matter: more of them takes a YAML parser seconds
DESCRIPTION_CHARS = 4_096
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_HEAD = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"^([A-Za-z_-]+):[ \t]+(\S.*)$", re.MULTILINE)
_ODD = re.compile(r"^[^\"'\[{|>!&*].*:(?: |$)|^[@`%]")  # a plain value with a colon, or one that begins as none may
_QUOTES = "Correct that line; put a value with a colon or another sign of YAML in quotes."
_FORM = "It begins with ---, `name: the-files-name`, `description: ...` and ---; then its prompt follows."


class _FrontMatter(StrictTable):
    """The keys of a front matter. `tools`: a list, or names with commas between them, as coding hosts write it."""

    name: str
    description: Annotated[str, Field(min_length=1, max_length=DESCRIPTION_CHARS, pattern=r"\S")]
    tools: list[Annotated[str, Field(min_length=1, max_length=256)]] | str | None = None
    model: Annotated[str, Field(pattern=r"^\S{1,200}$")] | None = None
    max_rounds: Annotated[int, Field(ge=1, le=10_000)] = MAX_ROUNDS


_KEYS = tuple(_FrontMatter.model_fields)


@dataclass(frozen=True, slots=True)
class DisabledAgent:
    """An agent that can't be used: what is wrong with its file (`problem`), and what to do (`hint`)."""

    name: str
    origin: str
    problem: str
    hint: str

    @property
    def file(self) -> str:
        """Its file, relative to the workspace, or to the state folder, or to what is installed."""
        return f"config/agents/{self.name}.md" if self.origin in ("built-in", "user") else self.origin

    def as_json(self) -> JsonObject:
        return {"name": self.name, "from": self.origin, "problem": self.problem, "hint": self.hint}

    @property
    def sentence(self) -> str:
        """What is wrong with which file, and what to do."""
        return f"The agent {self.name} ({self.file}) is disabled: {self.problem} {self.hint}"


@dataclass(frozen=True, slots=True)
class AgentFiles:
    """The agents by name, in the order in which they are listed and chosen, and those that are disabled."""

    agents: Mapping[str, Agent] = field(default_factory=lambda: MappingProxyType({}))
    disabled: tuple[DisabledAgent, ...] = ()

    def joined_with(self, other: AgentFiles) -> AgentFiles:
        """Return these agents and the others after them; none of them takes the place of one of these."""
        return AgentFiles(
            MappingProxyType({**self.agents, **{n: each for n, each in other.agents.items() if n not in self.agents}}),
            (*self.disabled, *other.disabled),
        )

    def require(self, name: str) -> Agent:
        """Return the agent of this name. Raises ConfigError for one that is disabled, UnknownAgent."""
        if (found := self.agents.get(name)) is not None:
            return found
        for wrong in self.disabled:
            if wrong.name == name:
                raise ConfigError(f"The agent {name} is disabled: {wrong.problem}", wrong.hint)
        near = ", ".join(nearest_names(name, list(self.agents))) or "none"
        raise UnknownAgent(
            f"There is no agent {truncate(name, 64)!r}.", f"Nearest: {near}. `kairos-mcp agents` lists all."
        )


def load_agents(settings: Settings) -> AgentFiles:
    """Read our agents and the user's, whose file takes the place of ours of the same name, also where it is wrong."""
    files: dict[str, tuple[Path, str]] = {}
    disabled: list[DisabledAgent] = []
    for folder in settings.config_dirs:
        origin = "built-in" if folder == settings.config_dirs[0] else "user"
        found = _list_files(folder / "agents")
        files |= {file.stem: (file, origin) for file in found[:MAX_AGENTS]}
        disabled += [unread_agent(file.stem, origin) for file in found[MAX_AGENTS:]]
    names = [*(name for name in OURS if name in files), *sorted(name for name in files if name not in OURS)]
    agents: dict[str, Agent] = {}
    for name in names:
        file, origin = files[name]
        try:
            agents[name] = parse_agent(_read_file(file), name, origin)
        except BadArguments as error:
            disabled.append(DisabledAgent(printable_name(name)[:64], origin, error.message, error.hint))
    return AgentFiles(MappingProxyType(agents), tuple(disabled))


def unread_agent(name: str, origin: str) -> DisabledAgent:
    """Return the entry for an agent whose file was not read, since the folder has too many."""
    problem = f"Of a folder the first {MAX_AGENTS} files are read."
    return DisabledAgent(printable_name(name)[:64], origin, problem, "Remove those that nobody uses.")


def parse_agent(content: bytes, name: str, origin: str) -> Agent:
    """Return the agent in a file of this name. Raises BadArguments, which says what is wrong and how to mend it."""
    if not NAME.fullmatch(name):
        raise BadArguments(
            f"{printable_name(name)[:64]!r} is not a name of an agent.",
            "Name the file with lower-case letters, digits, - and _, and .md at its end.",
        )
    head, prompt = split_agent_file(content)
    values = read_front_matter(head)
    unknown = tuple(f"the key {printable_name(truncate(key, 80))}" for key in values if key not in _KEYS)
    try:
        given = _FrontMatter.model_validate({key: value for key, value in values.items() if key in _KEYS})
    except ValidationError as error:
        _, key, message = first_problem(error)
        raise BadArguments(f"{key or 'Its front matter'}: {message}.", _FORM) from error
    if given.name != name:
        raise BadArguments(f"Its name is {truncate(given.name, 64)!r}, and its file's {name!r}.", "Give both one name.")
    tools = None if given.tools is None else split_names(given.tools)
    if tools == () and name != PLANNER:
        raise BadArguments("It has no tools.", "Leave tools out for those that only read, or name some.")
    description = " ".join(given.description.split())
    model = None if given.model == "inherit" else given.model  # a host's word for the model of the run
    return Agent(name, description, tools, prompt, model, given.max_rounds, origin, unknown[:MAX_LEFT_OUT])


def split_agent_file(content: bytes) -> tuple[str, str]:
    """Return the front matter of a file, as YAML, and the prompt after it. Raises BadArguments."""
    if len(content) > AGENT_BYTES:
        raise BadArguments(f"It has more than {AGENT_BYTES >> 10} KB.", "Shorten it; move details into a skill.")
    try:
        text = decode_text(content)
    except UnicodeDecodeError as error:
        raise BadArguments("It is not text in UTF-8 or UTF-16.", "Save it as UTF-8.") from error
    if "\0" in text:
        raise BadArguments("It contains a NUL character.", "Save it as text.")
    found = _HEAD.match(text)
    if found is None:
        raise BadArguments("It has no front matter.", _FORM)
    if len(found[1]) > HEAD_CHARS or found[1].count("\n") > HEAD_LINES:
        bounds = f"{HEAD_CHARS:,} characters or {HEAD_LINES} lines"
        raise BadArguments(f"Its front matter has more than {bounds}.", "Put longer text into the prompt.")
    prompt = text[found.end() :].strip()
    if not prompt:
        raise BadArguments("It has no prompt.", "Write below the front matter how this agent works.")
    return found[1], prompt


@lru_cache(maxsize=256)  # a YAML parser takes 10 ms for one
def parse_front_matter(head: str) -> Mapping[str, Any]:
    """Return the keys of a front matter. Raises BadArguments; references (`&`, `*`) and deep nesting are refused,
    since a few lines of them can hold more than fits into memory."""
    from ruamel.yaml import YAML  # its import takes 0.1 s
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

    levels = 0
    try:
        for event in YAML(typ="safe", pure=True).parse(head):
            levels += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if isinstance(event, AliasEvent) or levels > HEAD_LEVELS:
                raise BadArguments("Its front matter has references, or nests too deep.", _FORM)
        values = YAML(typ="safe", pure=True).load(head)
    except (YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-99-99
        # What the parser met, and in which line of the file: nothing of the text is quoted.
        problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 2}" if mark is not None else ""
        what = f"{truncate(str(problem or 'it can not be read'), 120)}{where}"
        raise BadArguments(f"Its front matter is not valid YAML: {what}.", _QUOTES) from error
    if not isinstance(values, dict):
        raise BadArguments("Its front matter has no keys.", _FORM)
    return MappingProxyType({str(key): value for key, value in values.items()})


def read_front_matter(head: str) -> Mapping[str, Any]:
    """Return the keys of a front matter as hosts of agents write it: a plain value may hold a colon, which YAML does
    not allow. Raises BadArguments."""
    try:
        return parse_front_matter(head)
    except BadArguments as broken:
        quoted = quote_plain_values(head)
        if quoted == head:
            raise
        try:
            return parse_front_matter(quoted)
        except BadArguments:
            raise broken from None


def quote_plain_values(head: str) -> str:
    """Return a front matter with quotes around each value on one line that no YAML reader takes as it stands."""
    return _LINE.sub(
        lambda found: f"{found[1]}: {json.dumps(found[2].rstrip())}" if _ODD.search(found[2]) else found[0], head
    )


def split_names(names: list[str] | str) -> tuple[str, ...]:
    """Return the names of a list, or of a text that has commas between them, each once."""
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(dict.fromkeys(name for part in parts if (name := part.strip())))


def parse_plain_lines(head: str) -> dict[str, Any]:
    """Return the lines `key: value` of a front matter that is no YAML, each value as it stands there."""
    return {found[1]: found[2].strip().strip("\"'") for found in _LINE.finditer(head)}


def _list_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.suffix == ".md" and not file.name.startswith("."))
    except OSError:
        return []


def _read_file(file: Path) -> bytes:
    if not file.is_file():
        raise BadArguments("It is not a file.", "Remove it, or put a file in its place.")
    try:
        with file.open("rb") as opened:
            return opened.read(AGENT_BYTES + 1)
    except OSError as error:
        raise BadArguments(f"It can't be read: {error.strerror}.", "Repair or remove it.") from error
