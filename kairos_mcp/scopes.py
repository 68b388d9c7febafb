"""Whose file a path of the workspace is: L0 the server's own, L1 instructions to agents, L2 all else (SYSTEMS.md O13).

Text only. Links are never followed by the opener, so a plain path is the real one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kairos_mcp.configuration.settings import Scope

PATH_CHARS = 1024
OWN = (".git",)
INSTRUCTIONS = (
    *("AGENTS.md", "CLAUDE.md", "SKILL.md"),
    *(".claude", ".cursor", ".vscode", ".github"),
    *("skills/*", "prompts/*", "agents/*"),
)
_ELSEWHERE = re.compile(r"/|[A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]*://|file:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Scopes:
    """Globs of the paths that are L0 and L1, compared without regard to case; the rest is L2.

    One without a slash names a file or folder at any depth, with all that is in it; one with a slash is a whole
    path from the workspace's root. A `*` stands for slashes too.
    """

    own: tuple[str, ...] = OWN
    instructions: tuple[str, ...] = INSTRUCTIONS

    def of(self, path: str) -> Scope:
        """The scope of a path; one that is not plain can't be told from one of the server's own."""
        plain = plain_or_none(path)
        if plain is None or _any(self.own, plain):
            return "L0"
        return "L1" if _any(self.instructions, plain) else "L2"


def plain_or_none(path: str) -> str | None:
    """The path relative to the workspace without `.` and doubled slashes; None for what leaves it or is none.

    Stricter than the opener's rule: `..` is refused everywhere, so that two texts never name one file.
    """
    if not path or len(path) > PATH_CHARS or _ELSEWHERE.match(path) or "\\" in path or not path.isprintable():
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "/".join(parts) if parts and ".." not in parts else None


def _any(globs: tuple[str, ...], plain: str) -> bool:
    folded = plain.casefold()
    parts = folded.split("/")
    for glob in globs:
        wanted = glob.casefold()
        if fnmatchcase(folded, wanted) if "/" in wanted else any(fnmatchcase(part, wanted) for part in parts):
            return True
    return False
