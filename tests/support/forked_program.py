"""Start `kairos-mcp` as a fork of a process that has imported it: some 0.02 s of CPU in place of one to three.

Hundreds of tests ask what a command or a server does, and few how an interpreter begins. The fork has words, variables,
a folder and descriptors of its own, and is killed for real. It ends as any interpreter does, but leaves all that it was
forked with to the kernel: taking that apart object by object would cost more than most commands. What depends on the
start of an interpreter is started anew: another locale, variables of Python, a function to be called before.

As a program this file is the process that forks; `start` and `run` are the other side.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import kairos_mcp

NAMES = ("stdin", "stdout", "stderr")
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_")
IMPORTED = (  # what commands and servers come to import
    "anyio._backends._asyncio",
    "anyio._core._signals",
    "ctypes",
    "encodings.ascii",
    "jsonschema",
    "kairos_mcp.app.app",
    "kairos_mcp.app.stages",
    "kairos_mcp.cli.command_table",
    "kairos_mcp.cli.hardening",
    "kairos_mcp.cli.main",
    "kairos_mcp.cli.serve",
    "kairos_mcp.server.dispatch",
    "kairos_mcp.server.http",
    "kairos_mcp.server.stdio",
    "kairos_mcp.settings.explained",
    "kairos_mcp.settings.schema",
    "kairos_mcp.tools.agent_files",
    "kairos_mcp.tools.mcp_servers",
    "pathspec",
    "re2",
    "rich._emoji_codes",
    "rich.console",
    "ruamel.yaml",
    "typer._adapters",
    "typer._click._textwrap",
    "typer._click.decorators",
)
IMPORTED_FOR_A_MODEL = ("kairos_mcp.models.provider_connection", "pydantic_ai.models.openai")


class Forked:
    """A fork, with what tests use of `subprocess.Popen`."""

    def __init__(self, asked: socket.socket, pipes: Mapping[str, Any]) -> None:
        self._asked, self._told = asked, asked.makefile("rb", buffering=0)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = (pipes.get(name) for name in NAMES)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.returncode = int(self._told.readline())
            self._asked.shutdown(socket.SHUT_WR)  # until now its number was given to no other process
            assert self._told.read() == b""
            self._told.close()
            self._asked.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("kairos-mcp", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    words: Sequence[str], *, code: str = "", env: Mapping[str, str] | None = None, cwd: Any = None, **given: Any
) -> Forked | subprocess.Popen[bytes]:
    """Start `kairos-mcp` with these words, or Python with this code in its place. Of what `subprocess.Popen` takes,
    only the three streams allow a fork."""
    environ = dict(os.environ if env is None else env)
    if given.keys() - set(NAMES) or not sys.platform.startswith("linux") or _at_start(environ) != _forker()[1]:
        program = ["-c", code] if code else ["-m", "kairos_mcp"]
        return subprocess.Popen([sys.executable, *program, *words], env=environ, cwd=cwd, **given)
    pipes: dict[str, Any] = {}
    fds = []
    with ExitStack() as theirs:
        for number, name in enumerate(NAMES):
            stream = given.get(name)
            if stream == subprocess.PIPE:
                reads, writes = os.pipe()
                ours, fd = (writes, reads) if name == "stdin" else (reads, writes)
                pipes[name] = os.fdopen(ours, "wb" if name == "stdin" else "rb")
                theirs.callback(os.close, fd)
            elif stream == subprocess.DEVNULL:
                fd = os.open(os.devnull, os.O_RDWR)
                theirs.callback(os.close, fd)
            else:
                fd = number if stream is None else stream if isinstance(stream, int) else stream.fileno()
            fds.append(fd)
        order = {"words": list(words), "code": code, "environ": environ, "folder": os.path.abspath(cwd or ".")}
        asked = socket.socket(socket.AF_UNIX)
        asked.connect(_forker()[0])
        socket.send_fds(asked, [b"."], fds)
        asked.sendall(json.dumps(order).encode() + b"\n")
        return Forked(asked, pipes)


def run_program(
    words: Sequence[str], *, typed: bytes = b"", timeout: float = 60, **given: Any
) -> subprocess.CompletedProcess[str]:
    """Run `kairos-mcp` with these words to its end; what it wrote, as texts."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(typed)
        stdin.seek(0)
        program = start(words, stdin=stdin, stdout=stdout, stderr=stderr, **given)
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        written = []
        for stream in (stdout, stderr):
            stream.seek(0)
            written.append(stream.read().decode())
    return subprocess.CompletedProcess(list(words), code, *written)


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(READ_AT_START)}


@cache
def _forker() -> tuple[Any, dict[str, str]]:
    """The address of the process that forks, and the variables that its interpreter began with."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")  # the kernel names it, and forgets the name with the last descriptor
        listening.listen(64)
        address = listening.getsockname()
        program = subprocess.Popen(
            [sys.executable, __file__, str(listening.fileno())], stdin=subprocess.PIPE, pass_fds=[listening.fileno()]
        )
    atexit.register(program.communicate)  # the end of its stdin is its end
    return address, _at_start(os.environ)


# -- the other side ----------------------------------------------------------------------------------------------------


def main(listening: socket.socket) -> str:
    """Fork at each order. Returns in a fork alone, with the code that it is to run."""
    ends: dict[int, tuple[int, Any]] = {}  # by pidfd: the process, and who waits for it
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listening, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    os._exit(0)
                elif key.fileobj is listening:
                    asked, _ = listening.accept()
                    _, fds, _, _ = socket.recv_fds(asked, 1, 3)
                    order = json.loads(asked.makefile("rb").readline())
                    if "KAIROS_MODEL" in order["environ"]:
                        import_all(IMPORTED_FOR_A_MODEL)
                    if (pid := os.fork()) == 0:
                        become(order, fds)
                        return str(order["code"])
                    for fd in fds:
                        os.close(fd)
                    asked.sendall(f"{pid}\n".encode())
                    pidfd = os.pidfd_open(pid)
                    ends[pidfd] = pid, asked
                    selector.register(pidfd, selectors.EVENT_READ)
                elif key.fd in ends:
                    pid, asked = ends.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                    assert ended is not None
                    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                    with suppress(BrokenPipeError):
                        asked.sendall(f"{code}\n".encode())
                    selector.register(asked, selectors.EVENT_READ, pid)
                else:  # who waited has been told
                    selector.unregister(key.fileobj)
                    os.waitpid(key.data, 0)
                    key.fileobj.close()


def become(order: dict[str, Any], fds: Sequence[int]) -> None:
    """Give this process the descriptors, variables, words and folder of a program that was just started."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for name, mode in zip(NAMES, "rww", strict=True):
        was = getattr(sys, name)
        setattr(sys, name, os.fdopen(was.fileno(), mode, encoding=was.encoding, errors=was.errors, closefd=False))
    os.environ.clear()
    os.environ.update(order["environ"])
    time.tzset()
    tempfile.tempdir = None  # where it is, the variables say
    os.chdir(order["folder"])
    sys.path[0] = order["folder"]
    program = ["-c", order["code"]] if order["code"] else ["-m", "kairos_mcp"]
    sys.orig_argv = [sys.executable, *program, *order["words"]]
    sys.argv = ["-c" if order["code"] else str(Path(kairos_mcp.__file__).with_name("__main__.py")), *order["words"]]


def import_all(modules: Iterable[str]) -> None:
    """Import what is not here yet."""
    if missing := [module for module in modules if module not in sys.modules]:
        for module in missing:
            importlib.import_module(module)
        gc.freeze()  # what is here already is looked through in no fork


def list_packages_once() -> None:
    """Keep the list of installed packages, which each app reads, where the path is that of this process."""
    path, list_packages, kept = [*sys.path[1:]], metadata.entry_points, cache(metadata.entry_points)

    def entry_points(**which: Any) -> Any:
        return (kept if sys.path[1:] == path else list_packages)(**which)

    vars(metadata)["entry_points"] = entry_points


def warm_up() -> None:
    """Go through a run, so that what the program makes at first use is there: validators, patterns, parsers."""
    calls = [{"name": "read_file", "arguments": {"path": "script"}}]
    lines = ({"content": "look", "tool_calls": calls}, {"content": "done", "finish": "stop"})
    was = os.getcwd()
    unseen = io.TextIOWrapper(io.BytesIO())
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(unseen), redirect_stderr(unseen):
        os.chdir(folder)
        Path("script").write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.environ["KAIROS_SCRIPT"] = "script"
        os.environ.pop("KAIROS_STORE", None)  # of the first test that starts a program
        code = importlib.import_module("kairos_mcp.cli.main").run_command(["run", "Look.", "--home", "home", "--json"])
        os.chdir(was)
    assert (code, threading.active_count()) == (0, 1), code
    for each in importlib.import_module("kairos_mcp.server.tools").TOOLS:
        each.arguments.model_rebuild()  # else each server builds the test of its arguments at the first call
    gc.collect()
    gc.freeze()


def end(code: str | int | None) -> None:
    """End this process as the interpreter does after `sys.exit(code)`, where that needs to say nothing."""
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()  # what of its own this process has not closed says so now
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        if code is None or isinstance(code, int):
            os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    importlib.import_module("copied_stores").copy_new_stores()
    sys.path.pop(0)  # this folder
    sys.path.insert(0, os.getcwd())
    import_all(IMPORTED)
    list_packages_once()
    table = importlib.import_module("kairos_mcp.cli.command_table")
    groups = (table.COMMANDS, *(commands for _, commands in table.GROUPS.values()))
    warm_up()
    import_all({f"kairos_mcp.cli.{entry.module}" for commands in groups for entry in commands.values()})
    code = main(socket.socket(fileno=int(sys.argv[1])))
    given: str | int | None = None
    try:
        if code:
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        else:
            importlib.import_module("kairos_mcp.cli.main").main()
    except SystemExit as ended:
        given = ended.code
    end(given)
    sys.exit(given)
