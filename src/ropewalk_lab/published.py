"""Results of others to show beside our own, with their sources; none was measured by this project."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ropewalk_lab.studies.findings import Findings, Table


@dataclass(frozen=True)
class PublishedTable:
    """A table of results of others; its first column names the rows.

    source   the publication; "" for figures that articles about RoPE state without one
    setting  describes their models, which differ from ours
    """

    source: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    setting: str

    @property
    def heading(self) -> str:
        """The title, preceded by "As published", or by "As stated" if there is no publication."""
        return f"{'As published' if self.source else 'As stated'}: {self.title}"

    @property
    def origin(self) -> str:
        """The source and the setting as text."""
        return (
            f"{self.source or 'Stated in articles about RoPE, without a source'}. {self.setting}."
        )


def beside(name: str, findings: Findings) -> Table:
    """Return a table of PUBLISHED with our columns on the right; "-" where the study has no
    counterpart of a row.
    """
    table, ours = PUBLISHED[name], findings.ours.get(name)
    if ours is None:
        return Table(table.heading, table.columns, list(table.rows), table.origin)
    columns = (*table.columns, *(f"ours: {column}" for column in ours.columns))
    rows = [(*row, *ours.cells.get(row[0], ("-",) * len(ours.columns))) for row in table.rows]
    return Table(table.heading, columns, rows, table.origin)


def compared(names: Iterable[str], findings: Findings) -> list[Table]:
    """Return the tables of PUBLISHED for which the study has values of its own, with both."""
    return [beside(name, findings) for name in names if name in findings.ours]


_PI = "Chen et al., Extending Context Window via Positional Interpolation (2023)"
_HAVIV = (
    "Haviv et al., Transformer Language Models without Positional Encodings Still Learn Positional "
    "Information (2022)"
)

#: tables by name
PUBLISHED: dict[str, PublishedTable] = {
    "roformer-stages": PublishedTable(
        "Su et al., RoFormer (2021), table 4",
        "Masked-LM loss and accuracy by stage",
        ("stage", "length", "batch", "steps", "loss", "accuracy"),
        (
            ("1", "512", "256", "200k", "1.73", "65.0 %"),
            ("2", "1536", "256", "12.5k", "1.61", "66.8 %"),
            ("3", "256", "256", "120k", "1.75", "64.6 %"),
            ("4", "128", "512", "80k", "1.83", "63.4 %"),
            ("5", "1536", "256", "10k", "1.58", "67.4 %"),
            ("6", "512", "512", "30k", "1.66", "66.2 %"),
        ),
        "12 layers of 768, 34 GB of Chinese, words as tokens",
    ),
    "roformer-cail": PublishedTable(
        "Su et al., RoFormer (2021), table 5",
        "CAIL2019-SCM accuracy",
        ("model", "valid", "test", "test - BERT-512"),
        (
            ("BERT-512", "64.13 %", "67.77 %", "0"),
            ("WoBERT-512", "64.07 %", "68.10 %", "+0.33"),
            ("RoFormer-512", "64.13 %", "68.29 %", "+0.52"),
            ("RoFormer-1024", "66.07 %", "69.79 %", "+2.02"),
        ),
        "Articles state how they were tuned: 3 epochs, batches of 16 at 2e-5, but of 8 at 1e-5 at "
        "1,024 tokens, so the cut-off is not the only difference between the last two; 8,964, "
        "1,120 and 1,343 triplets of about 900 characters for training, valid and test",
    ),
    "roformer-mlm": PublishedTable(
        "Su et al., RoFormer (2021), figure 3 and table 1",
        "Against learned positions",
        ("measure", "baseline", "RoPE"),
        (("WMT 2014 En-De, BLEU", "27.3", "27.5"), ("masked-LM loss", "slower", "falls faster")),
        "BERT-base sizes, 100k steps",
    ),
    "roformer-linear": PublishedTable(
        "Su et al., RoFormer (2021), figure 3",
        "Loss of linear attention on enwik8",
        ("model", "loss"),
        (("Performer", "higher"), ("Performer with RoPE", "lower")),
        "12 layers, 1024 tokens",
    ),
    "base-ablation": PublishedTable(
        "",
        "Base of RoFormer-512, CAIL2019-SCM valid",
        ("base", "accuracy"),
        (("100", "63.21 %"), ("1,000", "63.89 %"), ("10,000", "64.13 %"), ("100,000", "63.75 %")),
        "One run each, no noise given",
    ),
    "norm-ablation": PublishedTable(
        "",
        "Norm of q and k in RoFormer-512, CAIL2019-SCM valid",
        ("norm", "accuracy"),
        (
            ("no norm", "62.45 %"),
            ("LayerNorm after the rotation", "63.58 %"),
            ("plain RoPE", "64.13 %"),
        ),
        "One run each, no noise given. What no norm means is not said; ours is a rotation that "
        "does not keep the norm",
    ),
    "glue": PublishedTable(
        "",
        "GLUE average",
        ("encoding", "score", "parameters"),
        (("learned", "82.3", "393K"), ("sinusoidal", "81.7", "0"), ("RoPE", "82.1", "0")),
        "393K is 512 positions of width 768, as in BERT-base; ours is language modelling, not GLUE",
    ),
    "beyond-512": PublishedTable(
        "",
        "RoPE trained at 512",
        ("length", "quality"),
        (
            ("512", "as trained"),
            ("1024", "slightly worse"),
            ("2048", "clearly worse"),
            ("4096", "bad"),
        ),
        "In words, no numbers given",
    ),
    "unaliased-length": PublishedTable(
        "",
        "Tokens until a pair repeats",
        ("pair", "tokens"),
        (("fastest", "6.28"), ("slowest", "54,410")),
        "Heads of 128, base 10,000",
    ),
    "alibi-extrapolation": PublishedTable(
        "Press et al., Train Short, Test Long (2022), table 2",
        "Perplexity on WikiText-103, trained at 512",
        ("encoding", "512", "1012", "1512", "3512", "15512"),
        (
            ("sinusoidal", "20.05", "43.5", "76.2", "179", "406"),
            ("rotary", "20.07", "21.4", "26.0", "35.5", "79.3"),
            ("T5 bias", "19.65", "18.79", "18.91", "22.9", "out of memory"),
            ("ALiBi", "19.73", "18.73", "18.52", "18.40", "18.31"),
        ),
        "247M parameters; windows do not overlap, so longer ones have fewer early tokens",
    ),
    "nope-causal": PublishedTable(
        f"{_HAVIV}, tables 1 and 4",
        "Perplexity with and without positions",
        ("encoding", "causal, WikiText-103", "masked"),
        (
            ("none", "20.97", "147.18"),
            ("learned", "20.42", "4.06"),
            ("sinusoidal", "20.16", "-"),
            ("ALiBi", "19.71", "-"),
        ),
        "247M parameters, and RoBERTa-large for masked",
    ),
    "nope-length-generalisation": PublishedTable(
        "Kazemnejad et al., The Impact of Positional Encoding on Length Generalization (2023)",
        "Mean reciprocal rank on ten tasks",
        ("encoding", "rank"),
        (
            ("none", "0.69"),
            ("T5 bias", "0.55"),
            ("ALiBi", "0.50"),
            ("rotary", "0.33"),
            ("absolute", "0.22"),
        ),
        "107M parameters, trained up to 20, tested up to 40; three seeds",
    ),
    "interpolation": PublishedTable(
        _PI,
        "Perplexity on PG19, LLaMA 7B",
        ("model", "2048", "8192"),
        (
            ("unchanged", "7.20", "> 1000"),
            ("fine-tuned directly", "-", "7.69"),
            ("interpolated and fine-tuned", "-", "6.95"),
        ),
        "Up to 1000 steps; interpolation before any step: 16.10, after 200: 7.12",
    ),
    "interpolation-passkey": PublishedTable(
        f"{_PI}, table 4",
        "Longest length with keys found",
        ("method", "steps", "length"),
        (("interpolated", "200", "the whole window"), ("fine-tuned directly", "10,000", "2560")),
        "LLaMA 7B",
    ),
    "ntk-zero-shot": PublishedTable(
        "Su, kexue.fm 9675, 9706 and 9708",
        "Token accuracy at 4096, trained at 512, zero-shot",
        ("method", "accuracy"),
        (
            ("none", "23.16 %"),
            ("PI", "13.54 %"),
            ("NTK", "39.27 %"),
            ("NTK-mixed", "40.12 %"),
            ("NTK-mixed + log n", "45.41 %"),
            ("ReRoPE, window 256", "48.48 %"),
        ),
        "100M parameters; at the trained length 49.41 %",
    ),
    "yarn": PublishedTable(
        "Peng et al., YaRN (2023)",
        "Perplexity at 10240, Llama-2 7B extended to 8k",
        ("method", "perplexity"),
        (("PI", "8.07"), ("NTK", "6.24"), ("YaRN", "6.04")),
        "Fine-tuned: 400M tokens for YaRN, 1B for the others",
    ),
    "yarn-passkey": PublishedTable(
        "Peng et al., YaRN (2023)",
        "Pass keys found at 128k",
        ("method", "found"),
        (("YaRN", "99.4 %"),),
        "Llama-2 7B, fine-tuned",
    ),
    "longrope": PublishedTable(
        "Ding et al., LongRoPE (2024)",
        "Perplexity on PG19 at 16k, zero-shot",
        ("method", "perplexity"),
        (("PI", "20.5"), ("dynamic NTK", "23.3"), ("YaRN", "87.9"), ("searched", "11.3")),
        "Llama-2 7B; population 64, 40 rounds",
    ),
    "drope-needle": PublishedTable(
        "DroPE, table 1",
        "Several needles at twice the length, % found",
        ("method", "found"),
        (
            ("RoPE", "0"),
            ("PI", "0"),
            ("NTK", "19.4"),
            ("YaRN", "0.5"),
            ("ALiBi", "0"),
            ("none", "36.2"),
            ("DroPE", "41.6"),
        ),
        "494M parameters, 16.8B tokens",
    ),
    "base-bounds": PublishedTable(
        "Men et al., Base of RoPE Bounds Context Length (2024)",
        "Smallest base that keeps the sum of cosines positive",
        ("length", "base"),
        (
            ("1k", "4.3e3"),
            ("4k", "2.7e4"),
            ("8k", "8.4e4"),
            ("32k", "6.4e5"),
            ("128k", "7.8e6"),
            ("1M", "5.1e8"),
        ),
        "Heads of 128; the criterion is jagged, so a base just above a bound may fail it",
    ),
    "base-scaling-laws": PublishedTable(
        "Liu et al., Scaling Laws of RoPE-based Extrapolation (2023)",
        "Fine-tuning with another base",
        ("base", "extrapolates"),
        (("500", "better than 10,000"), ("above 10,000", "better than 10,000")),
        "Llama-2, tuned at 16k",
    ),
}
