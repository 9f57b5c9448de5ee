"""Figures of others: exactly as they were stated, beside ours, and none called published that has
no publication.
"""

import json
import math
import re

import pytest
from study_cases import RESULTS, committed_results

from command_line import call
from ropewalk.encodings import make_encoding
from ropewalk_lab.published import PUBLISHED, beside, compared
from ropewalk_lab.studies import STUDIES
from ropewalk_lab.studies.findings import Findings, Ours

#: what articles about RoPE state without a publication, written out here a second time
STATED = {
    "base-ablation": {"100": "63.21", "1,000": "63.89", "10,000": "64.13", "100,000": "63.75"},
    "norm-ablation": {
        "no norm": "62.45",
        "LayerNorm after the rotation": "63.58",
        "plain RoPE": "64.13",
    },
    "glue": {"learned": "82.3", "sinusoidal": "81.7", "RoPE": "82.1"},
    "beyond-512": {
        "512": "as trained",
        "1024": "slightly worse",
        "2048": "clearly worse",
        "4096": "bad",
    },
    "unaliased-length": {"fastest": "6.28", "slowest": "54,410"},
}
#: RoFormer's table 4: length, batch, steps, loss, accuracy
STAGES = [
    (512, 256, 200_000, 1.73, 65.0),
    (1536, 256, 12_500, 1.61, 66.8),
    (256, 256, 120_000, 1.75, 64.6),
    (128, 512, 80_000, 1.83, 63.4),
    (1536, 256, 10_000, 1.58, 67.4),
    (512, 512, 30_000, 1.66, 66.2),
]
#: table 5: valid and test
CAIL = {
    "BERT-512": (64.13, 67.77),
    "WoBERT-512": (64.07, 68.10),
    "RoFormer-512": (64.13, 68.29),
    "RoFormer-1024": (66.07, 69.79),
}
#: other published tables: all their numbers, row by row
NUMBERS = {
    "roformer-mlm": [27.3, 27.5],
    "alibi-extrapolation": [
        20.05,
        43.5,
        76.2,
        179,
        406,
        20.07,
        21.4,
        26.0,
        35.5,
        79.3,
        19.65,
        18.79,
        18.91,
        22.9,
        19.73,
        18.73,
        18.52,
        18.40,
        18.31,
    ],
    "nope-causal": [20.97, 147.18, 20.42, 4.06, 20.16, 19.71],
    "nope-length-generalisation": [0.69, 0.55, 0.50, 0.33, 0.22],
    "interpolation": [7.20, 1000, 7.69, 6.95],
    "interpolation-passkey": [200, 10_000, 2560],
    "ntk-zero-shot": [23.16, 13.54, 39.27, 40.12, 45.41, 48.48],
    "yarn": [8.07, 6.24, 6.04],
    "yarn-passkey": [99.4],
    "longrope": [20.5, 23.3, 87.9, 11.3],
    "drope-needle": [0, 0, 19.4, 0.5, 0, 36.2, 41.6],
    "base-bounds": [4.3e3, 2.7e4, 8.4e4, 6.4e5, 7.8e6, 5.1e8],
}

#: tables with results in words, row by row
WORDS = {
    "roformer-mlm": [
        ("WMT 2014 En-De, BLEU", "27.3", "27.5"),
        ("masked-LM loss", "slower", "falls faster"),
    ],
    "roformer-linear": [("Performer", "higher"), ("Performer with RoPE", "lower")],
    "base-scaling-laws": [("500", "better than 10,000"), ("above 10,000", "better than 10,000")],
}

#: what their models and trainings were, where a setting has a number
SETTINGS = {
    "roformer-stages": "12 layers of 768, 34 GB of Chinese",
    "roformer-mlm": "100k steps",
    "roformer-linear": "12 layers, 1024 tokens",
    "glue": "393K parameters are 512 positions of width 768",
    "unaliased-length": "Heads of 128, base 10,000",
    "alibi-extrapolation": "247M parameters",
    "nope-causal": "247M parameters",
    "nope-length-generalisation": "107M parameters, trained up to 20, tested up to 40; three seeds",
    "interpolation": "1000 steps; interpolation before any step: 16.10, after 200: 7.12",
    "ntk-zero-shot": "100M parameters; at the trained length 49.41 %",
    "yarn": "400M tokens for YaRN, 1B for the others",
    "longrope": "population 64, 40 rounds",
    "drope-needle": "494M parameters, 16.8B tokens",
    "base-bounds": "Heads of 128",
    "base-scaling-laws": "tuned at 16k",
}


def number(text: str) -> float:
    """65.0 % -> 65.0, 12.5k -> 12500, 54,410 -> 54410, > 1000 -> 1000."""
    plain = text.replace(" %", "").replace(",", "").replace("> ", "")
    return float(plain[:-1]) * 1000 if plain.endswith("k") else float(plain)


def numbers(cells) -> list[float]:
    return [number(cell) for cell in cells if re.fullmatch(r"[>\d., ke%]+", cell)]


@pytest.mark.parametrize("name", STATED)
def test_tables_without_a_publication_have_the_stated_figures_and_say_so(name):
    table = PUBLISHED[name]
    assert {label: value.removesuffix(" %") for label, value, *_ in table.rows} == STATED[name]
    assert table.heading.startswith("As stated: ")
    assert "without a source" in table.origin


def test_only_what_has_a_publication_is_called_published():
    for name, table in PUBLISHED.items():
        assert table.heading.startswith("As stated" if name in STATED else "As published")
        assert bool(table.source) == (name not in STATED)


def test_roformers_tables_are_the_published_ones():
    assert [tuple(numbers(row[1:])) for row in PUBLISHED["roformer-stages"].rows] == STAGES
    rows = PUBLISHED["roformer-cail"].rows
    assert {row[0]: tuple(numbers(row[1:3])) for row in rows} == CAIL
    gains = {name: test - CAIL["BERT-512"][1] for name, (_, test) in CAIL.items()}
    assert {row[0]: float(row[3]) for row in rows} == pytest.approx(gains)


def test_the_published_matching_names_how_its_models_were_tuned():
    """The last two rows differ in the cut-off, the batch and the rate."""
    setting = PUBLISHED["roformer-cail"].setting
    for told in ("3 epochs", "16 at 2e-5", "8 at 1e-5 at 1,024", "8,964, 1,120 and 1,343"):
        assert told in setting
    assert "is not the only difference" in setting


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_published_tables_have_the_numbers_written_out_here(name):
    assert SETTINGS[name] in PUBLISHED[name].setting


def test_no_setting_with_a_number_is_missing_here():
    with_numbers = {name for name, table in PUBLISHED.items() if re.search(r"\d\d", table.setting)}
    assert with_numbers <= {*SETTINGS, "roformer-cail"}


def test_the_parameters_of_learned_positions_are_those_of_bert_base():
    stated = {encoding: parameters for encoding, _, parameters in PUBLISHED["glue"].rows}
    for name, ours in (("learned", "learned"), ("sinusoidal", "sinusoidal"), ("RoPE", "rope")):
        encoding = make_encoding(ours, num_heads=12, head_dim=64, model_dim=768, length=512)
        count = sum(each.numel() for each in encoding.parameters())
        assert stated[name] == (f"{count / 1000:.0f}K" if count else "0")


@pytest.mark.parametrize("name", NUMBERS)
def test_the_numbers_of_other_tables_are_the_published_ones(name):
    assert numbers([cell for row in PUBLISHED[name].rows for cell in row[1:]]) == pytest.approx(
        NUMBERS[name]
    )


@pytest.mark.parametrize("name", WORDS)
def test_published_results_in_words_are_as_published(name):
    assert list(PUBLISHED[name].rows) == WORDS[name]


def test_every_table_belongs_to_a_study_and_has_whole_rows():
    assert {name for study in STUDIES.values() for name in study.published} == set(PUBLISHED)
    for table in PUBLISHED.values():
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert len({row[0] for row in table.rows}) == len(table.rows)


def test_our_values_are_beside_the_published_row_of_the_same_name():
    findings = Findings(ours={"glue": Ours(("loss", "error"), {"RoPE": ("0.8", "0.1")})})
    table = beside("glue", findings)
    assert table.columns == ("encoding", "score", "parameters", "ours: loss", "ours: error")
    assert table.rows == [
        ("learned", "82.3", "393K", "-", "-"),
        ("sinusoidal", "81.7", "0", "-", "-"),
        ("RoPE", "82.1", "0", "0.8", "0.1"),
    ]
    assert beside("glue", Findings()).columns == ("encoding", "score", "parameters")
    assert compared(["beyond-512", "glue"], findings) == [table]


@pytest.fixture(scope="module")
def results():
    if not RESULTS.is_dir():
        pytest.skip("results/ is not part of an installation")
    return committed_results()


def test_every_stated_figure_has_a_measured_one_beside_it(results):
    """In at least one committed run, every row of every stated table, of RoFormer's stages and of
    its matching.
    """
    for name in (*STATED, "roformer-stages", "roformer-cail"):
        missing = {row[0] for row in PUBLISHED[name].rows} - (
            {"WoBERT-512"} if name == "roformer-cail" else set()
        )
        for result in results.values():
            ours = result.findings.ours.get(name)
            if ours is not None:
                missing -= {label for label, cells in ours.cells.items() if "-" not in cells}
        assert not missing, f"{name}: nothing of ours beside {missing}"


def test_every_study_has_committed_rows(results):
    assert {result.facts["study"] for result in results.values()} >= set(STUDIES)


def test_the_report_of_the_committed_rows_shows_published_and_our_values(
    capsys, results, tmp_path, monkeypatch
):
    # pictures take seconds and have no numbers
    monkeypatch.setattr("ropewalk_lab.report.draw_figures", lambda *_: [])
    for name in results:
        (tmp_path / name).symlink_to(RESULTS / name)
    code, out, _ = call(capsys, "lab", "report", str(tmp_path), "--json")
    assert code == 0
    assert set(json.loads(out)["studies"]) == set(results)
    page = re.sub(r'src="data:[^"]*"', "", (tmp_path / "report.html").read_text(encoding="utf-8"))
    page = page.replace(' class="number"', "")
    for figures in STATED.values():
        for label, figure in figures.items():
            assert re.search(
                rf"<tr><td>{re.escape(label)}</td><td>{re.escape(figure)}( %)?</td><td>[^-]", page
            ), (label, figure)
    for stage, (*_, loss, accuracy) in enumerate(STAGES, start=1):
        assert re.search(
            rf"<tr><td>{stage}</td>.{{0,120}}<td>{loss}</td><td>{accuracy} %</td><td>\d+</td>", page
        )


def test_the_stated_tokens_per_turn_are_two_pi_over_the_frequency():
    assert f"{2 * math.pi:.2f}" == STATED["unaliased-length"]["fastest"]
    assert f"{2 * math.pi * 10_000 ** (126 / 128):,.0f}" == STATED["unaliased-length"]["slowest"]


#: of every table: its publication, its title, the names of its columns and of its rows
FRAMES = {
    "roformer-stages": (
        "Su et al., RoFormer (2021), table 4",
        "Masked-LM loss and accuracy by stage",
        "stage length batch steps loss accuracy",
        "1 2 3 4 5 6",
    ),
    "roformer-cail": (
        "Su et al., RoFormer (2021), table 5",
        "CAIL2019-SCM accuracy",
        "model/valid/test/test - BERT-512",
        "BERT-512 WoBERT-512 RoFormer-512 RoFormer-1024",
    ),
    "roformer-mlm": (
        "Su et al., RoFormer (2021), figure 3 and table 1",
        "RoPE against learned positions",
        "measure baseline RoPE",
        "WMT 2014 En-De, BLEU/masked-LM loss",
    ),
    "roformer-linear": (
        "Su et al., RoFormer (2021), figure 3",
        "Loss of linear attention on enwik8",
        "model loss",
        "Performer/Performer with RoPE",
    ),
    "base-ablation": (
        "",
        "Accuracy of RoFormer-512 by base, on the validation file of CAIL2019-SCM",
        "base accuracy",
        "100 1,000 10,000 100,000",
    ),
    "norm-ablation": (
        "",
        "Accuracy of RoFormer-512 by norm of q and k, on the validation file of CAIL2019-SCM",
        "norm accuracy",
        "no norm/LayerNorm after the rotation/plain RoPE",
    ),
    "glue": ("", "Average score on GLUE", "encoding score parameters", "learned sinusoidal RoPE"),
    "beyond-512": (
        "",
        "RoPE beyond its trained length of 512",
        "length quality",
        "512 1024 2048 4096",
    ),
    "unaliased-length": ("", "Tokens until a pair repeats", "pair tokens", "fastest slowest"),
    "alibi-extrapolation": (
        "Press et al., Train Short, Test Long (2022), table 2",
        "Perplexity on WikiText-103, trained at 512",
        "encoding 512 1012 1512 3512 15512",
        "sinusoidal/rotary/T5 bias/ALiBi",
    ),
    "nope-causal": (
        "Haviv et al., Transformer Language Models without Positional Encodings Still Learn "
        "Positional Information (2022), tables 1 and 4",
        "Perplexity with and without positions",
        "encoding/causal, WikiText-103/masked",
        "none learned sinusoidal ALiBi",
    ),
    "nope-length-generalisation": (
        "Kazemnejad et al., The Impact of Positional Encoding on Length Generalization (2023)",
        "Mean reciprocal rank on ten tasks",
        "encoding rank",
        "none/T5 bias/ALiBi/rotary/absolute",
    ),
    "interpolation": (
        "Chen et al., Extending Context Window via Positional Interpolation (2023)",
        "Perplexity on PG19, LLaMA 7B",
        "model 2048 8192",
        "unchanged/fine-tuned directly/interpolated and fine-tuned",
    ),
    "interpolation-passkey": (
        "Chen et al., Extending Context Window via Positional Interpolation (2023), table 4",
        "Longest text in which pass keys are found",
        "method steps length",
        "interpolated/fine-tuned directly",
    ),
    "ntk-zero-shot": (
        "Su, kexue.fm 9675, 9706 and 9708",
        "Token accuracy at 4096, trained at 512, zero-shot",
        "method accuracy",
        "none/PI/NTK/NTK-mixed/NTK-mixed + log n/ReRoPE, window 256",
    ),
    "yarn": (
        "Peng et al., YaRN (2023)",
        "Perplexity at 10240, Llama-2 7B extended to 8k",
        "method perplexity",
        "PI NTK YaRN",
    ),
    "yarn-passkey": ("Peng et al., YaRN (2023)", "Pass keys found at 128k", "method found", "YaRN"),
    "longrope": (
        "Ding et al., LongRoPE (2024)",
        "Perplexity on PG19 at 16k, zero-shot",
        "method perplexity",
        "PI/dynamic NTK/YaRN/searched",
    ),
    "drope-needle": (
        "DroPE, table 1",
        "Several needles at twice the length, % found",
        "method found",
        "RoPE PI NTK YaRN ALiBi none DroPE",
    ),
    "base-bounds": (
        "Men et al., Base of RoPE Bounds Context Length (2024)",
        "Smallest base that keeps the sum of cosines positive",
        "length base",
        "1k 4k 8k 32k 128k 1M",
    ),
    "base-scaling-laws": (
        "Liu et al., Scaling Laws of RoPE-based Extrapolation (2023)",
        "Fine-tuning with another base",
        "base extrapolates",
        "500/above 10,000",
    ),
}
#: what settings say beside the numbers in `SETTINGS`
WORDS_OF_SETTINGS = {
    "roformer-stages": ["words as tokens"],
    "roformer-mlm": ["BERT-base sizes"],
    "roformer-cail": ["triplets of about 900 characters for training, validation and test"],
    "base-ablation": ["One run of each base", "no noise is stated"],
    "norm-ablation": ["One run of each norm", "ours is a rotation that does not keep the norm"],
    "glue": ["as in BERT-base", "our columns are of language modelling, not of GLUE"],
    "beyond-512": ["Stated in words, without numbers"],
    "alibi-extrapolation": ["windows do not overlap, so longer ones have fewer early tokens"],
    "nope-causal": ["RoBERTa-large for masked"],
    "interpolation-passkey": ["LLaMA 7B"],
    "yarn-passkey": ["Llama-2 7B, fine-tuned"],
    "longrope": ["Llama-2 7B"],
    "base-bounds": ["the criterion is jagged, so a base just above a bound may fail it"],
    "base-scaling-laws": ["Llama-2, tuned at 16k"],
}


def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.split("/") if "/" in text else text.split())


def test_every_table_of_others_is_written_out_here():
    assert set(FRAMES) == set(PUBLISHED)
    assert {*NUMBERS, *WORDS, *STATED, "roformer-stages", "roformer-cail"} == set(PUBLISHED)


@pytest.mark.parametrize("name", FRAMES)
def test_a_table_of_others_names_its_publication_its_columns_and_its_rows(name):
    table = PUBLISHED[name]
    source, title, columns, rows = FRAMES[name]
    assert (table.source, table.title) == (source, title)
    assert table.columns == words_of(columns)
    assert tuple(row[0] for row in table.rows) == words_of(rows)
    for said in WORDS_OF_SETTINGS.get(name, []):
        assert said in table.setting


def test_what_has_no_number_is_said_where_it_stands():
    """`NUMBERS` has the numbers in their order; these are the cells between them."""
    between = {
        name: [
            (row[0], table.columns[place], cell)
            for row in table.rows
            for place, cell in enumerate(row)
            if place and not re.fullmatch(r"[+-]?[\d., ke%K]+", cell)
        ]
        for name, table in PUBLISHED.items()
        if name not in WORDS and name not in STATED
    }
    assert {name: cells for name, cells in between.items() if cells} == {
        "alibi-extrapolation": [("T5 bias", "15512", "out of memory")],
        "nope-causal": [("sinusoidal", "masked", "-"), ("ALiBi", "masked", "-")],
        "interpolation": [
            ("unchanged", "8192", "> 1000"),
            ("fine-tuned directly", "2048", "-"),
            ("interpolated and fine-tuned", "2048", "-"),
        ],
        "interpolation-passkey": [("interpolated", "length", "the whole window")],
    }


PERCENT = {
    "roformer-stages": [5],
    "roformer-cail": [1, 2],
    "base-ablation": [1],
    "norm-ablation": [1],
    "ntk-zero-shot": [1],
    "yarn-passkey": [1],
}


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_accuracies_of_others_are_in_per_cent_and_nothing_else_is(name):
    shown = {place for row in PUBLISHED[name].rows for place, cell in enumerate(row) if "%" in cell}
    assert sorted(shown) == PERCENT.get(name, [])
    for row in PUBLISHED[name].rows:
        assert all(row[place].endswith(" %") for place in shown)


#: study -> the tables beside its results
SHOWN_BY = {
    "encodings": "glue beyond-512 roformer-mlm alibi-extrapolation nope-causal "
    "nope-length-generalisation",
    "extend": "interpolation ntk-zero-shot yarn longrope",
    "base": "base-ablation base-bounds base-scaling-laws",
    "norms": "norm-ablation",
    "passkey": "interpolation-passkey yarn-passkey drope-needle",
    "mlm_lengths": "roformer-stages",
    "matching": "roformer-cail",
    "linear": "roformer-linear",
    "decay": "unaliased-length",
}


def test_a_table_of_others_is_shown_by_the_study_of_its_question():
    shown = {name: " ".join(study.published) for name, study in STUDIES.items()}
    assert {name: tables for name, tables in shown.items() if tables} == SHOWN_BY
