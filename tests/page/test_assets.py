"""The page's files: what was vendored is what its README names, and what a file imports is there."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest
from page import registers
from page.pictured_files import DIGEST_FILE, digest_files

from kairos_mcp.page.files import FOLDER
from kairos_mcp.server.apps import LIBRARY
from kairos_mcp.server.apps import MODULES as MODULES_OF_APP

VENDORED = FOLDER / "vendor" / "preact-htm.js"
MODULES = sorted(path for path in FOLDER.glob("*.js"))
NAMESPACES = {f"http://www.w3.org/{name}" for name in ("2000/svg", "1998/Math/MathML", "1999/xhtml")}


def test_what_was_vendored_has_the_hash_that_its_readme_names() -> None:
    named = re.search(r"sha256 ([0-9a-f]{64})", (FOLDER / "vendor" / "README.md").read_text())
    assert named is not None
    assert sha256(VENDORED.read_bytes()).hexdigest() == named[1]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_what_a_module_imports_is_exported_there(module: Path) -> None:
    text = module.read_text()
    imports = re.findall(r'^import \{ ([^}]+) \} from "(\./[^"]+)";$', text, re.MULTILINE)
    assert len(imports) == len(re.findall(r"^import\b", text, re.MULTILINE))  # of no other form
    for names, path in imports:
        exported = exports_of((FOLDER / path).read_text())
        assert set(names.split(", ")) <= exported, path


@pytest.mark.parametrize(
    "file",
    [*MODULES, VENDORED, FOLDER / "index.html", FOLDER / "run.css", FOLDER / "page.css"],
    ids=lambda path: path.name,
)
def test_no_file_asks_another_host_for_anything(file: Path) -> None:
    text = file.read_text()
    assert set(re.findall(r"https?://[^\s\"'`)]+", text)) <= NAMESPACES
    assert "</script" not in text.replace("</script>\n</head>", "")  # the app's document holds them in one
    assert "innerHTML" not in text or file == VENDORED


def test_the_page_knows_the_routes_units_and_operations_that_are_declared() -> None:
    for file, text in registers.make_files().items():
        assert file.read_text(encoding="utf-8") == text, "run tests/page/registers.py"


@pytest.mark.parametrize("name", MODULES_OF_APP)
def test_the_app_is_made_of_modules_that_import_from_each_other_alone(name: str) -> None:
    text = (FOLDER / name).read_text()
    before = MODULES_OF_APP[: MODULES_OF_APP.index(name)]
    assert {*re.findall(r'^import .* from "\./([^"]+)";$', text, re.MULTILINE)} <= {*before, LIBRARY}


def test_the_pictures_show_the_page_as_it_is() -> None:
    recorded = Path(__file__).parents[2] / "docs" / "pictures" / DIGEST_FILE
    assert recorded.read_text().strip() == digest_files(), "make them anew: python tests/browser/pictures.py"


def exports_of(text: str) -> set[str]:
    named = re.findall(r"^export (?:const|let|class|function|async function) (\w+)", text, re.MULTILINE)
    listed = re.search(r"export\s*\{([^}]*)\};?\s*$", text)
    return {*named, *((each.split(" as ")[-1].strip() for each in listed[1].split(",")) if listed else ())}
