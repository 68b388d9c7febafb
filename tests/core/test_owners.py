"""Who is alive: a lock file that the kernel lets go of, whatever happens to its server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.app import Place

from kairos_mcp.store.file_store import LOCK_FOLDER, LockFile, is_alive, remove_dead_locks

OWNS = """
import os, sys, time
from pathlib import Path
from kairos_mcp.store.file_store import LockFile
mine = LockFile(Path(sys.argv[1]))
if "child" in sys.argv:
    os.posix_spawn("/bin/sleep", ["sleep", "30"], {})
print(mine.lock, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def owners(home: Path) -> Iterator[list[subprocess.Popen[str]]]:
    began: list[subprocess.Popen[str]] = []
    yield began
    for owner in began:
        owner.kill()
        owner.wait(5)
        owner.stdin.close()
        owner.stdout.close()


def another(owners: list[subprocess.Popen[str]], home: Path, *words: str) -> str:
    """Start another server's worth of ownership; the name of its lock."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNS, str(home), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    owners.append(owner)
    return owner.stdout.readline().strip()


def test_an_owner_is_alive_until_it_closes(home: Path) -> None:
    mine = LockFile(home)
    assert is_alive(home, mine.lock)
    mine.close()
    assert not is_alive(home, mine.lock)
    assert list((home / LOCK_FOLDER).iterdir()) == []


def test_an_owner_in_another_process_dies_with_it(home: Path, owners: list[subprocess.Popen[str]]) -> None:
    lock = another(owners, home)
    assert is_alive(home, lock)
    owners[0].kill()
    owners[0].wait(5)
    assert (home / LOCK_FOLDER / lock).exists()
    assert not is_alive(home, lock)


def test_a_child_that_was_started_does_not_keep_a_dead_owner_alive(
    home: Path, owners: list[subprocess.Popen[str]]
) -> None:
    lock = another(owners, home, "child")
    owners[0].kill()
    owners[0].wait(5)
    assert not is_alive(home, lock)


def test_no_descriptor_of_the_state_folder_is_given_to_a_child(place: Place) -> None:
    store = place.store()
    assert store.ownership is not None
    assert store.writer is not None
    shown = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])"
    child = subprocess.run([sys.executable, "-c", shown], close_fds=False, capture_output=True, text=True, check=False)
    assert str(place.home) not in child.stdout


def test_sweeping_removes_the_dead_alone(home: Path, owners: list[subprocess.Popen[str]]) -> None:
    mine, living, dead = LockFile(home), another(owners, home), another(owners, home)
    owners[1].kill()
    owners[1].wait(5)
    remove_dead_locks(home)
    assert {path.name for path in (home / LOCK_FOLDER).iterdir()} == {mine.lock, living}
    assert not is_alive(home, dead)
    mine.close()


def test_asking_whether_it_lives_takes_nothing_from_it(home: Path) -> None:
    mine = LockFile(home)
    for _ in range(3):
        assert is_alive(home, mine.lock)
    mine.close()


def test_a_lock_that_never_was_is_free(home: Path) -> None:
    (home / LOCK_FOLDER).mkdir()
    assert not is_alive(home, f"{os.getpid()}-0000")


async def test_servers_that_are_asked_twice_at_once_enter_once(place: Place) -> None:
    import asyncio

    store = place.store(durability="full")
    with store.writer.active_run(), store.writer.active_run():
        numbers = await asyncio.gather(*(store.register_owner(1) for _ in range(3)))
    assert len(set(numbers)) == 1
    assert place.rows("select count(*) from owner") == [(1,)]
    await store.close()
