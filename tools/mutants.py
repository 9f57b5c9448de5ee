"""Mutants of a module: copies with one small change of an operator, constant, name, call or
statement.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
#: names that are exchanged for each other: functions, methods, and choices of the package
TWINS = [
    ("cos", "sin"),
    ("floor", "ceil"),
    ("min", "max"),
    ("amin", "amax"),
    ("any", "all"),
    ("half", "interleaved"),
    ("exact", "hf"),
    ("qk", "q"),
    ("shared", "per_axis"),
    ("layout_in", "layout_out"),
    ("ones", "zeros"),
    ("first", "second"),
]
TWIN = {a: b for pair in TWINS for a, b in (pair, pair[::-1])}
#: twins that are exchanged only as texts: a variable of the other name rarely exists, and a mutant
#: that raises a NameError shows nothing about the tests
ONLY_TEXTS = ("qk", "q")
#: functions whose first two arguments are not exchanged: the result would be the same, or the call
#: would only raise an error (`isinstance`, `getattr`)
NOT_EXCHANGED = (
    "transpose",
    "promote_types",
    "min",
    "max",
    "minimum",
    "maximum",
    "isinstance",
    "getattr",
)
#: keywords that change nothing on a machine without a GPU
NOT_DROPPED = ("device",)


@dataclass(frozen=True)
class Mutant:
    """One change: the statement before and after it, and the source of the changed module."""

    module: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n    - {self.before}\n    + {self.after}"


def mutants(module: str, source: str, choose: Callable[[list], list] = list) -> list[Mutant]:
    """Return the mutants of a module that `choose` picks: it gets the list of all of them, each as
    (line, before, after), and returns a part of it.
    """
    tree = ast.parse(source)
    made: dict[tuple[int, str, str], Change] = {}
    for statement, change in _changes(tree):
        before = _header(statement)
        undo = change()
        after = _header(statement)
        undo()
        if before != after:
            # two changes of one statement may give the same text
            made.setdefault((statement.lineno, before, after), change)
    # only now, because writing a whole module takes long
    return [Mutant(module, *key, _text(tree, made[key])) for key in choose(list(made))]


def _text(tree: ast.Module, change: Change) -> str:
    """Return the source of the module with one change; the tree is the same afterwards."""
    undo = change()
    text = ast.unparse(tree)
    undo()
    return text


#: changes the tree and returns the function that undoes it
Change = Callable[[], Callable[[], None]]


def _changes(tree: ast.Module) -> Iterator[tuple[ast.stmt, Change]]:
    """Yield every change of a module, with the statement that it changes."""
    for statement in _statements(tree.body):
        for change in _statement_changes(statement):
            yield statement, change
        for node in _expressions(statement):
            for change in _expression_changes(node):
                yield statement, change


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements, also those in blocks, except docstrings, imports, `__all__`, and the
    blocks of `except` and `case`.
    """
    for statement in body:
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if (
            docstring
            or isinstance(statement, ast.Import | ast.ImportFrom)
            or _assigns_all(statement)
        ):
            continue
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, name, []))


def _assigns_all(statement: ast.stmt) -> bool:
    """Return whether a statement sets `__all__`."""
    return isinstance(statement, ast.Assign) and "__all__" in map(ast.unparse, statement.targets)


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, without its block, annotations, decorators, base classes
    and what it raises.
    """
    skipped = {
        "body",
        "orelse",
        "finalbody",
        "handlers",
        "annotation",
        "returns",
        "decorator_list",
        "bases",
        "exc",
    }
    for name, value in ast.iter_fields(statement):
        if name in skipped:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.arguments):  # of a function: only the default values
                for default in [*child.defaults, *filter(None, child.kw_defaults)]:
                    yield from _walk(default)
            elif isinstance(child, ast.AST):
                yield from _walk(child)


def _walk(node: ast.AST) -> Iterator[ast.expr]:
    """Yield a node and its descendants, without messages: f-strings and the arguments of an error."""
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Call) and ast.unparse(node.func) == "RopeError"
    ):
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _header(statement: ast.stmt) -> str:
    """Return the code of a statement in one line; that of a compound statement without its block."""
    lines = ast.unparse(statement).splitlines()
    decorators = len(getattr(statement, "decorator_list", []))
    return lines[decorators] if len(lines) > decorators else lines[0]


def _set(node: ast.AST, **values: object) -> Change:
    """Return the change that sets attributes of a node."""

    def write(attributes: dict[str, object]) -> None:
        for name, value in attributes.items():
            setattr(node, name, value)

    def change():
        old = {name: getattr(node, name) for name in values}
        write(values)
        return lambda: write(old)

    return change


def _become(node: ast.AST, other: ast.AST) -> Change:
    """Return the change that makes `node` a copy of `other`, in place, so that its parent need not
    be known.
    """
    other = copy.deepcopy(other)

    def change():
        """Give the node the class and the attributes of the other, and return the function that
        undoes it.
        """
        old_class, old_attributes = node.__class__, dict(node.__dict__)
        node.__class__, node.__dict__ = other.__class__, {**old_attributes, **other.__dict__}

        def undo():
            node.__class__, node.__dict__ = old_class, old_attributes

        return undo

    return change


def _statement_changes(statement: ast.stmt) -> Iterator[Change]:
    """Yield the changes of a statement: return None, do nothing, another operator, the opposite
    condition.
    """
    if (
        isinstance(statement, ast.Return)
        and statement.value is not None
        and not _is_none(statement.value)
    ):
        yield _set(statement, value=ast.Constant(None))
    if isinstance(statement, ast.Raise | ast.Expr | ast.AugAssign):
        yield _become(statement, ast.Pass())
    if isinstance(statement, ast.AugAssign):
        yield from _operator_changes(statement)
    if isinstance(statement, ast.If | ast.While):
        yield _set(statement, test=ast.UnaryOp(ast.Not(), statement.test))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _operator_changes(node: ast.BinOp | ast.AugAssign) -> Iterator[Change]:
    if other := ARITHMETIC.get(type(node.op)):
        yield _set(node, op=other())


def _expression_changes(node: ast.expr) -> Iterator[Change]:
    """Yield the changes of an expression: other operators, values and names, operands left out,
    arguments exchanged.
    """
    match node:
        case ast.BinOp():
            yield from _operator_changes(node)
        case ast.Compare():
            for i, op in enumerate(node.ops):
                for other in COMPARISONS[type(op)]:
                    yield _set(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])
        case ast.BoolOp():
            yield _set(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
            for i in range(len(node.values)):
                kept = node.values[:i] + node.values[i + 1 :]
                yield _become(node, kept[0]) if len(kept) == 1 else _set(node, values=kept)
        case ast.UnaryOp():
            yield _become(node, node.operand)
        case ast.IfExp():
            yield _become(node, node.body)
            yield _become(node, node.orelse)
        case ast.Constant():
            yield from (_set(node, value=value) for value in _other_values(node.value))
        case ast.Name(id=name) if name in ONLY_TEXTS:
            return
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in TWIN and isinstance(
            node.ctx, ast.Load
        ):
            yield _set(node, **{"id" if isinstance(node, ast.Name) else "attr": TWIN[name]})
        case ast.Call():
            yield from _call_changes(node)
        case ast.Tuple(elts=[first, second]) if isinstance(node.ctx, ast.Load):
            yield _set(node, elts=[second, first])


def _other_values(value: object) -> Iterator[object]:
    """Yield the values that replace a constant."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        yield value * 2 if value else 1.0
    elif isinstance(value, str) and value in TWIN:
        yield TWIN[value]


def _call_changes(node: ast.Call) -> Iterator[Change]:
    """Yield the changes of a call: its first two arguments exchanged, a keyword left out, a method
    without arguments left out.
    """
    plain = len(node.args) >= 2 and not any(isinstance(arg, ast.Starred) for arg in node.args[:2])
    if plain and ast.unparse(node.func).rpartition(".")[2] not in NOT_EXCHANGED:
        yield _set(node, args=[node.args[1], node.args[0], *node.args[2:]])
    for i, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in NOT_DROPPED:
            yield _set(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])
    if isinstance(node.func, ast.Attribute) and not node.args and not node.keywords:
        yield _become(node, node.func.value)  # x.clone() -> x
