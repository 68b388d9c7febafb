"""The packages stand in one order: each imports only those before it, nothing imports in a circle, and what is pure
does no I/O."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kairos_mcp

ROOT = Path(kairos_mcp.__file__).parent
# Each package, or module beside them, may import those before it in this list, and nothing after it.
ORDER = (
    "__init__", "core", "telemetry", "settings", "budget", "flows", "store", "models", "tools", "gate_rules", "gate",
    "specs", "execution", "views", "history", "app", "page", "server", "cli", "__main__",
)  # fmt: skip
PURE = {"core", "budget", "flows"}
READS_TIME_ZONES = {"core/calendar.py", "core/schedule.py"}
IO_MODULES = {
    "aiofiles", "anyio", "apsw", "asyncio", "concurrent", "datetime", "glob", "http", "httpx2", "importlib",
    "io", "locale", "logging", "mcp", "mcp_types", "multiprocessing", "os", "pathlib", "platform", "random",
    "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib.request", "uuid", "warnings",
}  # fmt: skip
PROTOCOL = {"mcp", "mcp_types"}
USES_THE_PROTOCOL = ("server/", "models/sampling.py", "tools/mcp_servers/")
READS_BY_ITSELF = {  # modules that open a session of their own, and why `await store.read(f)` is none for them
    "app/retention.py": "its threads look for texts, and a session held open tells whether others wrote meanwhile",
    "app/run_factory.py": "a tool's thread asks for a full text",
    "app/records.py": "an export is read for as long as its file or pipe takes the lines",
    "app/run_tracing.py": "a tool's thread asks for the trace of its call, and metrics are read in a thread",
    "execution/running_steps.py": "a tool's thread asks for its memory, and whether the run is still its server's",
    "server/tokens.py": "commands look at tokens, and so does a server before it listens",
    "tools/mandate_tools.py": "a tool's thread reads a mandate",
}
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if "_config" not in path.parts)


def _tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text())


def _imported_names(module: str) -> Iterator[str]:
    """Full names of everything imported anywhere in the module, also inside functions."""
    for node in ast.walk(_tree(module)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                yield origin
                yield from (f"{origin}.{name.name}" for name in names)


def _imported_modules(module: str) -> set[str]:
    """The modules of this package that a module imports, as paths."""
    found = set()
    for name in _imported_names(module):
        if name.startswith("kairos_mcp"):
            path = name.removeprefix("kairos_mcp").lstrip(".").replace(".", "/")
            found |= {f"{path}.py", f"{path}/__init__.py".lstrip("/")} & set(MODULES)
    return found - {module}


def _reachable(start: str, needs: dict[str, set[str]]) -> set[str]:
    """Everything that `start` imports, or that what it imports imports."""
    reached: set[str] = set()
    following = set(needs[start])
    while following:
        reached |= following
        following = set().union(*(needs[each] for each in following)) - reached
    return reached


def _package(module: str) -> str:
    return module.split("/", maxsplit=1)[0].removesuffix(".py")


def _imported_too_early(module: str) -> set[tuple[str, str]]:
    """What the module imports of packages that come after its own."""
    place = ORDER.index(_package(module))
    return {(module, each) for each in _imported_modules(module) if ORDER.index(_package(each)) > place}


def test_every_module_has_a_place_in_the_order() -> None:
    assert [module for module in MODULES if _package(module) not in ORDER] == []


@pytest.mark.parametrize("module", MODULES)
def test_a_package_imports_only_those_before_it(module: str) -> None:
    assert _imported_too_early(module) == set()


def test_no_import_goes_in_a_circle() -> None:
    needs = {module: _imported_modules(module) for module in MODULES}
    assert [module for module in MODULES if module in _reachable(module, needs)] == []


@pytest.mark.parametrize(
    "module", [module for module in MODULES if _package(module) in PURE and module not in READS_TIME_ZONES]
)
def test_what_is_pure_does_no_io(module: str) -> None:
    imported = {name for name in _imported_names(module) if name in IO_MODULES or name.split(".")[0] in IO_MODULES}
    awaits = [
        node for node in ast.walk(_tree(module)) if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor)
    ]
    opens = [
        node.func.id
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "print", "exec")
    ]
    assert (imported, awaits, opens) == (set(), [], [])


@pytest.mark.parametrize("module", MODULES)
def test_types_of_the_protocol_library_stay_where_the_protocol_is_spoken(module: str) -> None:
    if not module.startswith(USES_THE_PROTOCOL):
        assert {name for name in _imported_names(module) if name.split(".")[0] in PROTOCOL} == set()


@pytest.mark.parametrize("module", [module for module in MODULES if _package(module) != "store"])
def test_rows_are_read_through_the_store_s_read(module: str) -> None:
    """Where a read is executed (at once, or in a thread while others run) is for the store to say, not its callers."""
    named = {node.attr for node in ast.walk(_tree(module)) if isinstance(node, ast.Attribute)}
    assert named & {"reader", "read_session"} == ({"read_session"} if module in READS_BY_ITSELF else set())


@pytest.mark.parametrize("module", [module for module in MODULES if (ROOT / module).stat().st_size])
def test_a_file_opens_with_a_sentence_that_says_what_it_is_for(module: str) -> None:
    first = (ast.get_docstring(_tree(module)) or "").split("\n")[0]
    assert first.endswith((".", ":"))
