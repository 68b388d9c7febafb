"""Its place puts this folder on the path: modules that several rings share lie beside it.

And every run that a test makes is built again from its rows when the test is over, whoever drove it: an app here, a
server or a command in a process of its own. What a test damages on purpose, and runs of a flow of its own, are left out
by the marker `unreplayed`. Each call that a result names as the next is held against its tool. Where the kernel allows
no sandbox, tests marked `sandbox` are skipped with its reason.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from support import postgres, sandboxed
from support.environment import STORE

if TYPE_CHECKING:
    from support.app import Place

SERVER = "kairos_mcp.server.mcp_server"  # imported by each module that has a server in its own process
HERE = Path(__file__).parent
LONGEST = (  # for one worker: which of them take longest is told by `--durations 0`
    "guards/test_guards_switched_off.py",
    "core/test_decided_at_once.py",
    "crash/test_commits.py",
    "docs/test_readme.py",
    "approvals/test_rights.py",
    "records/test_damage.py",
    "commands/test_runs.py",
    "faults/test_loopfaults.py",
    "core/test_workers.py",
    "tools/test_small_view.py",
    "server/test_stdio.py",
    "commands/test_doctor_trials.py",
    "crash/test_faults.py",
    "sampling/test_fault_cases.py",
    "identity/test_whose_run.py",
    "core/test_app_recovery.py",
    "commands/test_asked_in_place.py",
    "test_benchmarks.py",
    "approvals/test_staged_runs.py",
    "commands/test_doctor.py",
    "tools/test_stage.py",
    "ooda/test_real_repository.py",
    "commands/test_conversation.py",
    "tools/test_search.py",
    "identity/test_commands_shown.py",
    "crash/test_chaos.py",
    "commands/test_foreign_folders.py",
    "events/test_killed.py",
    "crash/test_settle.py",
    "core/test_budget.py",
    "commands/test_short_names.py",
    "providers/test_any_reply.py",
    "tools/test_two_servers.py",
    "tools/test_ended_server_leaves_nothing.py",
    "tools/test_writing_interrupted.py",
    "commands/test_resume.py",
    "flow/test_foreign_files.py",
    "page/test_acts.py",
    "postgres/test_at_once.py",
    "records/test_steps.py",
    "teams/test_every_route.py",
    "http/test_killed_clients.py",
    "http/test_transports.py",
    "test_packaging.py",
    "downstream/test_paused_servers.py",
    "tools/test_concurrent_writers.py",
    "commands/test_talk.py",
    "core/test_state_machine.py",
    "crash/test_interrupted.py",
)
NUMBERS = count()  # of the tests' folders
CERTIFICATES = {"SSL_CERT_FILE", "SSL_CERT_DIR"}
STATE_FILE = "kairos.db"


def pytest_configure() -> None:
    assert [name for name in LONGEST if not (HERE / name).exists()] == []
    # Nothing here is judged by how quick this machine is at the moment.
    settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("unhurried")
    # Most tests start the program. Where nothing compiled is kept, each start compiles it anew and takes twice as long.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.pop("PYTHONUNBUFFERED", None)  # what a command writes is buffered for its users, and fails late


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look once for garbage in what the tests are, and not again and again: it is most of what there is."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, and go on with those of most tests, so that no worker ends long after
    the others."""
    if hasattr(config, "workerinput"):
        order = {HERE / name: number for number, name in enumerate(LONGEST)}
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (order.get(item.path, len(order)), -tests[item.path]))


def pytest_xdist_auto_num_workers() -> int:
    return 2 * (
        os.cpu_count() or 1
    )  # nearly half of the time a worker waits: for its test's processes, for a time limit


@pytest.fixture(scope="session", autouse=True)
def what_no_test_changes_is_read_once() -> Iterator[None]:
    """The packages that are installed, which each app lists, and the certificates of all authorities, which each client
    of HTTP loads. Where a test names others, they are read anew."""
    paths, list_packages, kept_packages = [*sys.path], metadata.entry_points, cache(metadata.entry_points)

    def entry_points(**which: str) -> Any:
        return (kept_packages if sys.path == paths else list_packages)(**which)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(metadata, "entry_points", entry_points)
        if (httpcore2 := sys.modules.get("httpcore2")) is not None:
            load_certificates, kept_context = httpcore2.default_ssl_context, cache(httpcore2.default_ssl_context)

            def default_ssl_context(**which: bool) -> Any:
                return (load_certificates if os.environ.keys() & CERTIFICATES else kept_context)(**which)

            patched.setattr(httpcore2, "default_ssl_context", default_ssl_context)
        yield


@pytest.fixture(autouse=True)
def every_run_replays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up before every other fixture, so that the last server has ended when its runs are looked at."""
    place: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    os.environ.pop(STORE, None)  # which place_in has set
    if place is None or request.node.get_closest_marker("skip"):
        return
    found = [Path(each) for each in _find_files({STATE_FILE, postgres.NAMED_IN}, place)]
    files = sorted({each.resolve() for each in found if each.name == STATE_FILE})  # a link may lead to one again
    databases = [each.read_text() for each in found if each.name == postgres.NAMED_IN]
    assert not (postgres.is_chosen() and files), f"rows in {files}, and not in the database that was chosen"
    if not request.node.get_closest_marker("unreplayed"):
        for file in files:
            _assert_replays(file)
        for database in databases:
            _assert_replays_in_database(database)


@pytest.fixture(autouse=True)
def every_next_call_is_valid() -> Iterator[None]:
    """Each result that names the next call, in this process, names one that the listed schema of its tool admits."""
    if SERVER not in sys.modules:  # no test of this process has a server so far
        yield
        return
    from support.next_calls import watch_results

    found: list[str] = []
    end = watch_results(found)
    yield
    end()
    assert found == []


@pytest.fixture(scope="session")
def postgres_server(testrun_uid: str) -> str:
    """A PostgreSQL server, one for all workers; where it is."""
    # Not below the folder of pytest: another session of it closes the folder above to the server's own user.
    return postgres.start_server(Path(tempfile.gettempdir()) / f"kairos-tests-{testrun_uid}")


@pytest.fixture
def kept_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of a test with `both_stores`."""
    if request.param == "database":
        monkeypatch.setenv(postgres.CHOICE, request.getfixturevalue("postgres_server"))


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own. To number it, pytest's would list the folders of all tests before, of each worker
    thousands."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}_{next(NUMBERS)}", numbered=False)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Make a state folder, and a workspace with two files, in the test's own folder."""
    from support.app import place_in  # at first use: not every test has an app

    return place_in(tmp_path / "place")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if (of_file := item.get_closest_marker("state_file")) and postgres.is_chosen():
        pytest.skip(f"of the store in a file: {of_file.args[0]}")
    if item.get_closest_marker("sandbox"):
        sandboxed.skip_if_missing()


def _find_files(names: set[str], folder: str | Path, deeper: int = 3) -> Iterator[str]:
    """The files of these names, as deep as a test's places have their state."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in names and os.path.exists(entry):
                yield entry.path
            elif deeper and (entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry))):
                yield from _find_files(names, entry.path, deeper - 1)


def _assert_replays(db: Path) -> None:
    from support.replayed import differences  # at first use: most tests make no run

    assert differences(db) == []


def _assert_replays_in_database(where: str) -> None:
    from support.replayed import differences_in_database

    assert differences_in_database(where) == []
