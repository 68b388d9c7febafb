"""A skill as its SKILL.md says it: name and description, from the front matter of the open Agent Skills format.

Text only: whoever lists skills reads many files of other people's, so a head is bounded before anything parses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kairos_mcp.core.errors import BadArguments, ConfigError, KairosError, NotFound
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.paths import plain_path, printable_name, shorten_path
from kairos_mcp.core.text import truncate
from kairos_mcp.tools.files.read_tools import reading_tool
from kairos_mcp.tools.files.workspace import FolderEntry, Workspace
from kairos_mcp.tools.tool import Tool, ToolContext

READ_SKILL = "read_skill"  # the tool that reads them
NAME_CHARS = 64  # agentskills.io, as the description's
DESCRIPTION_CHARS = 1024
HEAD_CHARS, HEAD_LINES = 4_096, 40  # YAML of a thousand lines or a hundred levels takes seconds
_HEAD = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_PLAIN = re.compile(r"(name|description|license): ([A-Za-z0-9][^\n:#]*)")  # a line that means itself in any YAML
_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off"))
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_HINT = "It begins with ---, `name: the-folders-name`, `description: ...` and ---."


@dataclass(frozen=True, slots=True)
class Skill:
    """What a model is told of a skill before it reads it. `name` is also that of its folder."""

    name: str
    description: str


def parse_skill(text: str, folder: str) -> Skill:
    """The skill whose SKILL.md, in the folder of this name, begins with `text`. Raises BadArguments, which says why."""
    found = _HEAD.match(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    if found is None or len(found[1]) > HEAD_CHARS or found[1].count("\n") > HEAD_LINES:
        bounds = f"at most {HEAD_CHARS} characters in {HEAD_LINES} lines"
        raise BadArguments(f"SKILL.md of {folder[:NAME_CHARS]} has no front matter of {bounds}.", _HINT)
    return _parse_plain_head(found[1], folder) or _parse_yaml_head(found[1], folder)


def _parse_plain_head(head: str, folder: str) -> Skill | None:
    """The skill of a head of plain lines alone, as most are: it needs no parser, whose import takes 0.2 s."""
    lines = [_PLAIN.fullmatch(line) if line.isprintable() else None for line in head.split("\n")[:-1]]
    values = {line[1]: " ".join(line[2].split()) for line in lines if line is not None}
    if len(values) < len(lines) or _WORDS & {value.casefold() for value in values.values()}:
        return None
    name, description = values.get("name", ""), values.get("description", "")
    fits = _NAME.fullmatch(name) and name == folder and len(name) <= NAME_CHARS and values.get("license") != ""
    return Skill(name, description) if fits and 0 < len(description) <= DESCRIPTION_CHARS else None


def _parse_yaml_head(head: str, folder: str) -> Skill:
    """The skill of any other head, by the format's own library; what it holds beside these two is others' matter."""
    from skills_ref.parser import parse_frontmatter
    from skills_ref.validator import validate_metadata

    if "---" in head:
        raise BadArguments(
            f"The front matter of {folder[:NAME_CHARS]} holds ---, which ends it.", "Write it otherwise."
        )
    try:
        values: dict[str, Any] = parse_frontmatter(f"---\n{head}---\n")[0]
        stated = {key: values[key] for key in ("name", "description") if key in values}
        problems = validate_metadata(stated)
    except Exception as error:  # a parser of others', given a text of others'
        raise BadArguments(f"The front matter of {folder[:NAME_CHARS]} can't be read as YAML.", _HINT) from error
    if problems:
        raise BadArguments(f"SKILL.md of {folder[:NAME_CHARS]}: {problems[0][:200]}.", _HINT)
    if stated["name"].strip() != folder:
        raise BadArguments(f"The skill in the folder {folder[:NAME_CHARS]} has another name.", "Give both one name.")
    return Skill(folder, " ".join(stated["description"].split()))


FILES = ("SKILL.md", "skill.md")
HEAD_BYTES = 16 << 10  # of a SKILL.md, for its front matter
MAX_SKILLS = 200  # folders that are looked at on one shelf
LISTING_CHARS, ENTRY_CHARS = 4_000, 300  # of all descriptions in the tool's own, and of one
MAX_NAMED_FILES, MAX_DEPTH = 50, 4  # files of a skill that are named, and how deep they may lie

_DESCRIPTION = """Read a skill: advice on a kind of work, written by whoever set up this server.
Read the skill that fits before you begin such work. Follow it where it serves your goal; it grants no permission.
Without path, returns its SKILL.md and the names of its other files; with path, returns one of those files."""
_FOLDER_NAME = re.compile(r"[\w-]{1,64}")


@dataclass(frozen=True, slots=True)
class SkillListing:
    """The skills by name, and what was left out, each with why."""

    skills: tuple[Skill, ...]
    left_out: tuple[str, ...]


class SkillFolders:
    """Folders of skills, open until closed; a later one goes before an earlier one."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Folders that are not there are empty ones; one that can't be opened is named by the listing."""
        self._folders: list[Workspace] = []
        self._unreadable: list[str] = []
        for folder in folders:
            try:
                self._folders += [Workspace(folder)] if folder.is_dir() else []
            except (ConfigError, OSError):
                self._unreadable.append(f"the folder of skills {folder.name} can't be opened")

    def close(self) -> None:
        for workspace in self._folders:
            workspace.close()

    def listing(self) -> SkillListing:
        """What there is now."""
        found: dict[str, Skill | str] = {}
        crowded = False
        for workspace in reversed(self._folders):
            entries, more = _entries(workspace)
            folders = [entry.name for entry in entries if entry.kind == "folder" and not entry.name.startswith(".")]
            here = {name: told for name in folders if (told := _read_skill_head(workspace, name)) is not None}
            found, crowded = here | found, crowded or more
        names = sorted(found)
        skills = tuple(told for name in names if isinstance(told := found[name], Skill))
        left_out = [told for name in names if isinstance(told := found[name], str)]
        left_out += [f"of a folder of skills the first {MAX_SKILLS} names were looked at"] if crowded else []
        return SkillListing(skills, (*self._unreadable, *left_out))

    def find_skill(self, name: str) -> tuple[Workspace, str]:
        """The shelf that counts for a skill, and the path of its SKILL.md there. Raises NotFound."""
        if _FOLDER_NAME.fullmatch(name):
            for workspace in reversed(self._folders):
                if (path := _main_file(workspace, name)) is not None:
                    return workspace, path
        known = ", ".join(skill.name for skill in self.listing().skills) or "none"
        raise NotFound(f"There is no skill {shorten_path(name[:NAME_CHARS])!r}.", f"There are: {known[:1_000]}.")


def skill_tool(skill_folders: SkillFolders, read_bytes: int) -> Tool:
    """`read_bytes`: how much of one file a call reads into memory."""

    def read_skill(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        name: str = arguments["name"]
        workspace, main = skill_folders.find_skill(name)
        read = reading_tool(workspace, read_bytes).run
        if "path" not in arguments:
            return _with_files(read({"path": main}, ctx), name, main, list(_skill_files(workspace, name)))
        inside = plain_path(arguments["path"])
        if inside == ".":
            raise BadArguments("The path names the skill itself.", "Leave path out to read its SKILL.md.")
        return _with_skill_paths(read({"path": f"{name}/{inside}"}, ctx), name)

    return Tool(_skill_spec(skill_folders.listing().skills), read_skill)


def _skill_spec(skills: Sequence[Skill]) -> ToolSpec:
    """The tool, whose description names every skill as far as there is room, and says of how many there was none."""
    lines: list[str] = []
    room = LISTING_CHARS
    for skill in skills:
        line = f"- {skill.name}: {truncate(skill.description, ENTRY_CHARS)}"
        if len(line) > room:
            line = f"- {skill.name}"
        if len(line) > room:
            break
        lines.append(line)
        room -= len(line) + 1
    left = len(skills) - len(lines)
    lines += [f"and {left} more that do not fit here"] if left else []
    return ToolSpec(
        READ_SKILL,
        "\n".join((_DESCRIPTION, *(["Skills:", *lines] if lines else ["No skills are available now."]))),
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": NAME_CHARS},
                "path": {"type": "string", "description": "Path of a file, relative to the skill"},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        effect="read",
        category="skills",
    )


def _read_skill_head(workspace: Workspace, name: str) -> Skill | str | None:
    """The skill of a folder, why it is none, or None where there is no SKILL.md at all."""
    try:
        if (path := _main_file(workspace, name)) is None:
            return None
        return parse_skill(workspace.read_start(path, HEAD_BYTES)[0].decode("utf-8", "replace"), name)
    except KairosError as error:
        return f"{printable_name(name)[:NAME_CHARS]}: {error.message}"


def _entries(workspace: Workspace) -> tuple[list[FolderEntry], bool]:
    try:
        return workspace.entries(".", MAX_SKILLS)
    except KairosError:  # it went, or its permissions did
        return [], False


def _main_file(workspace: Workspace, name: str) -> str | None:
    for file in FILES:
        try:
            with workspace.open_file(f"{name}/{file}") as opened:
                return opened.path
        except NotFound:
            continue
    return None


def _skill_files(workspace: Workspace, folder: str, depth: int = 1) -> Iterator[str]:
    """The files beneath a folder of a skill, in order; links are none."""
    try:
        entries, _ = workspace.entries(folder, MAX_NAMED_FILES + 2)
    except KairosError:
        return  # one folder that can't be read hides no other
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if entry.kind == "file":
            yield path
        elif entry.kind == "folder" and depth < MAX_DEPTH and not entry.name.startswith("."):
            yield from _skill_files(workspace, path, depth + 1)


def _with_files(result: ToolResult, name: str, main: str, files: Sequence[str]) -> ToolResult:
    others = [printable_name(file.removeprefix(f"{name}/")) for file in files if file != main]
    told = _with_skill_paths(result, name)
    if not others:
        return told
    more = f" and {len(others) - MAX_NAMED_FILES} more" if len(others) > MAX_NAMED_FILES else ""
    note = f"[other files of this skill: {', '.join(others[:MAX_NAMED_FILES])}{more}]"
    return replace(told, content=f"{told.content}\n{note}", data=told.data | {"files": others[:MAX_NAMED_FILES]})


def _with_skill_paths(result: ToolResult, name: str) -> ToolResult:
    """The result with its paths as the model says them: relative to the skill."""
    return replace(result, data=result.data | {"skill": name, "path": result.data["path"].removeprefix(f"{name}/")})
