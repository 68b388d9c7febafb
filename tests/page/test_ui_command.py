"""`ui` and `show --open`: the link is for the terminal and the browser alone, and one page serves a state folder."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.app import Place
from support.environment import plain_environ
from support.page import Visitor, served_page
from support.page_runs import ask_to_write
from support.terminal import Terminal
from support.waiting import wait_until

LINK = r"(http://127\.0\.0\.1:\d+/)#enter=([\w-]{32})(&to=\S+)?"


@pytest.fixture
def environ() -> dict[str, str]:
    """Of a machine without a desktop."""
    desktop = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return {name: value for name, value in plain_environ().items() if name not in desktop}


def shown_link(terminal: Terminal) -> re.Match[str]:
    found = re.search(LINK, terminal.shows("The link works once"))
    assert found is not None, terminal.text
    return found


@pytest.fixture
def on_terminal(place: Place, environ: dict[str, str]) -> Iterator[tuple[Terminal, str]]:
    """The page, served from a terminal, and its link there."""
    words = ("ui", "--no-open", "--port", "0", "--home", str(place.home))
    with Terminal(*words, folder=place.workspace, environ=environ, columns=200) as terminal:
        yield terminal, shown_link(terminal)[0]


def test_a_terminal_is_shown_a_link_that_lets_one_browser_in(place: Place, on_terminal: tuple[Terminal, str]) -> None:
    url, code, _ = re.fullmatch(LINK, on_terminal[1]).groups()
    visitor = Visitor(url, place.home)
    assert visitor.post("api/enter", {"code": code}).status_code == 200
    assert visitor.post("api/enter", {"code": code}).status_code == 401


def test_a_second_command_leads_to_the_page_that_lives(
    place: Place, environ: dict[str, str], on_terminal: tuple[Terminal, str]
) -> None:
    first = re.fullmatch(LINK, on_terminal[1])
    run_id = asyncio.run(ask_to_write(place))
    for words, place_in_page in ((("ui", "--no-open"), None), (("show", run_id, "--open"), f"&to=%2Fruns%2F{run_id}")):
        with Terminal(*words, "--home", str(place.home), folder=place.workspace, environ=environ, columns=200) as other:
            found = shown_link(other)
            assert other.ends() == 0
        assert (found[1], found[3]) == (first[1], place_in_page)
        assert found[2] != first[2]


def test_a_browser_is_led_by_a_file_and_no_argument_has_the_code(place: Place, environ: dict[str, str]) -> None:
    browser, opened = place.root / "browser", place.root / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o700)
    desktop = environ | {"DISPLAY": ":9", "BROWSER": f"{browser} %s"}
    with served_page(place.home):
        words = ("ui", "--home", str(place.home))
        with Terminal(*words, folder=place.workspace, environ=desktop, columns=200) as terminal:
            link = shown_link(terminal)
            assert terminal.ends() == 0
        wait_until(lambda: opened.exists() and opened.read_text().endswith(".html"))
        file = Path(opened.read_text().removeprefix("file://"))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert (link[1] in file.read_text(), "#enter=" in file.read_text(), link[2] in file.read_text()) == (
            True,
            True,
            False,
        )
