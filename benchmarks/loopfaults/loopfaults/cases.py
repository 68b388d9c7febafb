"""The job and the faults that happen to it, as data."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PLAN = ("read", "append", "read", "append", "approved_append", "append")
"""The tool that each round of the job calls; one more completion ends it."""

SEEN = ("asked", "answered", "called", "recorded", "replied")
"""What the witness sees of a round, in its order: the request of a completion, its reply, the request of an effect, its
entry in the ledger, its reply."""

PLAN_BESIDE = ("read", "append+append+append", "append+read")
"""Rounds whose calls the model makes at once."""

POINTS = (*SEEN, "waiting", "approving", "opened")
"""And what the driver does: a person is being asked, the decision is sent, a process is brought up again."""

ACTS = ("kill", "cut", "stop", "fill")


class BadCases(Exception):
    """A file of cases can't be used; its text says what to change."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at the `nth` passing of a point, `delay_ms` after it.

    kill: SIGKILL. cut: SIGKILL so long after the first write to a file that follows the point. stop: SIGSTOP, a second
    process goes on, SIGCONT once that one is quiet. fill: no byte is left on the disk until the system stands still.
    """

    point: str
    nth: int = 1
    delay_ms: float = 0
    act: str = "kill"


@dataclass(frozen=True, slots=True)
class Case:
    """`plan`: of each round the calls, joined by `+`. `refuse`: statuses with which the provider answers from its third
    request on; 0 never answers. `is_attended`: a second process serves the folder too, and goes on for the first.
    """

    name: str
    faults: tuple[Fault, ...] = ()
    plan: tuple[str, ...] = PLAN
    refuse: tuple[int, ...] = ()
    group: str = "none"
    is_attended: bool = False

    @property
    def calls(self) -> list[str]:
        return [name for calls in self.plan for name in calls.split("+")]

    def without_approval(self) -> Case:
        """Return the case for a system that has no approval: the same effects, and nobody is asked."""
        return replace(self, plan=tuple(each.replace("approved_append", "append") for each in self.plan))


UNDISTURBED = Case("undisturbed")


def point_cases(_seed: int) -> Iterator[Case]:
    """A kill at each point that can be seen from outside."""
    rounds = {"asked": len(PLAN) + 1, "answered": len(PLAN) + 1}
    for point in SEEN:
        for nth in range(1, rounds.get(point, len(PLAN)) + 1):
            for delay in (0, 25) if point in ("answered", "replied") else (0,):
                yield Case(f"{point}-{nth}+{delay}", (Fault(point, nth, delay),))


def random_cases(seed: int, count: int = 48) -> Iterator[Case]:
    """A kill up to 40 ms after an event that is drawn by lot."""
    chance = random.Random(seed)
    kinds = [("asked", len(PLAN) + 1), ("answered", len(PLAN) + 1), ("called", len(PLAN)), ("replied", len(PLAN))]
    for number in range(count):
        point, most = chance.choice(kinds)
        yield Case(f"random-{number}", (Fault(point, chance.randint(1, most), round(chance.uniform(0, 40), 1)),))


def approval_cases(_seed: int) -> Iterator[Case]:
    """A kill while a person is asked, and one right after the decision was sent."""
    yield Case("waiting", (Fault("waiting"),))
    yield Case("waiting-twice", (Fault("waiting"), Fault("waiting", 2)))
    for delay in (0, 2, 5, 10, 20, 40):
        yield Case(f"approving+{delay}", (Fault("approving", 1, delay),))


def recovery_cases(seed: int) -> Iterator[Case]:
    """A second kill while the system recovers from the first."""
    chance = random.Random(seed)
    for point, nth in (("asked", 3), ("answered", 4), ("called", 4), ("recorded", 4), ("replied", 4), ("replied", 6)):
        for most in (20, 80):
            again = Fault("opened", 1, round(chance.uniform(0, most), 1))
            yield Case(f"again-{point}-{nth}+{again.delay_ms:g}", (Fault(point, nth), again))


def commit_cases(seed: int) -> Iterator[Case]:
    """A kill while a system stores what it was answered: by its first write to a file after that, and by time."""
    chance = random.Random(seed)
    for nth in range(1, 7):
        for point in ("answered", "replied"):
            for act, most in (("cut", 2), ("kill", 8)):
                delay = round(chance.uniform(0, most), 2)
                yield Case(f"{act}-{point}-{nth}+{delay:g}", (Fault(point, nth, delay, act),))


def beside_cases(_seed: int) -> Iterator[Case]:
    """A kill while several effects of one round are under way."""
    points = [(point, nth) for point in ("called", "recorded", "replied") for nth in (2, 3, 4)]
    for point, nth in (("answered", 2), *points, ("called", 5), ("recorded", 6)):
        yield Case(f"beside-{point}-{nth}", (Fault(point, nth),), PLAN_BESIDE)


def second_cases(_seed: int) -> Iterator[Case]:
    """A kill, and a second process that was up all the time goes on."""
    for point, nth in (("asked", 3), ("answered", 4), ("called", 4), ("recorded", 4), ("replied", 4), ("waiting", 1)):
        yield Case(f"second-{point}-{nth}", (Fault(point, nth),), is_attended=True)


def stop_cases(_seed: int) -> Iterator[Case]:
    """A process that stands still and comes back while another does its work."""
    for point, nth in (("asked", 3), ("asked", 4), ("answered", 4), ("called", 2), ("called", 4), ("replied", 4)):
        yield Case(f"stop-{point}-{nth}", (Fault(point, nth, act="stop"),))


def provider_cases(_seed: int) -> Iterator[Case]:
    yield Case("429-twice", refuse=(429, 429))
    yield Case("500-twice", refuse=(500, 500))
    yield Case("500-eight", refuse=(500,) * 8)
    yield Case("hang-kill", (Fault("asked", 3, 300),), refuse=(0,))


def disk_cases(_seed: int) -> Iterator[Case]:
    """The disk is full from a point on. They need a small file system of their own (`--base`)."""
    for point, nth in (("asked", 3), ("answered", 4), ("called", 4), ("recorded", 4), ("replied", 4), ("asked", 6)):
        yield Case(f"full-{point}-{nth}", (Fault(point, nth, act="fill"),))


def loop_cases(_seed: int) -> Iterator[Case]:
    """Killed ten times while the provider works on the third completion, which it charges each time."""
    yield Case("loop-asked", tuple(Fault("asked", nth) for nth in range(3, 13)))


GROUPS: dict[str, Callable[[int], Iterator[Case]]] = {
    "points": point_cases,
    "random": random_cases,
    "approval": approval_cases,
    "recovery": recovery_cases,
    "commit": commit_cases,
    "beside": beside_cases,
    "stop": stop_cases,
    "provider": provider_cases,
    "loop": loop_cases,
    "second": second_cases,
    "disk": disk_cases,
}
DEFAULT_GROUPS = tuple(group for group in GROUPS if group not in ("second", "disk"))
"""Not every system may be served by two processes, and the disk needs a `--base`."""
KILLS = ("points", "random", "approval", "recovery")
APART = tuple(group for group in GROUPS if group not in KILLS)
"""The groups that stand for themselves; all others are summed up as a whole."""
DRAWN = ("random", "recovery", "commit")
"""The groups whose cases are drawn by lot: of the others a further seed makes no other cases."""


def make_cases(groups: list[str], seed: int) -> list[Case]:
    """Return the undisturbed job and the cases of these groups, in their order. Raises BadCases."""
    if unknown := [group for group in groups if group not in GROUPS]:
        raise BadCases(f"No such group: {', '.join(unknown)}. There are {', '.join(GROUPS)}.")
    found = [replace(case, group=group) for group in groups for case in GROUPS[group](seed)]
    return [UNDISTURBED, *found]


def read_cases(path: Path) -> list[Case]:
    """Read `[[case]]` tables: name, group, plan, refuse, and faults as tables. Raises BadCases."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("case", [])
        return [_read_case(table) for table in tables]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise BadCases(f"{path}: {error!r}. A case is [[case]] with a name, and faults with a point.") from None


def _read_case(table: dict[str, Any]) -> Case:
    faults = tuple(Fault(**each) for each in table.get("faults", []))
    for fault in faults:
        if fault.point not in POINTS or fault.act not in ACTS:
            raise BadCases(f"{fault}: a point is one of {', '.join(POINTS)}, an act one of {', '.join(ACTS)}.")
    plan = tuple(table.get("plan", PLAN))
    return Case(table["name"], faults, plan, tuple(table.get("refuse", ())), table.get("group", "own"))
