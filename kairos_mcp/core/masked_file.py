"""What a file holds, and where its secrets stand: all that leaves a file is cut from this.

Reading, lines, searches, excerpts, diffs, previews and the matching of edits see the masked text of the whole file, so
none of them shows what another hides, and no pattern finds out a value. Every secret lies within one line: lines keep
their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.core.secret_forms import MASK
from kairos_mcp.core.secret_spans import SPAN_BYTES, Span, Spans, is_masked, join_spans, spans_between, split_lines

WINDOW_BYTES = 8 << 20  # of a file that are read at once to be masked, or searched
PIECE_BYTES = 256 << 10  # that are masked at once: some 0.3 s and 20 MB, if they hold nothing but secrets
OVERLAP_BYTES = 1 << 20  # around a window that are looked at for it: so long a secret may cross its border
LOOK_BACK_BYTES = 32 << 10  # behind a piece whose matches are looked at for it: some secrets begin before their match

STAND_IN = "\ud800"  # in place of a secret while a text is matched: no text of a file or a model can hold it
_MARK = "\0"  # around what tells two secrets apart while lines are compared


@dataclass(frozen=True, slots=True)
class MaskedFile:
    """A file's content, and the spans of its secrets: in order, apart from each other, each within one line."""

    content: bytes
    spans: Sequence[Span] = ()

    @property
    def size(self) -> int:
        """The bytes that it takes in memory, about."""
        return len(self.content) + SPAN_BYTES * len(self.spans)

    @property
    def masked_content(self) -> bytes:
        """The content as anybody is shown it."""
        return self.masked_part(0, len(self.content))

    def masked_part(self, start: int, end: int) -> bytes:
        """Return the masked text of what stands from byte `start` to `end`."""
        return self._replace(lambda _secret: MASK.encode(), start, end)

    def matchable_text(self) -> str:
        """Return the text, each secret replaced by a character that nothing matches. The content must be UTF-8."""
        stand_in = STAND_IN.encode("utf-8", "surrogatepass")
        return self._replace(lambda _secret: stand_in, 0, len(self.content)).decode("utf-8", "surrogatepass")

    def restore(self, text: str) -> MaskedFile:
        """Return what `matchable_text` gave, after it was changed around its secrets, with the secrets in their
        places."""
        pieces = text.split(STAND_IN)
        if len(pieces) != len(self.spans) + 1:
            raise ValueError("a secret was cut, or came to be twice")
        whole, spans = bytearray(pieces[0].encode()), list[Span]()
        for (start, end), piece in zip(self.spans, pieces[1:], strict=True):
            spans.append((len(whole), len(whole) + end - start))
            whole += self.content[start:end] + piece.encode()
        return MaskedFile(bytes(whole), spans)

    def covers(self, other: MaskedFile) -> bool:
        """Whether every secret of `other`, which has the same content, is one here too."""
        return all(any(start <= left and right <= end for start, end in self.spans) for left, right in other.spans)

    def comparable_text(self, names: Sequence[str]) -> str:
        """Return the text with a mark in place of each secret, of the name that is given for it in order.

        `unify_marks` then makes all marks equal. The names say which secrets of two texts are taken for the same: never
        what they are, else a diff would tell who guesses one whether it is.
        """
        left = iter(names)
        return self._replace(lambda _secret: f"{_MARK}{next(left)}{_MARK}".encode(), 0, len(self.content)).decode()

    def _replace(self, stand_in: Callable[[bytes], bytes], start: int, end: int) -> bytes:
        if not self.spans:
            return self.content[start:end]
        whole, at = bytearray(), start
        for left, right in spans_between(self.spans, start, end):
            whole += self.content[at : max(at, left)]
            whole += stand_in(self.content[left:right])
            at = min(right, end)
        return bytes(whole + self.content[at:end])


def unify_marks(text: str) -> str:
    """Return a text with all the marks of `comparable_text` made equal."""
    parts = text.split(_MARK)
    return "".join(MASK if n % 2 else part for n, part in enumerate(parts))


def mask_in_pieces(
    content: bytes, find: Callable[[int], Iterable[Span]], is_over: Callable[[], bool] = lambda: False
) -> MaskedFile:
    """Mask a content piece by piece. Once `is_over`, only what was masked by then is returned, one piece at least.

    `find` returns the spans that belong before a byte and were not returned yet, and perhaps later ones, in any order.
    What reaches beyond a piece is kept for the next one: so no secret ends with a piece.
    """
    spans, kept = Spans(), list[Span]()
    for begin in range(0, len(content), PIECE_BYTES):
        if begin and is_over():
            _add_lines(spans, content, [(left, min(right, begin)) for left, right in kept if left < begin])
            return MaskedFile(content[:begin], spans)
        end = min(begin + PIECE_BYTES, len(content))
        found = join_spans((*kept, *find(end + LOOK_BACK_BYTES)))
        _add_lines(spans, content, [span for span in found if span[1] <= end])
        kept = [span for span in found if span[1] > end]
    return MaskedFile(content, spans or ())


def _add_lines(spans: Spans, content: bytes, found: Iterable[Span]) -> None:
    for start, end in found:
        for line in split_lines(content, start, end):
            if not is_masked(content, *line):
                spans.append(line)
