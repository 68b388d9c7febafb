"""`ui`: open the page for people in a browser, and serve it where no server does."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags
from kairos_mcp.cli.settings import settings_for_list
from kairos_mcp.cli.terminal import print_line, print_note
from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.settings.settings import Settings

PORT = 8766

Port = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=0, max=65535, help=f"Port of the page; 0 takes a free one.  [default: {PORT}]"),
]


def ui(
    *,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    port: Port = None,
    flags: AllFlags,
) -> int:
    """Open the page: every run live, what waits for you, and costs. Ctrl-C ends it; runs are kept."""
    return open_page(flags, opens=opens, port=port)


def open_page(flags: Flags, *, opens: bool, port: int | None = None, place: str = "") -> int:
    """Open the page at a place in it (as `/runs/ID`); serve it until Ctrl-C, unless a server of this state folder does.

    Raises ConfigError where the port can't be had.
    """
    from kairos_mcp.store.page_files import find_pages

    settings = settings_for_list(flags)
    served = find_pages(settings.home)
    if served and port is None:
        _show_link(settings, served[-1], place, opens=opens)
        return COMPLETED
    from kairos_mcp.server.page_server import serve_page

    def announce(url: str) -> None:
        _show_link(settings, url, place, opens=opens)

    try:
        serve_page(settings, PORT if port is None else port, announce)
    except ConfigError:
        if port is not None:
            raise
        serve_page(settings, 0, announce)
    return COMPLETED


def _show_link(settings: Settings, url: str, place: str, *, opens: bool) -> None:
    """Print the link, with a code where nobody but the person at the terminal reads it; have the browser open it."""
    import webbrowser

    from kairos_mcp.store.page_files import make_code, write_redirect

    def link() -> str:
        return f"{url}#enter={make_code(settings.home)}" + (f"&to={quote(place, safe='')}" if place else "")

    # A browser that runs in the terminal would take it from us.
    has_desktop = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    is_opened = opens and has_desktop and webbrowser.open(write_redirect(settings.home, link()).as_uri())
    if sys.stdout.isatty():
        print_line(link())
        print_note("The link works once, within two minutes; `kairos-mcp ui` prints another.")
    else:
        print_line(url)
        if not is_opened:
            print_note("The login link is shown only in a terminal: run `kairos-mcp ui` there.")
    sys.stdout.flush()  # it is served until a signal comes
