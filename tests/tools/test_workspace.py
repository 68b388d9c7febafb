"""The laws of a Workspace, for both ways of opening."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.tools import has_openat2

from kairos_mcp.core.errors import ConfigError, KairosError, NotFound, NotRegularFile, PathDenied, TooLarge
from kairos_mcp.tools import Workspace
from kairos_mcp.tools.files.safe_open import FILE, walk_opener


def test_a_regular_file_is_read_with_its_plain_path_and_size(open_workspace: Workspace) -> None:
    with open_workspace.open_file("./real//x/../f") as opened:
        assert (opened.path, opened.size, opened.read(100), opened.read(2, 2)) == (
            "real/f",
            6,
            b"inside",
            b"si",
        )


def test_a_folder_lists_its_entries_by_name_and_kind_without_following(open_workspace: Workspace) -> None:
    entries, more = open_workspace.entries(".", 100)
    assert [(entry.name, entry.kind) for entry in entries] == [
        ("fifo", "other"),
        ("hard", "file"),
        ("inln", "link"),
        ("lnd", "link"),
        ("loop", "link"),
        ("real", "folder"),
    ]
    assert not more
    assert len(open_workspace.entries(".", 2)[0]) == 2
    assert open_workspace.entries(".", 2)[1]


def test_a_folder_beyond_a_link_is_not_listed(open_workspace: Workspace) -> None:
    with pytest.raises(PathDenied):
        open_workspace.entries("lnd", 10)
    with pytest.raises(NotFound):
        open_workspace.entries("real/f", 10)


def test_path_014_another_file_system_is_refused() -> None:
    for walk in (False, True):
        with (
            Workspace(Path("/"), walk=walk) as open_workspace,
            pytest.raises(PathDenied),
            open_workspace.open_file("proc/version"),
        ):
            pass


def test_a_socket_and_a_device_are_no_files(open_workspace: Workspace, workspace: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(workspace)  # a socket's path is short by law, tmp_path is not
        try:
            listening.bind("sock")
        finally:
            os.chdir(here)
        with pytest.raises(NotRegularFile, match="is not a regular file"), open_workspace.open_file("sock"):
            pass
    with Workspace(Path("/dev")) as devices, pytest.raises(KairosError) as caught, devices.open_file("null"):
        pass
    assert caught.value.code in ("not_regular_file", "path_denied")


def test_a_failed_open_leaves_no_descriptor_behind(open_workspace: Workspace) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("lnd/f", "loop", "fifo", "none", "real/none/x", "real", "real/f/x", "x" * 300):
        with pytest.raises(KairosError), open_workspace.open_file(path):
            pass
        with pytest.raises(KairosError):
            open_workspace.entries("fifo", 3)
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_gives_the_descriptor_back_and_nothing_opens_afterwards(workspace: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    open_workspace = Workspace(workspace)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    open_workspace.close()
    open_workspace.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ValueError, match="closed"), open_workspace.open_file("real/f"):
        pass


def test_a_workspace_that_is_not_there_is_an_error_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Workspace(tmp_path / "none")


def test_the_workspace_may_be_renamed_while_it_is_open(open_workspace: Workspace, workspace: Path) -> None:
    workspace.rename(workspace.with_name("moved"))
    with open_workspace.open_file("real/f") as opened:
        assert opened.read(100) == b"inside"


def test_the_kernel_s_own_way_is_taken_where_the_kernel_has_it(workspace: Path) -> None:
    """A call of it that is wrong must not look like a kernel without it."""
    with Workspace(workspace) as open_workspace:
        assert open_workspace.by_kernel == has_openat2()


# -- a bind mount: another place under the same device -------------------------------------------------------

BOUND = """
import os, sys
from pathlib import Path
from kairos_mcp.core.errors import PathDenied
from kairos_mcp.tools import Workspace
root = Path(sys.argv[1])
assert os.stat(root / "W" / "bound" / "f").st_dev == os.stat(root / "W").st_dev, "not on the same device"
for walk in (False, True):
    with Workspace(root / "W", walk=walk) as open_workspace:
        for path in ("bound/f", "bound/inner/f", "file"):
            try:
                with open_workspace.open_file(path) as opened:
                    print(walk, path, "WAS READ:", opened.read(100))
            except PathDenied as denied:
                print(walk, path, denied)
        for path in ("bound", "bound/inner"):
            try:
                print(walk, path, "WAS LISTED:", open_workspace.entries(path, 10))
            except PathDenied as denied:
                print(walk, path, denied)
        with open_workspace.open_file("real/f") as opened:
            assert opened.read(100) == b"inside"
"""


def test_a_bind_mount_on_the_same_device_is_not_crossed(workspace: Path) -> None:
    root = workspace.parent
    (root / "W-secret" / "inner").mkdir()
    (root / "W-secret" / "inner" / "f").write_text("SECRET")
    (workspace / "bound").mkdir()
    (workspace / "file").write_text("mine")
    mounts = 'mount --bind W-secret W/bound && mount --bind W-secret/f W/file && exec "$@"'
    alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    try:
        tried = subprocess.run([*alone, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare to mount with")
    if tried.returncode != 0:
        pytest.skip("this system lets nobody mount in a namespace of their own")
    words = [*alone, "sh", "-c", mounts, "sh", sys.executable, "-c", BOUND, str(root)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.count("is on another file system")) == (0, 10), done.stdout + done.stderr
    assert "SECRET" not in done.stdout
    assert "WAS" not in done.stdout


def test_a_walk_that_can_not_know_a_mount_opens_nothing(workspace: Path) -> None:
    """Before Linux 5.6, and with no /proc: rather no file than one that lies elsewhere."""
    hidden = 'mount -t tmpfs none /proc && exec "$@"'
    walks = (
        "import os, sys\n"
        "from kairos_mcp.core.errors import ConfigError\n"
        "from kairos_mcp.tools import Workspace\n"
        "from pathlib import Path\n"
        "try:\n    Workspace(Path(sys.argv[1]), walk=True)\n"
        "except ConfigError as refused:\n    print('refused', refused)\n"
    )
    alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    try:
        tried = subprocess.run([*alone, "sh", "-c", "mount -t tmpfs none /proc"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare to mount with")
    if tried.returncode != 0:
        pytest.skip("this system lets nobody mount in a namespace of their own")
    words = [*alone, "sh", "-c", hidden, "sh", sys.executable, "-c", walks, str(workspace)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("refused"), done.stdout + done.stderr


# -- what a file gives piece by piece, or otherwise than it said -----------------------------------------------

PIECEMEAL = Path("/proc/kallsyms")  # given a page at a time, of no size at all, and always the same


@pytest.mark.skipif(not PIECEMEAL.exists(), reason="there is no file that is given in pieces")
@pytest.mark.parametrize("walk", [False, True])
def test_what_is_given_in_pieces_is_read_whole(walk: bool) -> None:
    wanted = PIECEMEAL.read_bytes()[:300_000]
    with Workspace(Path("/proc"), walk=walk) as open_workspace, open_workspace.open_file("kallsyms") as opened:
        assert len(os.pread(opened.fd, 300_000, 0)) < 300_000, "it is not given in pieces"
        assert opened.read(300_000) == wanted
        assert opened.read(1_000, 50_000) == wanted[50_000:51_000]
        assert opened.read(1) == wanted[:1]
        assert opened.read(0) == b""


@pytest.mark.skipif(not PIECEMEAL.exists(), reason="there is no file that is given in pieces")
def test_a_file_that_holds_more_than_it_says_is_too_large_all_the_same() -> None:
    with Workspace(Path("/proc")) as open_workspace:
        with pytest.raises(TooLarge):
            open_workspace.read_whole("kallsyms", 10_000)
        assert open_workspace.read_start("kallsyms", 100) == (b"", 0)


def test_a_file_that_grows_or_shrinks_under_its_reader_is_read_as_it_is_then(
    open_workspace: Workspace, workspace: Path
) -> None:
    target = workspace / "real" / "f"
    for content in ("inside and more", "in", "", "another"):
        target.write_text("inside")
        with open_workspace.open_file("real/f") as opened:
            with target.open("r+") as file:  # the same file: a new one in its place is not seen at all
                file.truncate(0)
                file.write(content)
            assert (opened.size, opened.read(100)) == (6, content.encode())
            assert opened.read(100, 3) == content.encode()[3:]
            assert opened.read(4) == content.encode()[:4]
            assert opened.read(10, 50) == b""


def test_a_file_that_is_replaced_or_removed_under_its_reader_is_read_as_it_was(
    open_workspace: Workspace, workspace: Path
) -> None:
    target = workspace / "real" / "f"
    with open_workspace.open_file("real/f") as opened:
        (workspace / "new").write_text("replaced")
        os.replace(workspace / "new", target)
        assert opened.read(100) == b"inside"
        target.unlink()
        assert opened.read(100, 2) == b"side"


@pytest.mark.parametrize("most", [5, 6, 7])
def test_a_whole_file_is_given_up_to_its_bound_and_not_one_byte_beyond(open_workspace: Workspace, most: int) -> None:
    if most < 6:
        with pytest.raises(TooLarge):
            open_workspace.read_whole("real/f", most)
    else:
        assert open_workspace.read_whole("real/f", most) == b"inside"


def test_the_walk_leaves_no_descriptor_behind_where_it_refuses(workspace: Path) -> None:
    with Workspace(Path("/"), walk=True) as open_workspace:
        before = len(os.listdir("/proc/self/fd"))
        for path in ("proc/version", "proc/self/status", "dev/null"):
            with pytest.raises(KairosError), open_workspace.open_file(path):
                pass
        assert len(os.listdir("/proc/self/fd")) == before
    root = os.open(workspace, os.O_RDONLY)
    try:
        os.close(walk_opener(root)(root, "real/f", FILE))
    finally:
        os.close(root)
