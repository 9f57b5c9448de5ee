"""The guide: every recommendation has a measured reason, whose numbers are those of the committed
rows, read here by hand.
"""

import json
from pathlib import Path
from statistics import mean

import pytest
from study_cases import RESULTS, committed_results

from ropewalk.errors import RopeError
from ropewalk_lab import analysis
from ropewalk_lab.guide import EVIDENCE, evidence
from ropewalk_lab.studies.rows import row

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not RESULTS.is_dir(), reason="results/ is not part of an installation"
)


@pytest.fixture(scope="module")
def measured():
    return evidence(committed_results())


def values(run: str, metric: str = "loss", **fields) -> list[float]:
    """Every value of the rows of a run that have these fields."""
    lines = (RESULTS / run / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["metric"] == metric]
    found = [
        v for row in rows if all(row.get(k) == v for k, v in fields.items()) for v in row["values"]
    ]
    assert found, (run, metric, fields)
    return found


def loss(run: str, **fields) -> str:
    return f"{mean(values(run, **fields)):.3f}"


def minus(run: str, a: dict, b: dict) -> str:
    return f"{mean(values(run, **a)) - mean(values(run, **b)):+.3f} ±"


def bases() -> list[float]:
    """The bases of the models that were asked for pass keys."""
    lines = (RESULTS / "h200_passkey" / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return sorted({json.loads(line)["base"] for line in lines})


def real_keys(method: str) -> list[str]:
    """The share of pass keys that SmolLM2 found at lengths within and beyond 8,192."""
    lengths = ((2000, 4000, 7800), (12000, 16000, 24000, 31000))
    found = (
        [v for n in some for v in values("h200_real_passkey", "found", method=method, length=n)]
        for some in lengths
    )
    return [f"{mean(each):.0%}" for each in found]


def numbers_by_hand() -> dict[str, list[str]]:
    """Use -> the texts that its measured reason must contain, in this order."""
    base, four = {"length": 256}, {"factor": 4, "length": 1024}
    found = [
        f"{mean(values('h200_passkey', 'found', base=b, method='none', length=n)):.1%}"
        for b in bases()
        for n in (256, 512)
    ]
    return {
        "short text": [
            loss("h200_base", base=10_000.0, **base),
            *(
                minus("h200_base", {"base": b, **base}, {"base": 10_000.0, **base})
                for b in (100.0, 100_000.0)
            ),
        ],
        "long documents, new model": [
            *(loss("h200_base", base=b, length=512) for b in (10_000.0, 100_000.0)),
            loss("h200_encodings_512", model="rope", length=512),
        ],
        "long documents, trained model, no fine-tuning": [
            *(
                loss("h200_extend", method=m, tuned=0, **four)
                for m in ("dynamic_yarn", "none", "linear")
            ),
            *(
                loss("h200_extend", method=m, tuned=0, factor=16, length=256)
                for m in ("dynamic_yarn", "yarn")
            ),
            *(
                share
                for m in ("dynamic_yarn", "dynamic", "yarn", "rerope")
                for share in real_keys(m)
            ),
        ],
        "long documents, trained model, fine-tuning": [
            loss("h200_extend", method="yarn", tuned=40, **four),
            *(
                minus(
                    "h200_extend",
                    {"method": m, "tuned": 40, **four},
                    {"method": "yarn", "tuned": 40, **four},
                )
                for m in ("none", "linear")
            ),
        ],
        "code and retrieval": [
            *found,
            *(
                f"{values('cpu_precision', 'error', way=way, position=131_072)[0]:.1e}"
                for way in ("exact", "hf")
            ),
            *(
                f"{mean(values('h200_real_precision', 'kl', rotation=r, dtype='bfloat16', length=8192, offset=0)):.2e}"  # noqa: E501
                for r in ("ropewalk", "transformers")
            ),
        ],
        "images and other grids": [
            f"{1 - mean(values('h200_multimodal', 'wrong', model=m, side=16)):.1%}"
            for m in ("rope_2d", "rope")
        ],
        "any length, with attention limited to a window": [
            *(
                loss("h200_encodings", model=m, length=4096)
                for m in ("rope, sliding window", "rope")
            ),
            loss("h200_encodings", model="rope", length=256),
        ],
        "a norm of q and k": [
            f"{max(values('h200_norms', 'moved', norm='LayerNorm before')):.0e}",
            f"{max(values('h200_norms', 'moved', norm='LayerNorm after')):.1f}",
            *(
                loss("h200_norms", norm=name, length=512)
                for name in ("LayerNorm before", "LayerNorm after", "none")
            ),
        ],
    }


@pytest.mark.parametrize("use", EVIDENCE)
def test_the_numbers_of_the_guide_are_computed_from_the_rows(use, measured):
    at = 0
    for number in numbers_by_hand()[use]:
        assert number in measured[use][at:], (number, measured[use])
        at = measured[use].index(number, at) + len(number)


def test_every_entry_of_the_guide_has_evidence():
    assert [use.use for use in analysis.GUIDE] == list(EVIDENCE) == list(numbers_by_hand())


def test_the_guide_recommends_what_has_the_lower_loss_in_the_rows():
    """Check from the rows the sign of each comparison on which the guide rests."""

    def at(run, metric="loss", **fields):
        return mean(values(run, metric, **fields))

    extend = {"run": "h200_extend", "factor": 4, "length": 1024}
    assert at("h200_base", base=10_000.0, length=256) < at("h200_base", base=100.0, length=256)
    assert at("h200_encodings_512", model="rope", length=512) < min(
        at("h200_base", base=b, length=512) for b in (1e4, 1e5)
    )
    assert at(**extend, method="dynamic_yarn", tuned=0) < min(
        at(**extend, method=m, tuned=0) for m in ("none", "linear", "ntk")
    )
    assert at(**extend, method="yarn", tuned=40) < min(
        at(**extend, method=m, tuned=40) for m in ("none", "linear", "ntk")
    )
    window = at("h200_encodings", model="rope, sliding window", length=4096)
    assert window < at("h200_encodings", model="rope", length=4096)
    grids = [at("h200_multimodal", "wrong", model=m, side=16) for m in ("rope_2d", "rope")]
    assert grids[0] < grids[1]
    near = {
        base: at("h200_passkey", "found", base=base, method="none", length=256) for base in bases()
    }
    assert near[10_000.0] == max(near.values()), "a larger base for retrieval was withdrawn"


def test_the_guide_gives_pass_keys_found_with_each_base():
    shares = {10_000.0: (0.9, 0.2), 500_000.0: (0.5, 0.1)}
    keys = [
        row("found", share, base=base, method="none", length=length, seed=0)
        for base, both in shares.items()
        for length, share in zip((256, 512), both, strict=True)
    ]
    errors = [
        row("error", value, way=way, position=131_072)
        for way, value in (("exact", 1e-8), ("hf", 1e-3))
    ]
    case = {"dtype": "bfloat16", "length": 8192, "offset": 0}
    real = [
        row("kl", value, rotation=name, **case)
        for name, value in (("ropewalk", 1e-4), ("transformers", 1e-3))
    ]
    kinds = [
        row("loss", [mean, mean], frequencies=name, text=text, length=length, seed=seed)
        for text, shift in (("stdlib", 0.0), ("prose", 9.0))
        for name, means in (("geometric", (2.0, 3.0)), ("linear", (2.5, 2.75 + shift)))
        for length, mean in zip((64, 512), means, strict=True)
        for seed in (0, 1)
    ]
    sentence = EVIDENCE["code and retrieval"][1](keys, errors, real, kinds)
    assert "differ in loss by +0.500 ± 0.000 at 64 and -0.250 ± 0.000 at 512" in sentence
    assert "base 10,000 90.0% and 20.0%, base 500,000 50.0% and 10.0%;" in sentence


def test_missing_runs_are_named(measured):
    with pytest.raises(RopeError, match=r"runs that the guide cites.*h200_base"):
        evidence({})


def test_the_page_shows_the_measured_reasons(measured):
    page = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
    assert [text for text in measured.values() if f"| {text} (" not in page] == []
