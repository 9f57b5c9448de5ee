"""What the page says about other engines: the config of a spec, and one row per engine and length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ropewalk.config.hf import to_hf
from ropewalk.engines import ENGINES, REFERENCE, EngineFinding, audit
from ropewalk_lab.analysis import Facts
from ropewalk_lab.explorer.words import Translate


def config_of(facts: Facts) -> dict[str, Any]:
    """Return a config with the rope of a spec, of Llama or, with several axes, of Qwen2-VL; a
    RopeError says why no config can name it.
    """
    lengths = {"max_position_embeddings": facts.served}
    if facts.spec.axes is None:
        return {"model_type": "llama", **lengths, **to_hf(facts.spec)}
    # v4 keys, which all engines read
    keys = to_hf(facts.spec, version=4, model_type="qwen2_vl_text")
    return {"model_type": "qwen2_vl_text", **lengths, **keys}


@dataclass(frozen=True)
class EngineRow:
    """One engine at one length; `several` says whether the engine has rows at other lengths."""

    finding: EngineFinding
    several: bool

    @property
    def engine(self) -> str:
        """The engine's name, and the length if it has several rows."""
        title = ENGINES[self.finding.engine].title
        return f"{title}, {self.finding.length:,}" if self.several else title

    def words(self, translate: Translate) -> str:
        """Return how the engine differs from the reference, in the language of the page."""
        finding, difference = self.finding, self.finding.difference
        if finding.engine == REFERENCE:
            return translate("the reference")
        if finding.problem is not None:
            return translate("does not support it, or the result is not known")
        if difference is None:
            return translate("the same")
        parts = []
        if difference.temperature != 1:
            parts.append(
                translate("all logits times {ratio}", ratio=f"{difference.temperature:.4g}")
            )
        if difference.first_pair is not None:
            parts.append(
                translate(
                    "{pairs} pairs differ, from pair {first} on",
                    pairs=difference.pairs,
                    first=difference.first_pair,
                )
            )
        if difference.until_tenth is not None:
            parts.append(
                translate("0.1 rad off after {tokens} tokens", tokens=f"{difference.until_tenth:,}")
            )
        if difference.tokens == "image":
            parts.append(translate("for image and video tokens only"))
        return "; ".join(parts)


def rows_of(config: dict[str, Any]) -> list[EngineRow]:
    """Return one row for each finding about a config; if frequencies depend on the length, an
    engine has one per length.
    """
    findings = audit(config).findings
    several = len({finding.length for finding in findings}) > 1
    return [EngineRow(finding, several) for finding in findings]
