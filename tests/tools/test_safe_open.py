"""Opening below a folder, flag by flag; and what a Workspace closes, keeps open and leaves alone."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.tools import can_tell_what_is_in_memory, has_openat2, has_resolve_cached
from support.waiting import wait_until

from kairos_mcp.core.errors import ConfigError, KairosError, NotFound, NotRegularFile, PathDenied, TooLarge
from kairos_mcp.tools.files.safe_open import (
    EXCHANGE,
    FILE,
    FOLDER,
    NO_REPLACE,
    find_renameat2,
    folder_identity,
    kernel_opener,
    walk_opener,
)
from kairos_mcp.tools.files.workspace import AT_ONCE_BYTES, Workspace, open_error

needs_openat2 = pytest.mark.skipif(not has_openat2(), reason="this kernel has no openat2, or a sandbox forbids it")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def root(workspace: Path):
    fd = os.open(workspace, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(("path", "flags"), [("real/f", FILE), ("real", FOLDER), ("fifo", FILE)])
def test_no_program_inherits_what_is_opened_and_no_open_waits_for_somebody(
    open_workspace: Workspace, path: str, flags: int
) -> None:
    assert bool(FILE & os.O_NONBLOCK)  # else the open of a FIFO would hang here
    fd = open_workspace.open_fd(path, flags)
    try:
        assert not os.get_inheritable(fd)
        assert bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK) == (flags == FILE)
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    finally:
        os.close(fd)


def test_what_is_opened_as_a_folder_is_one(open_workspace: Workspace) -> None:
    for path, error in (("real/f", NotADirectoryError), ("fifo", NotADirectoryError), ("none", FileNotFoundError)):
        with pytest.raises(error):
            open_workspace.open_fd(path, FOLDER)


@pytest.mark.parametrize("path", ["lnd", "lnd/f", "inln", "loop", "./lnd/../real/f"])
@pytest.mark.parametrize("flags", [FILE, FOLDER])
def test_no_link_is_followed_not_even_one_that_stays_inside(open_workspace: Workspace, path: str, flags: int) -> None:
    with pytest.raises(OSError, match="symbolic"):
        open_workspace.open_fd(path, flags)


@needs_openat2
@pytest.mark.parametrize("path", ["..", "../W-secret/f", "/etc/passwd", "real/../../W-secret/f"])
def test_the_kernel_itself_leaves_the_folder_by_no_path(root: int, path: str) -> None:
    opening = kernel_opener(root)
    assert opening is not None
    with pytest.raises(OSError, match="cross-device"):
        opening(root, path, FILE)


@needs_openat2
def test_a_wrong_call_of_the_kernel_is_loud(workspace: Path) -> None:
    """Taken for a kernel without the call, it would only be slower for ever."""
    file = os.open(workspace / "real" / "f", os.O_RDONLY)
    try:
        with pytest.raises(NotADirectoryError):
            kernel_opener(file)
    finally:
        os.close(file)


@pytest.mark.parametrize("walk", [False, True])
def test_what_was_opened_is_all_that_stays_open(workspace: Path, walk: bool) -> None:
    with Workspace(workspace, walk=walk) as open_workspace:
        before = descriptors()
        for path, flags in (("real/f", FILE), ("real", FOLDER), ("hard", FILE)):
            fd = open_workspace.open_fd(path, flags)
            assert descriptors() == before + 1
            os.close(fd)
        with open_workspace.open_file("real/f") as opened:
            opened.read(1)
        assert open_workspace.is_folder("real")
        assert not open_workspace.is_folder("real/f")
        assert open_workspace.entries("real", 1)
        assert open_workspace.read_start("real/f", 3) == (b"ins", 6)
        assert open_workspace.read_whole("real/f", 10) == b"inside"
        assert descriptors() == before


def test_the_walk_works_from_the_descriptor_that_it_is_given(root: int, workspace: Path) -> None:
    walk = walk_opener(root)
    real = walk(root, "real", FOLDER)
    try:
        file = walk(real, "f", FILE)
        assert os.read(file, 10) == b"inside"
        os.close(file)
    finally:
        os.close(real)


ALONE = """
import os, pty, sys
from pathlib import Path
from kairos_mcp.core.errors import KairosError
from kairos_mcp.tools.files.workspace import Workspace
with Workspace(Path(sys.argv[1]), walk=sys.argv[2] == "walk") as open_workspace:
    os.close(0)  # so that the lowest number is given out
    with open_workspace.open_file("real/f") as opened:
        print(opened.read(10))
os.open(os.devnull, os.O_RDONLY)
_, terminal = pty.openpty()
name = Path(os.ttyname(terminal))
with Workspace(name.parent, walk=sys.argv[2] == "walk") as open_workspace:
    try:
        with open_workspace.open_file(name.name):
            print("opened")
    except KairosError as refused:
        print(refused.code)
try:
    os.open("/dev/tty", os.O_RDWR)
    print("has a terminal")
except OSError:
    print("has none")
"""


@pytest.mark.parametrize("way", ["kernel", "walk"])
def test_descriptor_0_is_one_too_and_no_terminal_is_taken_by_opening_it(workspace: Path, way: str) -> None:
    words = [sys.executable, "-c", ALONE, str(workspace), way]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, start_new_session=True, check=False)
    assert done.stdout.split("\n")[:3] == ["b'inside'", "not_regular_file", "has none"], done.stdout + done.stderr


UNTOLD = """
import os, sys
from pathlib import Path
from kairos_mcp.core.errors import KairosError
from kairos_mcp.tools.files.workspace import Workspace
def are_open():
    found = set()
    for fd in range(64):
        try:
            found.add((fd, os.fstat(fd).st_ino))
        except OSError:
            pass
    return found
with Workspace(Path(sys.argv[1]), walk=True) as open_workspace:
    assert os.system("mount -t tmpfs none /proc") == 0
    before = are_open()
    for path in ("real/f", "hard"):
        try:
            with open_workspace.open_file(path):
                print("opened")
        except KairosError as refused:
            print(refused.code)
    print(are_open() == before)
"""


def test_a_walk_that_no_longer_learns_its_mount_opens_nothing_and_keeps_nothing_open(workspace: Path) -> None:
    alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    try:
        tried = subprocess.run(
            [*alone, "sh", "-c", "mount -t tmpfs none /proc"], capture_output=True, timeout=60, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare to mount with")
    if tried.returncode != 0:
        pytest.skip("this system lets nobody mount in a namespace of their own")
    words = [*alone, sys.executable, "-c", UNTOLD, str(workspace)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["not_regular_file", "not_regular_file", "True"], done.stdout + done.stderr


# -- the rename that loses nothing -----------------------------------------------------------------------------


@pytest.fixture
def rename() -> Callable[[int, str, str, int], None]:
    found = find_renameat2()
    if found is None:
        assert not sys.platform.startswith("linux") or not has_openat2(), "a kernel with openat2 has renameat2"
        pytest.skip("this system has no renameat2")
    return found


def test_an_exchange_gives_each_name_what_the_other_had(root: int, workspace: Path, rename) -> None:
    (workspace / "a").write_text("a")
    (workspace / "b").write_text("b")
    rename(root, "a", "b", EXCHANGE)
    assert ((workspace / "a").read_text(), (workspace / "b").read_text()) == ("b", "a")
    with pytest.raises(FileNotFoundError):
        rename(root, "a", "none", EXCHANGE)
    assert (workspace / "a").read_text() == "b"


def test_a_rename_onto_nothing_never_replaces(root: int, workspace: Path, rename) -> None:
    (workspace / "a").write_text("a")
    (workspace / "b").write_text("b")
    with pytest.raises(FileExistsError):
        rename(root, "a", "b", NO_REPLACE)
    assert ((workspace / "a").read_text(), (workspace / "b").read_text()) == ("a", "b")
    rename(root, "a", "c", NO_REPLACE)
    assert ((workspace / "c").read_text(), (workspace / "a").exists()) == ("a", False)


def test_an_opener_says_how_it_renames_and_opens(workspace: Path, rename) -> None:
    for exchange in (False, True):
        with Workspace(workspace, exchange=exchange) as open_workspace:
            assert (open_workspace.by_exchange, open_workspace.rename is not None) == (exchange, exchange)
    with Workspace(workspace) as open_workspace:
        assert (open_workspace.by_exchange, open_workspace.by_kernel) == (True, has_openat2())
    with Workspace(workspace, walk=True) as open_workspace:
        assert (open_workspace.by_exchange, open_workspace.by_kernel) == (True, False)


# -- what is no file, or nobody's to read ----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["real", "fifo"])
def test_only_regular_files_are_read_in_whatever_way(open_workspace: Workspace, path: str) -> None:
    hint = "list_files" if path == "real" else "Only regular files"
    before = descriptors()
    for read in (
        lambda: open_workspace.read_start(path, 10),
        lambda: open_workspace.read_whole(path, 10),
        lambda: open_workspace.open_file(path).__enter__(),
    ):
        with pytest.raises(NotRegularFile) as refused:
            read()
        assert hint in refused.value.hint
    assert descriptors() == before


def test_what_can_not_be_opened_is_refused_alike_in_every_way(open_workspace: Workspace) -> None:
    for path, error in (("lnd/f", PathDenied), ("x" * 300, PathDenied), ("real/f/x", NotFound)):
        for read in (
            lambda path=path: open_workspace.read_start(path, 10),
            lambda path=path: open_workspace.is_folder(path),
        ):
            with pytest.raises(error):
                read()
        with pytest.raises(error):
            open_workspace.read_whole(path, 10)
    for path in ("none", "none/at/all"):
        assert open_workspace.read_whole(path, 10) is None
        with pytest.raises(NotFound):
            open_workspace.read_start(path, 10)


def test_what_the_servers_user_may_not_read_is_refused_so() -> None:
    refused = open_error(PermissionError(errno.EACCES, "no"), "real/f")
    assert isinstance(refused, PathDenied)
    assert "real/f may not be read" in refused.message


def test_a_workspace_that_can_not_be_opened_says_why(workspace: Path) -> None:
    for folder, word in ((workspace / "none", "ENOENT"), (workspace / "real" / "f", "ENOTDIR")):
        with pytest.raises(ConfigError, match=word):
            Workspace(folder)


def test_what_lies_in_the_private_folder_is_nobodys_and_all_else_is_as_before(workspace: Path) -> None:
    private = workspace / "state"
    (private / "deep" / "er").mkdir(parents=True)
    for path in ("state/key", "state/deep/key", "state/deep/er/key", "real/key"):
        (workspace / path).write_text("SECRET")
    for walk in (False, True):
        with Workspace(workspace, private=private, walk=walk) as open_workspace:
            before = descriptors()
            for path in ("state/key", "state/deep/key", "state/deep/er/key"):
                with pytest.raises(PathDenied, match="own folder"):
                    open_workspace.read_whole(path, 10)
            for path in ("state", "state/deep", "state/deep/er"):
                with pytest.raises(PathDenied, match="own folder"):
                    open_workspace.entries(path, 10)
            assert descriptors() == before
            assert open_workspace.read_whole("real/key", 10) == b"SECRET"
            assert "state" in [entry.name for entry in open_workspace.entries(".", 100)[0]]
        with Workspace(workspace, private=workspace / "none", walk=walk) as open_workspace:
            assert open_workspace.read_whole("state/key", 10) == b"SECRET"


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 100])
def test_of_what_is_found_no_more_is_read_than_was_asked_for(open_workspace: Workspace, count: int) -> None:
    assert open_workspace.read_start("real/f", count) == (b"inside"[:count], 6)


def test_a_file_is_read_from_where_it_is_asked_for(open_workspace: Workspace) -> None:
    with open_workspace.open_file("real/f") as opened:
        assert [opened.read(count, at) for count, at in ((2, 0), (2, 2), (2, 4), (9, 4), (9, 6), (0, 0), (6, 0))] == [
            *(b"in", b"si", b"de", b"de", b"", b"", b"inside"),
        ]
        assert opened.read(3) == b"ins"


SPEED = Path("/sys/devices/virtual/net/lo/speed")  # a file of 4,096 bytes that can't be read


def unreadable() -> bool:
    try:
        SPEED.read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


@pytest.mark.skipif(not unreadable(), reason="there is no file here that can be opened and not be read")
def test_a_file_that_can_not_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    with Workspace(SPEED.parent) as open_workspace, pytest.raises(KairosError, match="EINVAL"):
        open_workspace.read_start(SPEED.name, 10)


def test_a_closed_opener_opens_nothing_also_in_a_folder_that_it_opened(workspace: Path) -> None:
    with Workspace(workspace) as open_workspace:
        real = open_workspace.open_fd("real", FOLDER)
    with pytest.raises(ValueError, match="closed"):
        open_workspace.open_fd("f", FILE, real)
    os.close(real)


def test_a_folder_in_a_folder_is_opened_beneath_that_one(open_workspace: Workspace) -> None:
    real = open_workspace.open_fd("real", FOLDER)
    try:
        os.close(open_workspace.open_fd("f", FILE, real))
        with pytest.raises(FileNotFoundError):
            open_workspace.open_fd("hard", FILE, real)
    finally:
        os.close(real)


def test_what_is_larger_than_the_most_is_not_read_and_its_size_is_told(
    open_workspace: Workspace, workspace: Path
) -> None:
    (workspace / "large").write_bytes(b"x" * 2_000)
    with pytest.raises(TooLarge, match=r"2,000 bytes; at most 1,999"):
        open_workspace.read_whole("large", 1_999)
    assert open_workspace.read_whole("large", 2_000) == b"x" * 2_000


def birth_time(folder: Path) -> str:
    """When a folder was made, as `stat` of the system says it, in the form of an identity; empty where it says none."""
    done = subprocess.run(
        ["stat", "--format=%.9W", str(folder)], capture_output=True, text=True, timeout=60, check=True
    )
    seconds, _, nanoseconds = done.stdout.strip().partition(".")
    made_at = int(seconds), int(nanoseconds or 0)
    return struct.pack("=qI", *made_at).hex() if made_at != (0, 0) else ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere os.stat tells the time of birth itself")
def test_a_folder_is_known_by_its_device_its_inode_and_when_it_was_made(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time alone tells it from a new one, which may be given the inode of one that was removed."""
    found = os.stat(workspace / "real")
    expected = f"{found.st_dev}:{found.st_ino}:{birth_time(workspace / 'real')}"
    assert folder_identity(str(workspace / "real")) == expected
    monkeypatch.chdir(workspace)
    assert folder_identity("real") == expected
    assert folder_identity("none") is None
    (workspace / "real").rename(workspace / "moved")
    (workspace / "real").mkdir()
    assert folder_identity("moved") == expected != folder_identity("real")


# -- without waiting for a disk ----------------------------------------------------------------------------------


def pages_in_memory(file: Path) -> int:
    """How many pages of the file the kernel has in memory: asked so that it begins to read none."""
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        there = ctypes.create_string_buffer(-(-len(mapped) // mmap.PAGESIZE))
        first = ctypes.c_char.from_buffer(mapped)
        assert ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), there) == 0
        del first  # else the map can't be closed
        return sum(page & 1 for page in there.raw)


def keep_in_memory(file: Path, pages: int) -> None:
    """Have the kernel keep so many pages of the file in memory, from its beginning, and no more. It may take another
    try: what is just being written stays."""

    def is_kept() -> bool:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
            os.pread(fd, pages * mmap.PAGESIZE, 0)
        finally:
            os.close(fd)
        return pages_in_memory(file) == pages

    wait_until(is_kept, 10.0)


@pytest.fixture
def ready(workspace: Path) -> Iterator[Workspace]:
    with Workspace(workspace) as opened:
        assert opened.at_once is can_tell_what_is_in_memory(workspace)
        if not opened.at_once:
            pytest.skip("only from Linux 5.12 on, and on ext4 and its like, does the kernel say that a read would wait")
        yield opened


def test_what_is_in_memory_is_read_at_once_and_what_is_not_says_so(ready: Workspace, workspace: Path) -> None:
    before, file = descriptors(), workspace / "real" / "f"
    file.write_bytes(b"x" * AT_ONCE_BYTES)
    with ready.open_file("real/f", at_once=True) as opened:
        assert (opened.size, opened.read(AT_ONCE_BYTES), opened.read(9, AT_ONCE_BYTES - 4)) == (
            AT_ONCE_BYTES,
            b"x" * AT_ONCE_BYTES,
            b"xxxx",
        )
    file.write_bytes(b"x" * (AT_ONCE_BYTES + 1))
    with pytest.raises(BlockingIOError), ready.open_file("real/f", at_once=True):
        pass
    file.write_bytes(b"inside")
    keep_in_memory(file, 0)
    with ready.open_file("real/f", at_once=True) as opened, pytest.raises(BlockingIOError):
        opened.read(6)
    assert ready.read_whole("real/f", 10) == b"inside"
    with ready.open_file("real/f", at_once=True) as opened:
        assert opened.read(6) == b"inside"
    assert descriptors() == before


def test_what_is_in_memory_in_part_is_not_read_in_part(ready: Workspace, workspace: Path) -> None:
    file = workspace / "real" / "f"
    file.write_bytes(b"x" * AT_ONCE_BYTES)
    keep_in_memory(file, 1)
    with ready.open_file("real/f", at_once=True) as opened, pytest.raises(BlockingIOError):
        opened.read(AT_ONCE_BYTES)


@pytest.mark.skipif(not has_resolve_cached(), reason="before Linux 5.12 nothing tells that an open would wait")
def test_a_path_that_is_not_in_memory_is_not_opened_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """None below this folder ever is, as far as the kernel tells."""
    monkeypatch.setattr("kairos_mcp.tools.files.safe_open.LOCAL", {"proc"})
    with Workspace(Path("/proc")) as opened:
        assert opened.at_once
        with opened.open_file("sys/kernel/ostype"):
            pass
        with pytest.raises(BlockingIOError), opened.open_file("sys/kernel/ostype", at_once=True):
            pass


@pytest.mark.parametrize(
    ("path", "error"),
    [("lnd/f", PathDenied), ("inln", PathDenied), ("fifo", NotRegularFile), ("real", NotRegularFile)],
)
def test_what_is_refused_is_refused_at_once_too(ready: Workspace, path: str, error: type[KairosError]) -> None:
    with pytest.raises(error):
        ready.open_file(path).__enter__()  # now its names are in memory
    with pytest.raises(error):
        ready.open_file(path, at_once=True).__enter__()


def test_where_an_open_may_ask_others_nothing_is_opened_at_once(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process or a machine that never answers would hold the event loop for ever."""
    with Workspace(Path("/proc")) as foreign, pytest.raises(BlockingIOError):
        foreign.open_file("version", at_once=True).__enter__()
    monkeypatch.setattr("kairos_mcp.tools.files.safe_open.LOCAL", {"fuse", "nfs4"})
    with Workspace(workspace) as opened, pytest.raises(BlockingIOError):
        opened.open_file("real/f", at_once=True).__enter__()


def test_nothing_is_opened_at_once_where_the_private_folder_may_ask_others(ready: Workspace, workspace: Path) -> None:
    """Its status is asked for at each open. One that is not there yet counts as what it would lie in."""
    for private in (workspace / "none" / "yet", Path("/proc/self"), Path("/sys/none"), workspace / "real" / "f" / "x"):
        with Workspace(workspace, private=private) as opened:
            assert opened.at_once is (private.name == "yet")


def test_the_private_folder_is_nobodys_at_once_either(workspace: Path) -> None:
    (workspace / "state").mkdir()
    (workspace / "state" / "key").write_text("SECRET")
    with Workspace(workspace, private=workspace / "state") as opened:
        with pytest.raises(PathDenied, match="own folder"):
            opened.open_file("state/key").__enter__()
        with pytest.raises((PathDenied, BlockingIOError)):
            opened.open_file("state/key", at_once=True).__enter__()
