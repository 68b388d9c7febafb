"""Nobody approves blind: what hosts at a terminal show of twenty-four changes before their person can decide."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.waiting import wait_until

from tests.foreign.changes import ask_about, lay_changes, make_changes, squeeze
from tests.foreign.environs import Environ
from tests.foreign.served import Place, environ
from tests.foreign.terminal import COMMAND_S, PATIENCE_S, Terminal, terminal
from tests.foreign.terminal_hosts import ASKING_HOSTS, CLAUDE_CODE_AT_TERMINAL, SILENT_HOSTS, Host

pytestmark = pytest.mark.foreign

CHANGES = make_changes()
SIZES = ((60, 24), (80, 24), (100, 60), (120, 40))
PROOFS = [(host, size) for host in ASKING_HOSTS for size in SIZES if host is CLAUDE_CODE_AT_TERMINAL or size[1] == 24]
SHOWS_MORE = "[clients.claude-code]\nlines = 20\nwidth = 70\n"


@pytest.mark.parametrize(("host", "size"), PROOFS, ids=str)
def test_what_can_be_approved_was_on_the_screen_before(
    host: Host, size: tuple[int, int], environment: Callable[[Environ], Path], tmp_path: Path
) -> None:
    place = lay_changes(Place(tmp_path / "place").lay(), CHANGES)
    with terminal(tmp_path / "terminal", size) as shown:
        host.start(shown, environment(host.client.environ), place)
        found = {name: ask(host, shown, name, tmp_path) for name in CHANGES}
    print(f"\n{host} {size}:", dict(Counter(way for way, _ in found.values())))
    assert {name: missing for name, (way, missing) in found.items() if way in ("whole", "walk") and missing} == {}
    assert {way for way, _ in found.values()} <= {"whole", "walk", "page", "look"}
    assert {verdict for (verdict,) in place.rows("select verdict from approval")} <= {"deny", None}


def test_what_a_host_does_not_show_is_missed(environment: Callable[[Environ], Path], tmp_path: Path) -> None:
    """Settings that promise more lines than there are: the looks at the screen above can fail."""
    host = CLAUDE_CODE_AT_TERMINAL
    place = lay_changes(Place(tmp_path / "place").lay(), CHANGES, SHOWS_MORE)
    with terminal(tmp_path / "terminal", (80, 24)) as shown:
        host.start(shown, environment(host.client.environ), place)
        way, missing = ask(host, shown, "edit-8", tmp_path)
    assert (way, len(missing)) == ("whole", 6)


def ask(host: Host, shown: Terminal, name: str, folder: Path) -> tuple[str, list[str]]:
    """Have a change asked about, and decline. Return the way, and what was on no screen before the choice."""
    ask_about(shown, name, CHANGES[name], lambda: host.allows(shown))
    screens = host.reads(shown)
    (folder / f"{name}.txt").write_text("\n\n".join(screens))
    seen = squeeze("".join(screens))
    way = host.way_of(screens)
    host.declines(shown)
    return way, [line for line in CHANGES[name].seen if squeeze(line) not in seen]


@pytest.mark.parametrize("host", ASKING_HOSTS, ids=str)
def test_a_person_approves_what_they_saw(host: Host, environment: Callable[[Environ], Path], tmp_path: Path) -> None:
    place = lay_changes(Place(tmp_path / "place").lay(), CHANGES)
    with terminal(tmp_path / "terminal", (80, 24)) as shown:
        host.start(shown, environment(host.client.environ), place)
        ask_about(shown, "edit-2", CHANGES["edit-2"])
        host.approves(shown)
        wait_until(lambda: is_applied(place, "edit-2"), PATIENCE_S, shown.screen)
    ((verdict, through, view),) = place.rows("select verdict, through, shown from approval")
    assert (verdict, through, json.loads(view)["way"]) == ("approve", "elicitation", "whole")


@pytest.mark.parametrize("host", SILENT_HOSTS, ids=str)
def test_where_a_host_shows_no_dialog_the_command_decides(
    host: Host, environment: Callable[[Environ], Path], tmp_path: Path
) -> None:
    place = lay_changes(Place(tmp_path / "place").lay(), CHANGES)
    with terminal(tmp_path / "terminal", (80, 24)) as shown:
        host.start(shown, environment(host.client.environ), place)
        ask_about(shown, "edit-2", CHANGES["edit-2"])
        asked = "select id, digest from approval join run on run.n = approval.run"
        ((run_id, digest),) = wait_until(lambda: place.rows(asked), PATIENCE_S, shown.screen)
        wait_until(lambda: any(run_id in result for result in shown.results()), PATIENCE_S, shown.screen)
        assert place.rows("select verdict from approval") == [(None,)]
        command = place.say("approve", run_id, "--digest", digest)
        subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S, env=environ())
    assert is_applied(place, "edit-2")


def is_applied(place: Place, name: str) -> bool:
    ((path, before),) = CHANGES[name].before.items()
    return (place.workspace / path).read_text() == before.replace("old_", "new_")
