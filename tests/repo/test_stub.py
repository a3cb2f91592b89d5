# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim/_C.pyi lists exactly what the built module has."""

import ast

from repo.sources import ROOT

from torch_npusim import _C


def test_stub_and_module_have_the_same_functions():
    tree = ast.parse((ROOT / "torch_npusim" / "_C.pyi").read_text())
    stub = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert stub == {name for name in dir(_C) if not name.startswith("_")}
