"""A full disk is called full, by every command and at every moment of opening the state folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.app import Place, start_run
from support.script_lines import says

from kairos_mcp.app.app import App

pytestmark = pytest.mark.state_file("the disk is that of its folder")

KIB = 1024
DISK = 2 * KIB * KIB
LEFT = (0, 4 * KIB, 12 * KIB, 28 * KIB)  # the file opens from about 32 KiB on: its log, and the log's index
# In a mount namespace of its own: fill a small disk with a copy of a state folder but for so many bytes, or but for so
# many files, and say by which error its opening and its first write are refused, and what a command prints.
PROGRAM = """
import asyncio, contextlib, errno, io, json, os, shutil, subprocess, sys
from pathlib import Path
from kairos_mcp.cli.main import run_command
from kairos_mcp.core.errors import KairosError
from kairos_mcp.store.file_store import FileStore

base, disk = Path(sys.argv[1]), Path(sys.argv[2])

def fill(left):
    with open(disk / "filler", "wb") as filler:
        free = os.statvfs(disk)
        with contextlib.suppress(OSError):
            filler.write(bytes(max(0, free.f_bavail * free.f_frsize - left)))
            filler.flush()

def refuse_files(left):
    for number in range(os.statvfs(disk).f_favail - left):
        (disk / f"file-{number}").touch()

def try_out(copies):
    store = FileStore(disk / "home", "full", "command")
    try:
        store.open()
        store.ownership
    except KairosError as error:
        code = error.code
    else:
        code = None
    asyncio.run(store.close())
    said = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        exit_code = run_command(["run", "Think.", "--route", "caller", "--home", str(disk / "home")])
    said.flush()
    return [code, exit_code, said.buffer.getvalue().decode()]

found = []
for options, steps in (("size=%d" % DISK, LEFT), ("size=%d,nr_inodes=12" % DISK, FILES)):
    for left in steps:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
        if steps is LEFT:
            shutil.copytree(base, disk / "home")
            fill(left)
        else:
            refuse_files(left)
        found.append(try_out(steps))
        subprocess.run(["umount", "-l", disk], check=True)
print(json.dumps(found))
"""
FILES = (0, 1, 2, 3, 4, 5)


async def fill(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        await start_run(app, "one")


def test_a_full_disk_is_called_full(place: Place, tmp_path: Path) -> None:
    alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("there is no unshare to mount with")
    asyncio.run(fill(place))
    disk = tmp_path / "disk"
    disk.mkdir()
    program = f"DISK, LEFT, FILES = {DISK}, {LEFT}, {FILES}\n{PROGRAM}"
    ran = subprocess.run(
        [*alone, sys.executable, "-c", program, str(place.home), str(disk)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(found) == len(LEFT) + len(FILES)
    for code, exit_code, said in found:
        assert code == "no_space", [[*each[:2], each[2][-200:]] for each in found]
        assert exit_code == 1
        assert "full" in said
        assert "Free some space" in said
