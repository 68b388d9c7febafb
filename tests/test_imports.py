"""The house stands: imports point down its floors and never in a circle, and thinking touches no world."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kairos_mcp

HOUSE = Path(kairos_mcp.__file__).parent
FLOORS = {
    "doors": ["__main__", "cli", "server"],
    "hall": ["commandline", "freezing", "hall", "histories", "host", "reports"],
    "hinge": ["driving", "runner"],
    "hands": ["budget", "gate", "models", "store", "tools"],
    "rooms": ["flows"],
    "ground": [
        "__init__", "configuration", "counting", "decision_rights", "decoding", "definitions", "errors", "finding",
        "mandates", "messages", "periods", "placeholders", "routes", "schemas", "scopes", "secrecy", "spec", "steps",
        "visible",
    ],
}  # fmt: skip
MAY_IMPORT = {
    "doors": {"doors", "hall", "hinge", "hands", "rooms", "ground"},
    "hall": {"hall", "hinge", "hands", "rooms", "ground"},
    "hinge": {"hinge", "hands", "rooms", "ground"},
    "hands": {"hands", "ground"},  # hands and rooms share a floor and don't know each other
    "rooms": {"rooms", "ground"},
    "ground": {"ground"},
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names}
# On the ground: the user's configuration, and the database of time zones.
READS_FILES = {"configuration", "mandates/schedules.py", "periods"}
WORLD = {
    "aiofiles", "anyio", "apsw", "asyncio", "concurrent", "datetime", "glob", "http", "httpx2", "importlib",
    "io", "locale", "logging", "mcp", "mcp_types", "multiprocessing", "os", "pathlib", "platform", "random",
    "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib.request", "uuid", "warnings",
}  # fmt: skip
PROTOCOL = {"mcp", "mcp_types"}
BORDER = ["server/", "models/sampling.py", "tools/downstream/"]
BANNED = {
    "Manager",
    "Handler",
    "Helper",
    "Utils",
    "Util",
    "Base",
    "Service",
    "Engine",
    "Data",
    "Info",
    "Process",
}
MODULES = sorted(path.relative_to(HOUSE).as_posix() for path in HOUSE.rglob("*.py") if "_config" not in path.parts)


def _tree(module: str) -> ast.Module:
    return ast.parse((HOUSE / module).read_text())


def _imported(module: str) -> Iterator[str]:
    """Full names of everything imported anywhere in the module, also inside functions."""
    for node in ast.walk(_tree(module)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                yield origin
                yield from (f"{origin}.{name.name}" for name in names)


def _inside(module: str) -> set[str]:
    """The modules of the house that this one imports, as paths."""
    found = set()
    for name in _imported(module):
        if name.startswith("kairos_mcp"):
            path = name.removeprefix("kairos_mcp").lstrip(".").replace(".", "/")
            found |= {f"{path}.py", f"{path}/__init__.py".lstrip("/")} & set(MODULES)
    return found - {module}


def _reached(module: str, needs: dict[str, set[str]]) -> set[str]:
    """Everything that the module imports, or that what it imports imports."""
    reached: set[str] = set()
    following = set(needs[module])
    while following:
        reached |= following
        following = set().union(*(needs[each] for each in following)) - reached
    return reached


def _room(module: str) -> str:
    return module.split("/", maxsplit=1)[0].removesuffix(".py")


def _is_pure(module: str) -> bool:
    return FLOOR_OF[_room(module)] in ("rooms", "ground") and not {module, _room(module)} & READS_FILES


def test_every_module_has_a_floor() -> None:
    assert [module for module in MODULES if _room(module) not in FLOOR_OF] == []


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    allowed = MAY_IMPORT[FLOOR_OF[_room(module)]]
    assert [each for each in sorted(_inside(module)) if FLOOR_OF[_room(each)] not in allowed] == []


def test_no_import_goes_in_a_circle() -> None:
    needs = {module: _inside(module) for module in MODULES}
    assert [module for module in MODULES if module in _reached(module, needs)] == []


@pytest.mark.parametrize("module", [module for module in MODULES if _is_pure(module)])
def test_thinking_touches_no_world(module: str) -> None:
    touched = {name for name in _imported(module) if name in WORLD or name.split(".")[0] in WORLD}
    awaits = [
        node for node in ast.walk(_tree(module)) if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor)
    ]
    opens = [
        node.func.id
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "print", "exec")
    ]
    assert (touched, awaits, opens) == (set(), [], [])


@pytest.mark.parametrize("module", MODULES)
def test_types_of_the_protocol_library_stay_at_the_border(module: str) -> None:
    if not any(module.startswith(border) for border in BORDER):
        assert {name for name in _imported(module) if name.split(".")[0] in PROTOCOL} == set()


@pytest.mark.parametrize("module", MODULES)
def test_a_class_is_named_for_what_it_is(module: str) -> None:
    names = [node.name for node in ast.walk(_tree(module)) if isinstance(node, ast.ClassDef)]
    words = {name: {word for word in BANNED if word in _words(name)} for name in names}
    assert {name: banned for name, banned in words.items() if banned} == {}


def _words(name: str) -> set[str]:
    """ToolCall -> Tool, Call."""
    spaced = "".join(f" {letter}" if letter.isupper() else letter for letter in name.strip("_"))
    return set(spaced.split())


@pytest.mark.parametrize("module", [module for module in MODULES if (HOUSE / module).stat().st_size])
def test_a_file_opens_with_a_sentence_that_says_what_it_is_for(module: str) -> None:
    first = (ast.get_docstring(_tree(module)) or "").split("\n")[0]
    assert first.endswith((".", ":"))
