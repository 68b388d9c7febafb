"""Try what people install from, where no container daemon is: the container file's steps, the bundle, and uvx.

    python packaging/try_container.py [--root DIR] [--inspector "mcp-inspector ..."]

As root, on Debian with debootstrap, uv, npx and pyyaml. It makes a bare root from Debian packages (Python,
certificates, nothing of ours), builds the wheel from this tree, and starts the wheel and the bundle there by uv, as a
host does. It installs for each host into an empty home, reads the host's file in the host's own format, and starts what
stands there. Then it does there what `packaging/Containerfile` says, line by line: its RUN as root, its ENTRYPOINT as
its USER with its ENV, folders in place of its volumes, its HEALTHCHECK; it kills the server and starts it again.

No container daemon takes part: the processes have mounts and process numbers of their own (unshare, chroot), but the
machine's network; the base image, the layers of an image and a container's network are not tried. What is served is
asked by the MCP inspector. Prints a line for each step, and ends at the first that fails.
"""

from __future__ import annotations

import argparse
import json
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
BASE_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
INSPECTOR = "npx --yes @modelcontextprotocol/inspector"  # one that knows --header: 0.15 does not
START_S, STOP_S = 60.0, 10.0  # the longest that the server may take to start and to stop


# -- the container file ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Image:
    """What a container file says, as far as ours goes."""

    copies: list[tuple[str, str]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    volumes: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def read_container_file(text: str) -> Image:
    """Read the instructions. Raises ValueError for one that this script does not know."""
    image = Image()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = instruction.strip().partition(" ")
        match word:
            case "COPY":
                source, target = rest.split()
                image.copies.append((source, target))
            case "RUN":
                image.runs.append(rest)
            case "ENV":
                image.env |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            case "USER":
                image.user = rest.strip()
            case "VOLUME":
                image.volumes += json.loads(rest)
            case "HEALTHCHECK":
                image.health = json.loads(rest.partition("CMD")[2])
            case "ENTRYPOINT":
                image.entrypoint = json.loads(rest)
            case "CMD":
                image.command = json.loads(rest)
            case "FROM" | "EXPOSE":
                pass  # the bare root and the machine's network stand for these
            case _:
                raise ValueError(f"{word} is not known here")
    return image


# -- the bare root ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BareRoot:
    """A folder with Debian's packages, in which programs are started with mounts of their own."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> BareRoot:
        """Make it, or take the one that is there; with the machine's name resolution and certificates."""
        if not (folder / "usr" / "bin" / "python").exists():
            lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
            codename = dict(line.split("=", 1) for line in lines)["VERSION_CODENAME"]
            site = must("apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {codename}").splitlines()[0]
            must("debootstrap", "--variant=minbase", f"--include={PACKAGES}", codename, str(folder), site)
        for name in ("etc/resolv.conf", "etc/hosts", CERTIFICATES):
            shutil.copyfile(Path("/") / name, folder / name)
        return cls(folder)

    def command(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        user: str = "root",
        volumes: Mapping[str, Path] | None = None,
    ) -> list[str]:
        """The command line that runs a program in the root, with these folders of the machine in place of volumes."""
        mounts = [["mount", "-t", "proc", "proc", str(self.folder / "proc")]]
        mounts += [
            ["mount", "--bind", str(source), f"{self.folder}{target}"] for target, source in (volumes or {}).items()
        ]
        variables = [f"{name}={value}" for name, value in env.items()]
        program = ["exec", "env", "-i", *variables, "chroot", f"--userspec={user}", str(self.folder), *words]
        script = " && ".join(shlex.join(step) for step in [*mounts, program])
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]


# -- steps -----------------------------------------------------------------------------------------------------------


def must(*words: str) -> str:
    """Run a program and return what it printed; exit with its last lines where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"failed: {shlex.join(words)}\n{(done.stdout + done.stderr)[-2_000:]}")
    return done.stdout


@contextmanager
def step(name: str) -> Iterator[None]:
    began = time.monotonic()
    sys.stdout.write(f"{name[:100]} ... ")
    sys.stdout.flush()
    yield
    sys.stdout.write(f"{time.monotonic() - began:.1f} s\n")


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(otherwise)


def try_container(bare: BareRoot, image: Image, wheel: Path, inspector: Sequence[str], scratch: Path) -> None:
    """Build as the container file says, serve over HTTP, ask, kill, and start again with the same state, twice."""
    for source, target in image.copies:
        with step(f"COPY {source} {target}"):
            check(wheel.match(source), f"{wheel.name} is not {source}")
            shutil.copy(wheel, f"{bare.folder}{target}")
    for script in image.runs:
        with step(f"RUN {script}"):
            must(*bare.command(["sh", "-c", script], BASE_ENV))
    env = {name: value.replace("$PATH", BASE_ENV["PATH"]) for name, value in image.env.items()}
    env = BASE_ENV | {"HOME": f"/home/{image.user}"} | env
    uid, gid = (int(must(*bare.command(["id", option, image.user], BASE_ENV))) for option in ("-u", "-g"))
    check(uid != 0, "the user is root")
    volumes = {target: scratch / target.strip("/") for target in image.volumes}
    for target, folder in volumes.items():  # a new volume is given the owner and the mode of what the image has there
        shutil.copytree(f"{bare.folder}{target}", folder)
        folder.chmod(Path(f"{bare.folder}{target}").stat().st_mode)
        shutil.chown(folder, uid, gid)
    (volumes["/workspace"] / "README.md").write_text("# Tried\n", encoding="utf-8")

    def inside(*words: str) -> list[str]:
        return bare.command(words, env, image.user, volumes)

    with step("token add me, as the user without rights"):
        token = must(*inside(*image.entrypoint, "token", "add", "me")).split()[-1]
    for nth, (times, signal) in enumerate(
        (("the first time", "KILL"), ("again, after a kill", "TERM"), ("again", "TERM"))
    ):
        check(
            bool(subprocess.run(inside(*image.health), capture_output=True, check=False).returncode), "healthy at rest?"
        )
        with step(f"serve {times}, until its health check passes"):
            server = subprocess.Popen(
                inside(*image.entrypoint, *image.command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            began = time.monotonic()
            while subprocess.run(inside(*image.health), capture_output=True, check=False).returncode:
                check(server.poll() is None and time.monotonic() - began < START_S, "the health check never passed")
                time.sleep(0.2)
        main = int(must("pgrep", "-P", str(server.pid)))
        try:
            owner = Path(f"/proc/{main}").stat().st_uid
            check(owner == uid, f"the server runs as {owner}")
            asked = [*inspector, "--cli", "http://127.0.0.1:8765/mcp", "--transport", "http"]
            asked += ["--header", f"Authorization: Bearer {token}"]
            with step("the inspector lists the tools and reads a file over HTTP"):
                check('"planner_run"' in must(*asked, "--method", "tools/list"), "planner_run is not listed")
                check("# Tried" in must(*asked, *READ_README), "the file was not read")
            runs = json.loads(must(*asked, "--method", "tools/call", "--tool-name", "run_status"))
            kept = len(runs["structuredContent"]["runs"])
            check(kept == nth + 1, f"{kept} runs in the state")
            with step(f"SIG{signal} to the first process of the container"):
                must("kill", f"-{signal}", str(main))
                server.wait(STOP_S)
        finally:  # unshare's --kill-child is forgotten when the program becomes another user
            subprocess.run(["kill", "-KILL", str(main)], capture_output=True, check=False)
            server.wait()
    state = sorted(volumes["/state"].iterdir())
    check(bool(state) and {file.stat().st_uid for file in state} == {uid}, "the state is not the user's")


READ_README = ("--method", "tools/call", "--tool-name", "registry_call", "--tool-arg", "name=read_file",
               "--tool-arg", 'arguments={"path": "README.md"}')  # fmt: skip


def try_stdio(
    bare: BareRoot, name: str, words: Sequence[str], env: Mapping[str, str], inspector: Sequence[str]
) -> None:
    """Start a server by a host's command line, and ask it over stdio."""
    asked = [*inspector, "--cli", *bare.command(words, env)]
    with step(f"{name}: {shlex.join(words)}"):
        check('"planner_run"' in must(*asked, "--method", "tools/list"), "planner_run is not listed")
        check("# Tried" in must(*asked, *READ_README), "the file was not read")


READERS: Mapping[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads, ".yaml": yaml.safe_load}
HOST_FILES = {  # in the home folder, and the key under which the host has its servers
    "claude-desktop": (".config/Claude/claude_desktop_config.json", "mcpServers"),
    "claude-code": (".claude.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", "servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "zed": (".config/zed/settings.json", "context_servers"),
    "goose": (".config/goose/config.yaml", "extensions"),
}


def try_hosts(
    bare: BareRoot, program: Sequence[str], env: Mapping[str, str], inside: Path, inspector: Sequence[str]
) -> None:
    """Install for each host, start what its file says then, and take it out again."""
    env = {**env, "HOME": f"{inside}/home"}
    for host, (name, section) in HOST_FILES.items():
        file = Path(f"{bare.folder}{inside}/home/{name}")

        def servers(file: Path = file, section: str = section) -> Any:
            return (READERS[file.suffix](file.read_text(encoding="utf-8")) or {}).get(section) or {}

        must(*bare.command([*program, "install", host, "--workspace", f"{inside}/project", "--write"], env))
        entry = servers()["kairos"]
        words = [entry.get("command") or entry["cmd"], *entry["args"]]
        try_stdio(bare, host, words, env, inspector)
        must(*bare.command([*program, "install", host, "--uninstall"], env))
        check("kairos" not in servers(), f"{name} still has the entry")


def uv_binary() -> str:
    """The program itself, where what is on PATH may be a wrapper that works on this machine alone."""
    return must("uv", "run", "--no-project", "sh", "-c", "echo $UV").strip()


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--root", type=Path, help="a bare root to make or to use again; default: a new one, removed after"
    )
    parser.add_argument("--inspector", default=INSPECTOR, help=f"the MCP inspector; default: {INSPECTOR}")
    given = parser.parse_args(words)
    inspector = shlex.split(given.inspector)
    image = read_container_file((ROOT / "packaging" / "Containerfile").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        scratch.chmod(0o755)
        with step("uv build --wheel"):
            must("uv", "build", "--wheel", "--quiet", "--out-dir", str(scratch / "dist"), str(ROOT))
        (wheel,) = (scratch / "dist").glob("*.whl")
        with step("a bare root of Debian's packages"):
            bare = BareRoot.make(given.root or scratch / "root")
        with tempfile.TemporaryDirectory(dir=bare.folder / "tmp") as tried:
            inside = Path("/tmp") / Path(tried).name
            (Path(tried) / "project").mkdir()
            (Path(tried) / "project" / "README.md").write_text("# Tried\n", encoding="utf-8")
            shutil.copy(uv_binary(), Path(tried) / "uv")
            shutil.copy(wheel, tried)
            env = BASE_ENV | {"PATH": f"{inside}:{BASE_ENV['PATH']}", "SSL_CERT_FILE": f"/{CERTIFICATES}"}
            env |= {"KAIROS_HOME": f"{inside}/state", "UV_CACHE_DIR": f"{inside}/cache"}
            uvx = ["uv", "tool", "run", "--from", f"{inside}/{wheel.name}", "kairos-mcp"]
            try_stdio(bare, "uvx", [*uvx, "serve", "--workspace", f"{inside}/project"], env, inspector)
            try_hosts(bare, uvx, env, inside, inspector)
            bundle = runpy.run_path(str(ROOT / "packaging" / "bundle.py"))
            bundle["build"](scratch / "kairos.mcpb")
            with zipfile.ZipFile(scratch / "kairos.mcpb") as archive:
                archive.extractall(Path(tried) / "bundle")
            started = bundle["manifest"]()["server"]["mcp_config"]
            filled = {"${__dirname}": f"{inside}/bundle", "${user_config.workspace}": f"{inside}/project"}
            command = [filled.get(word, word) for word in [started["command"], *started["args"]]]
            try_stdio(bare, "the bundle", command, env | dict.fromkeys(started["env"], ""), inspector)
        built = BareRoot(scratch / "image")  # a copy, so that the root stays bare
        must("cp", "-a", str(bare.folder), str(built.folder))
        try_container(built, image, wheel, inspector, scratch)


if __name__ == "__main__":
    main(sys.argv[1:])
