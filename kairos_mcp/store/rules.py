"""Remembered approvals as rows: what a person allowed from then on, for one run or for a project.

A rule is about the calls of one tool, in one workspace, of one principal: those with exactly the same arguments; of a
file's edits, those of the same file; of commands, those that a pattern matches, in the same folder. It holds as long as
the tool's definition is the one that was approved (`pin`; of a built-in tool its name), and the workspace is the same
folder (`folder`), not another one of that path. Which calls may be remembered is decided by the gate, anew at each of
them (`GateRuling.may_remember`).

A rule that was removed is kept, since the record names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from kairos_mcp.core.command_patterns import check_pattern, fits_pattern, format_pattern, literal_glob
from kairos_mcp.core.decision_rights import Actor
from kairos_mcp.core.errors import BadArguments, NotFound, Unreadable
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.queries import RunRow
from kairos_mcp.store.rows import Row, Session, decode, encode, placeholders

RuleScope = Literal["run", "project"]
"""For how long a rule holds: for the run alone (with its branches), or for all runs in its workspace."""


@dataclass(frozen=True, slots=True)
class CalledCommand:
    """A command as it was called: the names of its program, its arguments, its folder, and what it asks to read that
    programs don't see otherwise."""

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    cwd: str
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallShape:
    """What a rule about a call would be about; one of `command`, `path` and `arguments` is set.

    `folder` tells the workspace from another folder of its path; None where there is no workspace. `arguments`: as
    canonical JSON.
    """

    tool: str
    pin: str
    folder: str | None = None
    command: CalledCommand | None = None
    path: str | None = None
    arguments: str | None = None

    @property
    def pattern(self) -> tuple[str, ...]:
        """The pattern that matches this very command; empty for another call."""
        if self.command is None:
            return ()
        return tuple(literal_glob(text) for text in (self.command.program[0], *self.command.arguments))


@dataclass(frozen=True, slots=True)
class CoveredCalls:
    """Which calls of a tool a rule is about: see `CallShape`; `argv` is a pattern, `reads` what they may read."""

    argv: tuple[str, ...] = ()
    cwd: str = "."
    reads: tuple[str, ...] = ()
    path: str | None = None
    arguments: str | None = None

    def fits(self, shape: CallShape) -> bool:
        """Return whether a call of this shape is one of them."""
        if shape.command is not None:
            command = shape.command
            is_alike = self.cwd == command.cwd and {*command.reads} <= {*self.reads}
            return is_alike and fits_pattern(self.argv, command.program, command.arguments)
        if shape.path is not None:
            return self.path == shape.path
        return self.arguments is not None and self.arguments == shape.arguments

    def describe(self, tool: str) -> str:
        """Name the calls, as a person is shown them."""
        if self.argv:
            where = "" if self.cwd == "." else f" in {self.cwd}"
            reading = f", which may read {', '.join(self.reads)}" if self.reads else ""
            return f"{tool}: {format_pattern(self.argv)}{where}{reading}"
        if self.path is not None:
            return f"{tool}: {self.path}"
        return f"{tool}: exactly {self.arguments}"


@dataclass(frozen=True, slots=True)
class RuleRequest:
    """What a person wants to be remembered. `argv`: a pattern that matches the command; None: the command itself."""

    scope: RuleScope
    argv: tuple[str, ...] | None = None

    def cover(self, shape: CallShape) -> CoveredCalls:
        """Return the calls of the rule that this makes of a call. Raises BadArguments for a pattern that does not match
        the call itself."""
        if shape.command is None:
            if self.argv is not None:
                raise BadArguments("A pattern is for commands alone.", "Leave it out.")
            return CoveredCalls(path=shape.path, arguments=shape.arguments)
        argv = self.argv or shape.pattern
        covered = CoveredCalls(argv, shape.command.cwd, shape.command.reads)
        problem = check_pattern(argv) or (None if covered.fits(shape) else "it does not match this command")
        if problem is not None:
            hint = f"This command itself is {format_pattern(shape.pattern)!r}; a last ... stands for any arguments."
            raise BadArguments(f"The pattern can't be used: {problem}.", hint)
        return covered


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A remembered approval. `run_id`: of the one run that it is for; None: for all in the workspace. It was given in
    the run `approved_in`, under `key`. Times in milliseconds since 1970."""

    id: int
    principal: str
    workspace: str
    folder: str | None
    run_id: str | None
    tool: str
    pin: str
    covered: CoveredCalls
    approved_in: str
    key: str
    at: int
    by: str
    client: str

    @property
    def name(self) -> str:
        """What the record of a call says that it was let through by."""
        return f"rule {self.id}"

    @property
    def description(self) -> str:
        return self.covered.describe(self.tool)


def decode_shape(text: str | None) -> CallShape | None:
    if text is None:
        return None
    shape: CallShape = decode(CallShape, text)
    return shape


def add_rule(
    session: Session, run: RunRow, key: str, shape: CallShape, request: RuleRequest, actor: Actor, at: int
) -> int:
    """Insert the rule that a person made with the approval under `key`, and return its number."""
    return session.insert(
        "insert into rule(principal, workspace, folder, run, tool, pin, covered, approved_in, key, at, by, through,"
        " client) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(run.principal, run.workspace or "", shape.folder, run.n if request.scope == "run" else None),
            *(shape.tool, shape.pin, encode(request.cover(shape)), run.id, key, at, *actor),
        ),
    )


_COLUMNS = (
    "rule.id, rule.principal, rule.workspace, folder, run.id, tool, pin, covered, approved_in, rule.key, at, by,"
    " rule.client"
)
_FITTING = f"""
    select {_COLUMNS} from rule left join run on run.n = rule.run
    where removed is null and rule.principal = ? and rule.workspace = ? and tool = ? and pin = ?
        and (rule.run is null or rule.run = ?) order by rule.id
"""


def find_rule(session: Session, run: RunRow, shape: CallShape) -> RuleRow | None:
    """Return the first rule by which a call of this shape may be made in this run."""
    found = session.rows(_FITTING, (run.principal, run.workspace or "", shape.tool, shape.pin, run.n))
    return next((rule for rule in _readable(found) if rule.folder == shape.folder and rule.covered.fits(shape)), None)


def find_made_with(session: Session, run: RunRow, key: str) -> RuleRow | None:
    """Return the rule that was made with the approval under this key, removed or not; None if none was."""
    statement = f"select {_COLUMNS} from rule left join run on run.n = rule.run where approved_in = ? and rule.key = ?"
    return next(_readable(session.rows(statement, (run.id, key))), None)


def list_rules(session: Session, principal: str | None, workspaces: Sequence[str] | None) -> list[RuleRow]:
    """List the rules that count, oldest first: of a principal (None: of all), in these workspaces ('' for none; None:
    in all). One for a run counts until the run has ended."""
    conditions, bindings = ["removed is null", "(rule.run is null or run.outcome is null)"], list[str]()
    if principal is not None:
        conditions.append("rule.principal = ?")
        bindings.append(principal)
    if workspaces is not None:
        conditions.append(f"rule.workspace in ({placeholders(workspaces)})")
        bindings += workspaces
    statement = f"select {_COLUMNS} from rule left join run on run.n = rule.run where {' and '.join(conditions)}"
    return list(_readable(session.rows(f"{statement} order by rule.id", bindings)))


def remove_rule(
    session: Session, rule: int, principal: str | None, workspaces: Sequence[str] | None, at: int
) -> RuleRow:
    """Remove a rule (of this principal; None: of any): it lets no further call through. Raises NotFound; BadArguments
    for one of another workspace than these (None: of any)."""
    found = next((row for row in list_rules(session, principal, None) if row.id == rule), None)
    if found is None:
        raise NotFound(f"There is no rule {rule}.", "`kairos-mcp rules list --all` shows all of them.")
    if workspaces is not None and found.workspace not in workspaces:
        raise BadArguments(
            f"Rule {rule} is for {found.workspace or 'no workspace'}: {found.description}.",
            f"`kairos-mcp rules remove {rule} --all` removes it.",
        )
    session.rows("update rule set removed = ? where id = ?", (at, rule))
    return found


def _readable(found: Sequence[Row]) -> Iterator[RuleRow]:
    """Yield the rules in these rows. A damaged one lets nothing through, and stops nothing else; doctor names it."""
    for row in found:
        try:
            covered: CoveredCalls = decode(CoveredCalls, row[7])
        except Unreadable:
            continue
        columns = (*row[:7], covered, *row[8:])
        yield RuleRow(*columns)
