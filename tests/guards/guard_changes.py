"""The changes by which a row of the guard table switches a guard off, and how one is made in a syntax tree.

A change quotes the part of the code that it changes. Only syntax counts: line breaks, brackets, quotes and comments do
not. `...` in a quoted part stands for anything: `f(...)`, `a or ...`, `if a: ...`. The part must be there exactly once.
"""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from textwrap import indent
from typing import Any


class DoesNotApply(Exception):
    """What a change quotes is not in the code exactly once."""


@dataclass(frozen=True, slots=True)
class Change:
    """`verb` is the function below that made it; `by` replaces `part`."""

    verb: str
    part: str
    by: str = ""

    def __str__(self) -> str:
        quoted = [self.part, self.by] if self.verb.startswith("replaced") else [self.part]
        return f"{self.verb}({', '.join(map(repr, quoted))})"


def never(condition: str) -> Change:
    """Make the condition false."""
    return Change("never", condition, "False")


def always(condition: str) -> Change:
    """Make the condition true."""
    return Change("always", condition, "True")


def without(part: str) -> Change:
    """Drop a statement, an operand of `and` or `or`, an element, an argument, a decorator, an `except` or a `case`."""
    return Change("without", part)


def replaced(part: str, by: str) -> Change:
    """Put `by` in the part's place. Each `...` in it is what the `...` at the same place in the part stands for."""
    return Change("replaced", part, by)


def without_words(words: str) -> Change:
    """Drop words of a string, such as a condition in SQL. Values in braces of an f-string are words as well."""
    return Change("without_words", words)


def replaced_words(words: str, by: str) -> Change:
    """Replace words of a string. Any white space between two words is as good as a space."""
    return Change("replaced_words", words, by)


def apply_change(change: Change, definition: ast.stmt) -> ast.stmt:
    """Return a changed copy of a function, a class or an assignment. Raises DoesNotApply."""
    block = ast.Module([pickle.loads(pickle.dumps(definition))], [])  # several times as fast as deepcopy
    edits = list(_edit_words(change, block) if change.verb.endswith("_words") else _edit_parts(change, block))
    if len(edits) != 1:
        raise DoesNotApply(f"what {change} quotes is there {len(edits)} times")
    edits[0]()
    return _Tidy().visit(block).body[0]


class _Tidy(ast.NodeTransformer):
    """Makes a legal tree of one from which something was dropped."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return node.values[0] if len(node.values) == 1 else node

    def generic_visit(self, node: Any) -> ast.AST:
        if getattr(node, "body", None) == []:
            node.body = [ast.Pass()]
        return super().generic_visit(node)


# Parts of a tree

_Put = Callable[[list[Any]], None]
_FRAMES = {
    "expression": "_(\n{}\n)",
    "statement": "{}",
    "keyword": "_(\n{}\n)",
    "item": "{{\n{}\n}}",
    "except": "try:\n    pass\n{}",
    "case": "match _:\n{}",
}
"""What makes a program of a part of each kind."""

_LISTS = {
    "expression": {"elts", "values", "args", "decorator_list", "ifs", "bases", "patterns"},
    "statement": {"body", "orelse", "finalbody"},
    "keyword": {"keywords"},
    "item": {"keys"},
    "except": {"handlers"},
    "case": {"cases"},
}
"""The lists from which a part of each kind can be dropped."""


def _read(text: str, kind: str) -> list[Any]:
    """Return the nodes of a part's text, if it can be read as a part of this kind."""
    with suppress(SyntaxError, IndexError):
        statements = ast.parse(_FRAMES[kind].format(indent(text, " ") if kind == "case" else text)).body
        match kind, statements[0]:
            case "statement", _:
                return statements
            case "expression", ast.Expr(ast.Call(args=[node], keywords=[])):
                return [node]
            case "keyword", ast.Expr(ast.Call(args=[], keywords=[node])):
                return [node]
            case "item", ast.Expr(ast.Dict(keys=[_, *_]) as node):
                return [node]
            case "except", ast.Try(handlers=[node], orelse=[], finalbody=[]):
                return [node]
            case "case", ast.Match(cases=[node]):
                return [node]
    return []


def _write(nodes: list[Any]) -> str:
    """Return nodes as text that is the same for the same syntax."""
    return "\n".join(ast.unparse(node).strip() for node in nodes)


def _edit_parts(change: Change, block: ast.Module) -> Iterator[Callable[[], None]]:
    kinds = [kind for kind in _FRAMES if _read(change.part, kind) and (not change.by or _read(change.by, kind))]
    if not kinds:
        raise DoesNotApply(f"{change} does not quote parts of a Python program")
    if change.by and "expression" in kinds:
        kinds = [kind for kind in kinds if kind != "statement"]
    for kind in kinds:
        quoted = _read(change.part, kind)
        pattern = re.compile(re.escape(_write(quoted)).replace(r"\.\.\.", "(.*)"), re.DOTALL)
        for nodes, put in _places(block, kind, quoted, can_drop=not change.by):
            if list(map(type, nodes)) == list(map(type, quoted)) and (found := pattern.fullmatch(_write(nodes))):
                yield partial(_make, put, change.by, kind, found.groups())


def _make(put: _Put, text: str, kind: str, held: tuple[str, ...]) -> None:
    put(_fill(text, kind, held) if text else [])


def _fill(text: str, kind: str, held: tuple[str, ...]) -> list[Any]:
    pieces = _write(_read(text, kind)).split("...")
    if len(pieces) > 1:
        if len(pieces) != len(held) + 1:
            raise DoesNotApply(f"there are not as many `...` in {text!r} as in what it replaces")
        text = "".join(piece + between for piece, between in zip(pieces, (*held, ""), strict=True))
    return _read(text, kind)


def _places(block: ast.Module, kind: str, quoted: list[Any], *, can_drop: bool) -> Iterator[tuple[list[Any], _Put]]:
    """Yield nodes that may be the quoted part, each with what puts others in their place."""
    first = type(quoted[0])
    for parent in ast.walk(block):
        if kind == "item":
            yield from _items(parent)
            continue
        for field, value in ast.iter_fields(parent):
            if type(value) is first and not can_drop:
                yield [value], partial(_put_in_field, parent, field)
            elif isinstance(value, list) and not (can_drop and _keeps_elements(parent, field, kind)):
                for at in (at for at, node in enumerate(value) if type(node) is first):
                    yield value[at : at + len(quoted)], partial(_put_in_list, value, at, len(quoted))
        if isinstance(parent, ast.BoolOp) and isinstance(quoted[0], ast.BoolOp):
            yield from _operands(parent, len(quoted[0].values))


def _keeps_elements(parent: ast.AST, field: str, kind: str) -> bool:
    return field not in _LISTS[kind] or isinstance(parent, ast.Dict | ast.JoinedStr)


def _items(parent: ast.AST) -> Iterator[tuple[list[Any], _Put]]:
    if isinstance(parent, ast.Dict):
        for at, (key, value) in enumerate(zip(parent.keys, parent.values, strict=True)):
            yield [ast.Dict([key], [value])], partial(_put_item, parent, at)


def _operands(parent: ast.BoolOp, count: int) -> Iterator[tuple[list[Any], _Put]]:
    for at in range(len(parent.values) - count + 1) if count < len(parent.values) else ():
        some = ast.BoolOp(parent.op, parent.values[at : at + count])
        yield [some], partial(_put_in_list, parent.values, at, count)


def _put_in_list(nodes: list[Any], at: int, count: int, others: list[Any]) -> None:
    nodes[at : at + count] = others


def _put_in_field(parent: ast.AST, field: str, others: list[Any]) -> None:
    setattr(parent, field, others[0])


def _put_item(parent: ast.Dict, at: int, others: list[Any]) -> None:
    parent.keys[at : at + 1] = [key for each in others for key in each.keys]
    parent.values[at : at + 1] = [value for each in others for value in each.values]


# Words of strings


def _edit_words(change: Change, block: ast.Module) -> Iterator[Callable[[], None]]:
    inside = {part for node in ast.walk(block) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(block):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            for text in _replace_words(node.value, change.part, change.by):
                yield partial(setattr, node, "value", text)
        elif isinstance(node, ast.JoinedStr):
            values: dict[str, ast.AST] = {}
            text = _mark_values(node, values)
            by = _mark_values(_read_f_string(change.by), values)
            for changed in _replace_words(text, _mark_values(_read_f_string(change.part), values), by):
                yield partial(setattr, node, "values", _unmark_values(changed, values))


def _replace_words(text: str, words: str, by: str) -> Iterator[str]:
    """Yield the text once for each time that it has the words, with this one replaced."""
    end = "" if by else r"\s*"
    for found in re.finditer(r"\s+".join(map(re.escape, words.split())) + end, text):
        yield text[: found.start()] + by + text[found.end() :]


def _read_f_string(text: str) -> ast.JoinedStr:
    """Read words with values in braces. Words with other braces are read as they are."""
    with suppress(SyntaxError):
        read: Any = ast.parse(f'rf"""{text}."""', mode="eval").body  # the full stop: else a quote at the end ends all
        read.values[-1].value = read.values[-1].value[:-1]
        return read
    return ast.JoinedStr([ast.Constant(text)])


def _mark_values(string: ast.JoinedStr, values: dict[str, ast.AST]) -> str:
    """Return a text in which a character of no alphabet stands for each value, the same for the same value."""
    text = ""
    for part in string.values:
        if isinstance(part, ast.Constant):
            text += part.value
        else:
            known = {_write([ast.JoinedStr([each])]): mark for mark, each in values.items()}
            mark = known.get(_write([ast.JoinedStr([part])]), chr(0xE000 + len(values)))
            values[mark] = part
            text += mark
    return text


def _unmark_values(text: str, values: dict[str, ast.AST]) -> list[ast.AST]:
    pieces = re.split("([\ue000-\uf8ff])", text)
    return [values.get(piece) or ast.Constant(piece) for piece in pieces if piece]
