"""The files of a skill as whole contents, and its manifest: what a client that loads skills by itself is given.

Such a client compares what it reads with the digests of the manifest, so contents are given byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from kairos_mcp.core.errors import KairosError, NotFound, TooLarge
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.paths import plain_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.text import decode_text, truncate
from kairos_mcp.settings.agents import read_front_matter
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.skills import SKILL_FILES, SkillFolders, front_matter_of

MAIN = SKILL_FILES[0]
MAX_FILES, MAX_BYTES = 512, 16 << 20  # of one skill: what every client that knows the skills extension takes
MAX_LEVELS = 16  # of folders in one


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill: its path there, the SHA-256 of its content in hex, its size in bytes."""

    path: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class SkillManifest:
    """A skill: its name, all of its front matter, and every file, SKILL.md first."""

    name: str
    front_matter: JsonObject
    files: tuple[SkillFile, ...]


def read_manifest(folders: SkillFolders, name: str) -> SkillManifest:
    """Read a skill's manifest. Raises NotFound; BadArguments where its front matter can't be read; TooLarge where it
    has more files, or larger ones, than clients take."""
    workspace, main = folders.find_skill(name)
    head = front_matter_of(decode_text(workspace.read_whole(main, MAX_BYTES) or b"", "replace"), name)
    paths = [main, *(path for path in _walk(workspace, name, 1) if path != main)]
    if len(paths) > MAX_FILES:
        raise TooLarge(f"The skill {name} has more than {MAX_FILES} files.", "Split it into several skills.")
    files: list[SkillFile] = []
    left = MAX_BYTES
    for path in paths:
        content = workspace.read_whole(path, left) or b""
        left -= len(content)
        shown = MAIN if path == main else path.removeprefix(f"{name}/")
        files.append(SkillFile(shown, sha256(content).hexdigest(), len(content)))
    return SkillManifest(name, dict(read_front_matter(head)), tuple(files))


def list_manifests(folders: SkillFolders) -> list[SkillManifest]:
    """Read the manifests of all skills, without those that can't be read whole."""
    found: list[SkillManifest] = []
    for skill in folders.list_skills().skills:
        try:
            found.append(read_manifest(folders, skill.name))
        except (KairosError, OSError):
            continue  # `doctor` and read_skill name what is wrong with it
    return found


def read_skill_file(folders: SkillFolders, name: str, path: str) -> bytes:
    """Return what a file of a skill holds. Raises NotFound, PathDenied, TooLarge."""
    workspace, main = folders.find_skill(name)
    inside = plain_path(path)
    content = workspace.read_whole(main if inside == MAIN else f"{name}/{inside}", MAX_BYTES)
    if content is None:
        raise NotFound(
            f"The skill {name} has no file {truncate(path, 120)!r}.", f"Its skill://{name}/{MAIN} names them."
        )
    return content


def _walk(workspace: Workspace, folder: str, level: int) -> Iterator[str]:
    """Yield the paths of all files below a folder, in order, without links; one more than MAX_FILES at most of each."""
    entries, _ = workspace.entries(folder, MAX_FILES + 1)
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if entry.kind == "file":
            yield path
        elif entry.kind == "folder" and level < MAX_LEVELS:
            yield from _walk(workspace, path, level + 1)
