# SPDX-License-Identifier: BSD-3-Clause
"""check_triton() finds each planted defect, on its line."""

import inspect
import re

import pytest
import torch
from triton_kernels import tutorials, wrong

from torch_npusim.sim import poison
from torch_npusim.testing import TritonKernelError, check_triton

DEVICE = "npusim"
N = 100
GRID = (4,)


def tensors(out=N):
    torch.manual_seed(0)
    return torch.randn(N).to(DEVICE), torch.zeros(out, device=DEVICE)


def checked(kernel, *args, outputs=(), grid=GRID):
    check_triton(kernel, outputs=outputs)[grid](*args, N, BLOCK=32)


PLANTED = {
    "load_without_mask": lambda k: checked(k, *tensors()),
    "store_without_mask": lambda k: checked(k, *tensors()),
    "one_too_many": lambda k: checked(k, *tensors()),
    "before_the_start": lambda k: checked(k, *tensors()),
    "mean_of_masked_lanes": lambda k: check_triton(k)[(1,)](*tensors(1), N, BLOCK=128),
    "accumulate_in_what_is_empty": lambda k: checked(k, *tensors(), outputs=("out_ptr",)),
    "atomic_add_to_what_is_empty": lambda k: checked(k, *tensors(1), outputs=("out_ptr",)),
    "sum_without_atomics": lambda k: checked(k, *tensors(1)),
    "blocks_that_overlap": lambda k: checked(k, *tensors()),
    "smooth_in_place": lambda k: checked(k, tensors()[0]),
    "last_one_wins": lambda k: checked(k, tensors()[0], lock()),
    "half_of_the_blocks": lambda k: checked(k, *tensors(), outputs=("out_ptr",)),
    "sum_beside_the_lock": lambda k: checked(k, *tensors(1), lock()),
}


def lock():
    return torch.zeros(1, dtype=torch.int32, device=DEVICE)


def marked(kernel):
    """The kind and the line that the source of a kernel says is wrong."""
    lines, first = inspect.getsourcelines(kernel.fn)
    for i, line in enumerate(lines):
        if found := re.search(r"# (\w+)$", line):
            return found[1], first + i
    raise AssertionError("nothing is marked")


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found_on_its_line(name):
    kernel = getattr(wrong, name)
    with pytest.raises(TritonKernelError, match=name) as caught:
        PLANTED[name](kernel)
    found = {(finding.kind, finding.line.number) for finding in caught.value.findings}
    assert marked(kernel) in found
    assert len({kind for kind, _ in found}) == 1, caught.value


def test_a_lock_that_is_kept_does_not_hang():
    with pytest.raises(Exception, match=r"waits for a lock .* has not released"):
        checked(wrong.lock_that_is_kept, *tensors(1), lock())


def test_fresh_memory_is_known_where_it_was_filled():
    x = tensors()[0]
    with poison.use_mode("fresh"):
        out = torch.empty(N, device=DEVICE)
        with pytest.raises(TritonKernelError, match="uninitialised"):
            checked(wrong.accumulate_in_what_is_empty, x, out)
        checked(wrong.accumulate_in_what_is_empty, x, torch.zeros(N, device=DEVICE))


def test_the_results_are_those_of_an_ordinary_launch():
    x, out = tensors()
    check_triton(tutorials.add, orders=3)[GRID](x, x, out, N, BLOCK=32)
    assert torch.equal(out, x + x)


def test_a_launch_outside_of_all_memory_is_refused():
    x, _ = tensors()
    with pytest.raises(Exception, match=r"illegal memory access.*tutorials\.py"):
        tutorials.add[(1,)](x, x, x, 1 << 50, BLOCK=1 << 20)


def test_wrong_names_and_missing_tensors_are_refused():
    x, out = tensors()
    with pytest.raises(Exception, match="no tensor argument is called 'ouput'"):
        check_triton(tutorials.add, outputs=("ouput",))[GRID](x, x, out, N, BLOCK=32)
    host = torch.ones(N)
    with pytest.raises(RuntimeError, match="no argument of the kernel is on npusim"):
        check_triton(tutorials.add)[GRID](host, host, host, N, BLOCK=32)
