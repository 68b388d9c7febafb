"""The README and the pages in docs/ tell the truth: their tables, outputs, links and commands."""

import ast
import re
import shlex
from itertools import takewhile
from pathlib import Path

import demo_picture
import pytest
from costs import OURS, ROWS, costs_page
from costs import PAGE as PAGE_OF_COSTS
from readme import (
    COMMANDS_PAGE,
    DEMO_PICTURE,
    DOCS,
    EXAMPLES,
    PARTS,
    README,
    TOOLS_PAGE,
    demo_transcript,
    part_of,
    tools_page,
)
from reference import commands_page
from support.command_words import parse_words
from support.sources import nodes_with

from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags

PAGES = (README, *sorted(DOCS.rglob("*.md")), *sorted(EXAMPLES.rglob("*.md")))
CHANGING = [
    (r"before [0-9a-f]{12}, after [0-9a-f]{12}", "hashes"),  # which the store's key makes
    (r"[\d,]+ tokens \(estimated\)", "N tokens (estimated)"),  # those of the hashes differ
    (r"digest [0-9a-f]{16}", "digest"),  # of the workspace too, which is another folder each time
    (r"run-[0-9a-f]{12}", "run-ID"),
    (r"\b\d{4}-\d\d-\d\dT[\d:]+Z", "THEN"),
    (r"\b\d+ ms\b", "N ms"),
    (r"\b[\d.]+ s\b", "N s"),
    (r" {2,}", " "),
    (r'"/?[^"]*/hello"', '"~/hello"'),
    (r"kill -9 \d+", "kill -9 PID"),
]


def normalise(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, replacement in CHANGING:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_page_is_what_is_made_today(name: str) -> None:
    page, made = PARTS[name]
    assert normalise(part_of(page.read_text(), name)[1]) == normalise(made())


def test_the_configuration_that_is_shown_is_one(tmp_path: Path) -> None:
    settings = load_settings(Flags(str(tmp_path), config=str(EXAMPLES / "kairos.toml")), {})
    assert (settings.model, settings.gate[0].argv, settings.servers[0].name) == (
        "openai:gpt-5",
        ("pytest", "..."),
        "fetch",
    )


def test_every_file_that_is_linked_is_there() -> None:
    for page in PAGES:
        for name in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text()):
            assert (page.parent / name).exists() or "instal" in name, f"{page.name}: {name}"


def test_every_module_that_a_document_names_is_there() -> None:
    root = README.parent
    folders = [root, root / "kairos_mcp", root / "tests"]
    for page in (*root.glob("*.md"), *PAGES):
        for name in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", page.read_text()):
            assert any((folder / name).exists() for folder in folders), f"{page.name}: {name}"


def test_the_pages_of_tools_and_commands_are_what_is_made_today() -> None:
    assert TOOLS_PAGE.read_text() == tools_page()
    assert COMMANDS_PAGE.read_text() == commands_page()


def test_the_picture_of_the_demo_is_drawn_from_its_transcript() -> None:
    assert DEMO_PICTURE.read_text() == demo_picture.draw(demo_transcript())


def test_the_two_commands_stand_alone_in_their_blocks() -> None:
    readme = README.read_text()
    for name in ("main command", "test command"):
        block = re.search(rf"<!-- {name} -->\n```sh\n(.*?)\n```", readme, re.DOTALL)
        assert block is not None
        assert "\n" not in block[1]


def commands_of(page: Path) -> list[list[str]]:
    """The words of each of our commands in a page's blocks, after `kairos-mcp`."""
    if page == DOCS / "terminal.md":
        return []  # made from a terminal, which has broken its lines
    blocks = re.findall(r"^ *```(?:sh|console)\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [re.match(r" *(?:\$ |[*/\d]+ +)*(?:\w+=\S+ )*(?:\S+/)?kairos-mcp (.*)", line) for line in lines]
    return [words_of(match[1]) for match in found if match is not None]


def words_of(line: str) -> list[str]:
    """The words up to what a shell would take for itself."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&;")
    lexer.whitespace_split = True
    return list(takewhile(lambda word: word[0] not in "|>&;", lexer))


COMMANDS = [(page, words) for page in PAGES for words in commands_of(page)]


@pytest.mark.parametrize(
    "page", sorted({page for page, _ in COMMANDS}), ids=lambda page: f"{page.parent.name}/{page.stem}"
)
def test_every_command_of_a_page_is_taken_as_it_stands(page: Path) -> None:
    for words in (words for where, words in COMMANDS if where == page):
        assert "help" not in parse_words(words)  # raises for words that the command refuses


def test_the_readme_leads_to_every_page() -> None:
    """But to those that another page or the site's navigation alone is about."""
    linked = set(re.findall(r"\]\(docs/([a-z/-]+\.md)\)", README.read_text()))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    elsewhere = {name for name in pages if name.startswith(("how-to/", "concepts/"))}
    elsewhere |= {"costs.md", "decisions.md", "development.md", "instructions.md", "terminal.md", "walkthroughs.md"}
    assert linked | elsewhere == pages
    assert README.read_text().count("\n") <= 150


def test_the_page_of_costs_is_what_is_made_today() -> None:
    assert PAGE_OF_COSTS.read_text() == costs_page()


def test_every_module_that_parses_anything_is_on_the_page_of_costs_or_reads_our_own() -> None:
    root = README.parent / "kairos_mcp"
    named = {name for _, _, where, _ in ROWS for name in where.split(", ")}
    parsers = {"loads", "from_json", "validate_json", "model_validate_json"}
    parsing = {
        file
        for file, node in nodes_with(parsers)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in parsers
    }
    parsing |= {file for file, _ in nodes_with(["yaml.load"])}
    assert parsing - named == OURS
    assert all((root / name).exists() for name in named)
