# SPDX-License-Identifier: BSD-3-Clause
"""check_triton() finds each planted defect, on its line."""

import inspect
import re

import pytest
import torch
from triton_kernels import right, tutorials, wrong

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
    "neighbours_columns": lambda k: check_triton(k)[(4,)](*columns(), 8, 4, BLOCK=8),
    "stride_of_another_layout": lambda k: check_triton(k)[(4,)](*columns(), 8, 4, BLOCK=4),
    "offset_of_32_bits": lambda k: check_triton(k)[(4,)](*far_rows(), 1 << 30, 8, BLOCK=16),
    "lanes_that_meet": lambda k: checked(k, *tensors()),
}


def columns():
    """Four of eight columns, of which the others belong to somebody else."""
    return torch.randn(4, 8).to(DEVICE)[:, :4], torch.zeros(4, 8, device=DEVICE)[:, :4]


def far_rows():
    """Rows of one byte per element whose offsets do not fit into 32 bits; little is touched."""
    rows = torch.empty_strided((4, 8), (1 << 30, 1), dtype=torch.int8, device=DEVICE)
    return rows.fill_(3), torch.zeros(4, 8, dtype=torch.int8, device=DEVICE)


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
    torch.npusim.empty_cache()  # of larger segments
    x = torch.ones(1 << 24, device=DEVICE)[-N:]  # the end of a segment with none behind it
    with pytest.raises(Exception, match=r"illegal memory access.*tutorials\.py"):
        tutorials.add[(1,)](x, x, x, 1 << 50, BLOCK=1 << 20)


def test_wrong_names_and_missing_tensors_are_refused():
    x, out = tensors()
    with pytest.raises(Exception, match="no tensor argument is called 'ouput'"):
        check_triton(tutorials.add, outputs=("ouput",))[GRID](x, x, out, N, BLOCK=32)
    host = torch.ones(N)
    with pytest.raises(RuntimeError, match="no argument of the kernel is on npusim"):
        check_triton(tutorials.add)[GRID](host, host, host, N, BLOCK=32)


@pytest.mark.parametrize("name", [name for name in PLANTED if hasattr(right, name)])
def test_the_right_twin_of_a_defect_passes(name):
    PLANTED[name](getattr(right, name))


def test_a_view_is_all_written_where_its_elements_are():
    x, out = columns()
    check_triton(right.neighbours_columns, outputs=("out_ptr",))[(4,)](x, out, 8, 4, BLOCK=4)
    assert torch.equal(out, x)
    assert out._base[:, 4:].eq(0).all()


def test_arguments_over_one_storage_share_it():
    """A conflict is one under another name, and a neighbour's elements are not one's own."""
    x = tensors()[0]
    with pytest.raises(TritonKernelError, match="conflict"):
        check_triton(wrong.blocks_that_overlap)[GRID](x, x, N, BLOCK=32)
    both = torch.randn(2, N).to(DEVICE)
    with pytest.raises(TritonKernelError, match="outside"):
        checked(wrong.load_without_mask, both[0], both[1])
    check_triton(tutorials.add)[GRID](both[0], both[0], both[1], N, BLOCK=32)


def test_the_first_configuration_runs_and_all_are_checked():
    x, out = tensors()

    def grid(meta):
        return (-(-N // meta["BLOCK"]),)

    right.tuned[grid](x, out, N)
    assert torch.equal(out, 2 * x)
    out.zero_()
    with pytest.raises(TritonKernelError, match="configuration BLOCK: 32") as caught:
        check_triton(right.tuned)[grid](x, out, N)
    assert {finding.kind for finding in caught.value.findings} == {"outside"}
    assert torch.equal(out, 2 * x)


def test_bfloat16_is_computed_as_torch_does():
    n = 32
    x, y = torch.randn(2, n).bfloat16()
    out = torch.zeros(8, n, dtype=torch.bfloat16, device=DEVICE)
    total = torch.zeros(1, dtype=torch.bfloat16, device=DEVICE)
    arguments = x.to(DEVICE), y.to(DEVICE), total, out, n
    check_triton(right.bfloat16, orders=0)[(1,)](*arguments, BLOCK=n)
    wanted = [x + y, x * y, torch.where(x > y, x, -y), torch.maximum(x, y.abs())]
    wanted += [(x.float() * 1.01).bfloat16(), (x * 8).int().bfloat16(), x.float().exp().bfloat16()]
    for row, expected in zip(out.cpu(), wanted, strict=False):
        assert torch.equal(row, expected)
    torch.testing.assert_close(out[7, 0].cpu(), x.float().sum().bfloat16())
    in_order = torch.zeros(1, dtype=torch.bfloat16)
    for value in x:
        in_order += value
    assert torch.equal(total.cpu(), in_order)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy: infinity and NaN are meant
def test_bfloat16_beside_its_finite_numbers():
    special = torch.tensor([float("inf"), -0.0, float("nan"), 3.3e38] * 8).bfloat16()
    out = torch.zeros(8, 32, dtype=torch.bfloat16, device=DEVICE)
    total = torch.zeros(1, dtype=torch.bfloat16, device=DEVICE)
    twice = special.to(DEVICE), special.to(DEVICE)
    right.bfloat16[(1,)](*twice, total, out, 32, BLOCK=32)
    torch.testing.assert_close(out[0].cpu(), special + special, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_products_of_narrow_types(dtype):
    a, b = torch.randn(2, 16, 16).to(dtype)
    out = torch.zeros(16, 16, device=DEVICE)
    check_triton(right.product)[(1,)](a.to(DEVICE), b.to(DEVICE), out, SIZE=16)
    torch.testing.assert_close(out.cpu(), a.float() @ b.float())
