"""The picture of study `real_extend`: the loss of a pretrained model by position, with and without
each method.

Words of this module:
  row    one measurement of the study: the "loss" for each window, with the fields `method`,
         `factor` and `band`
  band   positions such as "8k-16k"; "within": a text of the trained length
  facts  what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from typing import Any

from ropewalk_lab.plots.further import LossBand, loss_by_position
from ropewalk_lab.plots.look import LIGHT, Look
from ropewalk_lab.studies.rows import Row, distinct, score, select

#: how people write the names of models that `ropewalk lab fetch` knows
MODELS = {"smollm2": "SmolLM2-135M"}


def picture(rows: list[Row], facts: dict[str, Any], look: Look = LIGHT) -> Any:
    """Return the figure of a run: the loss in each band of positions, with its standard error as
    an error bar, at the factor with the most methods (the largest such factor).
    """
    factors: list[float] = distinct(rows, "loss", "factor")
    num_methods = {
        factor: len(distinct(rows, "loss", "method", factor=factor)) for factor in factors
    }
    of_factor = select(
        rows, "loss", factor=max(factors, key=lambda factor: (num_methods[factor], factor))
    )
    methods = {
        name: bands_of_rows(of_factor, name) for name in distinct(of_factor, "loss", "method")
    }
    values = {"texts": ", ".join(facts["text"]), "windows": len(of_factor[0]["values"])}
    about = look.translate(
        "{texts}; {windows} windows, ± standard error; weights unchanged", **values
    )
    name: str = facts["model"]
    return loss_by_position(methods, facts["trained"], MODELS.get(name, name), about, look)


def bands_of_rows(rows: list[Row], method: str) -> list[LossBand]:
    """Return the loss of a method by band of positions, such as 8k-16k, sorted by position."""
    bands = []
    for name in distinct(rows, "loss", "band", method=method):
        # "within" is the loss of texts of the trained length, not of a band of positions
        if name != "within":
            low, high = map(_tokens, name.split("-"))
            losses = score(rows, "loss", method=method, band=name)
            assert losses is not None  # the band is from these rows
            bands.append(
                LossBand(low, high, losses.mean, losses.error if losses.values.size > 1 else 0.0)
            )
    return sorted(bands, key=lambda band: band.low)


def _tokens(text: str) -> int:
    """Return the number that `short_length` wrote: "32k" is 32768, "1,900" is 1900."""
    text = text.replace(",", "")
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)
