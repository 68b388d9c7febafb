"""A folder that a host merely opens brings no Python module of its own into this program, however it is started."""

from __future__ import annotations

import ast
import json
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands.conftest import Shell
from commands.test_install import PROJECTS, entry_in
from support import postgres
from support.environment import plain_environ

import kairos_mcp
from kairos_mcp.cli.doctor_checks import check_python, check_server_commands
from kairos_mcp.cli.host_formats import JSON, TOML, YAML
from kairos_mcp.cli.hosts import HOSTS, HostName
from kairos_mcp.cli.own_start import find_unsafe_start
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags
from kairos_mcp.settings.table_values import ServerSetting

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 300
NAMES = ("kairos_mcp", "json", "typing", "sitecustomize", "usercustomize", "signal", "encodings", "anyio", "pydantic")
OTHERS = ("venv", "linked", "checkout")
PARSERS = {JSON: json.loads, TOML: tomllib.loads, YAML: yaml.safe_load}
UNSAFE = ["-m", "kairos_mcp", "serve", "--home", "/state"]


class Trap:
    """A folder whose modules leave a mark when they are imported."""

    def __init__(self, root: Path) -> None:
        self.folder, self.marks = root / "opened", root / "marks"
        self.folder.mkdir()
        self.marks.mkdir()
        for name in NAMES:
            text = f"open({str(self.marks / name)!r}, 'w').close()\nraise ImportError('a module of a stranger')\n"
            (self.folder / f"{name}.py").write_text(text, encoding="utf-8")

    @property
    def sprung(self) -> list[str]:
        return sorted(mark.name for mark in self.marks.iterdir())

    def run(self, words: Sequence[str], **environ: str) -> subprocess.CompletedProcess[bytes]:
        kept = plain_environ("PYTHON") | environ
        return subprocess.run(
            words, cwd=self.folder, env=kept, input=b"", capture_output=True, timeout=WITHIN_S, check=False
        )


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


class Installations(dict[str, list[str]]):
    """By each kind of installation, made at its first use, the words that start it as it was installed."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root, self.wheel = root, _build_wheel(root)
        self.libraries = _link_libraries(root / "libraries")

    def __missing__(self, kind: str) -> list[str]:
        self[kind] = words = self._install(kind)
        return words

    def make_environment(self, name: str, *, system: bool = False) -> Path:
        """Make an environment with what this one has installed, but for this program."""
        venv.create(self.root / name, system_site_packages=system, symlinks=True)
        (site,) = (self.root / name).glob("lib/python*/site-packages")
        (site / "libraries.pth").write_text(f"{self.libraries}\n")
        return self.root / name

    def _install(self, kind: str) -> list[str]:
        module = ["-P", "-m", "kairos_mcp"]
        match kind:
            case "venv":
                environment = self.make_environment(kind)
                _install_wheel(self.wheel, environment)
                return [str(environment / "bin" / "kairos-mcp")]
            case "linked":  # as pipx and uv tool do
                link = self.root / "linked"
                link.mkdir()
                (link / "kairos-mcp").symlink_to(*self["venv"])
                return [str(link / "kairos-mcp")]
            case "user":
                environment, base = self.make_environment(kind, system=True), self.root / "base"
                _install_wheel(self.wheel, environment, "--user", PYTHONUSERBASE=str(base))
                return ["env", f"PYTHONUSERBASE={base}", str(environment / "bin" / "python"), *module]
            case "module":
                environment = self.make_environment(kind)
                (site,) = environment.glob("lib/python*/site-packages")
                with zipfile.ZipFile(self.wheel) as archive:
                    archive.extractall(site, [name for name in archive.namelist() if ".dist-info/" not in name])
                return [str(environment / "bin" / "python"), *module]
            case _:
                return [str(Path(sysconfig.get_path("scripts")) / "kairos-mcp")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installations:
    return Installations(tmp_path_factory.mktemp("installed"))


def _build_wheel(folder: Path) -> Path:
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(wheel)


def _link_libraries(folder: Path) -> Path:
    """What this environment has installed, but for this program."""
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("kairos_", "_kairos", "__editable__")) and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


def _install_wheel(wheel: Path, environment: Path, *options: str, **environ: str) -> None:
    offline = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--no-warn-script-location")
    words = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", *offline]
    subprocess.run([*words, *options, str(wheel)], env=plain_environ("PYTHON") | environ, check=True)


def read_entry(text: str, host: HostName) -> tuple[list[str], dict[str, Any]]:
    """The words of a printed entry, and the entry."""
    entry = PARSERS[HOSTS[host].written_as](text)[HOSTS[host].section]["kairos"]
    return [entry.get("command") or entry["cmd"], *entry["args"]], entry


def check_entry(trap: Trap, program: list[str], host: HostName) -> None:
    """Install for the host, start what was written as the host would, and see that no trap was sprung."""
    home = {"HOME": str(trap.marks.parent), "KAIROS_HOME": str(trap.marks.parent / "state")}
    printed = trap.run([*program, "install", host], **home)
    assert printed.returncode == 0, printed.stderr.decode()
    words, _ = read_entry(printed.stdout.decode(), host)
    given = program[1:2] if program[0] == "env" else []
    started = [word.replace("${workspaceFolder}", str(trap.folder)) for word in words]
    done = trap.run(["env", *given, *started], **home)
    assert done.returncode == 0, done.stderr.decode()
    assert trap.sprung == []


def test_the_trap_is_one(trap: Trap) -> None:
    assert trap.run([sys.executable, "-m", "kairos_mcp", "--version"]).returncode != 0
    assert trap.sprung


@pytest.mark.parametrize("kind", ["user", "module", *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)])
def test_no_entry_runs_what_lies_in_the_folder(trap: Trap, installed: Installations, kind: str) -> None:
    check_entry(trap, installed[kind], "claude-code")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["user", "module", *OTHERS])
@pytest.mark.parametrize("host", HOSTS)
def test_no_entry_of_any_host_does(trap: Trap, installed: Installations, host: HostName, kind: str) -> None:
    check_entry(trap, installed[kind], host)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["bundle", "uvx", "uv tool", "pipx"])
def test_what_uv_and_pipx_start_runs_nothing_of_the_folder(trap: Trap, way: str) -> None:
    """By the programs themselves, which get the packages from the index."""
    program = shutil.which("pipx" if way == "pipx" else "uv")
    if program is None:
        pytest.skip(f"no {way} here")
    root = trap.marks.parent
    places = ("UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "PIPX_HOME", "PIPX_BIN_DIR", "HOME", "KAIROS_HOME")
    environ = {place: str(root / place.lower()) for place in places}
    if way == "bundle":
        runpy.run_path(str(ROOT / "packaging" / "bundle.py"))["build"](root / "kairos.mcpb")
        with zipfile.ZipFile(root / "kairos.mcpb") as archive:
            archive.extractall(root / "bundle")
        manifest = json.loads((root / "bundle" / "manifest.json").read_text(encoding="utf-8"))["server"]["mcp_config"]
        values = {"__dirname": str(root / "bundle"), "user_config.workspace": str(trap.folder)}
        words = [program, *manifest["args"]]
        for name, value in values.items():
            words = [word.replace(f"${{{name}}}", value) for word in words]
    elif way == "uvx":
        printed = trap.run([program, "tool", "run", "--from", str(ROOT), "kairos-mcp", "install", "codex"], **environ)
        words, _ = read_entry(printed.stdout.decode(), "codex")
    else:
        installed = trap.run([program, *(["tool"] if way == "uv tool" else []), "install", str(ROOT)], **environ)
        assert installed.returncode == 0, installed.stderr.decode()
        folder = environ["PIPX_BIN_DIR" if way == "pipx" else "UV_TOOL_BIN_DIR"]
        printed = trap.run([f"{folder}/kairos-mcp", "install", "codex"], **environ)
        words, _ = read_entry(printed.stdout.decode(), "codex")
    started = trap.run(words, **environ)
    assert started.returncode == 0, started.stderr.decode()
    assert trap.sprung == []


def test_an_installation_of_the_user_is_started_by_its_script(trap: Trap, installed: Installations) -> None:
    printed = trap.run([*installed["user"], "install", "gemini"], HOME=str(trap.marks.parent))
    words, _ = read_entry(printed.stdout.decode(), "gemini")
    assert words[:2] == [str(Path(installed["user"][1].partition("=")[2]) / "bin" / "kairos-mcp"), "serve"]


def test_sources_that_were_never_installed_get_no_entry(installed: Installations) -> None:
    environment = installed.make_environment("bare")
    words = [str(environment / "bin" / "python"), "-m", "kairos_mcp", "install", "gemini"]
    done = subprocess.run(words, cwd=ROOT, env=plain_environ("PYTHON"), capture_output=True, check=False)
    assert (done.returncode, done.stdout, b"not installed" in done.stderr) == (2, b"", True), done.stderr


def test_the_bundle_and_the_registry_s_entry_start_a_script() -> None:
    """uv puts the folder of the environment that it has made first on Python's path, as for any script."""
    manifest = json.loads((ROOT / "packaging" / "manifest.json").read_text(encoding="utf-8"))["server"]["mcp_config"]
    (package,) = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))["packages"]
    words = [manifest["command"], *manifest["args"]]
    assert words[:5] == ["uv", "run", "--directory", "${__dirname}", "kairos-mcp"]
    assert package["runtimeHint"] == "uvx"
    assert {"python", "python3", "-m", "-c"}.isdisjoint(words)
    assert not {name for name in manifest["env"] if name.startswith("PYTHON")}


@pytest.mark.parametrize("file", ["packaging/Containerfile", "deploy/compose.yaml", "deploy/kubernetes.yaml"])
def test_what_containers_start_takes_no_module_of_the_folder(file: str) -> None:
    """A container's folder may be a workspace of somebody."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    starts = [line for line in lines if "python" in line and "-c" in line.replace('"', "").replace(",", " ").split()]
    assert all("-I" in line.replace('"', "").replace(",", " ").split() for line in starts)
    assert bool(starts) == (file != "deploy/kubernetes.yaml")


def test_our_own_children_run_nothing_of_the_folder(trap: Trap, kairos: Shell) -> None:
    """A command and a server of the settings, as `doctor` tries them, each in the folder itself."""
    kairos.state.mkdir(mode=0o700)
    settings = {
        "command": sys.executable,
        "args": ["-I", str(ROOT / "tests" / "downstream" / "peer.py"), str(trap.marks.parent / "log")],
        "cwd": str(trap.folder),
    }
    server = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    text = f'commands = "bare"\n[servers.x]\nsandbox = false\n{server}'
    (kairos.state / "kairos.toml").write_text(text, encoding="utf-8")
    (trap.folder / ".venv" / "bin").mkdir(parents=True)
    (trap.folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    program = str(Path(sysconfig.get_path("scripts")) / "kairos-mcp")
    home = {"HOME": str(kairos.home), "KAIROS_HOME": str(kairos.state)} | postgres.environ_of(kairos.home)
    done = trap.run([program, "doctor", "--workspace", str(trap.folder), "--json"], **home)
    found = {each["matter"]: each["state"] for each in json.loads(done.stdout)["findings"]}
    assert (found["programs"], found["servers"], trap.sprung) == ("ok", "ok", [])


def test_the_start_anew_in_utf_8_runs_nothing_of_the_folder(trap: Trap) -> None:
    program = str(Path(sysconfig.get_path("scripts")) / "kairos-mcp")
    done = trap.run([program, "--version"], LC_ALL="en_US.ISO-8859-1", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert (done.returncode, trap.sprung) == (0, [])


def _python_starts() -> Iterator[tuple[str, str]]:
    """Each place in the package that starts this Python: its file, and the option behind it."""
    for path in sorted(Path(kairos_mcp.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "sys.executable" in text else ():
            parts = node.elts if isinstance(node, ast.List | ast.Tuple) else getattr(node, "args", [])
            words = [ast.unparse(part) for part in parts] if isinstance(parts, list) else []
            for at, word in enumerate(words):
                behind = words[at + 1 : at + 2]
                if word in ("sys.executable", "os.path.abspath(sys.executable)") and behind and behind[0][0] != "[":
                    yield path.name, words[at + 1].strip("'")


def test_each_python_that_the_package_starts_is_told_to_leave_out_the_folder() -> None:
    starts = list(_python_starts())
    assert {name for name, _ in starts} >= {"runner.py", "child.py", "own_start.py", "main.py", "command_text.py"}
    assert [start for start in starts if start[1] not in ("-I", "-P")] == []


def test_nothing_is_started_by_multiprocessing() -> None:
    """It starts Python by `-c`, with the current folder on the path unless this process was started by `-P`."""
    package = Path(kairos_mcp.__file__).parent
    texts = {path.name: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    words = ("multiprocessing", "ProcessPoolExecutor", "InterpreterPoolExecutor")
    assert [name for name, text in texts.items() if any(word in text for word in words)] == []


@pytest.mark.parametrize("host", ["codex", "goose"])
def test_an_entry_of_before_is_corrected_by_the_next_install(kairos: Shell, host: HostName) -> None:
    file, before = _write_unsafe_entry(kairos, host)
    assert kairos("install", host, "--write", "--workspace", ".").code == 0
    words, entry = read_entry(file.read_text(encoding="utf-8"), host)
    assert find_unsafe_start(words) is None
    assert words[-3:] == ["serve", "--home", "/state"]  # its options are a person's
    assert entry["env"] == before["env"]
    copy = file.with_name(f"{file.name}.before-kairos-1")
    assert read_entry(copy.read_text(encoding="utf-8"), host)[1] == before


def test_force_replaces_the_options_too(kairos: Shell) -> None:
    file, _ = _write_unsafe_entry(kairos, "claude-code")
    assert kairos("install", "claude-code", "--write", "--force", "--workspace", ".").code == 0
    assert entry_in(file, "mcpServers")["args"] == ["serve", "--workspace", str(kairos.folder)]


def test_doctor_names_each_entry_of_before(kairos: Shell) -> None:
    files = {host: _write_unsafe_entry(kairos, host)[0] for host in HOSTS}
    project = kairos.folder / PROJECTS["cursor"][0]
    project.parent.mkdir(parents=True)
    entry = {"command": "env", "args": ["A=b", "/usr/bin/python3", "-X", "utf8", *UNSAFE]}
    project.write_text(json.dumps({"mcpServers": {"mine": entry}}), encoding="utf-8")
    said = kairos("doctor", "--json")
    found = [each for each in said.json["findings"] if each["matter"] == "hosts"]
    assert said.code == 1
    assert {file for file in (*files.values(), project) if any(str(file) in each["text"] for each in found)} == {
        *files.values(),
        project,
    }
    assert len(found) == len(HOSTS) + 1
    for host in HOSTS:
        assert kairos("install", host, "--write", "--workspace", ".").code == 0
    found = [each for each in kairos("doctor", "--json").json["findings"] if each["matter"] == "hosts"]
    assert [str(project) in each["text"] for each in found] == [True]


def _write_unsafe_entry(kairos: Shell, host: HostName) -> tuple[Path, dict[str, Any]]:
    """Write the user's file of the host as versions before this one did; return it, and the entry."""
    environ = {name: value for name, value in kairos.environ().items() if name in ("XDG_CONFIG_HOME", "CODEX_HOME")}
    file = HOSTS[host].users_file(environ, kairos.home)
    entry = {**HOSTS[host].make_entry([sys.executable, *UNSAFE]), "env": {"A": "b"}}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(HOSTS[host].written_as.set_entry("", HOSTS[host].section, "kairos", entry), encoding="utf-8")
    return file, entry


@pytest.mark.parametrize(
    ("line", "is_unsafe"),
    [
        ("python -m kairos_mcp serve", True),
        ("/usr/bin/python3 -X utf8 -m kairos_mcp serve", True),
        ("uv run python -m kairos_mcp", True),
        ("python -P -m kairos_mcp serve", False),
        ("python -I -m kairos_mcp serve", False),
        ("python -BIs -m kairos_mcp serve", False),
        ("kairos-mcp serve --workspace -m", False),
        ("python -m other kairos_mcp", False),
        ("python -m", False),
    ],
)
def test_which_starts_are_unsafe(line: str, is_unsafe: bool) -> None:
    assert (find_unsafe_start(shlex.split(line)) is not None) == is_unsafe


@pytest.mark.parametrize(
    ("line", "cwd", "is_named"),
    [
        ("python3 -m their_server", None, True),
        ("/usr/bin/python -X utf8 -c pass", "${workspace}/sub", True),
        ("python3 -um their_server", None, True),
        ("python3 -mtheir_server", None, True),
        ("python3 -W Ignore -m their_server", None, True),
        ("python3 -Xutf8 /opt/server.py -m x", None, False),
        ("python3 -m their_server", "/opt/theirs", False),
        ("python3 -P -m their_server", None, False),
        ("python3 -Im their_server", None, False),
        ("python3 /opt/server.py -m x", None, False),
        ("uvx their-server", None, False),
    ],
)
def test_doctor_names_a_server_that_takes_modules_of_the_workspace(line: str, cwd: str | None, is_named: bool) -> None:
    settings = replace(load_settings(Flags(), {}), servers=(ServerSetting("x", tuple(line.split()), cwd=cwd),))
    assert [found.matter for found in check_server_commands(settings)] == ["servers"] * is_named


@pytest.mark.parametrize("named", [":/lib", "/lib:", "lib", "/lib"])
def test_doctor_names_a_python_path_with_the_current_folder(named: str) -> None:
    states = [found.state for found in check_python({"PYTHONPATH": named})]
    assert states == (["ok"] if named == "/lib" else ["ok", "note"])
