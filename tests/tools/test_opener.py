"""The opener's laws, for both ways of opening."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kairos_mcp.errors import ConfigError, KairosError, NotFound, NotRegularFile, PathDenied
from kairos_mcp.tools import Opener


def test_a_regular_file_is_read_with_its_plain_path_and_size(opener: Opener) -> None:
    with opener.file("./real//x/../f") as opened:
        assert (opened.path, opened.size, opened.read(100), opened.read(2, 2)) == (
            "real/f",
            6,
            b"inside",
            b"si",
        )


def test_a_folder_lists_its_entries_by_name_and_kind_without_following(opener: Opener) -> None:
    entries, more = opener.entries(".", 100)
    assert [(entry.name, entry.kind) for entry in entries] == [
        ("fifo", "other"),
        ("hard", "file"),
        ("inln", "link"),
        ("lnd", "link"),
        ("loop", "link"),
        ("real", "folder"),
    ]
    assert not more
    assert len(opener.entries(".", 2)[0]) == 2
    assert opener.entries(".", 2)[1]


def test_a_folder_beyond_a_link_is_not_listed(opener: Opener) -> None:
    with pytest.raises(PathDenied):
        opener.entries("lnd", 10)
    with pytest.raises(NotFound):
        opener.entries("real/f", 10)


def test_path_014_another_file_system_is_refused() -> None:
    for walk in (False, True):
        with Opener(Path("/"), walk=walk) as opener, pytest.raises(PathDenied), opener.file("proc/version"):
            pass


def test_a_socket_and_a_device_are_no_files(opener: Opener, workspace: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(workspace)  # a socket's path is short by law, tmp_path is not
        try:
            listening.bind("sock")
        finally:
            os.chdir(here)
        with pytest.raises(NotRegularFile), opener.file("sock"):
            pass
    with Opener(Path("/dev")) as devices, pytest.raises(KairosError) as caught, devices.file("null"):
        pass
    assert caught.value.code in ("not_regular_file", "path_denied")


def test_a_failed_open_leaves_no_descriptor_behind(opener: Opener) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("lnd/f", "loop", "fifo", "none", "real/none/x", "real", "real/f/x", "x" * 300):
        with pytest.raises(KairosError), opener.file(path):
            pass
        with pytest.raises(KairosError):
            opener.entries("fifo", 3)
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_gives_the_descriptor_back_and_nothing_opens_afterwards(workspace: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    opener = Opener(workspace)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    opener.close()
    opener.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ValueError, match="closed"), opener.file("real/f"):
        pass


def test_a_workspace_that_is_not_there_is_an_error_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Opener(tmp_path / "none")


def test_the_workspace_may_be_renamed_while_it_is_open(opener: Opener, workspace: Path) -> None:
    workspace.rename(workspace.with_name("moved"))
    with opener.file("real/f") as opened:
        assert opened.read(100) == b"inside"
