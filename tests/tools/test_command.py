"""Programs that a run starts, with real processes: what they may touch, how they end, and what is told of them.

Where the kernel allows no sandbox its tests are skipped with the reason. The COMMAND cases of
fault_cases.json that are not here by number, and why:
COMMAND-024: `rg --pre` matters where a list of allowed programs lets rg in; no such list exists, a call of any program
  asks, and what it starts is as contained as itself.
COMMAND-002 to 015 expect `command_denied` of a command given as one text; the schema says `bad_arguments` before.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import sandboxed
from support.waiting import wait_until

from kairos_mcp.core.messages import ToolResult
from kairos_mcp.core.redaction import Redactor
from kairos_mcp.core.tool import Preview, StopSignal, Tool, ToolContext
from kairos_mcp.tools.commands import protected_paths
from kairos_mcp.tools.commands.run_command import CommandSettings, command_tools
from kairos_mcp.tools.commands.runner import (
    FLOOD_BYTES,
    HEAD_BYTES,
    LAUNCHER,
    LEASH_FD,
    STATUS_FD,
    TAIL_BYTES,
    CapturedStream,
    LaunchRequest,
    ProcessResult,
    run_process,
)
from kairos_mcp.tools.commands.sandbox import Sandbox, scrub_environment
from kairos_mcp.tools.commands.task_limits import read_parent_pid
from kairos_mcp.tools.commands.toolchains import find_toolchains, home_folders, toolchain_variables
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.tool import call_tool, preview_call

PYTHON = os.path.realpath(sys.executable)
READS = (Path(sys.base_prefix),)  # wherever this Python is installed, be it in a home folder
SECRET = "kairos-planted-9b1f"
WITHIN_S = 10.0
BOTH = [pytest.param("sandboxed", marks=pytest.mark.sandbox), "bare"]


PARTED_KEY = "kq-4711-zX9+/pLm=c0ffee"


class CommandRunner:
    """run_command over one workspace, in both ways of running."""

    def __init__(self, workspace: Path, mode: str = "sandboxed", **more: Any) -> None:
        self.workspace = workspace
        environ = {"PATH": os.environ["PATH"], "KAIROS_API_KEY": SECRET, "OPENAI_API_KEY": SECRET, "LANG": "C.UTF-8"}
        settings = {"reads": READS, "environ": environ, **more}
        self.open_workspace = Workspace(workspace)
        (self.tool,) = command_tools(self.open_workspace, CommandSettings(mode, **settings))  # type: ignore[arg-type]  # a mode's name

    def run(
        self, *argv: str, stop: StopSignal | None = None, base: Mapping[str, str | None] | None = None, **more: Any
    ) -> ToolResult:
        return call_tool(self.tool, {"argv": list(argv), **more}, self._around(stop, base))

    def python(self, code: str, **more: Any) -> ToolResult:
        return self.run(PYTHON, "-I", "-c", code, **more)

    def preview(self, *argv: str, **more: Any) -> Preview | ToolResult:
        return preview_call(self.tool, {"argv": list(argv), **more}, self._around(None, None))

    def _around(self, stop: StopSignal | None, base: Mapping[str, str | None] | None) -> ToolContext:
        return ToolContext(
            "run-1", time.monotonic() + 60, lambda _: None, base_hashes=base or {}, stop=stop or StopSignal()
        )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    inside = tmp_path / "W"
    (inside / "sub").mkdir(parents=True)
    return inside


@pytest.fixture
def runner(workspace: Path) -> Iterator[CommandRunner]:
    sandboxed.skip_if_missing()
    made = CommandRunner(workspace)
    yield made
    made.open_workspace.close()


@pytest.fixture
def bare(workspace: Path) -> Iterator[CommandRunner]:
    made = CommandRunner(workspace, "bare")
    yield made
    made.open_workspace.close()


@pytest.fixture(params=["sandboxed", "bare"])
def either(request: pytest.FixtureRequest, workspace: Path) -> Iterator[CommandRunner]:
    if request.param == "sandboxed":
        sandboxed.skip_if_missing()
    made = CommandRunner(workspace, request.param)
    yield made
    made.open_workspace.close()


def body(result: ToolResult) -> str:
    """What standard output brought, of a result whose standard error is empty."""
    assert "[stderr" not in result.content, result.content
    return result.content.partition("bytes]\n")[2]


def token(number: int) -> str:
    """Seconds to sleep that nobody else on this machine sleeps."""
    return f"{number}.{os.getpid()}"


def alive(mark: str) -> list[int]:
    """Processes of the whole machine whose arguments hold the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                report = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in report:
                found.append(int(entry.name))
    return found


def assert_none_left(mark: str) -> None:
    """Processes of another namespace tell nobody of their end."""
    wait_until(lambda: not alive(mark), WITHIN_S, lambda: alive(mark))


# --- what it is told, and tells -------------------------------------------------------------------------------------


def test_a_program_runs_and_its_output_comes_back(either: CommandRunner) -> None:
    result = either.run("echo", "hi")
    assert (result.is_error, body(result)) == (False, "hi")


def test_a_non_zero_exit_is_a_failure_with_both_streams(either: CommandRunner) -> None:
    result = either.run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (result.is_error, result.code, result.data) == (True, None, {"exit_code": 3})
    assert result.content.startswith("[exit code 3")
    assert "\n[stdout, 4 bytes]\nout\n[stderr, 4 bytes]\nerr" in result.content


def test_the_same_call_with_the_same_outcome_is_the_same_result(runner: CommandRunner) -> None:
    assert runner.run("sh", "-c", "echo x; exit 1").digest == runner.run("sh", "-c", "echo x; exit 1").digest


def test_a_program_that_a_signal_ended_has_its_number(either: CommandRunner) -> None:
    assert either.run("sh", "-c", "kill -11 $$").data == {"exit_code": 128 + signal.SIGSEGV}


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("COMMAND-002", "echo hi && touch PWNED"),
        ("COMMAND-003", "echo hi || touch PWNED"),
        ("COMMAND-004", 'echo hi | sh -c "touch PWNED"'),
        ("COMMAND-006", "echo $(touch PWNED)"),
        ("COMMAND-007", "echo $[ x='a[$(touch PWNED)]', x ]"),
        ("COMMAND-008", "echo hi\ntouch PWNED"),
        ("COMMAND-009", "echo hi\rtouch PWNED"),
        ("COMMAND-010", "echo hi > ~/.bashrc"),
        ("COMMAND-012", "echo${IFS}hi"),
        ("COMMAND-015", "true && " * 50 + "touch PWNED"),
    ],
)
def test_no_shell_reads_a_command(runner: CommandRunner, case: str, text: str) -> None:
    for arguments in ({"command": text}, {"argv": text}):
        assert call_tool(runner.tool, arguments, runner._around(None, None)).code == "bad_arguments", case
    assert runner.run(text).code in ("not_found", "command_denied", "path_denied"), case
    assert body(runner.run("printf", "%s", text)) == text.removesuffix("\n")
    assert not list(runner.workspace.glob("PWNED"))


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ([], "bad_arguments"),
        ([""], "bad_arguments"),
        (["echo", "a\0b"], "bad_arguments"),  # COMMAND-026
        (["echo", "\ud800"], "bad_arguments"),
        (["echo", "x" * 200_000], "bad_arguments"),
        (["echo", *["x" * 100_000] * 20], "bad_arguments"),
        (["echo"] * 2_000, "bad_arguments"),
        (["no-such-program"], "not_found"),
        (["./no-such-program"], "not_found"),
        (["./sub"], "not_found"),
        (["../W/x"], "path_denied"),
        (["/nonexistent/sh"], "not_found"),
        (["/etc/passwd"], "command_denied"),
    ],
)
def test_what_can_t_be_run_is_refused(runner: CommandRunner, argv: list[str], code: str) -> None:
    result = runner.run(*argv)
    assert (result.is_error, result.code) == (True, code)
    assert len(result.content) < 600


def test_nothing_of_the_environment_is_the_model_s_to_set(runner: CommandRunner) -> None:
    assert runner.run("env", env={"LD_PRELOAD": "./x.so"}).code == "bad_arguments"  # COMMAND-028


def test_a_program_without_its_interpreter_is_refused_and_the_interpreter_named(either: CommandRunner) -> None:
    script = either.workspace / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    result = either.run("./script")
    assert result.is_error
    assert "'./script' is run by /no/such/interpreter, by its first line, which is not there" in result.content


@pytest.mark.parametrize("mode", BOTH)
def test_a_program_reads_nothing_from_the_server_s_input(workspace: Path, mode: str) -> None:
    server = commander(workspace, ["cat"], mode=mode, stdin=subprocess.PIPE)
    assert server.stdin is not None
    server.stdin.write("protocol\n")
    server.stdin.flush()
    assert server.stdout is not None
    report = json.loads(server.stdout.readline())  # STDIO-005
    server.communicate(timeout=WITHIN_S)
    assert report["content"].startswith("[exit code 0")
    assert "protocol" not in report["content"]


def test_descriptors_of_the_server_stay_with_it(either: CommandRunner, tmp_path: Path) -> None:
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        listing = body(either.python("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"))
    assert listing == "[0, 1, 2]"  # PROCESS-023


# --- which program, in which folder ---------------------------------------------------------------------------------


@pytest.mark.sandbox
def test_a_program_of_the_workspace_is_not_found_by_its_bare_name(workspace: Path) -> None:
    for name in ("ls", "only-here"):
        (workspace / name).write_text("#!/bin/sh\necho hijacked\n")
        (workspace / name).chmod(0o755)
    runner = CommandRunner(workspace, environ={"PATH": f".:{workspace}:{os.environ['PATH']}"})
    assert "hijacked" not in runner.run("ls").content  # COMMAND-020
    assert runner.run("only-here").code == "not_found"
    assert body(runner.run("./only-here")) == "hijacked"
    assert body(runner.run("../only-here", cwd="sub")) == "hijacked"


@pytest.mark.sandbox
def test_a_program_in_a_hidden_place_is_named_with_the_cure(workspace: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mine").write_text("#!/bin/sh\necho mine\n")
    (tools / "mine").chmod(0o755)
    environ = {"PATH": f"{tools}:{os.environ['PATH']}"}
    refused = CommandRunner(workspace, environ=environ).run("mine")
    assert refused.code == "command_denied"
    assert "command_reads" in refused.content
    assert CommandRunner(workspace, environ=environ).run(str(tools / "mine")).code == "command_denied"
    assert body(CommandRunner(workspace, environ=environ, reads=(tools,)).run("mine")) == "mine"
    assert CommandRunner(workspace, environ=environ, reads=(tools,)).run("touch", str(tools / "x")).is_error
    assert not (tools / "x").exists()


@pytest.mark.parametrize(
    ("cwd", "code"), [("link", "path_denied"), ("..", "path_denied"), ("/tmp", "path_denied"), ("none", "not_found")]
)
def test_a_folder_that_is_not_the_workspace_s_is_refused(
    either: CommandRunner, tmp_path: Path, cwd: str, code: str
) -> None:
    (either.workspace / "link").symlink_to(tmp_path)
    assert either.run("touch", "here", cwd=cwd).code == code
    assert not (tmp_path / "here").exists()


def test_a_folder_that_is_swapped_for_a_link_leads_nowhere_else(
    request: pytest.FixtureRequest, either: CommandRunner, tmp_path: Path
) -> None:
    times = 3 if request.node.callspec.params["either"] == "sandboxed" else 20
    outside = tmp_path / "outside"
    outside.mkdir()
    swap = (
        "import os, sys, time\nos.chdir(sys.argv[1])\nwhile True:\n    time.sleep(0.0005)\n"
        "    os.rename('sub', 'moved')\n    os.symlink(sys.argv[2], 'sub')\n    time.sleep(0.0005)\n"
        "    os.unlink('sub')\n    os.rename('moved', 'sub')\n"
    )
    with subprocess.Popen([PYTHON, "-I", "-c", swap, str(either.workspace), str(outside)]) as swapper:
        try:
            ran = tried = 0
            while ran < times and tried < 2_000:
                tried += 1
                ran += not either.run("touch", f"here-{tried}", cwd="sub").is_error
        finally:
            swapper.kill()
    assert list(outside.iterdir()) == []
    assert ran  # how often the folder is there when it is looked at is a matter of the machine's load


# --- what it may touch ----------------------------------------------------------------------------------------------


def test_it_writes_the_workspace_and_nothing_else(runner: CommandRunner, tmp_path: Path) -> None:
    places = [str(tmp_path / "x"), "/tmp/kairos-x", "/var/tmp/kairos-x", "/dev/shm/kairos-x", "/etc/kairos-x"]
    places += [str(Path.home() / "kairos-x"), "/usr/kairos-x", "/run/kairos-x", "/kairos-x", "/sys/kairos-x"]
    places += [str(Path(__file__).parents[2] / "kairos_mcp" / "kairos-x")]
    runner.run("sh", "-c", 'for each; do touch "$each"; done; touch inside; mkdir deep; touch deep/x', "sh", *places)
    written = [place for place in places if Path(place).exists()]
    for place in written:
        Path(place).unlink()
    assert written == []
    assert (runner.workspace / "inside").exists()
    assert (runner.workspace / "deep" / "x").exists()


def test_the_home_folder_and_the_sockets_of_daemons_are_not_there(runner: CommandRunner) -> None:
    """Of each only the way to what is mounted beneath: the user's home, its toolchains, and where this Python is."""
    real = [path for path in (Path.home(), Path("/root"), Path("/home"), Path("/run")) if path.is_dir()]
    code = (
        "import json, os, sys; print(json.dumps({p: os.listdir(p) if os.path.exists(p) else [] for p in sys.argv[1:]}))"
    )
    seen = json.loads(body(runner.run(PYTHON, "-I", "-c", code, *map(str, real))))
    assert set(seen) == set(map(str, real))
    for path in real:
        shown = (*home_folders(os.environ), *READS, *find_toolchains({}), Path("/run/current-system"))
        mounted = [place for place in shown if path in place.parents]
        assert set(seen[str(path)]) <= {place.relative_to(path).parts[0] for place in mounted}, path


def test_code_of_the_workspace_that_a_test_runner_imports_is_in_the_sandbox_too(
    runner: CommandRunner, tmp_path: Path
) -> None:
    """COMMAND-021: a repository whose tests are hostile."""
    (tmp_path / "outside").write_text("a secret")
    home = Path.home()
    (runner.workspace / "test_hostile.py").write_text(
        "import os, socket\nfound = []\n"
        f"for path in ({str(tmp_path / 'outside')!r}, {str(home / '.ssh')!r}, {str(home / '.bashrc')!r}):\n"
        "    if os.path.exists(path): found.append(path)\n"
        "try:\n    socket.create_connection(('192.0.2.1', 80), 1); found.append('network')\nexcept OSError: pass\n"
        f"try:\n    open({str(tmp_path / 'made')!r}, 'w').write('x')\nexcept OSError: pass\n"
        "open('found', 'w').write(repr(found))\n"
    )
    runner.run("python3", "-m", "unittest", "-q", "test_hostile")
    assert (runner.workspace / "found").read_text() == "[]"
    assert not (tmp_path / "made").exists()


def test_there_is_no_network(runner: CommandRunner, tmp_path: Path) -> None:
    by_path, abstract = str(tmp_path / "socket"), f"\0kairos-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        unix.bind(by_path)
        hidden.bind(abstract)
        for each in (tcp, unix, hidden):
            each.listen()
            each.setblocking(False)
        result = runner.python(
            "import socket\n"
            f"for family, address in ((socket.AF_INET, {tcp.getsockname()!r}), (socket.AF_UNIX, {by_path!r}),"
            f" (socket.AF_UNIX, {abstract!r}), (socket.AF_INET, ('192.0.2.1', 80))):\n"
            "    try:\n        socket.socket(family).connect(address)\n        print('connected', address)\n"
            "    except OSError as error: print(type(error).__name__)\n"
        )
        assert body(result).count("Error") == 4
        for each in (tcp, unix, hidden):
            with pytest.raises(BlockingIOError):
                each.accept()


def test_it_is_told_of_the_environment_what_it_needs(either: CommandRunner) -> None:
    report = dict(line.split("=", 1) for line in body(either.run("env")).splitlines())
    own = {"PATH", "LANG", "HOME", "PWD", "TERM", "_", "KAIROS_IDEMPOTENCY_KEY"}
    assert set(report) <= own | set(toolchain_variables({}))  # COMMAND-037
    assert report["HOME"] != str(Path.home())
    assert SECRET not in str(report)
    assert scrub_environment({"LC_ALL": "C", "TERM": "x", "AWS_KEY": "k", "LD_PRELOAD": "p"}, "/bin").keys() == {
        "LC_ALL",
        "TERM",
        "PATH",
        "HOME",
    }


def commander(
    workspace: Path, argv: list[str], *, mode: str = "sandboxed", stdin: int | None = None, **environ: str
) -> subprocess.Popen[str]:
    asked = json.dumps({"workspace": str(workspace), "mode": mode, "arguments": {"argv": argv, "timeout_s": 30}})
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("commander.py")), asked],
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


def report_of(server: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = server.communicate(timeout=WITHIN_S * 3)
    assert server.returncode == 0
    report: dict[str, Any] = json.loads(out)
    return report


@pytest.mark.sandbox
def test_the_server_s_environment_can_t_be_read(workspace: Path) -> None:
    look = "cat /proc/$PPID/environ /proc/*/environ /proc/self/task/*/environ | tr '\\0' '\\n'"
    report = report_of(commander(workspace, ["sh", "-c", look], KAIROS_PLANTED=SECRET))
    assert SECRET not in report["content"]  # COMMAND-038
    assert "HOME=" in report["content"]


def test_no_process_outside_can_be_signalled(runner: CommandRunner) -> None:
    with subprocess.Popen(["sleep", "60"]) as outside:
        tried = runner.run("sh", "-c", f"kill -9 $PPID {outside.pid} {os.getpid()}; sleep 0.1")  # COMMAND-040
        assert "No such process" in tried.content
        assert outside.poll() is None
        outside.kill()


def test_it_has_no_rights_beyond_the_user_s(runner: CommandRunner) -> None:
    status = dict(
        line.split(":\t", 1) for line in body(runner.run("cat", "/proc/self/status")).splitlines() if ":\t" in line
    )
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert runner.run("mount", "-t", "tmpfs", "none", "/mnt").is_error


# --- what no run writes ---------------------------------------------------------------------------------------------


def test_the_repository_is_read_and_never_written(runner: CommandRunner) -> None:
    (runner.workspace / ".git" / "hooks").mkdir(parents=True)
    (runner.workspace / ".git" / "config").write_text("[core]\n")
    assert body(runner.run("cat", ".git/config")) == "[core]"
    for attack in (
        "echo x > .git/config",
        "echo x > .git/hooks/pre-commit",
        "rm -rf .git",
        "mv .git g",
        "mv .git/config .",
    ):
        assert runner.run("sh", "-c", attack).is_error, attack
    assert (runner.workspace / ".git" / "config").read_text() == "[core]\n"
    assert list((runner.workspace / ".git" / "hooks").iterdir()) == []


def test_a_repository_inside_is_read_and_never_written_nor_replaced(runner: CommandRunner) -> None:
    inner = runner.workspace / "vendor" / "lib"
    (inner / ".git" / "hooks").mkdir(parents=True)
    (inner / ".git" / "config").write_text("[core]\n")
    (inner / "code.c").write_text("int a;\n")
    (runner.workspace / "module").mkdir()
    (runner.workspace / "module" / ".git").write_text("gitdir: ../.git/modules/module\n")  # as a submodule has it
    assert body(runner.run("cat", "vendor/lib/.git/config")) == "[core]"
    for attack in (
        "echo x > vendor/lib/.git/config",
        "echo x > vendor/lib/.git/hooks/post-checkout",
        "rm -rf vendor/lib/.git",
        "mv vendor/lib/.git g",
        "mv vendor/lib vendor/other",  # what is mounted stays where it is, and so do the folders above it
        "mv vendor v && mkdir -p vendor/lib/.git",
        "echo 'gitdir: /tmp/x' > module/.git",
        "rm module/.git",
        "mv module m",
    ):
        assert runner.run("sh", "-c", attack).is_error, attack
    changed = runner.run("sh", "-c", "echo 'int b;' >> vendor/lib/code.c && mv vendor/lib/code.c vendor/lib/new.c")
    assert not changed.is_error, changed.content
    assert (inner / "new.c").read_text() == "int a;\nint b;\n"
    assert (inner / ".git" / "config").read_text() == "[core]\n"
    assert list((inner / ".git" / "hooks").iterdir()) == []
    assert (runner.workspace / "module" / ".git").read_text().startswith("gitdir: ../")


def test_no_descriptor_of_a_repository_stays_with_the_program(runner: CommandRunner) -> None:
    (runner.workspace / "vendor" / ".git").mkdir(parents=True)
    said = body(runner.run("ls", "/proc/self/fd")).split()
    assert len(said) <= 4, said  # its streams, and the one that looks


def test_a_nested_git_that_is_a_link_is_left_out_and_leads_nowhere(runner: CommandRunner, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (runner.workspace / "vendor").mkdir()
    (runner.workspace / "vendor" / ".git").symlink_to(tmp_path / "elsewhere")
    assert runner.run("sh", "-c", "ls vendor/.git/").is_error
    assert not runner.run("true").is_error


def test_repositories_beyond_what_is_looked_at_are_said_to_be_open(
    runner: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protected_paths, "MAX_FOLDERS", 50)
    (runner.workspace / "near" / ".git").mkdir(parents=True)
    for number in range(50):
        (runner.workspace / "many" / str(number)).mkdir(parents=True)
    result = runner.run("sh", "-c", "echo x > near/.git/config")
    assert result.is_error
    assert "could write a .git, or instructions: many/" in result.content


@pytest.mark.parametrize("name", [".git", ".kairos"])
def test_a_folder_that_rules_us_does_not_stay_where_there_was_none(runner: CommandRunner, name: str) -> None:
    for attempt in (f"mkdir -p {name}/hooks; echo x > {name}/config", f"mkdir {name}", f"ln -sfn /tmp {name}"):
        assert runner.run("sh", "-c", attempt).code == "path_denied"  # COMMAND-045
        assert not os.path.lexists(runner.workspace / name)


def test_a_linked_repository_is_refused(runner: CommandRunner, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (runner.workspace / ".git").symlink_to(tmp_path / "elsewhere")
    assert runner.run("true").code == "command_denied"


def test_the_state_folder_and_the_configuration_are_not_seen(workspace: Path) -> None:
    state, config = workspace / "state", workspace / "kairos.toml"
    state.mkdir()
    (state / "seal.key").write_text(SECRET)
    config.write_text(SECRET)
    runner = CommandRunner(workspace, hidden=(state, config))
    grabbed = runner.run(
        "sh", "-c", "cat state/* kairos.toml; mv state away; cp -r state copy; ls state; echo x > kairos.toml"
    )
    assert SECRET not in grabbed.content
    assert SECRET not in runner.run("sh", "-c", "rm -f kairos.toml; cat kairos.toml; cat copy/*; cat away/*").content
    assert (state / "seal.key").read_text() == config.read_text() == SECRET


def test_a_state_folder_deep_in_the_workspace_is_refused(workspace: Path) -> None:
    deep = workspace / "a" / "state"
    deep.mkdir(parents=True)
    assert CommandRunner(workspace, hidden=(deep,)).run("true").code == "command_denied"
    assert CommandRunner(workspace, hidden=(workspace.parent,)).run("true").code == "command_denied"


def test_another_folder_at_the_workspace_s_path_is_not_taken_for_it(workspace: Path, runner: CommandRunner) -> None:
    workspace.rename(workspace.parent / "moved")
    workspace.mkdir()
    assert runner.run("touch", "x").code == "command_denied"
    assert list(workspace.iterdir()) == []


# --- how it ends ----------------------------------------------------------------------------------------------------


def test_time_out_ends_everything_and_shows_what_there_was(either: CommandRunner) -> None:
    began = time.monotonic()
    result = either.run(
        "sh", "-c", f"echo begun; sleep {token(7301)} & sleep {token(7301)}", timeout_s=1
    )  # COMMAND-029
    assert (result.code, result.is_error) == ("timeout", True)
    assert "begun" in result.content
    assert time.monotonic() - began < 4
    assert alive(token(7301)) == []


def test_a_call_that_is_stopped_ends_its_program(either: CommandRunner) -> None:
    stop, results = StopSignal(), []
    running = threading.Thread(target=lambda: results.append(either.run("sleep", token(7302), stop=stop)))
    running.start()
    wait_until(lambda: alive(token(7302)), WITHIN_S)
    stop.set()
    running.join(WITHIN_S)
    assert results[0].code == "cancelled"
    assert alive(token(7302)) == []


@pytest.mark.parametrize(
    "how",
    [
        "setsid sleep 7303 & exit 0",
        "setsid sh -c 'setsid sleep 7303 & exit 0' & exit 0",
        "(trap '' TERM HUP INT; setsid nohup sleep 7303 >/dev/null 2>&1 </dev/null &) ; exit 0",
        "echo hi; exec sleep 7303 >&2 &",  # COMMAND-033
    ],
)
def test_nothing_outlives_its_program(runner: CommandRunner, how: str) -> None:
    began = time.monotonic()
    assert runner.run("sh", "-c", how.replace("7303", token(7303))).data == {"exit_code": 0}
    assert alive(token(7303)) == []
    assert time.monotonic() - began < 5


def test_without_a_sandbox_its_group_ends_with_it(bare: CommandRunner) -> None:
    began = time.monotonic()
    assert bare.run("sh", "-c", f"echo hi; exec sleep {token(7304)} >&2 &").data == {"exit_code": 0}
    assert time.monotonic() - began < 2
    assert_none_left(token(7304))


def test_who_holds_a_pipe_beyond_the_group_is_not_waited_for(bare: CommandRunner) -> None:
    began = time.monotonic()
    assert bare.run("setsid", "-f", "sleep", f"4.{os.getpid()}").data == {"exit_code": 0}
    assert time.monotonic() - began < 4


def _descendants(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if read_parent_pid(pid) == parent]


def assert_killed_server_leaves_nothing(workspace: Path, mode: str, after: float) -> None:
    """Kill a server so long after something of its program is there: its starter, the sandbox, or the program."""
    mark = token(7306)
    beside = f"setsid sleep {mark} & (setsid sh -c 'setsid sleep {mark} & sleep {mark}' &)"  # one whose parents end
    server = commander(workspace, ["sh", "-c", f"{beside}; exec sleep {mark}"], mode=mode)
    wait_until(lambda: _descendants(server.pid), WITHIN_S)
    time.sleep(after)  # no wait for anything: the moment is what is tried
    os.kill(server.pid, signal.SIGKILL)
    server.communicate(timeout=WITHIN_S)
    assert_none_left(mark)


@pytest.mark.parametrize("mode", BOTH)
def test_the_death_of_the_server_ends_its_programs(workspace: Path, mode: str) -> None:
    assert_killed_server_leaves_nothing(workspace, mode, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", BOTH)
def test_the_death_of_the_server_at_any_moment_of_the_start_ends_its_programs(workspace: Path, mode: str) -> None:
    for n in range(60):
        assert_killed_server_leaves_nothing(workspace, mode, n * 0.001 if mode == "sandboxed" else n * 0.003)


@pytest.mark.sandbox
def test_what_a_program_started_ends_with_the_leash_where_bubblewrap_died_while_it_set_itself_up(
    workspace: Path,
) -> None:
    """Outside the sandbox one bubblewrap dies with the server, before the one inside is told to die with it."""
    mark = token(7317)
    words = ["sh", "-c", f"setsid sleep {mark} & exec sleep {mark}"]
    wrapped = Sandbox(workspace).wrap(words, leash_fd=LEASH_FD)
    wrapped.remove("--die-with-parent")
    leash, held = os.pipe()
    with open(os.devnull, "wb") as status:
        passed = (leash, status.fileno())
        channels = [f"{leash}:{LEASH_FD}", f"{status.fileno()}:{STATUS_FD}", "1"]
        outside = subprocess.Popen([PYTHON, "-I", "-S", str(LAUNCHER), *channels, "--", *wrapped], pass_fds=passed)
    wait_until(lambda: len(alive(f"sleep\0{mark}")) == 2, WITHIN_S)
    outside.kill()
    outside.wait(WITHIN_S)
    assert len(alive(f"sleep\0{mark}")) == 2
    os.close(held)
    assert_none_left(mark)
    os.close(leash)


@pytest.mark.parametrize("how", ["time", "exit", "stop"])
def test_without_a_sandbox_what_left_the_session_ends_with_the_program_too(bare: CommandRunner, how: str) -> None:
    mark, stop = token(7316), StopSignal()
    words = f"setsid sleep {mark} & (setsid sh -c 'setsid sleep {mark} & sleep {mark}' &); "
    if how == "stop":
        threading.Timer(0.3, stop.set).start()
    last = "sleep 0.2" if how == "exit" else "sleep 60"
    result = bare.run("sh", "-c", words + last, stop=stop, timeout_s=0.5 if how == "time" else 30)
    assert result.code == {"time": "timeout", "exit": None, "stop": "cancelled"}[how]
    assert_none_left(mark)


def test_without_a_sandbox_a_program_ends_as_it_did(bare: CommandRunner) -> None:
    assert bare.run("sh", "-c", "exit 7").data == {"exit_code": 7}
    assert bare.run("sh", "-c", "kill -9 $$").data == {"exit_code": 128 + signal.SIGKILL}
    assert bare.run("sh", "-c", "kill -15 $$").data == {"exit_code": 128 + signal.SIGTERM}


# --- how much it may take -------------------------------------------------------------------------------------------


# Doubles until 4,096, and no further if nothing stops it: a test must not take a machine down.
BOMB = "b() { [ $1 -gt 0 ] && { b $(($1-1)) & b $(($1-1)) & }; sleep 7308; }; b 11"


def test_a_fork_bomb_is_ended_and_leaves_nothing(runner: CommandRunner) -> None:
    began = time.monotonic()
    result = runner.run("sh", "-c", BOMB.replace("7308", token(7308)), timeout_s=20)  # COMMAND-034
    assert result.is_error
    assert result.code != "timeout"
    assert time.monotonic() - began < 10
    assert_none_left(token(7308))
    assert body(runner.run("echo", "still here")) == "still here"


def test_children_that_only_wait_are_counted(runner: CommandRunner) -> None:
    result = runner.python(
        "import os, time\nfor n in range(2000):\n    if os.fork() == 0:\n        time.sleep(60)", timeout_s=20
    )
    assert result.is_error
    assert "processes and threads" in result.content or "Errno 11" in result.content


def test_the_kernel_s_own_limits_hold(either: CommandRunner) -> None:
    report = {
        line[:26].strip(): line[26:].split()[:2] for line in body(either.run("cat", "/proc/self/limits")).splitlines()
    }
    assert report["Max core file size"] == ["0", "0"]
    assert report["Max file size"] == [str(1 << 30)] * 2
    assert report["Max open files"] == ["4096", "4096"]
    assert report["Max data size"][0] == report["Max data size"][1] != "unlimited"
    assert report["Max processes"][0] == report["Max processes"][1] != "unlimited"


def test_a_file_grows_to_its_limit(either: CommandRunner) -> None:
    result = either.run("truncate", "-s", "2G", "big")  # COMMAND-036
    assert result.is_error
    assert not (either.workspace / "big").exists() or (either.workspace / "big").stat().st_size <= 1 << 30


def run_bounded(workspace: Path, memory: int, code: str) -> ProcessResult:
    sandbox = Sandbox(workspace, reads=READS)
    until = time.monotonic() + 20
    argv = [PYTHON, "-I", "-c", code]
    wrapped = sandbox.wrap(argv, status_fd=STATUS_FD, leash_fd=LEASH_FD)
    return run_process(LaunchRequest(wrapped, True, "/", scrub_environment({}, "/bin"), until, lambda: False, memory))


@pytest.mark.sandbox
def test_one_process_has_so_much_memory(workspace: Path) -> None:
    ended = run_bounded(workspace, 128 << 20, "b = bytearray(256 << 20)")
    assert (ended.reason, ended.exit_code) == ("exit", 1)
    assert "MemoryError" in ended.stderr.text()


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "held", ["bytearray(60 << 20)", "__import__('mmap').mmap(-1, 60 << 20); m.write(bytes(60 << 20))"]
)
def test_all_together_have_so_much_memory(workspace: Path, held: str) -> None:
    children = f"for n in range(8):\n    if os.fork() == 0:\n        m = {held}\n        time.sleep(60)"
    code = f"import os, time\n{children}\ntime.sleep(60)"
    began = time.monotonic()
    assert run_bounded(workspace, 200 << 20, code).reason == "memory"
    assert time.monotonic() - began < 10


def test_a_flood_of_output_is_cut_and_ended(either: CommandRunner) -> None:
    began = time.monotonic()
    result = either.run("yes")  # COMMAND-032
    assert result.is_error
    assert f"more than {FLOOD_BYTES >> 20} MB" in result.content
    assert len(result.content) < 1 << 20
    assert time.monotonic() - began < 10


def test_a_long_output_keeps_its_head_and_its_tail(either: CommandRunner) -> None:
    result = either.run("seq", "400000")
    assert not result.is_error
    lines = body(result).splitlines()
    assert (lines[0], lines[-1]) == ("1", "400000")
    assert "bytes were not kept]" in result.content
    assert len(result.content) < 600_000


def test_what_is_held_of_an_output_stays_small_while_it_runs() -> None:
    stream = CapturedStream()
    for _ in range(300):
        stream.add(b"x" * 65_536)
        assert len(stream.head) + len(stream.tail) < 1 << 20
    assert stream.total == 300 * 65_536


@pytest.mark.parametrize("cut", [HEAD_BYTES, -TAIL_BYTES])
@pytest.mark.parametrize("before", [1, len(PARTED_KEY) // 2, len(PARTED_KEY) - 1])
@pytest.mark.parametrize("length", [HEAD_BYTES + TAIL_BYTES + 1, 700_000, 1_500_000])
def test_no_part_of_a_known_key_is_left_where_an_output_is_cut(cut: int, before: int, length: int) -> None:
    key, at = PARTED_KEY.encode(), cut % length - before
    written = b"." * at + key + b"." * (length - at - len(key))
    stream = CapturedStream()
    for start in range(0, len(written), 65_536):
        stream.add(written[start : start + 65_536])
    redactor = Redactor([PARTED_KEY])
    shown = redactor.redact_text(stream.text(redactor.find_parted)).text
    head, note, tail = shown.split("\n")
    assert set(head + tail) == {"."}
    assert HEAD_BYTES + TAIL_BYTES - len(key) < len(head + tail) < HEAD_BYTES + TAIL_BYTES
    assert note == f"[{length - HEAD_BYTES - TAIL_BYTES:,} of {length:,} bytes were not kept]"


def test_a_private_key_that_is_cut_in_two_is_left_out_whole() -> None:
    lines = [base64.b64encode(bytes([each]) * 48) for each in range(40)]
    pem = b"\n".join((b"-----BEGIN PRIVATE KEY-----", *lines, b"-----END PRIVATE KEY-----"))
    stream = CapturedStream()
    stream.add(b".\n" * (HEAD_BYTES // 2 - 300) + pem + b"\n." * 400_000)
    redactor = Redactor()
    shown = redactor.redact_text(stream.text(redactor.find_parted)).text
    assert not [line for line in lines if line.decode() in shown]


def test_bytes_that_are_no_text_are_replaced(either: CommandRunner) -> None:
    assert body(either.run("printf", r"\377\376ok\n")) == "\ufffd\ufffdok"


# --- without bubblewrap ---------------------------------------------------------------------------------------------


def test_a_person_may_do_without_and_each_result_says_so(workspace: Path, tmp_path: Path) -> None:
    report = report_of(commander(workspace, ["/bin/touch", "x"], mode="bare", PATH=str(tmp_path)))
    assert (report["is_error"], report["content"]) == (False, "[exit code 0; without a sandbox]")
    assert (workspace / "x").exists()


def test_a_person_may_switch_it_off(workspace: Path) -> None:
    with Workspace(workspace) as open_workspace:
        assert command_tools(open_workspace, CommandSettings("off")) == []


# --- what a person is shown -----------------------------------------------------------------------------------------


def test_a_preview_shows_program_folder_and_arguments(runner: CommandRunner) -> None:
    shown = runner.preview("echo", "a b", "$HOME", cwd="sub")
    assert isinstance(shown, Preview)
    command, place = shown.text.splitlines()[:2]
    sign, program, *_ = command.split()
    assert (sign, os.path.samefile(program, "/bin/echo")) == ("$", True)
    assert command.endswith("'a b' '$HOME'")
    assert place == "in sub, in a sandbox, without network"


def test_arguments_that_could_be_misread_stand_apart_and_escaped(runner: CommandRunner) -> None:
    shown = runner.preview("echo", "one\ncommand: rm", "\u202egnp", "rm -rf \u0430", "x" * 4000)  # COMMAND-043
    assert isinstance(shown, Preview)
    assert r"argument 1: 'one\ncommand: rm'" in shown.text
    assert r"argument 2: '\u202egnp'" in shown.text
    assert r"argument 3: 'rm -rf \u0430'" in shown.text
    assert "x" * 4000 in shown.text
    assert shown.text.isascii()


def test_what_can_t_run_is_refused_before_anybody_is_asked(runner: CommandRunner) -> None:
    shown = runner.preview("no-such-program")
    assert isinstance(shown, ToolResult)
    assert shown.code == "not_found"


def test_a_program_that_changed_since_it_was_shown_does_not_run(runner: CommandRunner) -> None:
    script = runner.workspace / "build.sh"
    script.write_text("#!/bin/sh\ntouch good\n")
    script.chmod(0o755)
    shown = runner.preview("./build.sh")
    assert isinstance(shown, Preview)
    assert set(shown.base_hashes) == {"build.sh"}
    script.write_text("#!/bin/sh\ntouch evil\n")
    assert runner.run("./build.sh", base=shown.base_hashes).code == "stale_file"
    assert not (runner.workspace / "evil").exists()


def test_the_preview_says_when_there_is_no_sandbox(bare: CommandRunner) -> None:
    shown = bare.preview("echo")
    assert isinstance(shown, Preview)
    assert "WITHOUT A SANDBOX" in shown.text


def tool_of(runner: CommandRunner) -> Tool:
    return runner.tool


def test_its_effect_is_irreversible(runner: CommandRunner) -> None:
    assert tool_of(runner).spec.effect == "irreversible"
