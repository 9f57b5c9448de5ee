"""The search of the site: Chinese without spaces is found, and the page splits a query as the index
splits the text.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the site needs sphinx")
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from chinese_search import EnglishAndChinese

QUERIES = {
    "旋转": ["旋转"],
    "旋转位置编码": ["旋转", "转位", "位置", "置编", "编码"],
    "RoPE的角度, YaRN_2": ["RoPE", "的角", "角度", "YaRN_2"],
    "长 context": ["长", "context"],
    "": [],
}


@pytest.mark.parametrize("text", QUERIES)
def test_a_text_is_split_into_words_and_pairs(text):
    words = EnglishAndChinese({}).split(text)
    assert [w for w in words if w] == QUERIES[text]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_splits_a_query_as_the_index_splits_a_text():
    code = EnglishAndChinese.js_splitter_code
    assert not set("<>\"'") & set(code)  # they could be escaped on the way into the page
    ask = f"{code}\nconsole.log(JSON.stringify({json.dumps(list(QUERIES))}.map(splitQuery)))"
    done = subprocess.run(["node", "-e", ask], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == list(QUERIES.values())
