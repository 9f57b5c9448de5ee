"""The suite checks the shapes that signatures state; a user's process does not."""

import ast
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from door import as_users_call

jaxtyping = pytest.importorskip("jaxtyping")
pytest.importorskip("beartype", reason="the shapes of signatures are checked by beartype")


@pytest.mark.parametrize("x", ["text", torch.zeros(1, 1, 2, 4, dtype=torch.int64)], ids=["text", "integers"])
def test_a_wrong_type_or_dtype_is_noticed_in_tests_alone(x):
    rope = rw.Rope(rw.RopeSpec(4))
    with pytest.raises(jaxtyping.TypeCheckError):
        rope.rotate(x)
    with as_users_call(), pytest.raises(rw.RopeError):
        rope.rotate(x)


def test_every_protocol_can_be_checked_at_run_time():
    """--full checks the types of all modules, and a protocol without `runtime_checkable` would stop their import."""
    files = Path(rw.__file__).parent.rglob("*.py")
    classes = [node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
    protocols = [node for node in classes if any(ast.unparse(base) == "Protocol" for base in node.bases)]
    assert len(protocols) >= 6
    assert [node.name for node in protocols if "runtime_checkable" not in map(ast.unparse, node.decorator_list)] == []
