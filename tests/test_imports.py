"""The packages stand in one order: each imports only those before it, nothing imports in a circle, and what is pure
does no I/O."""

import ast
from collections.abc import Iterable, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

import kairos_mcp

ROOT = Path(kairos_mcp.__file__).parent
# Each package, or module beside them, may import those before it in this list, and nothing after it.
ORDER = (
    "__init__", "core", "telemetry", "settings", "budget", "flows", "store", "models", "tools", "gate_rules",
    "gate_calls", "gate", "specs", "execution", "views", "history", "app", "page", "server", "cli",
    "__main__",
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


class Facts(NamedTuple):
    """What these tests ask of a module, which is parsed once for all of them."""

    opens_with: str
    imported: set[str]
    """Full names of everything imported anywhere in it, also inside functions."""
    attributes: set[str]
    io: list[str]


@cache
def _read(module: str) -> Facts:
    tree = ast.parse((ROOT / module).read_text())
    facts = Facts((ast.get_docstring(tree) or "").split("\n")[0], set(), set(), [])
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                facts.imported.update(name.name for name in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                facts.imported.update((origin, *(f"{origin}.{name.name}" for name in names)))
            case ast.Attribute(attr=name):
                facts.attributes.add(name)
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.Call(ast.Name("open" | "print" | "exec")):
                facts.io.append(ast.unparse(node))
    return facts


def _named_among(names: Iterable[str], modules: Set[str]) -> set[str]:
    """The names of these modules, and of what lies in them."""
    return {name for name in names if name in modules or name.split(".")[0] in modules}


def _imported_modules(module: str) -> set[str]:
    """The modules of this package that a module imports, as paths."""
    found = set()
    for name in _read(module).imported:
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


def test_every_module_has_a_place_in_the_order() -> None:
    assert [module for module in MODULES if _package(module) not in ORDER] == []


def test_a_package_imports_only_those_before_it() -> None:
    too_early = [
        (module, each)
        for module in MODULES
        for each in _imported_modules(module)
        if ORDER.index(_package(each)) > ORDER.index(_package(module))
    ]
    assert too_early == []


def test_no_import_goes_in_a_circle() -> None:
    needs = {module: _imported_modules(module) for module in MODULES}
    assert [module for module in MODULES if module in _reachable(module, needs)] == []


def test_what_is_pure_does_no_io() -> None:
    pure = [module for module in MODULES if _package(module) in PURE and module not in READS_TIME_ZONES]
    assert len(pure) > len(PURE)
    assert {module: named for module in pure if (named := _named_among(_read(module).imported, IO_MODULES))} == {}
    assert {module: io for module in pure if (io := _read(module).io)} == {}


def test_types_of_the_protocol_library_stay_where_the_protocol_is_spoken() -> None:
    others = [module for module in MODULES if not module.startswith(USES_THE_PROTOCOL)]
    assert {module: named for module in others if (named := _named_among(_read(module).imported, PROTOCOL))} == {}


def test_rows_are_read_through_the_store_s_read() -> None:
    """Where a read is executed (at once, or in a thread while others run) is for the store to say, not its callers."""
    named = {
        module: _read(module).attributes & {"reader", "read_session"}
        for module in MODULES
        if _package(module) != "store"
    }
    own = {module: {"read_session"} for module in READS_BY_ITSELF}
    assert {module: each for module, each in named.items() if each} == own


def test_a_file_opens_with_a_sentence_that_says_what_it_is_for() -> None:
    written = [module for module in MODULES if (ROOT / module).stat().st_size]
    assert [module for module in written if not _read(module).opens_with.endswith((".", ":"))] == []
