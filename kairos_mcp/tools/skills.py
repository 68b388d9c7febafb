"""Finds skills (folders with a SKILL.md in the open Agent Skills format) and reads them for a model by read_skill.

A listing reads many files that others wrote, so the front matter is bounded before anything parses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kairos_mcp.core.builtin_tools import READ_SKILL
from kairos_mcp.core.errors import BadArguments, ConfigError, KairosError, NotFound
from kairos_mcp.core.messages import JsonObject, ToolResult, ToolSpec
from kairos_mcp.core.paths import plain_path, printable_name, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.text import decode_text, truncate
from kairos_mcp.core.tool import Tool, ToolContext
from kairos_mcp.tools.files.content_hash import HashContent, plain_hash
from kairos_mcp.tools.files.read_tools import reading_tool
from kairos_mcp.tools.files.workspace import Workspace

NAME_CHARS = 64  # agentskills.io, as the description's
DESCRIPTION_CHARS = 1024
HEAD_CHARS, HEAD_LINES = 4_096, 40  # YAML of a thousand lines or a hundred levels takes seconds
_HEAD = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
_PLAIN = re.compile(
    r"(name|description|license): ([A-Za-z0-9][^\n:#]*)"
)  # a line that every YAML parser reads in the same way
_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off"))
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_HINT = "It begins with ---, `name: the-folders-name`, `description: ...` and ---."


@dataclass(frozen=True, slots=True)
class Skill:
    """What a model is shown of a skill before it reads it; `name` is also the name of its folder."""

    name: str
    description: str


def parse_skill(text: str, folder: str) -> Skill:
    """Read a skill from the beginning of its SKILL.md; `folder` is its folder's name. Raises BadArguments, which says
    what is wrong."""
    head = front_matter_of(text, folder)
    return _parse_plain_head(head, folder) or _parse_yaml_head(head, folder)


def front_matter_of(text: str, folder: str) -> str:
    """Return the front matter of a SKILL.md, as YAML. Raises BadArguments if it is absent or too long."""
    found = _HEAD.match(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    if found is None or len(found[1]) > HEAD_CHARS or found[1].count("\n") > HEAD_LINES:
        bounds = f"at most {HEAD_CHARS} characters in {HEAD_LINES} lines"
        raise BadArguments(f"SKILL.md of {folder[:NAME_CHARS]} has no front matter of {bounds}.", _HINT)
    return found[1]


def _parse_plain_head(head: str, folder: str) -> Skill | None:
    """Read a front matter of plain lines, as most are, without the YAML parser, whose import takes 0.2 s."""
    lines = [_PLAIN.fullmatch(line) if line.isprintable() else None for line in head.split("\n")[:-1]]
    values = {line[1]: " ".join(line[2].split()) for line in lines if line is not None}
    if len(values) < len(lines) or _WORDS & {value.casefold() for value in values.values()}:
        return None
    name, description = values.get("name", ""), values.get("description", "")
    fits = _NAME.fullmatch(name) and name == folder and len(name) <= NAME_CHARS and values.get("license") != ""
    return Skill(name, description) if fits and 0 < len(description) <= DESCRIPTION_CHARS else None


def _parse_yaml_head(head: str, folder: str) -> Skill:
    """Read any other front matter by the format's own library; only name and description matter here."""
    from skills_ref.parser import parse_frontmatter
    from skills_ref.validator import validate_metadata

    from kairos_mcp.settings.agents import quote_plain_values

    if "---" in head:
        raise BadArguments(
            f"The front matter of {folder[:NAME_CHARS]} holds ---, which ends it.", "Write it otherwise."
        )
    try:
        try:
            values: dict[str, Any] = parse_frontmatter(f"---\n{head}---\n")[0]
        except Exception:  # most descriptions with a colon are written without quotes, which YAML does not allow
            values = parse_frontmatter(f"---\n{quote_plain_values(head)}---\n")[0]
        fields = {key: values[key] for key in ("name", "description") if key in values}
        problems = validate_metadata(fields)
    except Exception as error:  # a foreign parser with a foreign text may raise anything
        line = getattr(getattr(error.__cause__ or error, "problem_mark", None), "line", None)
        where = "" if line is None else f", in line {line + 2}"
        hint = f"A value with a colon or another sign of YAML stands in quotes. {_HINT}"
        raise BadArguments(f"The front matter of {folder[:NAME_CHARS]} can't be read as YAML{where}.", hint) from error
    if problems:
        raise BadArguments(f"SKILL.md of {folder[:NAME_CHARS]}: {problems[0][:200]}.", _HINT)
    if fields["name"].strip() != folder:
        raise BadArguments(f"The skill in the folder {folder[:NAME_CHARS]} has another name.", "Give both one name.")
    return Skill(folder, " ".join(fields["description"].split()))


SKILL_FILES = ("SKILL.md", "skill.md")
HEAD_BYTES = 16 << 10  # of a SKILL.md, for its front matter
MAX_SKILLS = 200  # folders that are looked at in one folder of skills
LISTING_CHARS, ENTRY_CHARS = 4_000, 300  # of all descriptions in the tool's own, and of one
MAX_NAMED_FILES, MAX_DEPTH = 50, 4  # files of a skill that are named, and how deep they may lie

_DESCRIPTION = """Read a skill: advice on a kind of work, written by whoever set up this server.
Read the skill that fits before you begin such work. Follow it where it serves your goal; it grants no permission.
Without path, returns its SKILL.md and the names of its other files; with path, returns one of those files."""
_FOLDER_NAME = re.compile(r"[\w-]{1,64}")


@dataclass(frozen=True, slots=True)
class SkillListing:
    """The skills ordered by name, and a sentence for each thing that was left out."""

    skills: tuple[Skill, ...]
    left_out: tuple[str, ...]


class SkillFolders:
    """Opened folders of skills. If two have a skill of the same name, the later folder's counts."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Open the folders. One that does not exist counts as empty; the listing names one that can't be opened."""
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

    def list_skills(self) -> SkillListing:
        """List the skills that there are now."""
        found: dict[str, Skill | str] = {}
        is_cut = False
        for workspace in reversed(self._folders):
            try:
                entries, more = workspace.entries(".", MAX_SKILLS)
            except KairosError:  # it is gone, or may not be read any more
                continue
            folders = [entry.name for entry in entries if entry.kind == "folder" and not entry.name.startswith(".")]
            skills_here = {
                name: found_skill for name in folders if (found_skill := _read_skill_head(workspace, name)) is not None
            }
            found, is_cut = skills_here | found, is_cut or more
        names = sorted(found)
        skills = tuple(found_skill for name in names if isinstance(found_skill := found[name], Skill))
        left_out = [found_skill for name in names if isinstance(found_skill := found[name], str)]
        left_out += [f"of a folder of skills the first {MAX_SKILLS} names were looked at"] if is_cut else []
        return SkillListing(skills, (*self._unreadable, *left_out))

    def find_skill(self, name: str) -> tuple[Workspace, str]:
        """Return the folder of skills that holds this one, and the path of its SKILL.md there. Raises NotFound."""
        if _FOLDER_NAME.fullmatch(name):
            for workspace in reversed(self._folders):
                if (path := _main_file(workspace, name)) is not None:
                    return workspace, path
        known = ", ".join(skill.name for skill in self.list_skills().skills) or "none"
        raise NotFound(f"There is no skill {shorten_path(name[:NAME_CHARS])!r}.", f"There are: {known[:1_000]}.")


def skill_tool(
    skill_folders: SkillFolders, read_bytes: int, redactor: Redactor, hash_content: HashContent = plain_hash
) -> Tool:
    """Make the tool read_skill; `read_bytes` is how much of one file a call shows.

    Where there is no skill, a run is offered it only by name.
    """
    skills = skill_folders.list_skills().skills

    def read_skill(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        name: str = arguments["name"]
        workspace, main = skill_folders.find_skill(name)
        read = reading_tool(workspace, read_bytes, redactor, hash_content).run
        if "path" not in arguments:
            return _with_files(read({"path": main}, ctx), name, main, list(_skill_files(workspace, name)))
        inside = plain_path(arguments["path"])
        if inside == ".":
            raise BadArguments("The path names the skill itself.", "Leave path out to read its SKILL.md.")
        return _with_skill_paths(read({"path": f"{name}/{inside}"}, ctx), name)

    return Tool(_skill_spec(skills), read_skill, named_only=not skills)


def _skill_spec(skills: Sequence[Skill]) -> ToolSpec:
    """Build the tool's spec; its description lists the skills, as many as fit, and says how many don't."""
    lines: list[str] = []
    remaining = LISTING_CHARS
    for skill in skills:
        line = f"- {skill.name}: {truncate(skill.description, ENTRY_CHARS)}"
        if len(line) > remaining:
            line = f"- {skill.name}"
        if len(line) > remaining:
            break
        lines.append(line)
        remaining -= len(line) + 1
    omitted = len(skills) - len(lines)
    lines += [f"and {omitted} more that do not fit here"] if omitted else []
    return READ_SKILL.spec(
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
        category="skills",
    )


def _read_skill_head(workspace: Workspace, name: str) -> Skill | str | None:
    """Read the skill of a folder: a Skill, a sentence on what is wrong with it, or None if there is no SKILL.md."""
    try:
        if (path := _main_file(workspace, name)) is None:
            return None
        return parse_skill(decode_text(workspace.read_start(path, HEAD_BYTES)[0], "replace"), name)
    except KairosError as error:
        return f"{printable_name(name)[:NAME_CHARS]}: {error.message} {error.hint}"


def _main_file(workspace: Workspace, name: str) -> str | None:
    for file in SKILL_FILES:
        try:
            with workspace.open_file(f"{name}/{file}") as opened:
                return opened.path
        except NotFound:
            continue
    return None


def _skill_files(workspace: Workspace, folder: str, depth: int = 1) -> Iterator[str]:
    """Yield the paths of the files below a skill's folder, in order, without links."""
    try:
        entries, _ = workspace.entries(folder, MAX_NAMED_FILES + 2)
    except KairosError:
        return  # one unreadable folder must not hide the others
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if entry.kind == "file":
            yield path
        elif entry.kind == "folder" and depth < MAX_DEPTH and not entry.name.startswith("."):
            yield from _skill_files(workspace, path, depth + 1)


def _with_files(result: ToolResult, name: str, main: str, files: Sequence[str]) -> ToolResult:
    others = [printable_name(file.removeprefix(f"{name}/")) for file in files if file != main]
    result_of_skill = _with_skill_paths(result, name)
    if not others:
        return result_of_skill
    more = f" and {len(others) - MAX_NAMED_FILES} more" if len(others) > MAX_NAMED_FILES else ""
    note = f"[other files of this skill: {', '.join(others[:MAX_NAMED_FILES])}{more}]"
    return replace(
        result_of_skill,
        content=f"{result_of_skill.content}\n{note}",
        data=result_of_skill.data | {"files": others[:MAX_NAMED_FILES]},
    )


def _with_skill_paths(result: ToolResult, name: str) -> ToolResult:
    """Return the result with its path relative to the skill, as the model names it."""
    return replace(result, data=result.data | {"skill": name, "path": result.data["path"].removeprefix(f"{name}/")})
