"""The documents: every Python block runs, every link has a target, every part and scaling is named."""

import re
import warnings
from pathlib import Path

import pytest

from ropewalk.frequencies import SCALINGS

ROOT = Path(__file__).resolve().parents[1]
READMES = [ROOT / "README.md", ROOT / "README.zh.md"]
#: without the pages that the site makes from docstrings
DOCS = sorted(file for file in (ROOT / "docs").rglob("*.md") if file.parent.name != "reference")
PAGES = [*READMES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]

FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")

page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
readme = pytest.mark.parametrize("path", READMES, ids=lambda path: path.name)


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """(line, text) of every fenced block in a language."""
    text = path.read_text(encoding="utf-8")
    found = [match for match in FENCE.finditer(text) if match["language"] == language]
    return [(text.count("\n", 0, match.start("body")), match["body"]) for match in found]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The names GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


@page
def test_python_blocks_run_from_top_to_bottom(path, tmp_path, monkeypatch):
    """Each block of a README runs alone; on other pages a block may use names of the blocks before."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__docs__"}
    for line, body in blocks(path, "python"):
        if path in READMES:
            namespace = {"__name__": "__docs__"}
        # blank lines in front, so that a traceback points into the page
        program = compile("\n" * line + body, str(path), "exec")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # the documents are ours, and running them is the test
            exec(program, namespace)  # noqa: S102


@page
def test_relative_links_exist(path):
    broken = []
    for target in (match["target"] for match in LINK.finditer(prose(path))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


@page
def test_every_code_fence_is_closed_and_names_its_language(path):
    text = path.read_text(encoding="utf-8")
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(FENCE.findall(text))
    assert [line for line, _ in blocks(path, "")] == []


@readme
def test_readmes_show_make_demo_and_make_test(path):
    shell = "\n".join(body for _, body in blocks(path, "sh"))
    assert re.search(r"^make demo\b", shell, re.MULTILINE)
    assert re.search(r"^make test\b", shell, re.MULTILINE)


@readme
def test_readmes_have_at_most_130_lines_and_link_the_browser_page_first(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 130
    other_language, first = (match["target"] for match in list(LINK.finditer(text))[:2])
    assert other_language.startswith("README")
    assert first.endswith("/explore.md")


@readme
def test_readmes_have_a_first_python_block_of_at_most_7_lines_and_a_picture(path):
    _, first = blocks(path, "python")[0]
    assert len(first.strip().splitlines()) <= 7
    assert re.search(r"!\[[^\]]+\]\(docs/images/[\w-]+\.png\)", prose(path))


def test_the_tree_in_contributing_names_every_module_and_package_and_nothing_else():
    tree = "\n".join(body for _, body in blocks(ROOT / "CONTRIBUTING.md", "text"))
    named = set(re.findall(r"\b(\w+\.(?:py|c|inc))(?=\s)", tree)) | set(
        re.findall(r"\b(\w+/)(?=\s)", tree)
    )
    package = ROOT / "src" / "ropewalk"
    modules = {file.name for file in package.glob("*.py") if file.name != "__init__.py"}
    packages = {f"{file.parent.name}/" for file in package.glob("*/__init__.py")}
    found = [*package.rglob("*"), *ROOT.iterdir(), *package.parent.iterdir()]
    files = {f"{path.name}/" if path.is_dir() else path.name for path in found}
    assert sorted((modules | packages) - named) == [], "not in the tree"
    assert sorted(named - files) == [], "in the tree, and not on disk"


@pytest.mark.parametrize("language", ["python", "sh"])
def test_both_readmes_run_the_same_code(language):
    english, chinese = (
        [re.sub(r"\s*#.*", "", body) for _, body in blocks(path, language)] for path in READMES
    )
    assert english == chinese


def test_every_scaling_has_a_section():
    assert set(SCALINGS) <= anchors(ROOT / "docs" / "scalings.md")


def test_every_page_is_in_the_index():
    """A page is in the table of the index, or in that of a page which the index lists."""
    listed, reached = [ROOT / "docs" / "index.md"], set()
    while listed:
        home = listed.pop()
        reached.add(home)
        rows = re.findall(
            r"^\| \[[^\]]+\]\(([\w/-]+\.md)\)", home.read_text(encoding="utf-8"), re.MULTILINE
        )
        if home.name == "index.md" or "| page | its question |" in home.read_text(encoding="utf-8"):
            listed += [home.parent / row for row in rows if home.parent / row not in reached]
    assert sorted(path.name for path in set(DOCS) - reached) == []


def test_pictures_have_less_than_200_kb():
    heavy = [
        file.name
        for file in (ROOT / "docs" / "images").glob("*.png")
        if file.stat().st_size >= 200_000
    ]
    assert heavy == []
