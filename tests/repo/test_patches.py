# SPDX-License-Identifier: BSD-3-Clause
"""The table of patches of torch: each row is true of this torch, and nothing else changes torch."""

import ast
import re
import sys
from importlib import import_module

import pytest
import torch
from repo.sources import DEVICE, ROOT, shown, sources

from torch_npusim import patches
from torch_npusim._changes import find, is_version
from torch_npusim.patches import PATCHES, Changes, Patch

sys.path.insert(0, str(ROOT / "tools/pages"))
import patches as patches_page

#: Rows of modules that this process may import: the compiler is asked in tests/compile.
ROWS = {patch.target: patch for patch in PATCHES}


def test_a_target_has_one_row():
    assert len(ROWS) == len(PATCHES)


@pytest.mark.parametrize("target", ROWS)
def test_a_row_is_true(target):
    patch = ROWS[target]
    assert patch.ends
    assert re.search(r"^(pytorch/pytorch \d+\b|no issue known$|none: )", patch.upstream)
    file, _, function = patch.test.partition("::")
    assert f"def {function}(" in (ROOT / "tests" / file).read_text()
    if not patch.serves():
        with pytest.raises(KeyError):
            patches.original(target)
        return
    if patch.after:
        import_module(patch.after)
    now, original = find(target)[2], patches.original(target)
    if isinstance(original, dict):
        assert original.keys()
    else:
        assert original is not now
    for place in patch.also:
        assert find(place)[2] is now


@pytest.mark.parametrize("target", ROWS)
def test_a_row_can_be_undone(target):
    patch = ROWS[target]
    if not patch.serves():
        pytest.skip(f"torch {torch.__version__} does not need it")
    if patch.after:
        import_module(patch.after)
    before = find(target)[2]
    content = entries(before)
    with patches.undone(target):
        assert content is None or entries(find(target)[2]) != content
        assert content is not None or find(target)[2] == patches.original(target)
    after = find(target)[2]
    assert (entries(after) or {}).keys() == (content or {}).keys()
    assert (after is before) or content is None


def entries(table):
    """Returns a copy of a table's entries; None of a function."""
    if isinstance(table, set):
        return dict.fromkeys(table)
    if isinstance(table, dict):
        return dict(table)
    return None if callable(table) else dict(vars(table))


@pytest.mark.parametrize(
    ("condition", "version", "met"),
    [
        ("", "2.13.0+cpu", True),
        ("<2.15", "2.14.1", True),
        ("<2.15", "2.15.0a0+git1", False),
        (">=2.14", "2.13.0", False),
        (">=2.14", "3.0.0", True),
    ],
)
def test_conditions_on_versions(condition, version, met):
    assert is_version(condition, version) is met
    assert Patch("torch:x", "x:y", "z", "never", versions=condition).serves(version) is met


def test_changes_are_undone_in_the_opposite_order():
    class Owner:
        def __init__(self):
            pass

        value = 1

    table, members, items = {"a": 1}, {1}, [1, 2, 3]
    with Changes() as changes:
        changes.set(Owner, "value", 2)
        changes.set(Owner, "value", 3)
        changes.set(Owner, "other", 4)
        changes.delete(Owner, "__init__")
        changes.put(table, "a", 2)
        changes.put(table, "b", 3)
        changes.add(members, 1)
        changes.add(members, 2)
        changes.remove(items, 2)
        changes.remove(items, 4)
        assert (Owner.value, Owner.other, table, members, items) == (
            3,
            4,
            {"a": 2, "b": 3},
            {1, 2},
            [1, 3],
        )
    assert (Owner.value, table, members, items) == (1, {"a": 1}, {1}, [1, 2, 3])
    assert not hasattr(Owner, "other")
    assert "__init__" in vars(Owner)


#: Values of torch that backends are meant to set: settings, a counter, a note per device.
STATE = ("config.online_softmax", "metrics.generated_kernel_count")
STATE += ("torchs.caching_worker_current_devices['npusim']",)
STATE += ("torch.backends.cuda.matmul.allow_tf32",)  # of the recorder of truth


def test_nothing_else_assigns_to_torch():
    """Names that a file imports from torch get no attribute and no entry outside of the table."""
    wrong = []
    for path in sources(*DEVICE, suffixes=(".py",)):
        tree = ast.parse(path.read_text())
        foreign = {
            (name.asname or name.name).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
            if (getattr(node, "module", None) or name.name).split(".")[0] == "torch"
        }
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                if not isinstance(target, ast.Attribute | ast.Subscript):
                    continue
                root = target
                while isinstance(root, ast.Attribute | ast.Subscript):
                    root = root.value
                text = ast.unparse(target)
                if isinstance(root, ast.Name) and root.id in foreign and text not in STATE:
                    wrong.append(f"{shown(path, node.lineno)}: {text}")
    assert sorted(wrong) == []


def test_the_page_has_a_row_for_each():
    assert len(list(patches_page.table())) == 2 + len(PATCHES)
