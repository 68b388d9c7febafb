"""docs/clients.md from what the tests of this folder recorded: `python -m tests.foreign.table`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from tests.foreign.cells import CELLS, Cell, Client
from tests.foreign.records import RUN, Record, find_record, read_records
from tests.foreign.sessions import FEATURES, HARMS, SESSIONS, Session

RECORDS = Path(__file__).with_name("records.json")
PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
TRANSPORTS = {"stdio": "stdio", "http": "Streamable HTTP", "sse": "SSE"}
COLUMNS = (RUN, *FEATURES)
Cells = dict[tuple[str, ...], Record]

HEAD = """# Clients that others wrote

What real clients, each in an environment of its own, did with the real server. The page is made of the records of
[tests/foreign](../tests/foreign/README.md) by `python -m tests.foreign.table`. "yes" says that a test ran it and looked
at rows and files. A planner run is named by the way in which its completions came. An approval is named by where it was
decided: in a dialog of the client (*elicitation*), or by the command that the result shows (*command*). Hosts with an
agent of their own are run without a terminal in this table, in a network namespace, with a stand-in for their provider;
[below](#what-a-person-sees-at-a-terminal) is what they show at one.
*Modern* is protocol 2026-07-28, *legacy* what was before.
"""
PICTURES = """The inspector's page in a browser, as the tests leave it:

![A team](pictures/inspector-team.png)
![A plan that was a task: on the right the page's own list of tasks](pictures/inspector-task.png)
![An argument of a prompt completes](pictures/inspector-completion.png)
![A prompt, filled in](pictures/inspector-prompt.png)
"""
AT_TERMINALS = """## What a person sees at a terminal
Seen in each host's own terminal, in a network namespace, with a stand-in for its provider
(`test_seen_before_approved.py`, `test_claude_code.py`; 2026-11-28). [hosts.md](hosts.md#what-a-dialog-shows) says how
much each is taken to show, and how you state more for a host of yours.

"""
AT_TERMINAL = (
    ("host", "version", "a question for a person", "how it is approved"),
    (
        "Claude Code",
        "2.1.332",
        "a dialog: heading and changed lines, or a field for each changed line, or a link to the page",
        "down to Decision, `a`, Enter, down to Accept, Enter",
    ),
    (
        "GitHub Copilot CLI",
        "1.0.102",
        "a dialog with its lines, and the choices in a list",
        "down to approve, Enter; Enter on the comment",
    ),
    (
        "Codex CLI",
        "0.171.0",
        "first leave to call the tool, then such a dialog, without a comment",
        "down to approve, Enter",
    ),
    ("Gemini CLI", "0.61.0", "none", "the command"),
    ("opencode", "1.18.33", "none", "the command"),
    ("qwen-code", "0.24.4", "none", "the command"),
)
MORE_AT_TERMINALS = """\
- **Claude Code** makes a task of a call that takes long. While a dialog waits, its last line says "needs your input";
  its model is given the result when the task ends. A dialog stays open after somebody else has decided; an answer in it
  then changes nothing. After *I'm done, continue* without a decision on the page the run still waits. If Claude Code
  was killed, `claude --continue` takes the task up again and shows the dialog that was open. With `-p` nobody is asked,
  and the run waits for the command. It loads `planner_run`, `run_continue` and `run_status` at once, and finds the
  other tools by its own search.
- **Copilot and Codex** show up to eight lines of a dialog. Of a longer change they show the beginning and how many
  lines are missing, and it can only be left or denied there.
- **qwen-code** shows its model one of our tools only after a search for it, unless the server's entry has
  `alwaysLoadTools`; with that it was tried.
- **Codex** sends no form with an empty text field, so it is asked for no comment.
"""
ABOUT_RUNS = """## A run of three rounds
Each completed a planner run of three rounds, two of them with a tool call, whose answer is a word out of a file that
only the run could read. Sampling is a *push* in the legacy era and travels by *InputRequired* in the modern one,
*native* with the client's own tool calling, *text* without; *caller* is the route on which the calling model answers.
"""


def document(cells: Cells) -> str:
    """The page."""
    dates = sorted({record["date"] for record in cells.values()})
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    parts = [
        HEAD,
        f"Recorded {span}.\n",
        _features(cells),
        _reasons(),
        f"{AT_TERMINALS}{_table(AT_TERMINAL)}",
        MORE_AT_TERMINALS,
        PICTURES,
        _harms(cells),
        _runs(cells),
        _oddities(),
    ]
    return "\n".join(parts)


def _features(cells: Cells) -> str:
    """A row for each client and era, its transports side by side where they came to the same."""
    rows = [(session, tuple(_sign(cells, session, name) for name in COLUMNS)) for session in SESSIONS]
    lines = [["client", "version", "over", "era", *COLUMNS]]
    for (client, era, signs), alike in groupby(rows, key=lambda row: (row[0].client, row[0].era, row[1])):
        over = ", ".join(TRANSPORTS[session.transport] for session, _ in alike)
        lines.append([client.name, client.pinned, over, era, *signs])
    return _table(lines)


def _sign(cells: Cells, session: Session, feature: str) -> str:
    if feature == RUN:
        same = [cell for cell in CELLS if _place(cell) == _place(session)]
        return "; ".join(dict.fromkeys(_result(find_record(cells, cell, RUN)) for cell in same))
    if feature in session.lacks:
        return "can't"
    return _result(find_record(cells, session, feature))


def _result(record: Record | None) -> str:
    if record is None:
        return "not recorded"
    return (record["how"] or "yes") if record["result"] == "yes" else "**no**"


def _place(each: Session | Cell) -> tuple[Client, str, str]:
    return each.client, each.transport, each.era


def _reasons() -> str:
    """What clients lack, each with its reason and whom it holds for."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for session in SESSIONS:
        for feature, why in session.lacks.items():
            found.setdefault((feature, why), {})[f"{session.client.name} ({session.era})"] = None
    lines = [f"- **{feature}**: {why}. {', '.join(who)}." for (feature, why), who in sorted(found.items())]
    return "\n".join(["### What they can't", "", *lines, ""])


def _harms(cells: Cells) -> str:
    lines = [["what a client does", "tried with", "what comes of it", "result"]]
    for harm in HARMS:
        tried = [f"{place.client.name}, {TRANSPORTS[place.transport]}" for place in harm.places]
        results = {_result(find_record(cells, place, harm.recorded_as)) for place in harm.places}
        lines.append([harm.name, "; ".join(tried), harm.outcome, " and ".join(sorted(results))])
    return "## Behaviours that hurt\n" + _table(lines)


def _runs(cells: Cells) -> str:
    lines = [["client", "version", "over", "era", "way", "result"]]
    rows = sorted(CELLS, key=lambda cell: (_order(cell.client), cell.era == "legacy", cell.way_due))
    for (client, era, way), alike in groupby(rows, key=lambda cell: (cell.client, cell.era, cell.way_due)):
        group = list(alike)
        over = ", ".join(dict.fromkeys(TRANSPORTS[cell.transport] for cell in group))
        ended = {"yes" if _result(find_record(cells, cell, RUN)) == way else "**no**" for cell in group}
        lines.append([client.name, client.pinned, over, era, way, " and ".join(sorted(ended))])
    return ABOUT_RUNS + "\n" + _table(lines)


def _order(client: Client) -> int:
    return list(dict.fromkeys(cell.client for cell in CELLS)).index(client)


def _oddities() -> str:
    clients: Iterable[Client] = dict.fromkeys(session.client for session in SESSIONS)
    lines = [f"- **{client.name}**: {client.oddity}." for client in clients if client.oddity]
    return "\n".join(["## Peculiarities", "", *lines, ""])


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rows = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(document(read_records(RECORDS)))
