"""What the server is installed from, besides the wheel: the bundle for hosts, and the entry of the registry."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION, NAME = PROJECT["version"], PROJECT["name"]
BUNDLE = runpy.run_path(str(ROOT / "packaging" / "bundle.py"))


@pytest.fixture
def unpacked_bundle(tmp_path: Path) -> Path:
    BUNDLE["build"](tmp_path / "kairos.mcpb")
    with zipfile.ZipFile(tmp_path / "kairos.mcpb") as archive:
        archive.extractall(tmp_path / "bundle")
    return tmp_path / "bundle"


def test_two_bundles_of_the_same_sources_are_the_same_bytes(tmp_path: Path) -> None:
    BUNDLE["build"](tmp_path / "one.mcpb")
    BUNDLE["build"](tmp_path / "two.mcpb")
    assert (tmp_path / "one.mcpb").read_bytes() == (tmp_path / "two.mcpb").read_bytes()


def test_the_bundle_has_all_that_a_run_needs(unpacked_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("hello", encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KAIROS_")}
    done = subprocess.run(
        [sys.executable, "-m", "kairos_mcp", "demo", "--home", str(tmp_path / "state"), "--json"],
        cwd=tmp_path / "project",
        env={**environ, "PYTHONPATH": str(unpacked_bundle)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["stop_reason"] == "assistant_stop"
    assert list(unpacked_bundle.rglob("__pycache__")) != []  # it was this copy that ran
    assert (unpacked_bundle / "config" / "prompts").is_dir()


def test_the_manifest_starts_the_command_and_tells_the_version(unpacked_bundle: Path) -> None:
    manifest = json.loads((unpacked_bundle / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["version"] == VERSION
    assert (unpacked_bundle / manifest["server"]["entry_point"]).is_file()
    words = manifest["server"]["mcp_config"]["args"]
    asked = {f"${{user_config.{name}}}" for name in manifest["user_config"]}
    used = {*words, *manifest["server"]["mcp_config"]["env"].values()}
    assert asked <= used <= asked | {"run", "--directory", "${__dirname}", "kairos-mcp", "serve", "--workspace"}


def test_the_registry_s_entry_has_what_its_schema_wants() -> None:
    """The limits of the schema that it names, for what stands in it; the whole was held against that schema by hand."""
    entry = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
    assert entry["$schema"].endswith("/2025-12-11/server.schema.json")
    assert entry.keys() <= {
        "$schema",
        "name",
        "title",
        "description",
        "version",
        "packages",
        "repository",
        "websiteUrl",
    }
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", entry["name"])
    assert 3 <= len(entry["name"]) <= 200
    for named in ("title", "description"):
        assert 1 <= len(entry[named]) <= 100
    for package in entry["packages"]:
        assert {"registryType", "identifier", "transport"} <= package.keys()
        assert package["transport"] == {"type": "stdio"}
        for argument in package["packageArguments"]:
            match argument["type"]:
                case "positional":
                    assert {"value", "valueHint"} & argument.keys()
                case kind:
                    assert (kind, argument["name"][:2]) == ("named", "--")
        assert all(variable["name"].isupper() for variable in package["environmentVariables"])


def test_the_registry_s_entry_starts_the_server() -> None:
    (package,) = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))["packages"]
    words = [argument.get("value") or argument["name"] for argument in package["packageArguments"]]
    ran = subprocess.run(
        [sys.executable, "-m", "kairos_mcp", *words, ".", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_the_registry_s_entry_is_of_this_version_and_named_in_the_readme() -> None:
    entry = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
    assert (entry["version"], [package["version"] for package in entry["packages"]]) == (VERSION, [VERSION])
    assert len(entry["description"]) <= 100
    assert f"<!-- mcp-name: {entry['name']} -->" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_wheel_has_the_page_s_files(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    assets = ROOT / "kairos_mcp" / "page" / "assets"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("kairos_mcp/page/assets/")}
    files = {
        f"kairos_mcp/page/assets/{path.relative_to(assets).as_posix()}" for path in assets.rglob("*") if path.is_file()
    }
    assert packed == files
    assert {"kairos_mcp/page/assets/index.html", "kairos_mcp/page/assets/vendor/LICENSES.txt"} <= packed


def test_every_text_names_our_own_distribution(unpacked_bundle: Path) -> None:
    """The command's name, `kairos-mcp`, is another project's on the index."""
    assert NAME == "kairos-loop"
    (package,) = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))["packages"]
    assert (package["registryType"], package["identifier"]) == ("pypi", NAME)
    assert PROJECT["scripts"][NAME] == PROJECT["scripts"]["kairos-mcp"]  # `uvx NAME` starts the script of that name
    bundled = tomllib.loads((unpacked_bundle / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert bundled["name"] == NAME
    wheels = re.findall(r"\S+\.whl", (ROOT / "packaging" / "Containerfile").read_text(encoding="utf-8"))
    assert {Path(wheel).name for wheel in wheels if "*" in wheel} == {f"{NAME.replace('-', '_')}-*.whl"}
    folders = ("kairos_mcp", "config", "docs", "deploy", "packaging", "examples", "skills")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml", "server.json")]
    foreign = re.compile(
        rb"kairos-mcp\[|kairos[-_]mcp==|(?:pip3?|pipx|uv tool|uv pip) (?:install|run) [^`\n|]*[ '\"]kairos-mcp\b"
    )
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in files
        if "__pycache__" not in path.parts
        for match in foreign.finditer(path.read_bytes())
    ]
    assert [text for text in found if "--from" not in text] == []
