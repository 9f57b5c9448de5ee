"""Formulas as MathML, which browsers draw without a script: a renderer of Sphinx for the part of
LaTeX that the pages use.
"""

# ruff: noqa: RUF001 - the signs of formulas

from __future__ import annotations

import re
from html import escape
from typing import Any

#: commands that stand for one sign: <mi> for a letter, <mo> for an operator
LETTERS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "Delta": "Δ",
    "tau": "τ",
    "zeta": "ζ",
    "theta": "θ",
    "lambda": "λ",
    "phi": "φ",
    "Phi": "Φ",
    "omega": "ω",
    "pi": "π",
    "infty": "∞",
    "ldots": "…",
    "cos": "cos",
    "sin": "sin",
    "log": "log",
    "ln": "ln",
    "max": "max",
    "min": "min",
    "exp": "exp",
    "Re": "Re",
}
SIGNS = {
    "langle": "⟨",
    "rangle": "⟩",
    "cdot": "·",
    "oplus": "⊕",
    "otimes": "⊗",
    "times": "×",
    "le": "≤",
    "ge": "≥",
    "sum": "∑",
    "pm": "±",
    "lceil": "⌈",
    "rceil": "⌉",
    "lfloor": "⌊",
    "rfloor": "⌋",
    "lvert": "|",
    "rvert": "|",
    "leftarrow": "←",
    "bmod": "mod",
    "top": "⊤",
    "quad": "\u2003",
    ",": "\u2009",
}
#: brackets keep the size of the letters, as in LaTeX
BRACKETS = "()[]|⟨⟩⌈⌉⌊⌋"
NO_BREAK = "\u00a0"
TOKEN = re.compile(
    r"\\text\{(?P<text>[^{}]*)\}|\\(?P<command>[A-Za-z]+|,)|(?P<number>\d+(?:[.,]\d+)*)|(?P<letter>[A-Za-z])|(?P<sign>[^\s])"
)


class FormulaError(ValueError):
    """A formula uses a part of LaTeX that is not here."""


def mathml(formula: str, *, block: bool = False) -> str:
    """Return a formula as a <math> element."""
    tokens = list(TOKEN.finditer(formula))
    row, rest = _row(tokens, until=None)
    if rest:
        raise FormulaError(f"a closing brace too many: {formula}")
    display = ' display="block"' if block else ""
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML"{display}>{row}</math>'


def _row(tokens: list[re.Match[str]], until: str | None) -> tuple[str, list[re.Match[str]]]:
    """Return the elements up to the closing brace `until`, in one row, and the tokens after it;
    None: up to the end.
    """
    parts: list[str] = []
    while tokens:
        if tokens[0]["sign"] == "}":
            if until is None:
                return "", tokens  # the caller reports the brace
            return _joined(parts), tokens[1:]
        part, tokens = _atom(tokens)
        parts.append(part)
    if until is not None:
        raise FormulaError("a brace that is not closed")
    return _joined(parts), []


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"


def _atom(tokens: list[re.Match[str]]) -> tuple[str, list[re.Match[str]]]:
    """Return one element with its exponent and index, and the tokens after it."""
    base, tokens = _element(tokens)
    scripts: dict[str, str] = {}
    while tokens and tokens[0]["sign"] in ("_", "^"):
        kind = tokens[0]["sign"]
        scripts[kind], tokens = _element(tokens[1:])
    has_limits = base == f"<mo>{SIGNS['sum']}</mo>"
    lower, upper, both = (
        ("munder", "mover", "munderover") if has_limits else ("msub", "msup", "msubsup")
    )
    if len(scripts) == 2:
        return f"<{both}>{base}{scripts['_']}{scripts['^']}</{both}>", tokens
    for kind, tag in (("_", lower), ("^", upper)):
        if kind in scripts:
            return f"<{tag}>{base}{scripts[kind]}</{tag}>", tokens
    return base, tokens


def _element(tokens: list[re.Match[str]]) -> tuple[str, list[re.Match[str]]]:
    """Return the element that begins with the first token, without exponent and index, and the
    tokens after it.
    """
    if not tokens or tokens[0]["sign"] == "}":
        raise FormulaError("nothing after a command, _ or ^")
    first, rest = tokens[0], tokens[1:]
    if first["sign"] == "\\":
        raise FormulaError("a backslash without a command")
    if first["sign"] == "{":
        return _row(rest, until="}")
    if first["text"] is not None:
        words = escape(first["text"]).replace(" ", NO_BREAK)  # a space at an end would not be drawn
        return f"<mtext>{words}</mtext>", rest
    if first["number"]:
        return f"<mn>{first['number']}</mn>", rest
    if first["letter"]:
        return f"<mi>{first['letter']}</mi>", rest
    if first["sign"]:
        return _sign(first["sign"]), rest
    name = first["command"]
    if name in LETTERS:
        return f"<mi>{LETTERS[name]}</mi>", rest
    if name in SIGNS:
        return _sign(SIGNS[name]), rest
    if name == "frac":
        numerator, rest = _element(rest)
        denominator, rest = _element(rest)
        return f"<mfrac>{numerator}{denominator}</mfrac>", rest
    if name in ("sqrt", "overline", "bar"):
        inner, rest = _element(rest)
        return (
            f"<msqrt>{inner}</msqrt>" if name == "sqrt" else f"<mover>{inner}<mo>‾</mo></mover>"
        ), rest
    raise FormulaError(f"unknown command \\{name}")


def _sign(sign: str) -> str:
    """Return the element of an operator or a bracket."""
    size = ' stretchy="false"' if sign in BRACKETS else ""
    return f"<mo{size}>{escape(sign.replace('-', '−'))}</mo>"


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer with Sphinx."""

    def visitor(block: bool) -> Any:
        """Return the function that writes a formula of Sphinx's tree to the page, inside a line or
        as a block.
        """

        def write(translator: Any, node: Any) -> None:
            """Append the formula to the page; SkipNode says that the node is done."""
            from docutils import nodes

            formula = mathml(node.astext(), block=block)
            # a formula wider than the page scrolls, and the page does not
            translator.body.append(f'<div class="formula">{formula}</div>' if block else formula)
            raise nodes.SkipNode

        return write

    app.add_html_math_renderer("mathml", (visitor(False), None), (visitor(True), None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
