"""List the skills that can be read here, and read their files, for clients that load skills by themselves."""

from __future__ import annotations

import asyncio

from kairos_mcp.app.context import Operations
from kairos_mcp.tools.skill_files import SkillManifest, list_manifests, read_manifest, read_skill_file
from kairos_mcp.tools.skills import Skill


class Skills(Operations):
    """Read skills in a thread: a folder of skills may lie on a slow disk."""

    async def list_all(self) -> tuple[Skill, ...]:
        """Return name and description of each skill, by name."""
        return (await asyncio.to_thread(self._factory.skill_folders.list_skills)).skills

    async def list_manifests(self) -> list[SkillManifest]:
        """Return the manifests of all skills, by name."""
        return await asyncio.to_thread(list_manifests, self._factory.skill_folders)

    async def read_manifest(self, name: str) -> SkillManifest:
        """Return the manifest of a skill. Raises NotFound, BadArguments, TooLarge."""
        return await asyncio.to_thread(read_manifest, self._factory.skill_folders, name)

    async def read_file(self, name: str, path: str) -> bytes:
        """Return what a file of a skill holds. Raises NotFound, PathDenied, TooLarge."""
        return await asyncio.to_thread(read_skill_file, self._factory.skill_folders, name, path)
