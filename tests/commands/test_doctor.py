"""`doctor` and `status`: what they find, and that they find it without changing anything."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kairos_mcp.settings.names import SETTINGS


def states(said) -> dict[str, str]:
    return {finding["matter"]: finding["state"] for finding in said.json["findings"]}


def test_all_is_well_here_and_nothing_is_made(kairos) -> None:
    said = kairos("doctor", "--json", "--workspace", ".")
    assert said.code == 0
    assert "bad" not in states(said).values()
    assert {"python", "sqlite", "search", "store", "workspace", "containment", "route"} <= set(states(said))
    assert not kairos.state.exists()


WITHOUT_RENAMEAT2 = """
import ctypes, os, struct, sys
steps = ((0x20, 0, 0, 0), (0x15, 0, 1, NUMBER), (0x06, 0, 0, 0x50026), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
rules = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, rules, 0, 0) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""  # the kernel answers this one call with ENOSYS (38) from here on, as one that does not have it
RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(platform.machine())


@pytest.mark.skipif(sys.platform != "linux" or RENAMEAT2 is None, reason="the number of the call is known on Linux")
def test_where_a_file_can_not_be_exchanged_as_it_is_replaced_it_says_so(kairos) -> None:
    here = kairos("doctor", "--json")
    assert states(here)["writing"] == "ok"
    program = WITHOUT_RENAMEAT2.replace("NUMBER", str(RENAMEAT2))
    words = [sys.executable, "-c", program, *kairos.words("doctor", "--json")[1:]]
    there = subprocess.run(words, cwd=kairos.folder, env=kairos.environ(), capture_output=True, timeout=60, check=False)
    (found,) = [each for each in json.loads(there.stdout)["findings"] if each["matter"] == "writing"]
    assert (found["state"], "no renameat2" in found["text"]) == ("note", True)
    assert found["cure"]


def test_each_setting_is_shown_with_where_it_came_from(kairos) -> None:
    said = kairos("doctor", "--json", "--workspace", ".", KAIROS_LIMITS_USD="0.5")
    settings = said.json["settings"]
    assert set(settings) == {"home", "config", *SETTINGS}
    assert settings["home"] == {"value": str(kairos.state), "from": "environment"}
    assert settings["workspaces"] == {"value": [str(kairos.folder)], "from": "flag"}
    assert settings["limits.usd"] == {"value": 0.5, "from": "environment"}
    assert settings["limits.rounds"] == {"value": 100, "from": "default"}
    assert settings["day.model_calls"] == {"value": 10_000, "from": "default"}


@pytest.mark.parametrize(
    ("environ", "matter", "state"),
    [
        ({"KAIROS_ROUTE": "nonsense"}, "settings", "bad"),
        ({"KAIROS_SCRIPT": "/nowhere.jsonl"}, "script", "bad"),
        ({"KAIROS_SCRIPT": "/proc/version"}, "script", "bad"),
        ({"KAIROS_ROUTE": "scripted"}, "route", "bad"),
        ({"KAIROS_HOME": "/proc/version"}, "state folder", "bad"),
        ({"KAIROS_NONSENSE": "1"}, "environment", "note"),
        ({}, "workspace", "note"),
    ],
)
def test_what_does_not_work_is_found_with_its_cure(kairos, environ: dict[str, str], matter: str, state: str) -> None:
    said = kairos("doctor", "--json", **environ)
    assert said.code == (1 if state == "bad" else 0)
    (found,) = [f for f in said.json["findings"] if f["matter"] == matter and f["state"] == state]
    assert found["cure"]


def test_the_workspace_of_a_host_s_entry_is_known(kairos) -> None:
    assert kairos("install", "claude-code", "--write").code == 0
    found = [f for f in kairos("doctor", "--json", "--offline").json["findings"] if f["matter"] == "workspace"]
    file = kairos.home / ".claude.json"
    assert [(f["state"], f["text"]) for f in found] == [
        ("ok", f"of Claude Code, the entry kairos in {file}: the folder that is open")
    ]
    entries = json.loads(file.read_text())
    entries["mcpServers"]["kairos"]["args"] = ["serve"]
    file.write_text(json.dumps(entries))
    found = [f for f in kairos("doctor", "--json", "--offline").json["findings"] if f["matter"] == "workspace"]
    assert [f["state"] for f in found] == ["note"]
    assert str(file) in found[0]["text"]


@pytest.mark.unreplayed
@pytest.mark.state_file("it damages that file")
def test_a_damaged_store_is_found(kairos) -> None:
    kairos.look_around()
    store = Path(kairos("status", "--json").json["store"])
    for file in kairos.state.glob(f"{store.name}-*"):
        file.unlink()
    store.write_bytes(b"this is no database" * 1_000)
    said = kairos("doctor", "--json")
    assert (said.code, states(said)["store"]) == (1, "bad")
    assert kairos("runs").code == 1


def test_a_replaced_prompt_is_named_and_one_that_replaces_nothing_too(kairos) -> None:
    prompts = kairos.state / "config" / "prompts"
    prompts.mkdir(parents=True)
    (prompts / "closing.md").write_text("End.", encoding="utf-8")
    (prompts / "colour.md").write_text("Blue.", encoding="utf-8")
    found = [f["state"] for f in kairos("doctor", "--json").json["findings"] if f["matter"] == "prompts"]
    assert found == ["ok", "note"]


def test_status_counts_the_runs(kairos) -> None:
    kairos.look_around()
    kairos("run", "Think.", "--route", "caller")
    health = kairos("status", "--json").json
    assert (health["runs"]["total"], health["runs"]["completed"], health["servers"]) == (2, 1, [])
    assert kairos("status").code == 0


def test_doctor_shows_no_password_of_an_address(kairos, tmp_path: Path) -> None:
    home = tmp_path / "home-of-this"
    home.mkdir(mode=0o700)
    config = home / "kairos.toml"
    config.write_text('model = "openai:small"\nbase_url = "http://bob:hunter@127.0.0.1:9/v1"\n')
    config.chmod(0o600)
    for words in (("doctor",), ("doctor", "--json")):
        said = kairos(*words, "--home", str(home))
        assert "hunter" not in said.out + said.err
        assert "bob:[secret]@" in said.out


@pytest.mark.sandbox
def test_interpreters_of_a_workspace_are_tried_as_a_run_starts_them(kairos) -> None:
    """The cure, pasted into the settings, makes it run; what is not there is not tried."""
    assert "programs" not in states(kairos("doctor", "--json", "--workspace", "."))
    conda = kairos.folder.parent / "conda" / "bin" / "python"
    conda.parent.mkdir(parents=True)
    conda.write_text("#!/bin/sh\necho Python 3.99\n")
    conda.chmod(0o755)
    (kairos.folder / ".venv" / "bin").mkdir(parents=True)
    (kairos.folder / ".venv" / "bin" / "python").symlink_to(conda)

    def find_programs() -> tuple[str, str, str]:
        findings = kairos("doctor", "--json", "--workspace", ".").json["findings"]
        (found,) = [each for each in findings if each["matter"] == "programs"]
        return found["state"], found["text"], found["cure"]

    state, text, cure = find_programs()
    assert (state, "can't look at" in text) == ("note", True)
    kairos.state.mkdir(mode=0o700, exist_ok=True)
    (kairos.state / "kairos.toml").write_text(cure[cure.index("command_reads") : cure.index("]") + 1] + "\n")
    state, text, _ = find_programs()
    assert (state, text.endswith(".venv/bin/python runs (Python 3.99)")) == ("ok", True)


def test_a_server_that_can_not_be_started_is_named_with_what_it_wrote(kairos) -> None:
    """It is tried beside what runs use: nothing of it is pinned."""
    kairos.state.mkdir(mode=0o700, exist_ok=True)
    broken = [sys.executable, "-c", "import sys; sys.exit('no such account: nobody@example.org')"]
    (kairos.state / "kairos.toml").write_text(
        f"[servers.broken]\ncommand = {json.dumps(broken[0])}\nargs = {json.dumps(broken[1:])}\nsandbox = false\n"
    )
    findings = kairos("doctor", "--json", "--workspace", ".").json["findings"]
    (found,) = [each for each in findings if each["matter"] == "servers" and "could not be started" in each["text"]]
    assert "no such account: nobody@example.org" in found["text"]
    assert sys.executable in found["cure"]
    assert kairos.rows("select * from definition") == []
