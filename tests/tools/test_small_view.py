"""What of the machine a program in a sandbox sees: a fixed list, as root and as a plain user; and what it is told."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_command import CommandRunner, body
from test_toolchains import preview, runner_in, script

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.tool import Preview, ToolContext
from kairos_mcp.gate import Gate
from kairos_mcp.gate_calls import GatedCall
from kairos_mcp.settings.table_values import GateRule
from kairos_mcp.tools.commands import protected_paths
from kairos_mcp.tools.commands.protected_paths import RENAMED
from kairos_mcp.tools.commands.run_command import COMMAND_SPEC
from kairos_mcp.tools.commands.sandbox import HOME, Sandbox
from kairos_mcp.tools.tool import call_tool

pytestmark = pytest.mark.sandbox
NOBODY = 65534
SEEN = ("/usr/bin", "/bin/sh", "/etc/passwd", "/etc/ssl/certs", "/proc/self/status", "/dev/null", "/tmp", "/opt")
UNSEEN = (
    *(
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/ssh",
        "/etc/ssl/private",
        "/etc/machine-id",
        "/etc/hostname",
    ),
    *("/root/.ssh", "/root/.bashrc", "/home", "/srv", "/mnt", "/media", "/var/lib", "/var/log", "/var/mail", "/boot"),
    *("/run", "/sys/kernel", "/work", "/etc/environment", "/etc/profile.d", "/lost+found"),
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "W").mkdir()
    return tmp_path / "W"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def look_inside(sandbox: Sandbox, paths: tuple[str, ...], user: int | None) -> set[str]:
    """Those of the paths that a program can list or read."""
    probe = 'for each; do { ls "$each" && head -c1 "$each" || [ -d "$each" ]; } >/dev/null 2>&1 && echo "$each"; done'
    argv = sandbox.wrap(["/bin/sh", "-c", probe, "sh", *paths])
    words = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}, **words)  # type: ignore[call-overload]  # a user, or none
    return set(done.stdout.split())


@pytest.mark.parametrize("network", [False, True], ids=["programs", "servers"])
@pytest.mark.parametrize("user", [None, NOBODY], ids=["this user", "a plain user"])
def test_of_the_machine_it_sees_what_programs_need_and_nothing_else(user: int | None, network: bool) -> None:
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if user is not None and not all(folder.stat().st_mode & stat.S_IXOTH for folder in Path(sys.prefix).parents):
        pytest.skip("this environment, and bubblewrap in it, lies where no other user may go")
    assert look_inside(Sandbox(None, network=network), SEEN, user) == {path for path in SEEN if Path(path).exists()}
    assert look_inside(Sandbox(None, network=network), UNSEEN, user) == set()


def test_its_root_and_the_settings_beside_those_that_it_needs_are_absent(workspace: Path) -> None:
    listed = body(CommandRunner(workspace, reads=()).run("ls", "/", "/etc"))
    root, _, settings = listed.partition("/etc:\n")
    top = {Path(line).name for line in root.split("\n") if line}
    allowed = {"bin", "dev", "etc", "gnu", "home", "lib", "lib32", "lib64", "libx32", "nix", "opt", "proc", "root"}
    assert top - {":", "/:"} <= allowed | {"run", "sbin", "tmp", "usr", "var", ""}
    assert {"shadow", "sudoers", "ssh", "environment"}.isdisjoint(settings.split())


def test_another_workspace_beside_this_one_is_not_there(workspace: Path) -> None:
    (workspace.parent / "other").mkdir()
    (workspace.parent / "other" / "code").write_text("theirs")
    assert CommandRunner(workspace, reads=()).run("ls", str(workspace.parent / "other")).is_error


def run_covered(runner: CommandRunner, *argv: str, gate: Gate | None = None, reads: tuple[str, ...] = ()) -> ToolResult:
    """Run as a run does: with the gate's word on files that may not be read unasked."""
    arguments = {"argv": list(argv), "reads": list(reads)}
    hidden = (gate or Gate([])).hidden_path_test(GatedCall(COMMAND_SPEC, arguments))
    ctx = ToolContext("run-1", time.monotonic() + 60, lambda _: None, "p", is_hidden=hidden)
    return call_tool(runner.tool, arguments, ctx)


SECRETS = (".env", "sub/.env.local", ".github/.env", "node_modules/x/.env", ".ENV")


def fill_secrets(workspace: Path) -> None:
    for name in (*SECRETS, ".env.example", "sub/env"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(f"KEY={name}")


def test_files_that_may_not_be_read_unasked_are_covered_and_stay_as_they_are(workspace: Path) -> None:
    fill_secrets(workspace)
    runner = CommandRunner(workspace, reads=())
    for name in SECRETS:
        for attack in (f"cat {name}", f"cp {name} copy", f"mv {name} x; cat x", f"ln {name} y && cat y"):
            grabbed = run_covered(runner, "sh", "-c", attack)
            assert "KEY" not in grabbed.content, (name, attack)
    moved = run_covered(runner, "sh", "-c", "mv sub away && cat away/.env.local")
    assert "KEY" not in moved.content
    assert "KEY" not in run_covered(runner, "sh", "-c", "cat away/.env.local").content
    assert body(run_covered(runner, "cat", ".env.example")) == "KEY=.env.example"
    (workspace / "away").rename(workspace / "sub")
    assert all((workspace / name).read_text() == f"KEY={name}" for name in SECRETS)


def test_one_decision_covers_a_file_for_programs_and_for_read_file(workspace: Path) -> None:
    fill_secrets(workspace)
    (workspace / "sub" / "keys.txt").write_text("KEY")
    runner = CommandRunner(workspace, reads=())
    denied = Gate([GateRule("read_file", "deny", paths=("sub/*",))])
    assert "KEY" not in run_covered(runner, "cat", "sub/keys.txt", gate=denied).content
    assert "KEY" in run_covered(runner, "cat", "sub/keys.txt").content
    allowed = Gate([GateRule("read_file", "allow", paths=(".env",))])
    assert "KEY" in run_covered(runner, "cat", ".env", gate=allowed).content
    assert "KEY" not in run_covered(runner, "cat", "sub/.env.local", gate=allowed).content
    always_asked = Gate([GateRule("*", "ask")])
    assert "KEY" in run_covered(runner, "cat", "sub/keys.txt", gate=always_asked).content
    assert "KEY" not in run_covered(runner, "cat", ".env", gate=always_asked).content


def test_a_person_opens_a_covered_file_by_name(workspace: Path) -> None:
    fill_secrets(workspace)
    runner = CommandRunner(workspace, reads=(workspace / ".env", workspace / "sub"))
    assert "KEY" in run_covered(runner, "cat", ".env").content
    assert "KEY" in run_covered(runner, "cat", "sub/.env.local").content
    assert "KEY" not in run_covered(runner, "cat", ".github/.env").content


def test_what_a_call_asks_to_read_is_shown_to_a_person_and_read_for_this_call_alone(
    workspace: Path, home: Path
) -> None:
    script(home / "conda/bin/tool", "#!/bin/sh\necho conda\n")
    here = runner_in(workspace, home)
    refused = here.preview("tool")
    asked = here.preview(str(home / "conda/bin/tool"), reads=["~/conda"])
    assert isinstance(refused, ToolResult)
    assert isinstance(asked, Preview)
    assert "\nASKS TO READ, for this call ~/conda" in asked.text
    assert body(here.run(str(home / "conda/bin/tool"), reads=["~/conda"])) == "conda"
    assert here.run(str(home / "conda/bin/tool")).code == "command_denied"
    assert "ASKS" not in preview(here, "true")


def test_a_call_may_ask_for_a_covered_file_and_is_shown_this_one_alone(workspace: Path) -> None:
    fill_secrets(workspace)
    runner = CommandRunner(workspace, reads=())
    asked = runner.preview("cat", ".env", reads=["./.env"])
    assert isinstance(asked, Preview)
    assert "\nASKS TO READ, for this call .env" in asked.text
    assert body(run_covered(runner, "cat", ".env", reads=(".env",))) == "KEY=.env"
    assert "KEY" not in run_covered(runner, "cat", "sub/.env.local", reads=(".env",)).content
    assert "KEY" in run_covered(runner, "cat", "sub/.env.local", reads=("sub",)).content
    assert "KEY" not in run_covered(runner, "cat", ".env").content


def test_what_read_file_is_denied_no_call_asks_for(workspace: Path) -> None:
    fill_secrets(workspace)
    gate = Gate([GateRule("read_file", "deny", paths=("sub/.env*",))])
    runner = CommandRunner(workspace, reads=())
    named = gate.judge(GatedCall(COMMAND_SPEC, {"argv": ["true"], "reads": ["sub/.env.local"]}))
    other = gate.judge(GatedCall(COMMAND_SPEC, {"argv": ["true"], "reads": ["sub"]}))
    assert (named.decision, other.decision) == ("deny", "ask")
    assert "KEY" not in run_covered(runner, "cat", "sub/.env.local", gate=gate, reads=("sub",)).content


@pytest.mark.parametrize("text", ["link", "{workspace}/link", "{workspace}", "~/way/link", "link/.."])
def test_no_call_asks_by_a_link_that_a_program_could_have_made(workspace: Path, home: Path, text: str) -> None:
    """A person would be shown its name, and not where it leads."""
    (home / "own").mkdir()
    (home / "way").symlink_to(workspace)
    (workspace / "link").symlink_to(home / "own")
    refused = runner_in(workspace, home).preview("true", reads=[text.format(workspace=workspace)])
    assert isinstance(refused, ToolResult)
    assert refused.code in ("path_denied", "bad_arguments")


def test_where_a_link_of_the_user_leads_is_shown(workspace: Path, home: Path) -> None:
    (home / "own").mkdir()
    (home / "tools").symlink_to(home / "own")
    asked = runner_in(workspace, home).preview("true", reads=["~/tools"])
    assert isinstance(asked, Preview)
    assert f"\nASKS TO READ, for this call ~/tools (which is {home / 'own'})" in asked.text


@pytest.mark.parametrize("folder", ["~/", "/", "/etc", "/root/..", "relative", "~/none"])
def test_no_call_asks_for_a_whole_home_or_system_folder(workspace: Path, home: Path, folder: str) -> None:
    refused = runner_in(workspace, home).run("true", reads=[folder])
    assert refused.code in ("path_denied", "bad_arguments", "not_found")


def test_no_configured_rule_allows_a_call_that_asks_to_read_more() -> None:
    gate = Gate([GateRule("run_command", "allow", effect="irreversible")])
    plain = gate.judge(GatedCall(COMMAND_SPEC, {"argv": ["true"]}))
    more = gate.judge(GatedCall(COMMAND_SPEC, {"argv": ["true"], "reads": ["~/conda"]}))
    assert (plain.decision, more.decision, more.may_remember) == ("allow", "ask", True)


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/sh\ninner",
        "#!/usr/bin/env python3\nimport subprocess; subprocess.run(['inner'])",
        "#!/bin/sh\nexec {inner}",
    ],
)
def test_a_program_that_is_missed_inside_is_named_with_the_line_that_opens_it(
    workspace: Path, home: Path, text: str
) -> None:
    inner = script(home / "conda/bin/inner", "#!/bin/sh\necho conda\n")
    (home / "bin").mkdir()
    (home / "bin/inner").symlink_to(inner)
    script(workspace / "tool", text.replace("{inner}", str(inner)) + "\n")
    failed = runner_in(workspace, home).run("./tool")
    assert failed.is_error
    assert 'command_reads = ["' in failed.content
    assert (
        "conda" in failed.content.partition("command_reads")[2] or "bin" in failed.content.partition("command_reads")[2]
    )
    asked = json.loads(failed.content.rpartition("reads = ")[2].partition("]")[0] + "]")
    assert {"~/conda", "~/bin"} & {*asked}


def test_a_library_that_is_missed_inside_is_named_with_the_line_that_opens_it(workspace: Path, home: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no compiler on this machine")
    lib = home / "cuda/lib"
    lib.mkdir(parents=True)
    (home / "cuda/bin").mkdir()
    (home / "a.c").write_text("int f(void) { return 0; }\n")
    (home / "main.c").write_text("int f(void); int main(void) { return f(); }\n")
    subprocess.run(["cc", "-shared", "-o", lib / "libkairosx.so.1", home / "a.c"], check=True)
    subprocess.run(["cc", "-o", workspace / "main", home / "main.c", lib / "libkairosx.so.1"], check=True)
    failed = CommandRunner(
        workspace, reads=(), environ={"PATH": f"{home}/cuda/bin:/usr/bin:/bin", "HOME": str(home)}
    ).run("./main")
    assert "libkairosx.so.1 is there, at ~/cuda/lib/" in failed.content
    assert 'command_reads = ["~/cuda/lib"]' in failed.content


def test_of_files_that_are_no_programs_nothing_is_told(workspace: Path, home: Path) -> None:
    (home / "key").write_text("x")
    failed = runner_in(workspace, home).run("cat", str(home / "key"))
    assert "command_reads" not in failed.content


def test_caches_of_the_home_folder_stand_below_the_home_inside(workspace: Path, home: Path) -> None:
    for name in ("go/pkg/mod/x", ".cargo/registry/x", ".m2/repository/x", ".ssh/x"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("cached")
    (home / ".cargo/credentials.toml").write_text("KEY")
    here = runner_in(workspace, home)
    found = set(body(here.run("find", HOME, "-type", "f")).split())
    assert {f"{HOME}/{name}/x" for name in ("go/pkg/mod", ".cargo/registry", ".m2/repository")} <= found
    assert not [path for path in found if "credentials" in path or ".ssh" in path]
    assert here.run("sh", "-c", f"echo x > {HOME}/.cargo/registry/x").is_error
    assert not here.run("sh", "-c", f"echo x > {HOME}/.cargo/config.toml").is_error


PROJECT = {
    "a.py": "print(6 * 7)\n",
    "test_a.py": "def test_a():\n    assert 6 * 7 == 42\n",
    "package.json": '{"name": "forty-two", "scripts": {"start": "node a.js"}}\n',
    "a.js": "console.log(6 * 7)\n",
    "Cargo.toml": '[package]\nname = "forty-two"\nversion = "0.1.0"\nedition = "2021"\n',
    "src/main.rs": 'fn main() { println!("{}", 6 * 7) }\n',
    "go.mod": "module fortytwo\n",
    "a.go": 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println(6 * 7) }\n',
    "Makefile": "all:\n\t@expr 6 \\* 7\n",
    "a.c": '#include <stdio.h>\nint main(void) { printf("%d", 6 * 7); }\n',
}
WORK = {  # a job for each tool, and what it says
    "python3": ("python3 a.py", "42"),
    "pip": ("pip list --disable-pip-version-check", "pip"),
    "pytest": ("pytest -q -p no:cacheprovider test_a.py", "1 passed"),
    "node": ("node a.js", "42"),
    "npm": ("npm --silent start", "42"),
    "cargo": ("cargo run --quiet --offline", "42"),
    "rustc": ("rustc src/main.rs -o a.out && ./a.out", "42"),
    "go": ("go run a.go", "42"),
    "git": ("git log --format=%s && git status --short", "first"),
    "make": ("make", "42"),
    "cc": ("cc a.c -o a.out && ./a.out", "42"),
}


@pytest.mark.parametrize("tool", [pytest.param(each, marks=[pytest.mark.slow] * (each == "cargo")) for each in WORK])
def test_the_toolchains_of_this_machine_do_their_work_inside(workspace: Path, tool: str) -> None:
    if shutil.which(tool, path=os.environ["PATH"]) is None:
        pytest.skip(f"no {tool} on this machine")
    for name, text in PROJECT.items():
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(text)
    if tool == "git":
        commits = "git init -q && git add a.py && git -c user.name=me -c user.email=me@h.example commit -qm first"
        subprocess.run(["sh", "-c", commits], cwd=workspace, check=True)
    job, answer = WORK[tool]
    version = (tool, "version" if tool == "go" else "--version")
    if subprocess.run(version, capture_output=True, check=False).returncode:
        pytest.skip(f"{tool} does not run outside either")
    said = CommandRunner(workspace, reads=(), environ=dict(os.environ)).run("sh", "-c", job)
    assert not said.is_error, said.content
    assert answer in said.content


def test_a_program_that_makes_more_files_like_env_than_a_sandbox_covers_keeps_no_later_one_from_starting(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protected_paths, "MAX_UNREADABLE", 20)
    (workspace / ".env").write_text("KEY=quagga")
    runner = CommandRunner(workspace, reads=())
    many = "mkdir d; for i in $(seq 30); do echo $i > d/.env.$i; done; chmod 555 d"
    linked = "echo 0 > a.env; for i in $(seq 30); do ln a.env $i; done"
    made = run_covered(runner, "sh", "-c", f"{many}; {linked}")
    assert not made.is_error, made.content
    assert "12 new files that no program may read" in made.content
    files = [path for path in workspace.rglob("*") if path.is_file()]
    assert len([path for path in files if path.name.startswith(RENAMED)]) == 12
    assert len(files) == 62  # none is lost
    assert (workspace / ".env").read_text() == "KEY=quagga"
    later = run_covered(runner, "sh", "-c", "cat .env; echo started")
    assert "started" in later.content
    assert "quagga" not in later.content


def test_another_name_of_a_file_like_env_is_covered_for_a_program(workspace: Path) -> None:
    (workspace / ".env").write_text("KEY=quagga")
    os.link(workspace / ".env", workspace / "notes.txt")
    assert "quagga" not in run_covered(CommandRunner(workspace, reads=()), "sh", "-c", "cat notes.txt .env").content
