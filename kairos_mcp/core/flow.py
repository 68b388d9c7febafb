"""Information flow: decide by the rows of a run whether a call may go where it goes, with what it takes along.

Pure: the same rows and call give the same findings, so that a replay gives them too. A call that stays inside costs
nothing; any other is asked about by four rules, each with the words and the row that a person is shown:

  where   what a changing call is aimed at was said by the person, stands in a trusted row, or is a value of its own in
          an answer of the same server that no running text of others names; an address also has to be in a record that
          the person's words pick out
  wish    something in a changing call, or its tool's name, was said by the person or is picked out by their words
  points  a text that goes out holds no address that others named, and no link to a place that nobody trusted named
  leaves  a call that reaches outside takes no private words along, but to where the person said, and then of what they
          asked for; once foreign rows are in view it holds open words alone, or is one link as it stands in a row

docs/flow.md says what these rules can't see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal
from urllib.parse import unquote_plus

from kairos_mcp.core import flow_text as forms
from kairos_mcp.core.effects import Effect, Reach
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.quick_dataclass import dataclass

Rule = Literal["where", "wish", "points", "leaves"]

VERSION = 2  # of the rules: what another version found is not computed again
WINDOW, STRIDE = 10, 3  # WINDOW + STRIDE - 1 letters and digits of a private row are words taken from it
LINKS_PER_HOST = 8  # that are followed at a place which nobody said: each choice among links tells something
MAX_SENT = 50_000  # characters that a call may take along, and times that many of its rows that are looked through:
MAX_COMPARED = 500_000_000  # some 0.5 s; whoever writes an answer can't make a server compute for longer
AIMS = forms.word_set("to cc bcc recipient recipients channel user email participants repo account url host address")
"""Names of arguments that say where a call goes."""


@dataclass(frozen=True, eq=False)  # not slotted, for its cached properties; compared by identity
class Row:
    """Something in view of a call, and the forms in which it is looked up, each made when it is first needed.

    `path`: of its step. `source`: whose words a person is told they are. `server`: who answered. `found_by`: the
    arguments of the call that it answers. `is_said`: the person's own words. `is_trusted`: nobody else wrote it.
    `is_private`: it may not leave. `is_printed`: by a command that named neither an address nor a file of others: what
    is in it may say where nothing goes but to further commands, and is no sign that others had their say.
    """

    path: str
    source: str
    server: str
    text: str
    data: Any = None
    is_trusted: bool = False
    is_private: bool = True
    found_by: str = ""
    is_said: bool = False
    is_printed: bool = False

    @property
    def is_foreign(self) -> bool:
        return not (self.is_trusted or self.is_said)

    @property
    def is_of_others(self) -> bool:
        """Whether somebody else may have had their say in it."""
        return self.is_foreign and not self.is_printed

    @cached_property
    def plain(self) -> str:
        return forms.plain(self.text)

    @cached_property
    def tokens(self) -> frozenset[str]:
        return frozenset(forms.tokens(self.plain))

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(re.split(r"\W+", self.plain))

    @cached_property
    def links(self) -> frozenset[str]:
        return forms.links_in(self.tokens)

    @cached_property
    def asked_for(self) -> str:
        """The arguments of the call that it answers, in plain text."""
        return forms.plain(self.found_by)

    @cached_property
    def squashed_text(self) -> str:
        return forms.squash(self.plain)

    def pieces(self) -> set[str]:
        """Return what of it is looked for in calls, in letters and digits alone: names, numbers and addresses that are
        short, and what stands at every STRIDE, of which any longer one holds some."""
        text, telling = self.squashed_text, forms.telling_tokens(self.text)
        windows = {text[at : at + WINDOW] for at in range(0, len(text) - WINDOW + 1, STRIDE)}
        return windows.union(bare for bare in telling if len(bare) < WINDOW + STRIDE - 1)

    def show(self, piece: str) -> str:
        """Return the name, number or address that a piece is of; the piece itself if it is of none."""
        telling = forms.telling_tokens(self.text)
        return telling.get(piece) or next((token for bare, token in telling.items() if piece in bare), piece)

    @cached_property
    def _structure(self) -> tuple[list[list[str]], str]:
        return forms.read_records(self.data, self.text)

    @cached_property
    def records(self) -> dict[str, set[str]]:
        """Its short values, each with the words that stand with it in its record and not in all records."""
        sets = [{word for value in group for word in forms.words(value)} for group in self._structure[0]]
        in_all = set.intersection(*sets) if len(sets) > 1 else set()
        records: dict[str, set[str]] = {}
        for group, held in zip(self._structure[0], sets, strict=True):
            for value in group:
                records.setdefault(forms.plain(value), set()).update(held - in_all)
        return records

    def names(self, value: str) -> bool:
        """Whether running text names the value; one of under 4 characters has to be in quotes or called an id."""
        if len(value) >= 4:
            return forms.contains(self._structure[1], value)
        text = re.escape(value)
        quoted = rf"[\"'\u201c\u2018`]{text}[\"'\u201d\u2019`]|\b(?:id|number|no\.?|#)\W{{0,3}}{text}\b"
        return re.search(quoted, self._structure[1]) is not None

    def holds(self, value: str) -> bool:
        return forms.contains(self.plain, value) if len(value) >= 4 else value in self.records or self.names(value)


@dataclass(frozen=True, slots=True)
class Call:
    """A call to be judged. `is_stated`: somebody stated how far it reaches, or it is no tool of a caller; else only
    words that stand in rows are found. `texts`: arguments that are text which goes along, beside those of usual
    names. `paths`: files that it touches. `is_opaque`: it can take along more than its arguments, as a command with the
    network does. `trusts_host`: whether the settings trust a host."""

    tool: str
    server: str
    effect: Effect
    reaches: Reach
    arguments: Mapping[str, Any]
    is_stated: bool = True
    texts: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    is_opaque: bool = False
    trusts_host: Callable[[str], bool] = lambda _host: False

    @property
    def is_judged(self) -> bool:
        """Whether the rules have anything to say of it: a call inside, and what reads at its own service, is free."""
        return self.reaches == "outside" or (self.effect != "read" and (self.reaches == "service" or self.server != ""))

    @property
    def sent(self) -> str:
        """All that it takes along, and by which tool."""
        texts = (forms.plain(value) for _, value in forms.texts_of(self.arguments, every=True))
        return "\n".join([self.tool, *self.paths, *texts])

    def is_name(self, argument: str, value: str) -> bool:
        """Whether a value says where or which; the rest is text that goes along."""
        is_text = not argument or argument in forms.TEXT_ARGUMENTS or argument in self.texts
        return forms.is_address(value) or (not is_text and forms.is_short(value) and "\n" not in value)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a person has to be asked about. `words`: what it is about; `row`: the path of the step whose answer holds
    them, None where they stand in no row; `source`: whose they are."""

    rule: Rule
    argument: str
    words: str
    row: str | None = None
    source: str = ""


class PrivateWords:
    """What is looked for of private rows, each taken in once: then a call costs by what it holds, not by the rows."""

    def __init__(self) -> None:
        self._rows: set[Row] = set()
        self._pieces: set[str] = set()

    def add(self, row: Row) -> None:
        if row not in self._rows:
            self._rows.add(row)
            self._pieces |= row.pieces()

    def find(self, text: str) -> Iterator[str]:
        """Yield what of them a squashed text holds."""
        for length in range(3, WINDOW + STRIDE - 1):
            yield from {text[at : at + length] for at in range(len(text) - length + 1)} & self._pieces


def judge(
    call: Call,
    rows: Sequence[Row],
    approved: frozenset[str] = frozenset(),
    private_words: PrivateWords | None = None,
    *,
    wish: bool = True,
) -> tuple[Finding, ...]:
    """Return what a person has to be asked about; nothing: the flow is clean.

    `rows`: in view of the call, in the order in which they came. `approved`: what `covers` gave of calls that a person
    approved. `private_words`: kept from call to call of a run. Whatever goes wrong here is a finding.
    """
    if not call.is_judged:
        return ()
    try:
        return _Judgement(call, rows, approved, private_words or PrivateWords()).findings(wish=wish)
    except Exception:  # the rules may fail on what nobody foresaw, and then a person decides
        return (Finding("leaves", "", "what could not be looked through"),)


def covers(call: Call, found: Iterable[Finding]) -> frozenset[str]:
    """Return what a yes to a call covers for the rest of the run: exactly the values that the person was shown."""
    return frozenset(call.sent if each.rule == "leaves" else each.words for each in found)


class _Judgement:
    """The four rules over one call, with the rows in view of it."""

    def __init__(self, call: Call, rows: Sequence[Row], approved: frozenset[str], private_words: PrivateWords) -> None:
        self.call, self.rows, self.approved, self.private_words = call, rows, approved, private_words
        self.changes = call.effect != "read"
        self.values = list(forms.texts_of(call.arguments))
        self.texts = [each for each in self.values if not (self.changes and call.is_name(*each))]
        self.own = [row for row in rows if not row.is_foreign]
        self.foreign = [row for row in rows if row.is_foreign]
        self.hears_others = any(row.is_of_others for row in rows)
        self.said = "\n".join(row.plain for row in rows if row.is_said)
        self.said_words = frozenset(forms.words(self.said))
        self._left = MAX_COMPARED

    def findings(self, *, wish: bool) -> tuple[Finding, ...]:
        call, found = self.call, list[Finding]()
        if sum(len(value) for _, value in self.values) > MAX_SENT:
            raise OverflowError
        if self.changes:
            for each in self.values:
                found += self._where(*each) if call.is_name(*each) else self._points(*each)
            if wish and not found and self.hears_others and not self._is_wished():
                found.append(Finding("wish", "", call.tool))
        if call.reaches == "outside":
            found += self._leaves(is_astray=any(each.rule == "where" for each in found))
        if not call.is_stated:
            found = [each for each in found if each.row is not None]
        return tuple(dict.fromkeys(found))

    def _spend(self, count: int) -> None:
        """Count what is compared, in characters. Raises OverflowError when that is too much."""
        self._left -= count
        if self._left < 0:
            raise OverflowError

    def _names(self, value: str) -> bool:
        """Whether the person said a value, or nobody else wrote it."""
        self._spend(
            2 * sum(len(row.plain) for row in self.rows)
        )  # for one value, with the rows that others named it in
        bare = forms.strip_scheme(forms.plain(value))
        parts = [part for part in forms.tokens(bare) if len(part) > 2]
        if not bare or any(forms.contains(row.plain, bare) for row in self.own):
            return True
        if not parts or forms.is_address(value):
            return False
        return all(any(part in row.tokens for row in self.own) for part in parts)

    def _picks(self, value: str, *, by_words: bool) -> bool:
        """Whether an answer of the same server holds a plain value as one of its own, and no running text of others
        names it; `by_words`: in a record that the person's words pick out."""
        if any(row.names(value) for row in self.foreign):
            return False
        holders = [row for row in self.rows if row.server == self.call.server and value in row.records]
        said = self.said_words
        return any(not by_words or said & {*row.records[value], *forms.words(row.found_by)} for row in holders)

    def _is_clear(self, value: str) -> bool:
        text = forms.plain(value)
        return text in self.approved or self._names(value) or self._picks(text, by_words=forms.is_address(text))

    def _where(self, name: str, value: str) -> Iterator[Finding]:
        if not self._is_clear(value):
            speaking = (row for row in self.foreign if not (self.call.is_opaque and row.is_printed))
            holder = next((row for row in speaking if row.holds(forms.plain(value))), None)
            if holder is not None or forms.is_address(value):
                yield _finding("where", name, value, holder)

    def _points(self, name: str, value: str) -> Iterator[Finding]:
        for token in forms.tokens(forms.plain(value)) if self.call.reaches == "outside" else ():
            if forms.is_address(token) and not self._is_clear(token):
                host = forms.host_of(token)
                namer = next((row for row in self.foreign if forms.contains(row.plain, host)), None)
                is_known = any(forms.contains(row.plain, host) for row in self.own)
                if namer is not None or ("://" in token and self.foreign and not is_known):
                    yield _finding("points", name, token, namer)

    def _is_wished(self) -> bool:
        if any(word.startswith(verb) for verb in forms.verbs_of(self.call.tool) for word in self.said_words):
            return True
        for _, value in forms.texts_of(self.call.arguments, every=True):
            text, own = forms.plain(value), [word in self.said_words for word in forms.words(value)]
            is_said = text in self.approved or forms.contains(self.said, text) or (own and 2 * sum(own) >= len(own))
            if text and (is_said or self._picks(text, by_words=True)):
                return True
        return False

    def _leaves(self, *, is_astray: bool) -> list[Finding]:
        call, private = self.call, [row for row in self.rows if row.is_private and not row.is_said]
        is_program_alone = call.is_opaque and not self.hears_others and not forms.hosts_in(call.arguments)
        if not private or is_program_alone or call.sent in self.approved:
            return []
        is_opaque = call.is_opaque and self.hears_others and not self._is_said_command()
        if unseen := [*call.paths, *(["whatever it can read"] if is_opaque else [])]:
            return [Finding("leaves", "", each) for each in unseen]
        names = [each for each in self.values if self.changes and not is_astray and call.is_name(*each)]
        aims = [value for name, value in names if forms.is_address(value) or name.casefold() in AIMS]
        if is_aimed := any(map(self._is_clear, aims)):
            private = [
                row for row in private if self.said_words.isdisjoint(forms.words(f"{row.source} {row.found_by}"))
            ]
        link = self._one_link()
        taken = [(name, value) for name, value in self._taken_along() if value != link]
        if hit := self._find_taken([value for _, value in taken], private):
            return [_finding("leaves", taken[0][0], *hit)]
        if link is not None or is_aimed or not self.hears_others or self._goes_to_said_host():
            return []
        strange = next((value for _, value in self.texts if forms.is_address(value)), None) or self._strange_words()
        return [Finding("leaves", self.texts[0][0], strange)] if strange else []

    def _find_taken(self, values: Sequence[str], private: Sequence[Row]) -> tuple[str, Row] | None:
        """Return what of private rows is in these values, in the clear or in a usual disguise, and in no row that may
        be told."""
        for row in private:
            self.private_words.add(row)
        texts = {forms.squash(forms.plain(text)) for text in forms.disguises(values)}
        found = {part for text in texts for part in self.private_words.find(text)}
        known = {*self.rows} - {*private}
        known_size = sum(len(row.text) for row in known)
        for row in private:
            held = {part for part in found if part in row.squashed_text}
            self._spend(len(found) * len(row.text) + len(held) * known_size)
            found -= (told := {part for part in held if any(part in each.squashed_text for each in known)})
            if taken := (held - told) & (row.pieces() if held > told else set()):
                return row.show(min(taken, key=lambda part: (row.squashed_text.find(part), part))), row
        return None

    def _is_said_command(self) -> bool:
        """Whether the person said the whole command, as a mandate says its checks."""
        argv = self.call.arguments.get("argv")
        written = [canonical_json(argv), " ".join(map(str, argv))] if isinstance(argv, list) else []
        return any(forms.contains(self.said, forms.plain(text)) for text in written)

    def _taken_along(self) -> list[tuple[str, str]]:
        """What may tell something: of a call that only reads all of it, of one that changes something what does not
        say where it goes."""
        if self.changes:
            is_name = self.call.is_name
            return [each for each in self.values if not (is_name(*each) and self._is_clear(each[1]))]
        every = forms.texts_of(self.call.arguments, every=True)
        return [(name, value) for name, value in every if not forms.is_date(value)]

    def _one_link(self) -> str | None:
        """Return the link that a call follows as it stands in a row, or joined to the host of the page that holds it:
        then nothing of it was put together. None for any other call."""
        links = [value for _, value in self.values if len(value) > 6 or "." in value]
        if self.changes or len(links) != 1 or not forms.is_address(link := forms.plain(links[0])):
            return None
        bare, host = forms.strip_scheme(link), forms.host_of(link)
        path, pages = bare.removeprefix(host), [row for row in self.rows if forms.contains(row.asked_for, host)]
        is_joined = len(path) > 1 and any(path in row.links for row in pages)
        stands = is_joined or any(bare in row.links for row in self.rows)
        may_follow = forms.contains(self.said, host) or len({row.asked_for for row in pages}) < LINKS_PER_HOST
        return links[0] if stands and may_follow else None

    def _goes_to_said_host(self) -> bool:
        said, hosts = self.said, forms.hosts_in(self.call.arguments)
        trusts = self.call.trusts_host
        return bool(hosts) and all(
            forms.contains(said, host) or host in self.approved or trusts(host) for host in hosts
        )

    def _strange_words(self) -> str:
        """Return the words that stand in nothing which may be told."""
        may_be_told = [row.words for row in self.rows if row.is_said or not row.is_private]
        parts = (part for _, value in self.texts for part in re.split(r"\W+", unquote_plus(forms.plain(value))))
        return " ".join(part for part in parts if part and not any(part in words for words in may_be_told))


def _finding(rule: Rule, name: str, words: str, row: Row | None) -> Finding:
    row_path, source = (row.path, row.source) if row is not None else (None, "")
    return Finding(rule, name, forms.plain(words), row_path, source)
