"""Generate mutants of a Python file: copies that differ from it in one small, behaviour-changing way.

Each mutant replaces one piece of source text, so that everything around it stays as it is. Left alone is what no test
could tell: docstrings, annotations, texts of messages, and what an f-string or a `raise` says.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lawfiles import PARTS

_WORD = re.compile(r"[A-Za-z0-9_.+:/-]{1,24}")  # a text that a program compares, not one that a person reads
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file: the function that it stands in, the line (from 1), the text before and after.

    `lines` are the whole lines that the change is in, before and after it; `source` is the whole file with the change
    made.
    """

    file: str
    function: str
    line: int
    before: str
    after: str
    lines: tuple[str, str]
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names a mutant without its line number, which any other change of the file moves. By its whole lines:
        a function may hold the same number more than once."""
        return self.file, self.function, *self.lines

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: `{self.before}` -> `{self.after}`"


def sample(file: Path, name: str, count: int, seed: int) -> list[Mutant]:
    """Choose `count` mutants of a file at random (all where it has fewer): the same for the same seed and text."""
    every = list(mutants(file.read_text(encoding="utf-8"), name))
    return random.Random(f"{seed} {name}").sample(every, min(count, len(every)))


def mutants(source: str, name: str) -> Iterator[Mutant]:
    """Give each mutant of a file's text, or of those of its functions that PARTS names, in order of place."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    raw = source.encode()
    for function, node, replacement in _changes(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = raw[begin:end].decode()
        text = raw[:begin] + replacement.encode() + raw[end:]
        if before != replacement and function in PARTS.get(name, (function,)):
            last = starts[node.end_lineno or node.lineno]
            whole = (raw[starts[node.lineno - 1] : last], text[starts[node.lineno - 1] : last + len(text) - len(raw)])
            around = (_flat(whole[0].decode()), _flat(whole[1].decode()))
            yield Mutant(name, function, node.lineno, _short(before), _short(replacement), around, text.decode())


def _flat(text: str) -> str:
    return " ".join(text.split())


def _short(text: str) -> str:
    flat = _flat(text)
    return flat if len(flat) <= 100 else f"{flat[:97]}..."


_Place = ast.expr | ast.stmt


def _changes(tree: ast.Module) -> Iterator[tuple[str, _Place, str]]:
    """Each change as the function around it, the node that is replaced, and the text that replaces it."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, _Place, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.expr | ast.stmt):
            for replacement in _replacements(node):
                yield function, node, replacement
        for child in _inside(node):
            yield from visit(child, function)

    return visit(tree, "")


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node in which a change can be told."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Import() | ast.ImportFrom() | ast.Assert():
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None))
            yield from _without_docstring(node.body)
        case ast.ClassDef():
            yield from _without_docstring(node.body)
        case ast.Module():
            yield from (each for each in _without_docstring(node.body) if not _is_type_alias(each))
        case ast.AnnAssign():
            yield from [node.value] if node.value is not None else []
        case _:
            yield from ast.iter_child_nodes(node)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    return [each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]


def _is_type_alias(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp(op=ast.BitOr())):
            return name[:1].isupper() and not name.isupper()
        case _:
            return False


def _replacements(node: _Place) -> Iterator[str]:  # noqa: PLR0912 - a table, one row for each kind of node
    """The texts that may stand in a node's place, each of another meaning."""
    match node:
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield from (str(value + 1), str(value - 1)) if value else ("1",)
        case ast.Constant(value=str() as value) if _WORD.fullmatch(value):
            yield repr(f"{value}?")
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for other in _COMPARISONS.get(type(op), ()):
                yield _in_brackets(ast.Compare(left, [other()], [right]))
        case ast.Compare(left=left, ops=[first, second], comparators=[middle, right]):
            for other in _COMPARISONS.get(type(first), ())[:1]:
                yield _in_brackets(ast.Compare(left, [other(), second], [middle, right]))
            for other in _COMPARISONS.get(type(second), ())[:1]:
                yield _in_brackets(ast.Compare(left, [first, other()], [middle, right]))
        case ast.BoolOp(op=op, values=values):
            yield _in_brackets(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
            for value in values:
                rest = [each for each in values if each is not value]
                yield _in_brackets(rest[0] if len(rest) == 1 else ast.BoolOp(op, rest))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _in_brackets(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield _in_brackets(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield _in_brackets(ast.BinOp(left, _ARITHMETIC[type(op)](), right))
        case ast.IfExp(body=body, orelse=orelse):
            yield _in_brackets(body)
            yield _in_brackets(orelse)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _FUNCTIONS:
            yield _in_brackets(ast.Call(ast.Name(_FUNCTIONS[name]), args, keywords))
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "return None"
        case ast.Return(value=ast.Constant(value=None)) | ast.Return(value=None):
            pass
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"
        case ast.Raise() | ast.Expr() | ast.AugAssign() | ast.Delete():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case _:
            pass


def _in_brackets(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"
