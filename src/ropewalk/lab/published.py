"""Published results to show beside our own, with their sources; none was measured by this project."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedTable:
    """A table of published results; `setting` describes their models, which differ from ours."""

    source: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    setting: str


_ALIBI = "Press et al., Train Short, Test Long (2022), table 2"
_HAVIV = "Haviv et al., Transformer Language Models without Positional Encodings Still Learn Positional Information (2022)"

#: published tables by name
PUBLISHED: dict[str, PublishedTable] = {
    "roformer-stages": PublishedTable(
        "Su et al., RoFormer (2021), table 4", "Masked-LM loss and accuracy by stage",
        ("stage", "length", "batch", "steps", "loss", "accuracy"),
        (
            ("1", "512", "256", "200k", "1.73", "65.0 %"), ("2", "1536", "256", "12.5k", "1.61", "66.8 %"),
            ("3", "256", "256", "120k", "1.75", "64.6 %"), ("4", "128", "512", "80k", "1.83", "63.4 %"),
            ("5", "1536", "256", "10k", "1.58", "67.4 %"), ("6", "512", "512", "30k", "1.66", "66.2 %"),
        ),
        "12 layers of 768, 34 GB of Chinese, words as tokens",
    ),
    "roformer-cail": PublishedTable(
        "Su et al., RoFormer (2021), table 5", "CAIL2019-SCM accuracy",
        ("model", "valid", "test"),
        (
            ("BERT-512", "64.13 %", "67.77 %"), ("WoBERT-512", "64.07 %", "68.10 %"),
            ("RoFormer-512", "64.13 %", "68.29 %"), ("RoFormer-1024", "66.07 %", "69.79 %"),
        ),
        "the cut-off is the only difference between the last two",
    ),
    "roformer-base": PublishedTable(
        "as stated in documents about RoFormer; not in the paper", "Base of RoFormer-512, CAIL2019-SCM valid",
        ("base", "accuracy"), (("100", "63.21 %"), ("1,000", "63.89 %"), ("10,000", "64.13 %"), ("100,000", "63.75 %")),
        "one run each, no noise given",
    ),
    "alibi-extrapolation": PublishedTable(
        _ALIBI, "Perplexity on WikiText-103, trained at 512",
        ("encoding", "512", "1012", "1512", "3512", "15512"),
        (
            ("sinusoidal", "20.05", "43.5", "76.2", "179", "406"), ("rotary", "20.07", "21.4", "26.0", "35.5", "79.3"),
            ("T5 bias", "19.65", "18.79", "18.91", "22.9", "out of memory"),
            ("ALiBi", "19.73", "18.73", "18.52", "18.40", "18.31"),
        ),
        "247M parameters; windows do not overlap, so longer ones have fewer early tokens",
    ),
    "nope-causal": PublishedTable(
        f"{_HAVIV}, tables 1 and 4", "Perplexity without positions",
        ("model", "none", "learned", "sinusoidal", "ALiBi"),
        (("causal, WikiText-103", "20.97", "20.42", "20.16", "19.71"), ("masked", "147.18", "4.06", "-", "-")),
        "247M parameters, and RoBERTa-large for masked",
    ),
    "nope-length-generalisation": PublishedTable(
        "Kazemnejad et al., The Impact of Positional Encoding on Length Generalization (2023)",
        "Mean reciprocal rank on ten tasks",
        ("none", "T5 bias", "ALiBi", "rotary", "absolute"), (("0.69", "0.55", "0.50", "0.33", "0.22"),),
        "107M parameters, trained up to 20, tested up to 40; three seeds",
    ),
    "interpolation": PublishedTable(
        "Chen et al., Extending Context Window via Positional Interpolation (2023)", "Perplexity on PG19, LLaMA 7B",
        ("model", "2048", "8192"),
        (("untouched", "7.20", "> 1000"), ("fine-tuned directly", "-", "7.69"), ("interpolated and fine-tuned", "-", "6.95")),
        "up to 1000 steps; interpolation before any step: 16.10, after 200: 7.12",
    ),
    "interpolation-passkey": PublishedTable(
        "Chen et al., Extending Context Window via Positional Interpolation (2023), table 4", "Longest length with keys found",
        ("method", "steps", "length"), (("interpolated", "200", "the whole window"), ("fine-tuned directly", "10,000", "2560")),
        "LLaMA 7B",
    ),
    "ntk-zero-shot": PublishedTable(
        "Su, kexue.fm 9675, 9706 and 9708", "Token accuracy at 4096, trained at 512, zero-shot",
        ("none", "PI", "NTK", "NTK-mixed", "NTK-mixed + log n", "ReRoPE, window 256"),
        (("23.16 %", "13.54 %", "39.27 %", "40.12 %", "45.41 %", "48.48 %"),), "100M parameters; at the trained length 49.41 %",
    ),
    "yarn": PublishedTable(
        "Peng et al., YaRN (2023)", "Perplexity at 10240, Llama-2 7B extended to 8k",
        ("PI", "NTK", "YaRN"), (("8.07", "6.24", "6.04"),), "fine-tuned: 400M tokens for YaRN, 1B for the others",
    ),
    "yarn-passkey": PublishedTable(
        "Peng et al., YaRN (2023)", "Pass keys found at 128k", ("YaRN",), (("99.4 %",),), "Llama-2 7B, fine-tuned",
    ),
    "longrope": PublishedTable(
        "Ding et al., LongRoPE (2024)", "Perplexity on PG19 at 16k, zero-shot",
        ("PI", "dynamic NTK", "YaRN", "searched"), (("20.5", "23.3", "87.9", "11.3"),), "Llama-2 7B; population 64, 40 rounds",
    ),
    "drope-needle": PublishedTable(
        "DroPE, table 1", "Several needles at twice the length, % found",
        ("RoPE", "PI", "NTK", "YaRN", "ALiBi", "none", "DroPE"), (("0", "0", "19.4", "0.5", "0", "36.2", "41.6"),),
        "494M parameters, 16.8B tokens",
    ),
    "base-bounds": PublishedTable(
        "Men et al., Base of RoPE Bounds Context Length (2024)", "Smallest base that keeps the sum of cosines positive",
        ("1k", "4k", "8k", "32k", "128k", "1M"), (("4.3e3", "2.7e4", "8.4e4", "6.4e5", "7.8e6", "5.1e8"),),
        "heads of 128; the criterion is jagged, so a base just above a bound may fail it",
    ),
    "base-scaling-laws": PublishedTable(
        "Liu et al., Scaling Laws of RoPE-based Extrapolation (2023)", "Fine-tuning with another base",
        ("base", "extrapolates"),
        (("500", "better than 10,000"), ("above 10,000", "better than 10,000")), "Llama-2, tuned at 16k",
    ),
    "roformer-mlm": PublishedTable(
        "Su et al., RoFormer (2021), figure 3 and table 1", "Against learned positions",
        ("measure", "baseline", "RoPE"), (("WMT 2014 En-De, BLEU", "27.3", "27.5"), ("masked-LM loss", "slower", "falls faster")),
        "BERT-base sizes, 100k steps",
    ),
}  # fmt: skip
