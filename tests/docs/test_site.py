"""The site's pages hold together: navigation, links and their places, blocks, pictures. Building it is `-m browser`."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from readme import DOCS, EXAMPLES, ROOT
from support.commands import command
from support.environment import plain_environ

from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

BUILD = runpy.run_path(str(ROOT / "site" / "build.py"))
PICTURES = runpy.run_path(str(ROOT / "site" / "pictures.py"))
PATHS = [path for _, _, path in BUILD["read_nav"]()]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """The blocks of a language on all pages, each with its page."""
    for path in (*PATHS, *(str(page.relative_to(ROOT)) for page in EXAMPLES.glob("*/README.md"))):
        for indent, name, text in BLOCK.findall((ROOT / path).read_text()):
            if name == language:
                yield path, re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    assert len(PATHS) == len(set(PATHS))
    assert {str(page.relative_to(ROOT)) for page in DOCS.rglob("*.md")} <= set(PATHS)
    assert all((ROOT / path).is_file() for path in PATHS)


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    for path in PATHS:
        text = (ROOT / path).read_text()
        BUILD["convert"](text, path, set(PATHS))  # raises for a file that is not there
        for target, place in re.findall(r"\]\(([^)\s:#]*)#([^)\s]+)\)", text):
            page = (ROOT / path).parent / target if target else ROOT / path
            headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
            assert place in {slug(heading) for heading in headings}, f"{path}: {target}#{place}"


def slug(heading: str) -> str:
    """The place of a heading, as both GitHub and the site name it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_every_block_of_commands_is_a_shell_s() -> None:
    text = "\n".join(f": {path}\n{block}" for path, block in blocks("sh") if "*/15 * * * *" not in block)
    checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert checked.stderr == ""


def test_every_block_of_settings_is_taken(tmp_path: Path) -> None:
    taken = set()
    for path, block in blocks("toml"):
        keys = tomllib.loads(block).keys()
        if "project" in keys or {"id", "goal"} <= keys:
            continue  # a package, a mandate
        (tmp_path / "kairos.toml").write_text(block.replace("/srv/project", str(tmp_path)))
        load_settings(Flags(str(tmp_path / "home"), config=str(tmp_path / "kairos.toml")), {})
        taken.add(path)
    assert {"docs/settings.md", "docs/how-to/http-with-oauth.md", "docs/how-to/own-tools.md"} <= taken


def test_every_block_of_json_yaml_and_python_can_be_read() -> None:
    for _, block in blocks("json"):
        json.loads(block)
    for _, block in blocks("yaml"):
        assert isinstance(yaml.safe_load(block), dict)
    for path, block in blocks("python"):
        compile(block, path, "exec")


@pytest.mark.parametrize("name", PICTURES["PICTURES"])
def test_a_picture_of_a_concept_is_what_is_drawn_today(name: str) -> None:
    assert (DOCS / "pictures" / f"concept-{name}.svg").read_text() == PICTURES["draw"](name)


def test_the_index_for_models_says_what_each_page_is_about(tmp_path: Path) -> None:
    BUILD["write_llms"](tmp_path)
    lines = (tmp_path / "llms.txt").read_text().splitlines()
    listed = {line.split("](")[1].split(")")[0] for line in lines if line.startswith("- ")}
    assert listed == set(PATHS) - {"README.md"}
    assert [line for line in lines if line.startswith("- ") and "): " not in line] == []


@pytest.mark.slow
def test_a_backup_is_made_tried_and_replayed_as_its_page_says(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "limits", tmp_path / "limits")
    environ = plain_environ("XDG_") | {
        "HOME": str(tmp_path),
        "KAIROS_HOME": str(tmp_path / "state"),
        "KAIROS_CONFIG": str(tmp_path / "limits" / "kairos.toml"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    assert command("run", "Compare the two pages.", folder=tmp_path / "limits", environ=environ).code == 0
    page = (DOCS / "how-to" / "backup.md").read_text()
    script = "\n".join(re.findall(r"<!-- executed -->\n```sh\n(.*?)```", page, re.DOTALL))
    done = subprocess.run(
        ["bash", "-eu"], input=script, cwd=tmp_path / "limits", env=environ, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Compare the two pages.") >= 1  # the copy lists the run
    assert (tmp_path / "limits" / "run-record.jsonl").exists()
    kept = {file.name for file in (tmp_path / "state-backup").iterdir()}
    assert {"kairos.db", "request-state.key"} <= kept
    assert not kept & {"owners", "kairos.db-wal"}
