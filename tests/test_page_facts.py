"""What tables and formulas on the pages of the guide state, beside the classes, and beside the
papers they name.
"""

import inspect
import math
import re
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from ropewalk import axes, positions
from ropewalk.encodings import ENCODINGS
from ropewalk.frequencies import SCALINGS, DynamicYarn, LongRope, Yarn
from ropewalk.strategies import memory

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not part of an installation")


def text_of(page):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return text.replace("\N{MINUS SIGN}", "-")


def table_of(page, header):
    """{first cell without marks: the other cells} of the table that begins with these titles."""
    lines = text_of(page).partition(header)[2].partition("\n\n")[0].splitlines()[2:]
    rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    return {cells[0]: cells[1:] for cells in rows}


def names_in(cell):
    return re.findall(r"`(\w+)`", cell)


def test_the_page_of_encodings_says_where_each_of_them_acts():
    rows = table_of("encodings", "| entry point | what happens | encodings |")
    both = {"rope_alibi", "rope_bias"}
    assert set(names_in(rows["input"][1])) == {
        n for n, e in ENCODINGS.items() if e.entry == "input"
    }
    assert set(names_in(rows["qk"][1])) == {"rope", "xpos", "pope", "fope"}
    assert all(ENCODINGS[name].entry == "qk" for name in names_in(rows["qk"][1]))
    scores = {n for n, e in ENCODINGS.items() if e.entry == "scores"} - {"t5_causal"}
    assert set(names_in(rows["scores"][1])) == scores
    assert set(names_in(rows["qk + scores"][1])) == both


#: what the formula of an encoding has, and what is trained, as in its paper
ENCODING_FORMULAS = {
    "learned": ("$x + E_p$, $p < \\text{length}$", "E"),
    "sinusoidal": ("(\\sin p \\omega_i, \\cos p \\omega_i)$, $\\omega_i = 10000^{-2i/D}$", ""),
    "rope": ("rotated by $p \\omega_i$, $\\omega_i = \\theta^{-2i/d}$", ""),
    "rope_learnable": ("$\\omega_i \\exp(\\alpha_i)$", "$\\alpha$"),
    "xpos": ("$\\zeta_i^{(m-n)/512}$, $\\zeta_i = (2i + 0.4d)/(1.4d)$", ""),
    "alibi": ("$-2^{-8h/H} \\lvert m - n \\rvert$", ""),
    "t5": ("32 buckets: one for each small distance, then logarithmic up to 128", "b"),
    "kerple_log": ("$-r_1 \\log(1 + r_2 \\lvert m - n \\rvert)$", "$r_1, r_2 > 0$"),
    "kerple_power": ("$-r_1 \\lvert m - n \\rvert^{r_2}$, $r_2 \\le 2$", "$r_1, r_2 > 0$"),
    "relative_bias": ("$b_{h, m - n}$, clipped to ±(length - 1)", "b"),
    "nezha": ("a is sinusoidal, clipped to ±64", ""),
    "fire": ("\\frac{\\log(1 + c(m - n))}{\\log(1 + c \\max(m, L))}", "f, c, L"),
    "rope_alibi": ("`rope` with `alibi`, `rope` with `relative_bias`", "b"),
}


@pytest.mark.parametrize("name", ENCODING_FORMULAS)
def test_the_page_of_encodings_has_the_formula_of_the_paper(name):
    rows = table_of("encodings", "| name | formula | trained |")
    (cells,) = [cells for key, cells in rows.items() if names_in(key)[:1] == [name]]
    formula, trained = ENCODING_FORMULAS[name]
    assert formula in cells[0]
    assert cells[1] == trained


def magnitude_in(cell):
    """Return the value of a cell's formula for s = 4 and L0 = 32; None if it has no known formula."""
    return {
        "1": 1.0,
        "$0.1 \\ln s + 1$": 0.1 * math.log(4) + 1,
        "$\\sqrt{1 + \\ln s / \\ln L_0}$": math.sqrt(1 + math.log(4) / math.log(32)),
    }.get(cell)


def scaling_of(name):
    cls = SCALINGS[name]
    given = {
        "longrope": lambda: LongRope((1.0,) * 4, (4.0,) * 4, original_length=32, factor=4.0),
        "yarn": lambda: Yarn(factor=4.0, original_length=32),
        "dynamic_yarn": lambda: DynamicYarn(original_length=32),
    }
    return given.get(name, cls)()


def test_the_page_of_scalings_says_which_of_them_have_a_magnitude_and_follow_the_length():
    rows = table_of("scalings", "| name | class | slows | magnitude | length-dependent |")
    assert {names_in(key)[0] for key in rows} == set(SCALINGS)
    for key, (made, _, magnitude, follows) in rows.items():
        name = names_in(key)[0]
        assert made.startswith(f"`{SCALINGS[name].__name__}(")
        wrapped = name in ("clipped", "learned", "learnable", "given", "xpos")
        assert (follows == "yes") == (SCALINGS[name].needs_length and not wrapped)
        if not wrapped:
            try:
                spec = rw.RopeSpec(8, scaling=scaling_of(name))
            except (TypeError, rw.RopeError):
                continue  # this scaling cannot be made without arguments
            found = spec.ladder_frequencies(128).magnitude
            assert magnitude_in(magnitude) == pytest.approx(float(found), rel=1e-6), name
    assert rows["[`xpos`](#xpos)"][2] == "decays with distance"
    assert rows["[`llama3`](#llama3)"][1] == "wavelengths above L₀/4, those beyond L₀ by s"


#: the scalings of the page of formulas: frequencies, magnitude, paper
SCALING_FORMULAS = {
    "position interpolation": ("$\\omega_i / s$", "1", "2306.15595", "Linear(s)"),
    "NTK-aware": ("$(\\theta s^{d/(d-2)})^{-2i/d}$", "1", "bloc97 2023", "Ntk(s)"),
    "dynamic NTK": ("$s L/L_0 - (s - 1)$ for $s$, once $L > L_0$", "1", "§3.3", "Dynamic(s, L0)"),
    "YaRN": (
        "$(1 - \\gamma_i) \\omega_i + \\gamma_i \\omega_i / s$, $\\gamma$ the ramp between 32 turns and 1",
        "$0.1 \\ln s + 1$",
        "2309.00071",
        "Yarn(factor=s, original_length=L0)",
    ),
    "LongRoPE": (
        "$\\omega_i / \\lambda_i$",
        "$\\sqrt{1 + \\ln s / \\ln L_0}$",
        "2402.13753",
        "LongRope(",
    ),
    "Llama 3.1": ("by wavelength", "1", "Meta's code", "Llama3(s, low, high, L0)"),
    "p-RoPE": (
        "$\\omega_i / s$ for the fastest (s = 1 in the paper), 0 for the rest",
        *("1", "2410.06205", "Proportional("),
    ),
    "xPos": (
        "$\\omega_i$",
        "$\\zeta_i^{\\pm m/512}$, $\\zeta_i = \\frac{2i + 0.4 d}{1.4 d}$",
        "2212.10554",
        "XPos()",
    ),
}


@pytest.mark.parametrize("name", SCALING_FORMULAS)
def test_the_page_of_formulas_has_the_scaling_of_its_paper(name):
    rows = table_of("formulas", "| name | ωᵢ becomes | magnitude | where | call |")
    assert set(rows) == set(SCALING_FORMULAS)
    formula, magnitude, paper, call = SCALING_FORMULAS[name]
    cells = rows[name]
    assert formula in cells[0]
    assert cells[1] == magnitude
    assert paper in cells[2]
    assert call in cells[3]


#: numbers of papers on arXiv
PAPERS = {
    "RoFormer": "2104.09864",
    "Qwen2-VL": "2409.12191",
    "ALiBi": "2108.12409",
    "T5": "1910.10683",
    "KERPLE": "2205.09921",
    "NEZHA": "1909.00204",
    "FIRE": "2310.04418",
}


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_has_its_number(name):
    numbers = re.findall(rf"\b{name}(?:,)? \(?arXiv (\d{{4}}\.\d{{5}})", text_of("formulas"))
    assert set(numbers) == {PAPERS[name]}


@pytest.mark.parametrize(
    "line",
    [
        "| $f(q, m) = q e^{i m \\theta}$ | §3.2.1 |",
        "| $\\omega_i = 10000^{-2i/d}$ | §3.2.2 |",
        "| $R_m$, block-diagonal; $R_m^\\top R_n = R_{n-m}$ | §3.2.2 |",
        "| $R_m^{-1} = R_{-m}$ | orthogonality |",
        '(-x_2, x_1, -x_4, x_3, \\ldots) \\otimes \\sin m\\theta$ | §3.4.2 | `layout="interleaved"`',
        '$(-x_{d/2+1}, \\ldots, x_1, \\ldots)$ | GPT-NeoX, transformers | `layout="half"`',
        "| wavelength $2\\pi/\\omega_i$ |",
        "$2 \\lceil \\frac{d}{2} \\log_\\theta \\frac{L_0}{2\\pi} \\rceil$ | arXiv 2310.05209",
        "$\\sum \\cos(m \\omega_i) \\ge 0$ up to the context length | arXiv 2405.14591",
        "{\\sum_j \\phi(q_i)^\\top \\phi(k_j)}$, φ = elu + 1 | RoFormer, §3.3 |",
        "| weights $1 + \\cos(R_i q_i, R_j k_j)$ | Su 2020, kexue.fm/archives/7546 |",
        "| -2^{-8h/H} \\|m - n\\|, h = 1 … H (H a power of two) | ALiBi",
        "buckets of m - n, half exact, half logarithmic",
        "| -r₁ log(1 + r₂ \\|m - n\\|), -r₁ \\|m - n\\|^{r₂} |",
        "MLP of log(c(m - n) + 1)/log(c max(L, m) + 1)",
        "axial 2-D; mixed learned | arXiv 2403.13298",
        "sin and cos of m ωᵢ, added | arXiv 1706.03762, §3.5",
    ],
)
def test_a_formula_of_the_page_is_the_one_of_the_paper(line):
    assert line in text_of("formulas")


def test_the_options_of_linear_attention_have_the_defaults_of_the_page():
    rows = table_of("linear-attention", "| option | default | meaning |")
    parameters = inspect.signature(rw.LinearAttention).parameters
    for name, (default, _) in rows.items():
        option = name.strip("`")
        found = parameters[option].default
        if option == "spec":
            assert (default, found) == ("`RopeSpec(head_dim)`", None)
        else:
            shown = f'"{found}"' if isinstance(found, str) else repr(found)
            assert default.strip("`") == shown, option
    page = text_of("linear-attention")
    assert "a head_dim of up to 128 in bfloat16, and up to 64 in float16 and float32" in page
    assert (
        "Scores are computed only within chunks of 128 tokens (64 or 32 in the GPU kernels)" in page
    )
    assert "128·n·(d + d_v) + 2·n·d·d_v multiplications a head, and memory for n/128" in page
    assert "Before the division every weight is in\n[1 - a, 1 + a], so never below 0" in page


def test_the_picture_of_positions_of_text_with_an_image_is_what_is_computed():
    row = [positions.Text(3), positions.Image(2, 3), positions.Text(2)]
    at, delta = positions.multimodal([row])
    page = text_of("positions")
    for axis, numbers in zip(("time", "height", "width"), at[:, 0].tolist(), strict=True):
        (line,) = re.findall(rf"^{axis}  +([\d ]+?)(?:  +11 tokens.*)?$", page, re.MULTILINE)
        assert [int(number) for number in line.split()] == numbers
    largest = int(at.max())
    said = f"{at.shape[-1]} tokens, largest position {largest}: delta = {largest} + 1 - 11 = "
    assert said + str(int(delta)) in page
    masks = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    counted = " ".join(map(str, positions.left_padded(masks)[0].tolist()))
    assert f"pos    {counted} " in page
    packed = " ".join(map(str, positions.packed(torch.tensor([0, 3, 5, 9])).tolist()))
    assert packed in page
    assert "consecutive(5, offset=3)         3 4 5 6 7" in page


def test_patch_centres_have_the_frequencies_of_dinov3_as_the_page_says():
    page = text_of("positions")
    assert "is 2π · centre ·\n$\\theta^{-4i/d}$ in a head of d dimensions" in page
    spec = rw.RopeSpec(head_dim=16, theta=100.0, axes=axes.normalised(4, 4))
    found = spec.ladder_frequencies().radians
    assert found == pytest.approx([100.0 ** (-4 * i / 16) for i in range(4)] * 2)


@pytest.mark.parametrize("tables", ["auto", "two-level", "full", "none"])
def test_the_bytes_of_tables_are_those_of_the_page(tables):
    rows = table_of("precision", "| `tables=` |")
    (cells,) = [cells for key, cells in rows.items() if names_and_dashes(key) == tables]
    assert int(cells[-1].replace(",", "")) == memory(rw.RopeSpec(128), 131_072)[tables]
    assert "bytes for 131,072 tokens, 64 pairs" in text_of("precision")


def names_and_dashes(cell):
    return re.findall(r'`"([\w-]+)"`', cell)[0]
