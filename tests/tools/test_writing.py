"""Files as they are after a write: their modes, marks, line ends and links, and everything beside them untouched."""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
import threading
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.interruptions import in_a_child
from support.tools import READ_BYTES, WorkspaceTools

from kairos_mcp.core.errors import KairosError, StaleFile
from kairos_mcp.core.tool import Preview
from kairos_mcp.tools import Workspace, builtin_tools
from kairos_mcp.tools.files.atomic_write import write_error
from kairos_mcp.tools.registry import ToolRegistry


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def test_an_edit_is_made_and_told_with_its_diff_and_hashes(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"src/t.py": "a=1\nb=2\na=1\n"})
    result = writing_tools.call("edit_file", path="./src//t.py", old_string="b=2", new_string="b=3")
    assert not result.is_error
    assert writing_tools.content()["src/t.py"] == "a=1\nb=3\na=1\n"
    file = {"path": "src/t.py", "before": digest("a=1\nb=2\na=1\n"), "after": digest("a=1\nb=3\na=1\n")}
    assert result.data["files"] == [file | {"bytes": 12}]
    assert all(part in result.content for part in ("\n-b=2\n+b=3\n", file["before"], file["after"]))


def test_a_file_is_created_with_its_folders_and_the_usual_modes(writing_tools: WorkspaceTools) -> None:
    result = writing_tools.call("write_file", path="new/deep/f.txt", content="text\n")
    assert not result.is_error
    assert writing_tools.content()["new/deep/f.txt"] == "text\n"
    (writing_tools.workspace / "usual").write_text("")
    (writing_tools.workspace / "usual-folder").mkdir()
    for made, usual in (("new/deep/f.txt", "usual"), ("new", "usual-folder"), ("new/deep", "usual-folder")):
        modes = {(writing_tools.workspace / path).stat().st_mode for path in (made, usual)}
        assert len(modes) == 1
    assert "notes" not in result.data


def test_nothing_is_left_beside_a_file_whether_a_write_succeeds_or_fails(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one two"})
    before = set(os.listdir(writing_tools.workspace))
    assert not writing_tools.call("edit_file", path="t", old_string="one", new_string="1").is_error
    assert not writing_tools.call("write_file", path="t", content="whole").is_error
    assert writing_tools.call("edit_file", path="t", old_string="zzz", new_string="1").code == "match_none"
    assert writing_tools.call("write_file", path="t/x/y", content="1").code == "not_found"
    assert writing_tools.call("write_file", path="fifo/x", content="1").is_error
    assert set(os.listdir(writing_tools.workspace)) == before


def test_a_write_leaves_no_descriptor_open(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "0"})
    before = len(os.listdir("/proc/self/fd"))
    for n in range(5):
        assert not writing_tools.call("edit_file", path="t", old_string=f"{n}", new_string=f"{n + 1}").is_error
        assert not writing_tools.call("write_file", path=f"d{n}/new", content="x").is_error
        assert writing_tools.call("write_file", path=f"d{n}/new/x", content="x").is_error
        assert writing_tools.call("edit_file", path="lnd/f", old_string="S", new_string="x").is_error
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o440, 0o777])
def test_a_mode_is_kept(writing_tools: WorkspaceTools, mode: int) -> None:
    writing_tools.write({"t": "one"})
    os.chmod(writing_tools.workspace / "t", mode)
    assert not writing_tools.call("edit_file", path="t", old_string="one", new_string="two").is_error
    assert stat.S_IMODE((writing_tools.workspace / "t").stat().st_mode) == mode


def test_the_bits_that_lend_rights_are_not_kept(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one"})
    os.chmod(writing_tools.workspace / "t", 0o6755)
    assert not writing_tools.call("edit_file", path="t", old_string="one", new_string="two").is_error
    assert stat.S_IMODE((writing_tools.workspace / "t").stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_owner_is_kept(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one"})
    try:
        os.chown(writing_tools.workspace / "t", 12345, 23456)
    except OSError:
        pytest.skip("this root has no other users")
    assert not writing_tools.call("edit_file", path="t", old_string="one", new_string="two").is_error
    status = (writing_tools.workspace / "t").stat()
    assert (status.st_uid, status.st_gid) == (12345, 23456)


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no attributes here")
def test_attributes_of_the_user_are_kept(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one"})
    try:
        os.setxattr(writing_tools.workspace / "t", "user.note", b"mine")
    except OSError:
        pytest.skip("this file system has no attributes")
    assert not writing_tools.call("edit_file", path="t", old_string="one", new_string="two").is_error
    assert os.getxattr(writing_tools.workspace / "t", "user.note") == b"mine"


def test_a_mark_and_line_ends_are_kept(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": b"\xef\xbb\xbfa=1\r\nb=2\r\n"})
    assert not writing_tools.call("edit_file", path="t", old_string="a=1\nb", new_string="a=2\nb").is_error
    result = writing_tools.call("edit_file", path="t", old_string="b=2", new_string="b=2\nc=3")
    assert (writing_tools.workspace / "t").read_bytes() == b"\xef\xbb\xbfa=2\r\nb=2\r\nc=3\r\n"
    assert "CRLF" in result.data["notes"][0]
    result = writing_tools.call("write_file", path="t", content="x\ny\n")
    assert (writing_tools.workspace / "t").read_bytes() == b"\xef\xbb\xbfx\r\ny\r\n"
    assert len(result.data["notes"]) == 2


def test_line_ends_are_changed_by_who_names_them(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": b"a\r\nb\r\n"})
    everywhere = {"old_string": "\r\n", "new_string": "\n", "replace_all": True}
    assert not writing_tools.call("edit_file", path="t", **everywhere).is_error
    assert (writing_tools.workspace / "t").read_bytes() == b"a\nb\n"


def test_a_hard_link_is_taken_apart_and_its_other_name_keeps_its_text(writing_tools: WorkspaceTools) -> None:
    assert not writing_tools.call("edit_file", path="hard", old_string="SECRET", new_string="open").is_error
    assert (writing_tools.workspace / "hard").read_text() == "open"
    assert (writing_tools.workspace.parent / "W-secret" / "f").read_text() == "SECRET"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("inln", "path_denied"),
        ("lnd/f", "path_denied"),
        ("lnd/new", "path_denied"),
        ("loop", "path_denied"),
        ("loop/new", "path_denied"),
        ("fifo", "not_regular_file"),
        ("real", "not_regular_file"),
        (".", "not_regular_file"),
        ("../W-secret/f", "path_denied"),
        ("x" * 300, "path_denied"),
        ("real/f/below", "not_found"),
        (".git/hooks/pre-commit", "path_denied"),
        (".kairos-0123-4567.swap", "path_denied"),
    ],
)
def test_what_is_no_file_of_the_workspace_is_not_written(writing_tools: WorkspaceTools, path: str, code: str) -> None:
    before = writing_tools.content()
    for shows in (False, True):
        if shows:
            with pytest.raises(KairosError) as caught:
                writing_tools.preview("write_file", path=path, content="evil")
            assert caught.value.code == code
        else:
            assert writing_tools.call("write_file", path=path, content="evil").code == code
    assert writing_tools.call("edit_file", path=path, old_string="f", new_string="evil").code in (code, "path_denied")
    assert writing_tools.content() == before
    assert (writing_tools.workspace.parent / "W-secret" / "f").read_text() == "SECRET"
    assert os.listdir(writing_tools.workspace.parent / "W-secret") == ["f"]


def test_another_file_system_is_not_written() -> None:
    with Workspace(Path("/")) as opened:
        tools = WorkspaceTools(Path("/"), ToolRegistry(builtin_tools(opened, read_bytes=READ_BYTES)))
        assert tools.call("write_file", path="proc/self/comm", content="x").code == "path_denied"
        assert tools.call("write_file", path="dev/shm/kairos-test/x", content="x").code == "path_denied"
    assert not Path("/dev/shm/kairos-test").exists()


def test_a_file_that_may_not_be_written_is_said_to_be_so_and_no_folder_stays(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    (shut / "t").write_text("one")
    shut.chmod(0o555)
    tmp_path.chmod(0o755)
    with Workspace(tmp_path) as opened:
        tools = WorkspaceTools(tmp_path, ToolRegistry(builtin_tools(opened, read_bytes=READ_BYTES)))

        def act() -> list[str | None]:
            edit = tools.call("edit_file", path="shut/t", old_string="one", new_string="two")
            return [edit.code, tools.call("write_file", path="shut/a/b", content="x").code]

        assert in_a_child(partial(as_another, act)) == ["path_denied", "path_denied"]
    assert os.listdir(shut) == ["t"]


def test_edit_033_without_room_the_file_is_as_it_was_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("one")

    def act() -> list[str | None]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))
        with Workspace(tmp_path) as opened:
            tools = WorkspaceTools(tmp_path, ToolRegistry(builtin_tools(opened, read_bytes=READ_BYTES)))
            edit = tools.call("edit_file", path="t", old_string="one", new_string="two" * 2_000)
            created = tools.call("write_file", path="a/b/c", content="x" * 5_000)
            return [edit.code, created.code, tools.call("edit_file", path="t", old_string="one", new_string="2").code]

    assert in_a_child(act) == ["no_space", "no_space", None]
    assert (os.listdir(tmp_path), (tmp_path / "t").read_text()) == (["t"], "2")


def as_another(act: Callable[[], Any]) -> Any:
    """As a user for whom permissions count."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(12345)
        os.setuid(12345)
    return act()


# -- what was shown ------------------------------------------------------------------------------------------------


def test_what_is_approved_is_what_was_shown_and_nothing_else(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one\n"})
    edit = {"path": "t", "old_string": "one", "new_string": "two"}
    shown = writing_tools.preview("edit_file", **edit)
    assert shown.base_hashes == {"t": digest("one\n")}
    assert "-one\n+two\n" in shown.text
    writing_tools.write({"t": "one and more\n"})  # the edit would still fit
    assert writing_tools.call_approved("edit_file", shown, **edit).code == "stale_file"
    assert writing_tools.content()["t"] == "one and more\n"
    again = writing_tools.preview("edit_file", **edit)
    assert not writing_tools.call_approved("edit_file", again, **edit).is_error


def test_a_file_that_was_not_shown_is_not_touched(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one\n"})
    assert (
        writing_tools.call_approved(
            "edit_file", Preview("", {"u": None}), path="t", old_string="one", new_string="2"
        ).code
        == "stale_file"
    )


def test_a_file_that_was_shown_as_new_must_not_have_come_to_be_there(writing_tools: WorkspaceTools) -> None:
    new = {"path": "d/new", "content": "mine"}
    shown = writing_tools.preview("write_file", **new)
    assert shown.base_hashes == {"d/new": None}
    assert "--- /dev/null\n+++ b/d/new\n" in shown.text
    writing_tools.write({"d/new": "theirs"})
    assert writing_tools.call_approved("write_file", shown, **new).code == "stale_file"
    assert writing_tools.content()["d/new"] == "theirs"


def test_what_the_caller_read_must_still_be_there(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one\n"})
    edit = {"path": "t", "old_string": "one", "new_string": "two"}
    for base in ({"t": digest("other")}, {"t": None}, {"u": digest("one\n")}):
        assert writing_tools.call("edit_file", **edit, base=base).code == "stale_file"
    with pytest.raises(StaleFile):  # a person isn't even asked
        writing_tools.preview("edit_file", **edit, base={"t": None})
    assert writing_tools.call("write_file", path="t", content="x", base={"t": None}).code == "stale_file"
    assert not writing_tools.call("edit_file", **edit, base={"./t": digest("one\n")}).is_error


def test_edit_031_of_two_edits_approved_on_one_text_only_one_is_made(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one two\n"})
    edits = [
        {"path": "t", "old_string": "one", "new_string": "1"},
        {"path": "t", "old_string": "two", "new_string": "2"},
    ]
    shown = [writing_tools.preview("edit_file", **edit) for edit in edits]
    codes: list[str | None] = []

    def act(n: int) -> None:
        codes.append(writing_tools.call_approved("edit_file", shown[n], **edits[n]).code)

    threads = [threading.Thread(target=act, args=(n,)) for n in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert sorted(map(str, codes)) == ["None", "stale_file"]
    assert writing_tools.content()["t"] in ("1 two\n", "one 2\n")


# -- others who write ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_file_that_another_has_open_for_writing_is_left_to_it(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one\n"})
    with open(writing_tools.workspace / "t", "a") as other:
        result = writing_tools.call("edit_file", path="t", old_string="one", new_string="two")
        other.write("more\n")
    assert result.code == "stale_file"
    assert writing_tools.content()["t"] == "one\nmore\n"
    assert not writing_tools.call("edit_file", path="t", old_string="one", new_string="two").is_error


def test_a_file_that_another_only_reads_is_written(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one\n"})
    with open(writing_tools.workspace / "t") as other:
        assert not writing_tools.call("edit_file", path="t", old_string="one", new_string="two").is_error
        assert other.read() == "one\n"


def test_where_files_can_not_be_exchanged_the_result_says_so(writing_tools: WorkspaceTools) -> None:
    writing_tools.write({"t": "one\n"})
    result = writing_tools.call("edit_file", path="t", old_string="one", new_string="two")
    with Workspace(writing_tools.workspace) as usual:
        on_purpose = "exchanged" in result.data and usual.by_exchange
    assert result.data.get("exchanged", True) or on_purpose


def test_what_a_write_has_beside_its_file_is_in_no_tree_and_no_search(tools: WorkspaceTools) -> None:
    tools.write({"a.py": "needle", ".kairos-0123456789abcdef-000000000000.swap": "needle", ".kairos-x.part": "needle"})
    assert tools.lines(tools.call("search_files", pattern="needle")) == ["a.py:1: needle"]
    assert tools.lines(tools.call("list_files", glob="**")) == ["a.py"]
    assert ".kairos" not in tools.call("file_tree").content
    assert ".kairos-x.part" in tools.call("list_files").content  # a folder's own listing hides nothing


def test_a_call_whose_time_is_over_changes_nothing(tools: WorkspaceTools) -> None:
    tools.write({"t": "one"})
    assert tools.call("edit_file", path="t", old_string="one", new_string="two", seconds=0).code == "timeout"
    assert tools.content() == {"t": "one"}


def test_an_error_of_the_disk_is_worded_without_a_path_of_this_machine(tools: WorkspaceTools) -> None:
    for code in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.EDQUOT):
        error = write_error(OSError(code, os.strerror(code), str(tools.workspace / "t")), "t")
        assert str(tools.workspace) not in str(error)
        assert error.hint
