"""The session that docs/terminal.md shows is what a terminal shows today."""

from __future__ import annotations

import shutil

import pytest
from terminal_session import PAGE, make_files, normalise


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_the_terminal_shows_what_the_page_and_the_pictures_show() -> None:
    for path, text in make_files().items():
        assert path.exists()
        if path == PAGE:
            assert normalise(path.read_text(encoding="utf-8")) == normalise(text)
