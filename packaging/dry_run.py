"""Make all that a release publishes, and check what needs no key: `python packaging/dry_run.py [DIST]`.

It needs `pip install build twine check-jsonschema cyclonedx-bom`, and npx for the bundle's manifest. In DIST (default:
dist) are then the wheel, the sdist, the bundle, the SBOM of what the wheel installs, the notes, and SHA-256 sums. Exits
with 1 if a step failed. A step whose tool or network is missing is skipped, which it says.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
ENVIRONMENT = Path(tempfile.mkdtemp(prefix="kairos-wheel-"))
BUNDLE = f"kairos-{VERSION}.mcpb"


class Skipped(Exception):
    """What a step needs is not here."""


def run(*words: str | Path) -> str:
    """Run a program in the repository and return what it printed. Raises CalledProcessError, or Skipped."""
    if shutil.which(str(words[0])) is None:
        raise Skipped(f"{words[0]} is missing")
    done = subprocess.run([str(word) for word in words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
    return done.stdout


def python(*words: str | Path) -> str:
    return run(sys.executable, "-m", *words)


def build_distributions() -> str:
    shutil.rmtree(DIST, ignore_errors=True)
    python("build", "--outdir", DIST)
    return ", ".join(file.name for file in sorted(DIST.iterdir()))


def check_distributions() -> str:
    return python("twine", "check", "--strict", *DIST.glob("kairos_loop-*")).strip().splitlines()[-1]


def build_bundle() -> str:
    run(sys.executable, ROOT / "packaging" / "bundle.py", DIST / BUNDLE)
    return f"{BUNDLE}, {(DIST / BUNDLE).stat().st_size // 1024} KB"


def check_bundle() -> str:
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(DIST / BUNDLE, folder, "zip")
        return run("npx", "--yes", "@anthropic-ai/mcpb@2", "validate", Path(folder) / "manifest.json").strip()


def install_wheel() -> str:
    """Install the wheel alone into an environment of its own, and run the demo there."""
    venv.create(ENVIRONMENT, with_pip=True)
    (wheel,) = DIST.glob("kairos_loop-*.whl")
    run(ENVIRONMENT / "bin" / "python", "-m", "pip", "install", "-q", wheel)
    program = ENVIRONMENT / "bin" / "kairos-loop"
    run(program, "demo", "--home", ENVIRONMENT / "home")
    return run(program, "--version").strip()


def write_sbom() -> str:
    """List what came with the wheel."""
    target = DIST / f"kairos_loop-{VERSION}.cdx.json"
    words = ["--pyproject", ROOT / "pyproject.toml", "--output-file", target]
    python("cyclonedx_py", "environment", *words, ENVIRONMENT / "bin" / "python")
    return f"{len(json.loads(target.read_text(encoding='utf-8'))['components'])} components"


def check_workflows() -> str:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    python("check_jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    python("check_jsonschema", "--builtin-schema", "vendor.dependabot", ROOT / ".github" / "dependabot.yml")
    return f"{len(workflows)} workflows"


def check_registry_entry() -> str:
    entry = ROOT / "server.json"
    schema = json.loads(entry.read_text(encoding="utf-8"))["$schema"]
    try:
        python("check_jsonschema", "--schemafile", schema, entry)
    except subprocess.CalledProcessError as error:
        if re.search("download|HTTP|gaierror", error.stdout + error.stderr):
            raise Skipped(f"{schema} can't be fetched") from error
        raise
    return schema


def write_notes() -> str:
    """Write the version's part of the changelog, or what is unreleased."""
    parts = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [part for part in parts if part.startswith((VERSION, f"[{VERSION}]"))] or parts[1:2]
    (DIST / "notes.md").write_text(found[0].partition("\n")[2].strip() + "\n", encoding="utf-8")
    return found[0].partition("\n")[0]


def write_sums() -> str:
    files = sorted(file for file in DIST.iterdir() if file.name not in ("notes.md", "SHA256SUMS"))
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return f"{len(files)} files"


STEPS: tuple[Callable[[], str], ...] = (
    build_distributions,
    check_distributions,
    build_bundle,
    check_bundle,
    install_wheel,
    write_sbom,
    check_workflows,
    check_registry_entry,
    write_notes,
    write_sums,
)


def main() -> int:
    failed = False
    for step in STEPS:
        name = step.__name__.replace("_", " ")
        try:
            print(f"ok       {name}: {step()}", flush=True)
        except Skipped as reason:
            print(f"skipped  {name}: {reason}", flush=True)
        except subprocess.CalledProcessError as error:
            failed = True
            print(f"FAILED   {name}: {error}\n{error.stdout}{error.stderr}", flush=True)
    shutil.rmtree(ENVIRONMENT)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
