"""Reports for other projects: one for each stack whose numbers differ from the vectors, about the
release that was run, with numbers of the vectors.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "conformance" / "reports"
STACKS = {
    row["stack"]: row
    for row in json.loads((ROOT / "results" / "stacks.json").read_text(encoding="utf-8"))
}
NAMES = sorted(file.stem for file in REPORTS.glob("*.md") if file.stem != "README")
README = (REPORTS / "README.md").read_text(encoding="utf-8")


def differing(stack: str) -> set[str]:
    """Return the cells of a stack that differ from the vectors, without those of the group `far`,
    where float32 angles are enough to differ.
    """
    cells = STACKS[stack].get("cells", {})
    return {
        name
        for name, cell in cells.items()
        if cell["result"] == "differs" and not name.startswith("far/")
    }


def test_every_stack_that_differs_has_a_report_or_a_reason():
    on_purpose = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", README, re.M))
    for stack in STACKS:
        if differing(stack):
            assert (stack in NAMES) != (stack in on_purpose), stack
    for stack, version in on_purpose.items():
        assert differing(stack)
        assert version == STACKS[stack]["version"]


def test_the_table_in_the_readme_lists_the_reports_and_their_releases():
    rows = re.findall(r"^\| \[([\w-]+)\]\(([\w-]+)\.md\) \| ([\d.]+) \|", README, re.M)
    assert sorted(rows) == [(name, name, STACKS[name]["version"]) for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_a_report_names_the_release_date_and_vectors_of_the_run(name):
    text = (REPORTS / f"{name}.md").read_text(encoding="utf-8")
    row = STACKS[name]
    assert f"**Project and release**: {name} {row['version']}\n" in text
    assert f"**Date of the run**: {row['date']}\n" in text
    vectors = text.split("**Vectors**:")[1].split("- **Run**")[0]
    assert set(re.findall(r"`([\w.-]+/[\w.-]+)`", vectors)) == differing(name)
    for part in ("Case", "Line at fault", "Effect", "Proposed fix"):
        assert f"\n## {part}\n" in text
    compile("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), name, "exec")


@pytest.mark.parametrize("name", NAMES)
def test_expected_angles_are_those_of_the_vectors(name):
    text = (REPORTS / f"{name}.md").read_text(encoding="utf-8")
    checked = 0
    for line in text.splitlines():
        pair = re.search(r"pair (\d+)", line) if line.startswith("| ") else None
        if pair is None or "cosine" in line:
            continue
        above = text[: text.index(line)].rsplit("\n\n", 1)[1] + line
        group, case_id = re.findall(r"`([\w-]+)/([\w.-]+)`", above)[-1]
        vectors = json.loads((ROOT / "conformance" / f"{group}.json").read_text(encoding="utf-8"))
        case = next(each for each in vectors["cases"] if each["id"] == case_id)
        said = float([cell for cell in line.split(" | ") if "`" not in cell][1].strip("| "))
        assert said == pytest.approx(case["inv_freq"]["float"][int(pair[1])], rel=1e-8)
        checked += 1
    assert checked or name == "lmdeploy"  # its difference is a magnitude
