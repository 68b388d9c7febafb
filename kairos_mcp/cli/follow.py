"""Follow a run in the terminal until it rests: show its progress, let the person there decide what it asks for."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kairos_mcp.cli.ask import ask_about_approval, ask_about_settlement
from kairos_mcp.cli.escape import escape_control
from kairos_mcp.cli.exit_codes import exit_code_of
from kairos_mcp.cli.keyboard import Keyboard, is_person_there
from kairos_mcp.cli.output import CALL_SIGNS, call_line, cause_lines, ending_lines
from kairos_mcp.cli.rules import removal_arguments
from kairos_mcp.cli.session import PERSON, with_app
from kairos_mcp.cli.spoken_markdown import SpokenMarkdown
from kairos_mcp.cli.terminal import columns_of, emit, fold, print_note, signs_of
from kairos_mcp.core.decision_rights import Caller
from kairos_mcp.core.errors import (
    AlreadyAnswered,
    ApprovalExpired,
    ApprovalMismatch,
    BadArguments,
    KairosError,
    NotWaiting,
)
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.views.team_tree import OPEN, tree_lines

if TYPE_CHECKING:
    from rich.status import Status

    from kairos_mcp.app.app import App
    from kairos_mcp.core.steps import Failure
    from kairos_mcp.models.model import SpokenText
    from kairos_mcp.views.progress import Heartbeat
    from kairos_mcp.views.run_report import RunReport


LOOK_STEPS = 100  # of the newest, at each look; a second passes between two looks
FIRST_STEPS = 6  # of those that were done before a run was gone on with


def follow_run(
    settings: Settings,
    begin: Callable[[App], Awaitable[str]],
    *,
    quiet: bool = False,
    asks: bool = True,
    caller: Caller = PERSON,
    from_start: bool = False,
) -> RunReport:
    """Follow a run until it rests, showing its progress on stderr unless `quiet`. `begin` starts, answers or resumes
    the run and returns its id. `from_start`: show all that was done in it.

    On a terminal, unless `quiet` and if it `asks`, the person there is asked about what it needs permission for. Ctrl-C
    cancels the run, a second Ctrl-C leaves it as it is.
    """

    async def begin_and_follow(app: App) -> RunReport:
        async with open_follower(app, caller, quiet=quiet, asks=asks) as follower:
            return await follower.follow(await begin(app), from_start=from_start)

    return with_app(settings, begin_and_follow)


def follow_and_print(
    settings: Settings,
    begin: Callable[[App], Awaitable[str]],
    flags: Flags,
    *,
    as_json: bool = False,
    caller: Caller = PERSON,
    from_start: bool = False,
) -> int:
    """Follow a run as `follow_run` does, print how it came to rest, and return its exit code. A terminal shows what the
    model says while it says it."""

    async def begin_and_follow(app: App) -> tuple[RunReport, bool]:
        async with open_follower(app, caller, quiet=as_json) as follower:
            if sys.stdout.isatty() and not as_json:
                app.listen(follower.hear)
            report = await follower.follow(await begin(app), from_start=from_start)
            return report, report.summary is not None and follower.was_heard(report.run_id, report.summary)

    report, was_heard = with_app(settings, begin_and_follow)
    return print_ending(report, flags, as_json=as_json, was_heard=was_heard)


def print_ending(report: RunReport, flags: Flags, *, as_json: bool = False, was_heard: bool = False) -> int:
    """Print how a run came to rest, and return its exit code. Stderr has the cause, and what was done without a last
    word of a model. `was_heard`: its summary was shown while it was said."""
    for line in () if as_json else cause_lines(report, flags):
        print_note(line)
    emit(report.as_json(), ending_lines(report, flags, was_heard=was_heard), as_json=as_json)
    return exit_code_of(report)


@asynccontextmanager
async def open_follower(
    app: App, caller: Caller, *, quiet: bool = False, asks: bool = True, keeps_runs: bool = False
) -> AsyncIterator[Follower]:
    """A follower of runs, which handles Ctrl-C until the block ends."""
    import anyio

    with ProgressScreen(quiet=quiet) as screen:
        is_asked = asks and not quiet and is_person_there()
        follower = Follower(app, caller, screen, Keyboard(), asks=is_asked, keeps_runs=keeps_runs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follower.keyboard.watch_interrupts)
            tasks.start_soon(follower.show_what_is_said)
            app.hear_failures(follower.hear_failure)
            yield follower
            tasks.cancel_scope.cancel()


class LeftByPerson(Exception):
    """The person left by Ctrl-C; the run stays as it is."""


class Follower:
    """Follows runs of one caller in an open app.

    `asks`: there is a person who can be asked. `keeps_runs`: Ctrl-C leaves a run as it is; else it cancels it.
    """

    def __init__(
        self, app: App, caller: Caller, screen: ProgressScreen, keyboard: Keyboard, *, asks: bool, keeps_runs: bool
    ) -> None:
        import anyio

        self.keyboard = keyboard
        self._app = app
        self._caller = caller
        self._screen = screen
        self._asks = asks
        self._keeps_runs = keeps_runs
        self._later: set[str] = set()  # digests of items that the person leaves for later
        self._shown_steps: dict[str, set[str]] = {}  # by run: the steps that were shown
        self._ended_tasks: dict[str, set[str]] = {}  # by team run: the tasks that were shown as ended
        self._spoken_texts: dict[tuple[str, str], str] = {}  # by run and step: what was shown of it while it was said
        self._ended_attempts: set[tuple[str, str]] = set()  # of these, those of which an attempt has ended
        self._unshown: deque[tuple[SpokenText, bool]] = (
            deque()
        )  # what was said and is not shown; whether it begins anew
        self._was_said = anyio.Event()
        self._speaking, self._showing = anyio.Lock(), anyio.Lock()
        self._failures: Counter[str] = Counter()  # attempts that failed, by step

    async def follow(self, run_id: str, *, from_start: bool = False) -> RunReport:
        """Return the run's report once it rests and nobody decides anything more. Ctrl-C cancels the run, or raises
        LeftByPerson. `from_start`: show all that was done, not only the newest of what was before."""
        import anyio

        if from_start:
            self._shown_steps.setdefault(run_id, set())
        was_cancelled = False

        async def cancel() -> None:
            nonlocal was_cancelled
            if self._keeps_runs:
                leaving.cancel()
                return
            if was_cancelled:
                raise KeyboardInterrupt
            was_cancelled = True
            self._screen.print_above("cancelling; once more to leave at once")
            await self._app.control.cancel(run_id, self._caller)

        self.keyboard.on_interrupt = cancel
        try:
            with anyio.CancelScope() as leaving, self.keyboard.typing_hidden():
                report = await self._wait_until_rest(run_id)
                while self._asks and await self.decide_waiting(report):
                    await self._app.control.drive(run_id)
                    report = await self._wait_until_rest(run_id)
                return report
        finally:
            self.keyboard.on_interrupt = None
        self._screen.pause()
        raise LeftByPerson

    def hear(self, spoken: SpokenText) -> None:
        """Have what a model says shown, while it says it. What branches say side by side is not."""
        if "/" in spoken.path:
            return
        step = (spoken.run_id, spoken.path)
        begins_anew = bool(spoken.text) and step in self._ended_attempts  # its first attempt was no answer
        if begins_anew:
            self._ended_attempts.discard(step)
            self._spoken_texts[step] = ""
        self._spoken_texts[step] = self._spoken_texts.get(step, "") + spoken.text
        if spoken.ends and self._spoken_texts[step]:
            self._ended_attempts.add(step)
        self._unshown.append((spoken, begins_anew))
        self._was_said.set()

    async def show_what_is_said(self) -> None:
        """Show what is heard, until this is cancelled."""
        import anyio

        while True:
            await self._was_said.wait()
            self._was_said = anyio.Event()
            await self._show_heard()

    async def _show_heard(self) -> None:
        """Show what was heard; before the first words of a step, what was done until then."""
        async with self._speaking:
            while self._unshown:
                spoken, begins_anew = self._unshown.popleft()
                if spoken.text and not self._screen.is_speaking:
                    await self._show_progress(spoken.run_id)
                if begins_anew:
                    self._screen.print_above("The reply broke off; asking again:")
                self._screen.speak(spoken.text, ends=spoken.ends)

    def hear_failure(self, path: str, failure: Failure) -> None:
        """Show an attempt of a provider that failed, and may be followed by another, when it fails."""
        self._failures[path] += 1
        if failure.retryable:
            self._screen.print_above(f"  attempt {self._failures[path]} failed: {failure.message}")

    def was_heard(self, run_id: str, text: str) -> bool:
        """Whether a text of a run was shown while it was said."""
        return any(run == run_id and heard.strip() == text.strip() for (run, _), heard in self._spoken_texts.items())

    async def decide_waiting(self, report: RunReport, *, with_settlements: bool = False) -> bool:
        """Ask about each approval that the run waits for, and store what is decided; return whether anything was.
        Ctrl-C and Ctrl-D leave this one and the others for later.

        `with_settlements`: ask about calls of unknown outcome too. Whoever goes on with the run is left to the caller.
        """
        has_decided = False
        for item in report.waiting:
            is_asked = item["kind"] == "approval" or (with_settlements and item["kind"] == "settle")
            if not is_asked or "digest" not in item or item["digest"] in self._later:
                continue
            self._screen.pause()
            try:  # with drive=False, since first all that waits is decided
                if not await self._decide(report, item):
                    self._later.add(item["digest"])
                    if not self.keyboard.was_left:
                        continue
                    self._later |= {other["digest"] for other in report.waiting if "digest" in other}
                    break
            except (AlreadyAnswered, NotWaiting, ApprovalExpired, ApprovalMismatch, BadArguments) as refused:
                print_note(refused.message)  # others may decide too, and be first
            has_decided = True
        return has_decided

    async def _decide(self, report: RunReport, item: JsonObject) -> bool:
        """Ask about an item, and store the decision; False where it is left for later."""
        run_id, key, digest, answers = report.run_id, item["key"], item["digest"], self._app.answers
        if item["kind"] == "settle":
            settlement = await ask_about_settlement(self.keyboard, report, item)
            if settlement is not None:
                await answers.settle(run_id, key, settlement, self._caller, digest=digest, drive=False)
            return settlement is not None
        shape = (await answers.find_approval(run_id, key, self._caller)).shape
        decision = await ask_about_approval(self.keyboard, report, item, shape)
        if decision is None:
            return False
        verdict, why, rule = decision.verdict, decision.feedback, decision.rule
        await answers.decide(
            *(run_id, key, verdict, why, self._caller), digest=digest, rule=rule, files=decision.files, drive=False
        )
        made = None if rule is None else await self._app.answers.find_rule_made_with(run_id, key, self._caller)
        if made is not None:
            remove = f"`kairos-mcp {' '.join(removal_arguments(made, self._app.settings))}`"
            takes_back = self._app.complete_commands(f"{remove} takes it back", self._caller)
            print_note(f"{made.name}: {made.description}; {takes_back}")
        return True

    async def _wait_until_rest(self, run_id: str) -> RunReport:
        async def on_heartbeat(beat: Heartbeat) -> None:
            self._screen.show_beat(beat)
            await self._show_progress(run_id)

        while True:
            await self._app.runs.wait(
                [run_id], until="rest", wait_s=600, caller=self._caller, on_heartbeat=on_heartbeat
            )
            report = await self._app.runs.report(run_id, self._caller)
            await self._show_heard()
            await self._show_progress(run_id)
            if report.status != "working":
                self._screen.pause()
                return report

    async def _show_progress(self, run_id: str) -> None:
        """Print what was done and is not shown yet."""
        if not self._screen.is_quiet:
            async with self._showing:
                await self._print_progress(run_id)

    async def _print_progress(self, run_id: str) -> None:
        newest = 0 if run_id in self._shown_steps else -FIRST_STEPS  # at the first look what was done before is cut
        shown = self._shown_steps.setdefault(run_id, set())
        try:
            done = await self._app.runs.progress(run_id, self._caller, shown, LOOK_STEPS)
        except KairosError:  # a damaged row: the report says what is to be said
            return
        shown |= {item.ref for item in done}
        for item in done[newest:]:
            if item.said is not None and not self.was_heard(run_id, item.said):
                self._screen.print_above(item.said)
            if item.call is not None:
                self._screen.print_above(call_line(item.call, self._screen.columns, self._screen.signs))
        await self._show_tasks(run_id)

    async def _show_tasks(self, run_id: str) -> None:
        """Print a team's plan once it is made, then each task that has ended. Of a run that has ended its report tells
        all."""
        team = await self._app.runs.team(run_id, self._caller)
        if team is None or team.phase is None or not team.tasks:
            return
        ended = {task.path for task in team.tasks if task.status not in OPEN}
        known = self._ended_tasks.get(run_id)
        if known is None:
            lines = [*tree_lines(team.plan(), team.phase, columns=self._screen.columns)]
        else:
            news = [task.as_plan_entry() for task in team.tasks if task.path in ended - known]
            lines = [*tree_lines(news, None, columns=self._screen.columns)][1:]
        self._ended_tasks[run_id] = ended
        if lines:
            self._screen.print_above("\n".join(lines))


class ProgressScreen:
    """Progress of a run on stderr: a line for each call that is done, and on a terminal a moving one for what is under
    way. `quiet` shows nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, quiet=quiet, markup=False, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self.is_quiet = quiet
        self.signs = signs_of(sys.stderr, CALL_SIGNS)  # asked now: rich puts a file of its own in this place at times
        self.is_speaking = False
        self._reply = SpokenMarkdown(sys.stdout)
        self._after_speech: list[str] = []  # what is to be printed once nothing is being said

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.pause()
        self._end_speech()

    @property
    def columns(self) -> int | None:
        """How many characters fit on a line; None where it is no terminal."""
        return columns_of(sys.stderr) if self._console.is_terminal else None

    def pause(self) -> None:
        """Take the moving line away, until the next beat."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def print_above(self, text: str) -> None:
        """Print a permanent line; if a model is speaking, after it has finished."""
        if self.is_speaking:
            self._after_speech.append(text)
        else:
            self._console.print(fold(escape_control(text), self.columns))

    def speak(self, piece: str, *, ends: bool) -> None:
        """Print a piece of a text to stdout, at once; `ends`: nothing more of it comes."""
        if piece:
            self.pause()
            if not self.is_speaking:
                sys.stdout.write("\n")
            self._reply.add(escape_control(piece))
            self.is_speaking = True
        if ends and self.is_speaking:
            self._reply.end()
        sys.stdout.flush()
        if ends:
            self._end_speech()

    def _end_speech(self) -> None:
        self.is_speaking = False
        later, self._after_speech = self._after_speech, []
        for text in later:
            self.print_above(text)

    def show_beat(self, beat: Heartbeat) -> None:
        """Show in the moving line what the run is doing."""
        if self.is_speaking or not self._console.is_terminal:
            return
        from rich.markup import escape

        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        price = f"${beat.nano_usd / 1e9:.4f}" if beat.nano_usd else ""
        parts = (beat.place, beat.text, price)
        lines = [" · ".join(part for part in parts if part)]
        if beat.team is not None:
            lines += [*tree_lines(beat.team.plan(), None, columns=self.columns)][1:]
        self._status.update(escape(escape_control("\n".join(lines))))
