"""A skill as its SKILL.md says it: name and description, from the front matter of the open Agent Skills format.

Text only: whoever lists skills reads many files of other people's, so a head is bounded before anything parses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kairos_mcp.core.errors import BadArguments

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


def skill_of(text: str, folder: str) -> Skill:
    """The skill whose SKILL.md, in the folder of this name, begins with `text`. Raises BadArguments, which says why."""
    found = _HEAD.match(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    if found is None or len(found[1]) > HEAD_CHARS or found[1].count("\n") > HEAD_LINES:
        bounds = f"at most {HEAD_CHARS} characters in {HEAD_LINES} lines"
        raise BadArguments(f"SKILL.md of {folder[:NAME_CHARS]} has no front matter of {bounds}.", _HINT)
    return _plain(found[1], folder) or _parsed(found[1], folder)


def _plain(head: str, folder: str) -> Skill | None:
    """The skill of a head of plain lines alone, as most are: it needs no parser, whose import takes 0.2 s."""
    lines = [_PLAIN.fullmatch(line) if line.isprintable() else None for line in head.split("\n")[:-1]]
    values = {line[1]: " ".join(line[2].split()) for line in lines if line is not None}
    if len(values) < len(lines) or _WORDS & {value.casefold() for value in values.values()}:
        return None
    name, description = values.get("name", ""), values.get("description", "")
    fits = _NAME.fullmatch(name) and name == folder and len(name) <= NAME_CHARS and values.get("license") != ""
    return Skill(name, description) if fits and 0 < len(description) <= DESCRIPTION_CHARS else None


def _parsed(head: str, folder: str) -> Skill:
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
