"""`demo`: the real loop with real tools over this folder, and a script where a model would think."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kairos_mcp.cli.output import command
from kairos_mcp.cli.run import settings_here, start, workspace_here
from kairos_mcp.cli.session import speak
from kairos_mcp.cli.speech import say, tell
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.run_spec import PlannerRequest
from kairos_mcp.settings.settings import Flags, packaged_config

GOAL = "Look around in this folder and say what is there."


def show_demo(flags: Flags, *, as_json: bool) -> int:
    """Run the demo. No key, no network, no question; its run is kept like any other."""
    settings = settings_here(flags)
    workspace = workspace_here(settings)
    if not as_json:
        tell("This is a demo: a script (config/demo.jsonl) stands in for the model and can't think.")
        tell("The loop, its tools, its limits and its record are the real ones.\n")
        tell(f"folder {workspace}\ngoal   {GOAL}\n")
    with tempfile.TemporaryDirectory(prefix="kairos-demo-") as folder:
        script = Path(folder) / "demo.jsonl"
        script.write_text(_script_for(workspace), encoding="utf-8")
        request = PlannerRequest(
            goal=GOAL,
            route="scripted",
            limits=Limits(rounds=6),
            workspace=str(workspace),
            key=os.urandom(8).hex(),
        )
        report = start(replace(settings, script=script), request, quiet=as_json)
    code = speak(report, flags, as_json=as_json)
    if not as_json:
        say("\nLook at it:      " + command(flags, "show", report.run_id))
        say("Verify it:       " + command(flags, "replay", report.run_id))
        say("Give it a mind:  " + command(flags, "install", "claude-code", "--workspace", ".", "--write"))
    return code


def _script_for(workspace: Path) -> str:
    """The script with a file of this folder in it; where there is none, without the line that reads one."""
    lines = (packaged_config() / "demo.jsonl").read_text(encoding="utf-8").splitlines()
    found = next(_texts_in(workspace), None)
    if found is None:
        return "\n".join(line for line in lines if "$file" not in line) + "\n"
    return "\n".join(line.replace("$file", canonical_json(found)[1:-1]) for line in lines) + "\n"


def _texts_in(workspace: Path) -> Iterator[str]:
    """Names of small text files right in the folder, a README first."""
    try:
        entries = sorted(workspace.iterdir(), key=lambda entry: (entry.stem.lower() != "readme", entry.name))
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(".") and not entry.is_symlink() and entry.is_file() and _is_small_text(entry):
            yield entry.name


def _is_small_text(file: Path) -> bool:
    try:
        file.name.encode()
        with file.open("rb") as opened:
            head = opened.read(200_000)
        head.decode()
    except (OSError, UnicodeError):
        return False
    return len(head) < 200_000 and b"\0" not in head and "\\" not in file.name
