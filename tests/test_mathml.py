"""Formulas of the site: the elements that browsers draw, every formula of every page, and what is
refused.
"""

# ruff: noqa: RUF001 - the signs of formulas

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
spec = importlib.util.spec_from_file_location("docs_mathml", DOCS / "mathml.py")
formulas = importlib.util.module_from_spec(spec)
spec.loader.exec_module(formulas)
FENCE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+)\$", re.DOTALL)


def bare(formula: str) -> str:
    return formulas.mathml(formula).replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")


@pytest.mark.parametrize(
    ("formula", "drawn"),
    [
        (r"\omega_i", "<math><msub><mi>ω</mi><mi>i</mi></msub></math>"),
        ("x^{-1}", "<math><msup><mi>x</mi><mrow><mo>−</mo><mn>1</mn></mrow></msup></math>"),
        (r"R_m^\top", "<math><msubsup><mi>R</mi><mi>m</mi><mo>⊤</mo></msubsup></math>"),
        (r"\frac{a}{2}", "<math><mfrac><mi>a</mi><mn>2</mn></mfrac></math>"),
        (
            r"\sqrt{a<b}",
            "<math><msqrt><mrow><mi>a</mi><mo>&lt;</mo><mi>b</mi></mrow></msqrt></math>",
        ),
        ("0.1", "<math><mn>0.1</mn></math>"),
        (
            r"\text{the part <} x",
            "<math><mrow><mtext>the\u00a0part\u00a0&lt;</mtext><mi>x</mi></mrow></math>",
        ),
        (
            "(x)^2",
            (
                '<math><mrow><mo stretchy="false">(</mo><mi>x</mi><msup><mo '
                'stretchy="false">)</mo><mn>2</mn></msup></mrow></math>'
            ),
        ),
        (r"\sum_j a", "<math><mrow><munder><mo>∑</mo><mi>j</mi></munder><mi>a</mi></mrow></math>"),
        (
            r"\sum_j^2 a",
            "<math><mrow><munderover><mo>∑</mo><mi>j</mi><mn>2</mn></munderover><mi>a</mi></mrow></math>",
        ),
        (r"\sum^2 a", "<math><mrow><mover><mo>∑</mo><mn>2</mn></mover><mi>a</mi></mrow></math>"),
        (r"\bar{k}_i", "<math><msub><mover><mi>k</mi><mo>‾</mo></mover><mi>i</mi></msub></math>"),
    ],
)
def test_a_formula_becomes_this_mathml(formula, drawn):
    assert bare(formula) == drawn


@pytest.mark.parametrize(
    "formula",
    ["x}", "{x", r"\unknown", "x^", "{x_}", "\\", r"a \{ b", r"\sqrt", r"\frac{a}", r"\frac"],
)
def test_a_formula_that_is_not_understood_is_refused(formula):
    with pytest.raises(formulas.FormulaError):
        formulas.mathml(formula)


def test_every_formula_of_the_pages_becomes_well_formed_mathml():
    found = [
        (match["block"] or match["inline"])
        for page in DOCS.rglob("*.md")
        if "reference" not in page.parts
        for match in FORMULA.finditer(FENCE.sub("", page.read_text(encoding="utf-8")))
    ]
    assert len(found) > 100
    for formula in found:
        ElementTree.fromstring(formulas.mathml(formula))
