"""The skills extension (SEP-2640): which skills there are, each with its front matter and the digests of its files.

The files themselves are resources (resources.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import KairosError, NotFound
from kairos_mcp.core.text import truncate
from kairos_mcp.server.resources import FIXED_TTL_MS, SKILL, GetApp, protocol_error, refuse_cursor
from kairos_mcp.server.sender import current_principal

if TYPE_CHECKING:
    from kairos_mcp.core.messages import JsonObject
    from kairos_mcp.tools.skill_files import SkillManifest

_CACHE: JsonObject = {"ttlMs": FIXED_TTL_MS, "cacheScope": "public"}


async def list_skills(get_app: GetApp, cursor: str | None) -> JsonObject:
    """The entries of all skills, on one page. Raises MCPError for a cursor."""
    refuse_cursor(cursor)
    skills = [_entry(manifest) for manifest in await (await get_app()).agents.list_manifests()]
    return {"resultType": "complete", "skills": skills, **_CACHE}


async def get_skill(get_app: GetApp, uri: str) -> JsonObject:
    """The entry of the skill whose SKILL.md has this URI. Raises MCPError."""
    app = await get_app()
    try:
        values = SKILL.match(uri)
        if values is None:
            raise NotFound(f"{truncate(uri, 120)!r} is the SKILL.md of no skill.", "skills/list names those of all.")
        manifest = await app.agents.read_manifest(values["name"])
    except KairosError as error:
        raise protocol_error(error, app, Caller(current_principal()), uri=truncate(uri, 400)) from error
    return {"resultType": "complete", "skill": _entry(manifest), **_CACHE}


def _entry(manifest: SkillManifest) -> JsonObject:
    folder = f"skill://{manifest.name}"
    files = [
        {"uri": f"{folder}/{quote(file.path)}", "digest": f"sha256:{file.digest}", "size": file.size}
        for file in manifest.files
    ]
    return {"uri": files[0]["uri"], "frontmatter": manifest.front_matter, "resources": files}
