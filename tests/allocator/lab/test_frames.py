# SPDX-License-Identifier: BSD-3-Clause
"""The line to blame: the program's own frames before those of libraries, torch and C++."""

from __future__ import annotations

from pathlib import Path

import pytest

import npusim_lab
import torch_npusim
from npusim_lab.frames import file_line, matching, rank_of, to_blame
from npusim_lab.kinds import kind_of

UNWIND = [
    ("??", 0, "torch::unwind::unwind()"),
    ("??", 0, "torch::CapturedTraceback::gather(bool, bool, bool)"),
    ("memory_snapshot.cpp", 0, "torch::cuda::(anonymous namespace)::gather_with_cpp()"),
    ("CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::Native::malloc()"),
    ("??", 0, "at::_ops::embedding::call(at::Tensor const&, at::Tensor const&)"),
]
TORCH = ("/env/lib/python3.12/site-packages/torch/nn/functional.py", 2233, "embedding")
MODULE = ("/env/lib/python3.12/site-packages/torch/nn/modules/module.py", 1790, "_call_impl")
LIBRARY = ("/env/lib/python3.12/site-packages/accelerate/hooks.py", 166, "new_forward")
INTERPRETER = ("/usr/lib/python3.12/runpy.py", 88, "_run_code")
PACKAGE = ("/src/torch_npusim/torch_npusim/npusim/memory.py", 9, "_snapshot")
CHECKOUT = ("/src/torch_npusim/examples/train_digits.py", 9, "main")
EVAL = ("/usr/local/src/conda/python-3.10.14/Python/ceval.c", 5945, "do_call_core")
OWN = ("/home/me/model.py", 54, "forward")
CELL = ("/tmp/ipykernel_77/1234.py", 3, "<module>")
WINDOWS = "D:\\me\\proj\\.venv\\Lib\\site-packages\\"
WINDOWS_TORCH = (WINDOWS + "torch\\nn\\modules\\linear.py", 134, "forward")
WINDOWS_LIBRARY = (WINDOWS + "transformers\\cache_utils.py", 9, "update")
WINDOWS_COPY = ("C:\\uv\\python\\cpython-3.10.19-windows-x86_64-none\\lib\\copy.py", 9, "deepcopy")
WINDOWS_OWN = ("D:\\me\\proj\\python\\lib\\model.py", 399, "forward")
COMPILED = ("/tmp/torchinductor_me/hw/chwq7ux2iggy.py", 53, "call")
NODE = ("??", 0, "torch::autograd::generated::NativeDropoutBackward0::apply(std::vector&&)")


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ([*UNWIND, TORCH, EVAL, LIBRARY, MODULE, OWN, INTERPRETER, CELL], [OWN, CELL]),
        ([*UNWIND, TORCH, LIBRARY, INTERPRETER], [LIBRARY, INTERPRETER]),
        ([*UNWIND, EVAL, TORCH, MODULE], [TORCH, MODULE]),
        ([*UNWIND, EVAL], [("C++", 0, "operator embedding")]),
        ([*UNWIND, NODE], [("C++", 0, "NativeDropoutBackward0 of a backward pass")]),
        (UNWIND[:4], []),
        ([WINDOWS_TORCH, WINDOWS_COPY, WINDOWS_LIBRARY, WINDOWS_OWN], [WINDOWS_OWN]),
        ([WINDOWS_TORCH, WINDOWS_COPY], [WINDOWS_COPY]),
        ([COMPILED, TORCH, OWN], [OWN]),
        ([("/src/pytorch/torch/nn/modules/linear.py", 1, "forward"), OWN], [OWN]),
        ([PACKAGE, LIBRARY, CHECKOUT], [CHECKOUT]),
        ([("<string>", 1, "<module>")], [("<string>", 1, "<module>")]),
        ([], []),
    ],
)
def test_the_first_frame_is_the_one_to_blame(stack, expected) -> None:
    assert to_blame(stack) == expected


def test_all_of_the_package_is_named() -> None:
    root = Path(torch_npusim.__file__).parent
    files = {path.relative_to(root.parent) for path in root.rglob("*.py")}
    assert len(files) > 100
    assert {rank_of(f"/env/{path}") for path in files} == {2}


def test_a_filter_shows_what_it_finds() -> None:
    stack = [*UNWIND, TORCH, OWN]
    assert matching(stack, r"functional\.py") == [TORCH]
    assert matching(stack, "forward$") == [OWN]
    with pytest.raises(ValueError, match="no regular expression"):
        matching(stack, "(")


def test_a_filter_that_finds_nothing_does_not_call_stacks_unrecorded() -> None:
    found = npusim_lab.explain(npusim_lab.generate("lora"), show="no_such_frame", quick=True)
    assert "by a stack without a frame to show" in found["verdict"]
    assert "recorded" not in found["verdict"]


def test_blocks_without_a_recorded_stack_are_called_so() -> None:
    out = npusim_lab.TraceBuilder()
    out.malloc(15 << 20)
    found = npusim_lab.explain(out.build(), quick=True)
    assert "16 MiB in blocks whose stack was not recorded" in found["verdict"]


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        ([("/home/me/clip_backward.py", 9, "load")], "other"),
        ([("??", 0, "at::native::linear_backward(at::Tensor const&)")], "backward pass"),
        ([("/e/site-packages/lmdeploy/cache_engine.py", 9, "allocate_gpu_cache")], "KV cache"),
        ((OWN, MODULE), "activations"),
        ((*UNWIND, NODE), "backward pass"),
        ((("/env/site-packages/torch/optim/adamw.py", 9, "_init_group"), OWN), "optimizer state"),
        ((("/srv/engine/kv_cache.py", 9, "grow"),), "KV cache"),
        ((("/srv/engine/serve.py", 9, "cache"),), "KV cache"),
        ((("/srv/rope.py", 9, "_set_cos_sin_cache"), MODULE), "activations"),
        ((WINDOWS_LIBRARY, WINDOWS_OWN), "KV cache"),
        (((WINDOWS + "torch\\optim\\lbfgs.py", 9, "step"),), "optimizer state"),
        ((("/x/torch/nn/modules/linear.py", 9, "__init__"), CELL), "parameters"),
        ((OWN, MODULE, ("/env/site-packages/torch/optim/adamw.py", 9, "step")), "activations"),
        ((CELL,), "other"),
        ((), "not recorded"),
    ],
)
def test_kinds_are_guessed_from_the_stack(stack, kind: str) -> None:
    assert kind_of(tuple(stack)) == kind


def test_a_file_below_the_current_directory_is_named_from_there(tmp_path, monkeypatch):
    file = str(tmp_path / "jobs" / "train.py")
    for folder, said in (
        (tmp_path, "jobs/train.py:3"),
        (Path(file), f"{file}:3"),
        (Path("/"), f"{file}:3"),
    ):
        Path(folder).mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(folder)
        assert file_line(file, 3) == said
    assert file_line("<string>", 3) == "<string>:3"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert file_line(file, 3) == f"{file}:3"
