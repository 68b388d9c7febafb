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
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal
from urllib.parse import unquote_plus

from kairos_mcp.core import flow_text as forms
from kairos_mcp.core.effects import Effect, Reach
from kairos_mcp.core.messages import canonical_json
from kairos_mcp.core.quick_dataclass import dataclass

Rule = Literal["where", "wish", "points", "leaves"]

VERSION = 1  # of the rules: what another version found is not computed again
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
    is in it may say where nothing goes, but is no sign that others had their say.
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

    def find(self, parts: Collection[str]) -> Iterator[tuple[int, str]]:
        """Yield which of these squashed texts are names, numbers or addresses of this row, or letters that were taken
        in of it: where, and as the row has them."""
        tokens = {bare: token for token, bare in forms.telling_tokens(self.text).items()} if parts else {}
        for part in parts:
            at = self.squashed_text.find(part)
            while at % STRIDE and part not in tokens and at >= 0:
                at = self.squashed_text.find(part, at + 1)
            if part in tokens or (at >= 0 and len(part) == WINDOW):
                yield at, tokens.get(part, part)

    @cached_property
    def _structure(self) -> tuple[dict[str, set[str]], str]:
        """Its short values, each with the words that stand with it in its record, and its running text."""
        if (found := forms.read_records(self.data, self.text)) is None:
            return {}, self.plain
        groups, prose = found
        sets = [{word for value in group for word in forms.words(value)} for group in groups]
        in_all = set.intersection(*sets) if len(sets) > 1 else set()  # what all records hold picks none of them out
        records: dict[str, set[str]] = {}
        for group, held in zip(groups, sets, strict=True):
            for value in group:
                records.setdefault(forms.plain(value), set()).update(held - in_all)
        return records, prose

    @property
    def records(self) -> dict[str, set[str]]:
        return self._structure[0]

    @cached_property
    def _prose_tokens(self) -> frozenset[str]:
        return frozenset(forms.tokens(self._structure[1]))

    def names(self, value: str) -> bool:
        """Whether running text names the value; one of under 4 characters has to be in quotes or called an id."""
        prose = self._structure[1]
        if len(value) >= 4:
            return forms.contains(prose, value) if " " in value else value in self._prose_tokens
        text = re.escape(value)
        quoted = rf"[\"'\u201c\u2018`]{text}[\"'\u201d\u2019`]|\b(?:id|number|no\.?|#)\W{{0,3}}{text}\b"
        return re.search(quoted, prose) is not None

    def holds(self, value: str) -> bool:
        return forms.contains(self.plain, value) if len(value) >= 4 else value in self.records or self.names(value)


@dataclass(frozen=True, slots=True)
class Call:
    """A call to be judged. `is_stated`: somebody stated how far it reaches, or it is no tool of a caller; else only
    words that stand in rows are found. `texts`: arguments that are text which goes along, beside those of usual
    names. `paths`: files that it touches. `is_opaque`: it can take along more than its
    arguments, as a command with the network does. `trusts_host`: whether the settings trust a host."""

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
        if self.reaches == "outside":
            return True
        return self.effect != "read" and (self.reaches == "service" or bool(self.server))

    @property
    def sent(self) -> str:
        """All that it takes along, and by which tool."""
        texts = (forms.plain(value) for _, value in forms.texts_of(self.arguments, every=True))
        return "\n".join([self.tool, *self.paths, *texts])

    def is_name(self, argument: str, value: str) -> bool:
        """Whether a value says where or which; the rest is text that goes along."""
        is_text = argument in forms.TEXT_ARGUMENTS or argument in self.texts
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
        self._windows: set[str] = set()
        self._telling: defaultdict[str, set[str]] = defaultdict(set)  # by their first letters, WINDOW at most
        self._lengths: defaultdict[str, set[int]] = defaultdict(set)  # of these beginnings, by the first three letters

    def add(self, row: Row) -> None:
        if row not in self._rows:
            self._rows.add(row)
            text = row.squashed_text
            self._windows.update(text[at : at + WINDOW] for at in range(0, len(text) - WINDOW + 1, STRIDE))
            for bare in forms.telling_tokens(row.text).values():
                self._telling[bare[:WINDOW]].add(bare)
                self._lengths[bare[:3]].add(len(bare[:WINDOW]))

    def find(self, text: str, spend: Callable[[int], None]) -> Iterator[str]:
        """Yield what of them a squashed text holds. `spend` is told what is compared, in characters."""
        spend(len(text) * WINDOW)
        for at in range(len(text) - 2):
            for length in self._lengths.get(text[at : at + 3], ()):
                for bare in self._telling.get(text[at : at + length], ()):
                    spend(len(bare))
                    if text.startswith(bare, at):
                        yield bare
        yield from {text[at : at + WINDOW] for at in range(len(text) - WINDOW + 1)} & self._windows


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
    shown = [each for each in found if each.rule != "leaves"]
    names = {each.argument for each in shown}
    values = {
        forms.plain(value)
        for name, value in forms.texts_of(call.arguments)
        if name in names and call.is_name(name, value)
    }
    sent = {call.sent} if any(each.rule == "leaves" for each in found) else set[str]()
    return frozenset(values | sent | {each.words for each in shown})


class _TooMuch(Exception):
    """More would have to be compared than is."""


class _View:
    """The rows in view of a call, by what they may do. `spend` is told what is compared, in characters; it raises
    _TooMuch."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._left = MAX_COMPARED
        self.own = [row for row in rows if not row.is_foreign]
        self.foreign = [row for row in rows if row.is_foreign]
        self.hears_others = any(row.is_of_others for row in rows)
        self.private = [row for row in rows if row.is_private and not row.is_said]
        self.open = [row for row in rows if row.is_said or not row.is_private]
        self.said = "\n".join(row.plain for row in rows if row.is_said)

        self.said_words = frozenset(forms.words(self.said))

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooMuch

    @cached_property
    def _size(self) -> int:
        return sum(len(row.plain) for row in self.rows)

    def names(self, value: str) -> bool:
        """Whether the person said a value, or nobody else wrote it."""
        self.spend(2 * self._size)  # so much is read for one value, with the rows that others named it in
        bare = forms.strip_scheme(forms.plain(value))
        parts = [part for part in forms.tokens(bare) if len(part) > 2]
        if not bare or any(forms.contains(row.plain, bare) for row in self.own):
            return True
        if not parts or forms.is_address(value):
            return False
        return all(any(part in row.tokens for row in self.own) for part in parts)

    def picks(self, value: str, server: str, *, by_words: bool) -> bool:
        """Whether an answer of the same server holds a plain value as one of its own, and no running text of others
        names it; `by_words`: in a record that the person's words pick out."""
        if any(row.names(value) for row in self.foreign):
            return False
        holders = [row for row in self.rows if row.server == server and value in row.records]
        return any(
            not by_words or self.said_words & {*row.records[value], *forms.words(row.found_by)} for row in holders
        )

    def asked_for(self, row: Row) -> bool:
        """Whether the person's words ask for what a row holds."""
        return not self.said_words.isdisjoint(forms.words(f"{row.source} {row.found_by}"))


class _Judgement:
    """The four rules over one call."""

    def __init__(self, call: Call, rows: Sequence[Row], approved: frozenset[str], private_words: PrivateWords) -> None:
        self.call, self.approved, self.view, self.private_words = call, approved, _View(rows), private_words
        self.values = list(forms.texts_of(call.arguments))
        self.changes = call.effect != "read"

    def findings(self, *, wish: bool) -> tuple[Finding, ...]:
        call, found = self.call, list[Finding]()
        if sum(len(value) for _, value in self.values) > MAX_SENT:
            raise _TooMuch
        if self.changes:
            for name, value in self.values:
                found += self._where(name, value) if call.is_name(name, value) else self._points(name, value)
            if wish and not found and self.view.hears_others and not self._is_wished():
                found.append(Finding("wish", "", call.tool))
        if call.reaches == "outside" and self.view.private:
            found += self._leaves(is_astray=any(each.rule == "where" for each in found))
        if not call.is_stated:
            found = [each for each in found if each.row is not None]
        return tuple(dict.fromkeys(found))

    def _is_clear(self, value: str) -> bool:
        text = forms.plain(value)
        if text in self.approved or self.view.names(value):
            return True
        return self.view.picks(text, self.call.server, by_words=forms.is_address(text))

    def _where(self, name: str, value: str) -> Iterator[Finding]:
        if self._is_clear(value):
            return
        holder = next((row for row in self.view.foreign if row.holds(forms.plain(value))), None)
        if holder is not None or forms.is_address(value):
            yield _finding("where", name, value, holder)

    def _points(self, name: str, value: str) -> Iterator[Finding]:
        if self.call.reaches != "outside":
            return
        for token in (part for each in forms.tokens(forms.plain(value)) for part in re.split(r"[()\[\]<>]", each)):
            if not forms.is_address(token) or self._is_clear(token):
                continue
            host = forms.host_of(token)
            namer = next(
                (row for row in self.view.foreign if row.names(token) or forms.contains(row.plain, host)), None
            )
            if namer is not None or (
                "://" in token
                and self.view.foreign
                and not any(forms.contains(row.plain, host) for row in self.view.own)
            ):
                yield _finding("points", name, token, namer)

    def _is_wished(self) -> bool:
        view = self.view
        if any(said.startswith(verb) for verb in forms.verbs_of(self.call.tool) for said in view.said_words):
            return True
        for _, value in forms.texts_of(self.call.arguments, every=True):
            text, own = forms.plain(value), list(forms.words(value))
            if text and (text in self.approved or forms.contains(view.said, text)):
                return True
            if text and view.picks(text, self.call.server, by_words=True):
                return True
            if own and 2 * sum(word in view.said_words for word in own) >= len(own):
                return True
        return False

    def _leaves(self, *, is_astray: bool) -> list[Finding]:
        call, view = self.call, self.view
        if call.sent in self.approved:
            return []
        is_opaque = call.is_opaque and view.hears_others and not self._is_said_command()
        if unseen := [*call.paths, *(["whatever it can read"] if is_opaque else [])]:
            return [Finding("leaves", "", each) for each in unseen]
        is_aimed = self.changes and not is_astray and any(self._is_clear_aim(*each) for each in self.values)
        private = [row for row in view.private if not (is_aimed and view.asked_for(row))]
        link = self._one_link()
        taken = [(name, value) for name, value in self._taken_along() if value != link]
        if hit := self._find_taken([value for _, value in taken], private):
            return [_finding("leaves", taken[0][0], *hit)]
        if link is not None or is_aimed or not view.hears_others or self._goes_to_said_host():
            return []
        texts = [(name, value) for name, value in self.values if not self.changes or not call.is_name(name, value)]
        strange = next((value for _, value in texts if forms.is_address(value)), None) or self._strange_words(texts)
        return [Finding("leaves", texts[0][0], strange)] if strange else []

    def _find_taken(self, values: Sequence[str], private: Sequence[Row]) -> tuple[str, Row] | None:
        """Return what of private rows is in these values, in the clear or in a usual disguise, and in no row that may
        be told."""
        for row in private:
            self.private_words.add(row)
        known = sorted({*self.view.rows} - {*private}, key=lambda row: not row.is_said)  # most often the person's words
        texts = {forms.squash(forms.plain(text)) for text in forms.disguises(values)}
        found = {part for text in texts for part in self.private_words.find(text, self.view.spend)}
        told_in = sum(len(row.squashed_text) for row in known) if found else 0
        for row in private if found else ():
            parts = {part for part in found if part in row.squashed_text}
            self.view.spend(len(found) * len(row.squashed_text) + len(parts) * told_in)
            told = {part for part in parts if any(part in each.squashed_text for each in known)}
            if held := sorted(row.find(parts - told)):
                return held[0][1], row
            found -= told
        return None

    def _is_said_command(self) -> bool:
        """Whether the person said the whole command, as a mandate says its checks."""
        argv = self.call.arguments.get("argv")
        if not isinstance(argv, list) or not all(isinstance(part, str) for part in argv):
            return False
        return any(forms.contains(self.view.said, forms.plain(form)) for form in (canonical_json(argv), " ".join(argv)))

    def _taken_along(self) -> list[tuple[str, str]]:
        """What may tell something: of a call that only reads all of it, of one that changes something what does not
        say where it goes."""
        keys = [("", key) for key in forms.inner_keys(self.call.arguments)]
        if not self.changes:
            every = forms.texts_of(self.call.arguments, every=True)
            return keys + [(name, value) for name, value in every if not forms.is_date(value)]
        is_name = self.call.is_name
        return keys + [(n, value) for n, value in self.values if not (is_name(n, value) and self._is_clear(value))]

    def _is_clear_aim(self, name: str, value: str) -> bool:
        aims = self.call.is_name(name, value) and (forms.is_address(value) or name.casefold() in AIMS)
        return aims and self._is_clear(value)

    def _one_link(self) -> str | None:
        """Return the link that a call follows as it stands in a row, or joined to the host of the page that holds it:
        then nothing of it was put together. None for any other call."""
        links = [value for _, value in self.values if len(value) > 6 or "." in value]
        if self.changes or len(links) != 1 or not forms.is_address(forms.plain(links[0])):
            return None
        link, rows = forms.plain(links[0]), self.view.rows
        bare, host = forms.strip_scheme(link), forms.host_of(link)
        path = bare.removeprefix(host)
        stands = any(
            bare in row.links or (len(path) > 1 and path in row.links and forms.contains(row.asked_for, host))
            for row in rows
        )
        visited = {row.asked_for for row in rows if forms.contains(row.asked_for, host)}
        may_follow = forms.contains(self.view.said, host) or len(visited) < LINKS_PER_HOST
        return links[0] if stands and may_follow else None

    def _goes_to_said_host(self) -> bool:
        hosts = forms.hosts_in(self.call.arguments)
        trusts = self.call.trusts_host
        return bool(hosts) and all(
            forms.contains(self.view.said, host) or host in self.approved or trusts(host) for host in hosts
        )

    def _strange_words(self, texts: Iterable[tuple[str, str]]) -> str:
        """Return the words that stand in nothing which may be told."""
        parts = (part for _, value in texts for part in re.split(r"\W+", unquote_plus(forms.plain(value))))
        return " ".join(part for part in parts if part and not any(part in row.words for row in self.view.open))


def _finding(rule: Rule, name: str, words: str, row: Row | None) -> Finding:
    row_path, source = (row.path, row.source) if row is not None else (None, "")
    return Finding(rule, name, forms.plain(words), row_path, source)
