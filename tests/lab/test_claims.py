"""Every claim about the committed rows: the test reads its sentence, finds the rows that it names
in plain JSON, and computes the numbers and the verdict beside it a second time.
"""

import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest
from study_cases import RESULTS, committed_results

pytestmark = pytest.mark.skipif(
    not RESULTS.is_dir(), reason="results/ is not part of an installation"
)
RUNS = sorted(file.parent.name for file in RESULTS.glob("*/study.json"))
#: deviation of the loss between two trainings that differ in the seed alone
SEEDS = 0.015
HOLDS, TIED, FAILS = "holds", "within noise", "does not hold"


class Measured:
    """The rows of a run, without a function of the lab."""

    def __init__(self, run):
        text = (RESULTS / run / "rows.jsonl").read_text(encoding="utf-8")
        self.rows = [json.loads(line) for line in text.splitlines()]
        self.facts = json.loads((RESULTS / run / "study.json").read_text(encoding="utf-8"))

    def lines(self, metric, **fields):
        """The rows of a metric with these fields; there is at least one."""
        found = [r for r in self.rows if r["metric"] == metric and fields.items() <= r.items()]
        assert found, (metric, fields)
        return found

    def all(self, metric, field):
        """The values of a field in order of size."""
        return sorted({row[field] for row in self.rows if row["metric"] == metric})

    def values(self, metric, **fields):
        """Values [seeds, windows]; what differs in a further field, such as the depth, is joined."""
        by_seed = {}
        for row in self.lines(metric, **fields):
            by_seed.setdefault(row.get("seed", 0), []).extend(row["values"])
        return np.array([by_seed[seed] for seed in sorted(by_seed)])


def error(values):
    """The standard error of the mean: over windows and over seeds, as far as there are several."""
    seeds, windows = values.shape
    squares = values.mean(0).var(ddof=1) / windows if windows > 1 else 0.0
    return math.sqrt(squares + (values.mean(1).var(ddof=1) / seeds if seeds > 1 else 0.0))


def ascending(*named, floor):
    """The verdict and the evidence of scores that rise, given as (name, values)."""
    verdicts, texts = [], []
    noise = SEEDS * math.sqrt(2) if floor and any(len(v) == 1 for _, v in named) else 0.0
    for (one, low), (other, high) in pairwise(named):
        gap, spread = (low - high).mean(), math.hypot(error(low - high), noise)
        verdicts.append(0 if abs(gap) <= 2 * spread else math.copysign(1, gap))
        texts.append(f"{one} minus {other}: {gap:+.3f} ± {spread:.3f}")
    verdict = FAILS if 1 in verdicts else TIED if 0 in verdicts else HOLDS
    return verdict, "; ".join(texts)


def limited(size, spread, limit):
    """The verdict on a value that is at most the limit, with two standard errors of margin."""
    if size + 2 * spread <= limit + 1e-9:
        return HOLDS
    return FAILS if size - 2 * spread > limit else TIED


def within(one, other, limit, *, sided):
    """The verdict and the evidence of a difference: its size is limited, or (sided) its excess."""
    gap, spread = (one - other).mean(), error(one - other)
    verdict = limited(gap if sided else abs(gap), spread, limit)
    form = "+g" if sided else "g"
    return verdict, f"difference {gap:+.3f} ± {spread:.3f}, limit {limit:{form}}"


def short(count):
    """4096 as 4k."""
    return f"{count // 1024}k" if count % 1024 == 0 and count else str(count)


def order_at_trained_length(rows, length, order):
    assert int(length) == rows.all("loss", "length")[0]
    names = order.split(", ")
    assert names == ["rope", "alibi", "sinusoidal", "none"]
    named = [(n, rows.values("loss", model=n, length=int(length))) for n in names]
    return ascending(*named, floor=True)


def alibi_stays(rows, far, limit, near):
    assert int(near) == rows.all("loss", "length")[0] == int(far) // 4
    at = {n: rows.values("loss", model="alibi", length=int(n)) for n in (near, far)}
    return within(at[far], at[near], float(limit), sided=True)


def alibi_beyond(rows, far):
    assert int(far) == 4 * rows.all("loss", "length")[0]
    named = [(n, rows.values("loss", model=n, length=int(far))) for n in ("alibi", "rope")]
    return ascending(*named, floor=True)


WINDOW = "rope, sliding window"


def flat(rows, window, near, far):
    trained = rows.all("loss", "length")[0]
    assert (int(window), int(near), int(far)) == (trained, 2 * trained, 4 * trained)
    at = {n: rows.values("loss", model=WINDOW, length=int(n)) for n in (near, far)}
    return within(at[far], at[near], 0.05, sided=False)


def no_worse(rows, far, near):
    assert int(near) == rows.all("loss", "length")[0] == int(far) // 4
    ours = rows.values("loss", model=WINDOW, length=int(far))
    return within(ours, rows.values("loss", model="rope", length=int(near)), 0.05, sided=True)


def extended(rows, method, factor, **fields):
    """The loss of a method at the length that its factor is for."""
    (trained,) = {row["length"] for row in rows.lines("loss", factor=1)}
    return rows.values("loss", method=method, factor=factor, length=factor * trained, **fields)


def order_zero_shot(rows, factor, order):
    names = order.replace(" (no scaling)", "").split(", ")
    assert sorted(names) == ["linear", "none", "ntk", "yarn"]
    named = [(name, extended(rows, name, int(factor), tuned=0)) for name in names]
    return ascending(*named, floor=False)


def a_little_training(rows, factor, scaling, read):
    assert factor == read
    method = {"no scaling": "none"}.get(scaling, scaling)
    steps = max(rows.all("loss", "tuned"))
    named = [
        (name, extended(rows, method, int(factor), tuned=tuned))
        for name, tuned in (("tuned", steps), ("zero-shot", 0))
    ]
    return ascending(*named, floor=False)


def searched(rows, factor):
    named = [(name, extended(rows, name, int(factor), tuned=0)) for name in ("longrope", "yarn")]
    return ascending(*named, floor=False)


def dynamic_is_unchanged(rows, length):
    largest = rows.all("loss", "factor")[-1]
    dynamic = rows.values("loss", method="dynamic_yarn", factor=largest, length=int(length))
    unchanged = rows.values("loss", method="none", factor=1, length=int(length))
    return within(dynamic, unchanged, 0.001, sided=False)


def dynamic_is_lower(rows, length, factor):
    assert int(factor) == rows.all("loss", "factor")[-1]
    named = [
        (name, rows.values("loss", method=name, factor=int(factor), length=int(length), tuned=0))
        for name in ("dynamic_yarn", "yarn")
    ]
    return ascending(*named, floor=False)


def variants(rows, length, text, one, other):
    """Bases, or kinds of frequencies on a text."""
    lengths = rows.all("loss", "length")
    assert int(length) in (lengths[0], lengths[-1])

    def values(name):
        if name.startswith("base "):
            return rows.values("loss", base=float(name[5:].replace(",", "")), length=int(length))
        source = {"code": "stdlib", "prose": "prose"}[text]
        return rows.values("loss", frequencies=name, text=source, length=int(length))

    return ascending((one, values(one)), (other, values(other)), floor=True)


def shift_of_logits(rows, changes, norm):
    largest = rows.values("moved", norm=norm).max()
    is_claimed = changes == "changes"
    assert is_claimed == (norm.endswith("after") or norm == "norm not kept")
    verdict = HOLDS if (largest >= 1e-3) == is_claimed else FAILS
    return verdict, f"{largest:.1e}, threshold 0.001"


def norms(rows, length, one, other):
    assert int(length) == rows.all("loss", "length")[0]
    named = [(n, rows.values("loss", norm=n, length=int(length))) for n in (one, other)]
    return ascending(*named, floor=True)


def pass_keys(rows, length, percent, base):
    theta = float(base.replace(",", ""))
    assert int(length) == rows.all("found", "length")[0]
    found = rows.values("found", base=theta, method="none", length=int(length))
    share, spread = found.mean(), math.sqrt(max(found.var(), 1 / found.size) / found.size)
    verdict = limited(1 - share, spread, 1 - int(percent) / 100)
    return verdict, f"{share:.1%} ± {spread:.1%} of {found.size}"


def stages(rows, one, length, other, shorter):
    lengths = {row["stage"]: row["trained"] for row in rows.rows}
    assert int(length) == lengths[int(one)] == max(lengths.values())
    assert int(shorter) == lengths[int(other)]
    assert abs(int(one) - int(other)) == 1
    pairs = ((one, length), (other, shorter))
    named = [(s, rows.values("loss", stage=int(s), length=int(n))) for s, n in pairs]
    return ascending(*named, floor=False)


def longer_is_lower(rows):
    last = rows.all("loss", "stage")[-1]
    named = [
        (str(length), rows.values("loss", stage=last, length=length))
        for length in reversed(rows.all("loss", "length"))
    ]
    return ascending(*named, floor=False)


def reading(rows, long, less):
    named = [
        (f"error at {cut}", rows.values("wrong", cut=int(cut), encoding="rope"))
        for cut in (long, less)
    ]
    return ascending(*named, floor=True)


def matching(rows, cut):
    assert int(cut) == rows.all("wrong", "cut")[0]
    named = [
        (f"error of {name}", rows.values("wrong", cut=int(cut), encoding=name))
        for name in ("rope", "learned")
    ]
    return ascending(*named, floor=True)


def attention(rows, *names):
    """The losses of kinds of attention at the trained length."""
    near = rows.all("loss", "length")[0]
    return ascending(*[(n, rows.values("loss", model=n, length=near)) for n in names], floor=True)


def migrated(rows, steps, place, other):
    near, far = rows.all("loss", "length")
    length = near if place is None else int(place)
    assert length in (near, far)
    assert int(steps) == rows.all("loss", "steps")[-1]
    names = {"RoPE from scratch": "RoPE from scratch"}
    names |= dict.fromkeys(
        ("the unchanged model, trained as long", "the unchanged model"), "sinusoidal, trained on"
    )
    named = [
        (way, rows.values("loss", way=way, steps=int(steps), length=length))
        for way in ("migrated to RoPE", names[other])
    ]
    return ascending(*named, floor=True)


def images(rows, side, again):
    assert side == again
    assert int(side) == rows.all("wrong", "side")[-1] > rows.facts["settings"]["side"]
    named = [(n, rows.values("wrong", model=n, side=int(side))) for n in ("rope_2d", "rope")]
    return ascending(*named, floor=True)


def decaying(rows, far, middle, again, near):
    distances = rows.all("weight", "distance")
    assert (int(near), int(far)) == (distances[0], distances[-1])
    assert middle == again
    assert int(middle) == distances[len(distances) // 2]
    named = [(d, rows.values("weight", model="rope", distance=int(d))) for d in (far, middle, near)]
    return ascending(*named, floor=False)


#: of the encodings in the rows: sinusoidal adds a vector to the input, and FIRE divides the distance
#: by the position of the query; what depends on distances alone is relative
NOT_RELATIVE = ("sinusoidal", "fire")


def unchanged_by_shift(rows, shift, bound):
    largest = int(shift.replace(",", ""))
    assert largest == rows.all("moved", "shift")[-1]
    changes = {}
    for row in rows.lines("moved", shift=largest):
        changes.setdefault(row["model"], []).extend(row["values"])
    assert changes.pop("rope, float32 angles")  # no encoding: the rounding of the usual tables
    wrong = [
        name
        for name, values in changes.items()
        if (max(values) < float(bound)) != (name not in NOT_RELATIVE)
    ]
    return (FAILS, f"except {', '.join(wrong)}") if wrong else (HOLDS, "no exceptions")


def exact(rows, bound):
    worst = max(row["mean"] for row in rows.lines("error", way="exact"))
    return (HOLDS if worst <= float(bound) else FAILS), f"largest {worst:.1e}"


def methods(rows, length, name, other):
    at = int(length)
    lengths = rows.all("loss", "length")
    trained = ("pope", "fope", "rope++", "selective", "path", "ssmax", "lerope")
    assert at == (lengths[0] if name in trained and "yarn" not in other else lengths[-1])
    other_name = "yarn" if other == "rope with yarn" else "rope"
    named = [(n, rows.values("loss", model=n, length=at)) for n in (name, other_name)]
    return ascending(*named, floor=other != "rope as it is")


def drope(rows, length):
    assert int(length) == rows.all("loss", "length")[1]
    named = [(n, 1 - rows.values("found", model=n, length=int(length))) for n in ("drope", "yarn")]
    return ascending(*named, floor=True)


def real_extended(rows, factor, one, other, band):
    trained = rows.facts["trained"]
    last = int(factor) * trained
    assert band == f"{short(last // 2)}-{short(last)}"
    named = [
        (n, rows.values("loss", method=n, factor=float(factor), band=band)) for n in (one, other)
    ]
    return ascending(*named, floor=False)


def real_keys(rows, where, one, other):
    def missed(name):
        asked = [
            1 - np.mean(row["values"])
            for row in rows.lines("found", method=name)
            if (row["length"] > rows.facts["trained"]) == (where == "Beyond")
        ]
        return np.array([asked])

    return ascending((one, missed(one)), (other, missed(other)), floor=False)


def continued(rows, way, limit, reference):
    shortened = ("evict, gap kept", "evict, gap closed")
    again = "read again, without the dropped tokens" if way in shortened else "read again"
    assert reference == again
    pair = [rows.values("loss", way=name) for name in (way, reference)]
    return within(*pair, float(limit), sided=False)


def nearer(rows, dtype, length, offset):
    at = {"length": int(length.replace(",", "")), "offset": int(offset.replace(",", ""))}
    kl = {n: rows.values("kl", dtype=dtype, rotation=n, **at) for n in ("ropewalk", "transformers")}
    gap = kl["ropewalk"] - kl["transformers"]
    verdict, _ = ascending(*kl.items(), floor=False)
    return verdict, f"ropewalk minus transformers: {gap.mean():+.1e} ± {error(gap):.0e}"


def tuned_loss(rows, method, objective, far, percent, near):
    fields = {"method": method, "objective": objective}
    ends = {row["band"]: row["end"] for row in rows.lines("loss", **fields)}
    assert ends[near] == rows.facts["trained"]
    assert ends[far] == max(ends.values())
    gap = rows.values("loss", band=far, **fields) / rows.values("loss", band=near, **fields) - 1
    verdict = limited(gap.mean(), error(gap), int(percent) / 100)
    return verdict, f"{gap.mean():+.1%} ± {error(gap):.1%}"


def tuned_keys(rows, method, objective, percent, length):
    at = int(length.replace(",", ""))
    assert at == rows.all("found", "length")[-1]
    found = rows.values("found", method=method, objective=objective, length=at)
    verdict = limited(1 - found.mean(), error(found), 1 - int(percent) / 100)
    return verdict, f"{found.mean():.0%} ± {error(found):.0%}"


#: study -> sentences, and what is computed from the words that stand in their places
SENTENCES = {
    "encodings": {
        r"At the trained length \((\d+)\), the loss rises in the order (.+)": order_at_trained_length,
        r"ALiBi at (\d+) stays within (0\.05) of its loss at (\d+)": alibi_stays,
        r"At (\d+), beyond the trained length, ALiBi has a lower loss than plain RoPE": alibi_beyond,
        r"RoPE with a sliding window of (\d+) is flat from (\d+) to (\d+)": flat,
        r"RoPE with a sliding window at (\d+) is no worse than RoPE at (\d+)": no_worse,
    },
    "extend": {
        r"Zero-shot at (\d+)x, the loss rises in the order (.+)": order_zero_shot,
        r"A little training at (\d+)x with (.+) lowers the loss at (\d+)x": a_little_training,
        r"The LongRoPE search beats YaRN zero-shot at (\d+)x": searched,
        r"Dynamic YaRN does not change the loss on text of (\d+) tokens": dynamic_is_unchanged,
        r"On text of (\d+) tokens, dynamic YaRN has a lower loss than YaRN with a factor of (\d+)": (
            dynamic_is_lower
        ),
    },
    "base": {r"At (\d+)(), (base 10,000) has a lower loss than (base [\d,]+)": variants},
    "frequencies": {r"At (\d+), (code|prose), (geometric) has a lower loss than (.+)": variants},
    "norms": {
        r"A shift of all positions (changes|does not change) the logits \((.+)\)": shift_of_logits,
        r"At (\d+), '(.+)' has a lower loss than '(.+)'": norms,
    },
    "passkey": {
        r"At the trained length \((\d+)\) at least (95)% of the pass keys are found, base ([\d,]+)": (
            pass_keys
        )
    },
    "mlm_lengths": {
        r"Stage (\d) \(length (\d+)\) ends below stage (\d) \(length (\d+)\)": stages,
        r"The final model has a lower loss for longer inputs": longer_is_lower,
    },
    "matching": {
        r"Reading (\d+) characters instead of (\d+) gives fewer errors": reading,
        r"On (\d+) characters, RoPE has fewer errors than learned positions": matching,
    },
    "linear": {
        r"Softmax attention has a lower loss than linear attention, both with RoPE": (
            lambda rows: attention(rows, "softmax, rope", "linear, rope")
        ),
        r"RoPE lowers the loss of linear attention": (
            lambda rows: attention(rows, "linear, rope", "linear, none")
        ),
    },
    "migrate": {
        r"After (\d+) steps a migrated model has a lower loss"
        r"(?: at (\d+) tokens, twice the trained length,)? than (.+)": migrated
    },
    "multimodal": {
        r"On images of (\d+) x (\d+), larger than any in training, RoPE over rows and columns has "
        r"fewer errors than over one sequence": images
    },
    "decay": {
        r"A RoPE model attends less at distance (\d+) than at distance (\d+), and less at (\d+) "
        r"than at (\d+)": decaying
    },
    "relative": {
        r"A shift of ([\d,]+) changes logits by less than (0\.001) for all relative encodings, and "
        r"only for these": unchanged_by_shift
    },
    "precision": {r"The error of the exact method is within (1e-06) at every position": exact},
    "methods": {
        r"At (\d+), (?:without training at that length, )?(\S+) has a lower loss than "
        r"(rope|rope with yarn|rope as it is)": methods,
        r"At (\d+), drope misses fewer pass keys than rope with yarn": drope,
    },
    "real_extend": {r"At (\d)x, (\w+) has a lower loss than (\w+) in (\S+)": real_extended},
    "real_passkey": {
        r"(Beyond|Within) the trained length, (\w+) misses fewer pass keys than (\w+)": real_keys
    },
    "real_tune": {
        r"(\w+), (.+): the loss in (\S+) is within (2)% of that in (\S+)": tuned_loss,
        r"(\w+), (.+): at least (90)% of the pass keys in ([\d,]+) tokens are found": tuned_keys,
    },
    "real_precision": {
        r"(\w+), ([\d,]+) tokens from position ([\d,]+): ropewalk is nearer to float32 than "
        r"transformers": nearer
    },
    "real_kv": {r"(.+): within (0\.01|0\.1) nats of '(.+)'": continued},
}


@pytest.mark.parametrize("run", RUNS)
def test_the_rows_that_a_claim_names_give_its_numbers_and_its_verdict(run):
    rows, claims = Measured(run), committed_results()[run].findings.claims
    assert claims
    assert len({claim.text for claim in claims}) == len(claims)
    for claim in claims:
        matches = {
            re.fullmatch(pattern, claim.text): check
            for pattern, check in SENTENCES[rows.facts["study"]].items()
        }
        matches.pop(None, None)
        assert len(matches) == 1, claim.text
        ((match, check),) = matches.items()
        verdict, evidence = check(rows, *match.groups())
        assert (claim.verdict, signs(claim.evidence)) == (verdict, signs(evidence)), claim.text


def signs(evidence):
    """A difference of 0 has no sign: a sum of rounded numbers in another order may have either."""
    return re.sub(r"[+-](0\.0+) ", r"\1 ", evidence)
