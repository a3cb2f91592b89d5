# SPDX-License-Identifier: BSD-3-Clause
"""foreach operators: one command for a list, the CPU's bits, core's checks and errors."""

import pytest
import torch
from oracle import DEVICE, compare, refused

from torch_npusim import sim

SHAPES = [(3,), (4, 5), (2, 3, 4), (), (1000,), (40_000,)]


def tensors(dtype=torch.float32, shapes=SHAPES):
    return [torch.rand(shape).mul_(1.6).add_(0.1).to(dtype) for shape in shapes]


def commands(run):
    """How many launches the host has paid for."""
    x = torch.zeros(1, device=DEVICE)
    before = sim.clock.host_time_ns()
    x.neg_()
    launch = sim.clock.host_time_ns() - before
    run()
    return (sim.clock.host_time_ns() - before - launch) / launch


# What route i does not take: core's loop has the call, and the result is the CPU's all the same.
OTHERWISE = {
    "integers": lambda: tensors(torch.int64),
    "dtypes": lambda: [torch.rand(3), torch.rand(3).double(), torch.rand(3).half()],
    "strides": lambda: [torch.rand(4, 6)[:, ::2], torch.rand(4, 6).t()],
    "broadcast rows": lambda: [torch.rand(1, 6).expand(4, 6)],
    "complex": lambda: [torch.randn(3, dtype=torch.complex64)],
    "nothing in them": lambda: [torch.rand(0), torch.rand(2)],
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_lists_that_route_i_does_not_take(case):
    compare(lambda *xs: torch._foreach_mul(list(xs), 2.5), *OTHERWISE[case]())
    compare(lambda *xs: torch._foreach_add(list(xs), list(xs)), *OTHERWISE[case]())
    compare(lambda *xs: torch._foreach_mul(list(xs), True), *OTHERWISE[case]())
    compare(lambda *xs: torch._foreach_addcmul([x + 1 for x in xs], xs, xs, 2), *OTHERWISE[case]())


def test_a_list_is_one_command():
    xs = [x.to(DEVICE) for x in tensors()]
    ys = [x.clone() for x in xs]
    zs = [x.clone() for x in xs]
    steps = [0.1] * len(xs)
    assert commands(lambda: xs[0].neg_()) == 1
    assert commands(lambda: torch._foreach_sqrt_(xs)) == 1
    assert commands(lambda: torch._foreach_mul_(xs, 0.5)) == 1
    assert commands(lambda: torch._foreach_addcdiv_(xs, ys, zs, steps)) == 1
    assert commands(lambda: torch._foreach_lerp(xs, ys, 0.5)) == 1
    assert commands(lambda: torch._foreach_mul_([*xs, xs[0].long()], 2)) > len(xs)


LISTS = {
    "norm": lambda xs: torch._foreach_norm(xs),
    "norm of order 1": lambda xs: torch._foreach_norm(xs, 1, dtype=torch.float64),
    "max": lambda xs: torch._foreach_max(xs),
    "zero_": lambda xs: [xs, torch._foreach_zero_(xs)][:1],
    "clone": lambda xs: torch._foreach_clone(xs),
    "copy_": lambda xs: [xs, torch._foreach_copy_(xs, [x.double() for x in xs])][:1],
    "frac": lambda xs: torch._foreach_frac(xs),
    "pow": lambda xs: torch._foreach_pow(xs, 3),
    "powers of a number": lambda xs: torch._foreach_pow(0.9, xs),
    "clamp_min": lambda xs: torch._foreach_clamp_min(xs, 0.5),
    "maximum": lambda xs: torch._foreach_maximum(xs, [0.1 * n for n in range(len(xs))]),
    "addcmul": lambda xs: torch._foreach_addcmul(xs, xs, xs, torch.arange(1.0, 1 + len(xs))),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_other_loops_are_one_command_too(name):
    compare(lambda *xs: LISTS[name](list(xs)), *tensors())
    doubled = [x.double() for x in tensors()]
    compare(lambda *xs: LISTS[name](list(xs)), *doubled, backward=name not in ("zero_", "copy_"))
    xs = [x.to(DEVICE) for x in tensors()]
    assert commands(lambda: LISTS[name](xs)) == 1 + (name == "copy_") * len(xs)  # its casts


def test_a_grouped_product_takes_as_long_as_its_operations():
    def us(call):
        before = sim.clock.host_time_ns()
        call()
        torch.npusim.synchronize()
        return (sim.clock.host_time_ns() - before) / 1000

    with sim.dry_run(spec="a100-80-sxm"):
        made = {"dtype": torch.bfloat16, "device": DEVICE}
        x, w = torch.empty(4096, 4096, **made), torch.empty(8, 4096, 4096, **made)
        ends = torch.empty(8, dtype=torch.int32, device=DEVICE)
        whole = us(lambda: x @ w[0])
        by_rows = us(lambda: torch._grouped_mm(x, w, offs=ends))
        by_k = us(lambda: torch._grouped_mm(x, w[0], offs=ends))
    assert whole < by_rows < 1.5 * whole
    assert whole < by_k < 1.5 * whole


def test_lists_of_several_devices_are_copied_one_by_one():
    xs = [torch.ones(3, device="npusim:0"), torch.ones(3, device="npusim:1"), torch.ones(3)]
    torch._foreach_copy_(xs, [torch.arange(3.0), torch.arange(3.0), xs[0]])
    assert [x.tolist() for x in xs] == [[0, 1, 2], [0, 1, 2], [0, 1, 2]]


def test_weights_of_convolutions_in_channels_last_are_one_command():
    # Seen on an H200: SGD of a ResNet in channels_last is nine kernels of lists, 1 x 1 weights too.
    shapes = [(8, 4, 3, 3), (8, 4, 1, 1), (8,)]
    last = [
        x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
        for x in tensors(shapes=shapes)
    ]
    xs = [x.to(DEVICE) for x in last]
    rows = [xs[0], torch.empty(8, 4, 1, 1, device=DEVICE).copy_(xs[1]), xs[2].clone()]
    assert xs[1].stride() != rows[1].stride(), "dimensions of size 1 may have any stride"
    assert commands(lambda: torch._foreach_add_(xs[1:], rows[1:], alpha=-0.5)) == 1
    assert commands(lambda: torch._foreach_sqrt(xs)) == 1
    assert commands(lambda: torch._foreach_addcdiv_(xs[1:], rows[1:], rows[1:], [0.1] * 2)) == 1
    assert [x.stride() for x in torch._foreach_mul(xs, 2.0)] == [x.stride() for x in xs]
    turned = [x.transpose(0, 1) for x in rows[:2]]
    others = [x.clone(memory_format=torch.contiguous_format) for x in turned]
    assert commands(lambda: torch._foreach_add_(turned, others)) == 2
    for call in (
        lambda *xs: torch._foreach_addcmul([x + 1 for x in xs], xs, xs, 2),
        lambda *xs: torch._foreach_lerp(list(xs), [x * x for x in xs], 0.3),
        lambda *xs: (torch._foreach_div_(list(xs), 3.0), *xs)[1:],
    ):  # lists keep strides, as CUDA's do; the CPU's loop chooses those of size 1 anew
        found, wanted = call(*(x.to(DEVICE) for x in last)), call(*(x.clone() for x in last))
        assert all(torch.equal(x.cpu(), y) for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_a_list_in_channels_last_counts_a_version_once_and_gives_no_views(device):
    def made():
        return [torch.ones(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last)]

    for change in (
        lambda xs: torch._foreach_add_(xs, 1),
        lambda xs: torch._foreach_add_(xs, [2.0]),
        lambda xs: torch._foreach_add_(xs, made(), alpha=0.5),
        lambda xs: torch._foreach_mul_(xs, made()),
        lambda xs: torch._foreach_sqrt_(xs),
        lambda xs: torch._foreach_zero_(xs),
        lambda xs: torch._foreach_copy_(xs, made()),
        lambda xs: torch._foreach_clamp_max_(xs, 0.5),
    ):
        xs = made()
        before = xs[0]._version
        change(xs)
        assert xs[0]._version == before + 1
    for result in (torch._foreach_add(made(), 1), torch._foreach_add(made(), [2.0])):
        assert not result[0]._is_view()


def test_a_tensor_may_stand_twice_in_a_list():
    compare(lambda x: (torch._foreach_add_([x, x, x], [x, x, x]), x)[1], torch.rand(5))
    compare(lambda x: (torch._foreach_mul_([x, x], [2.0, 3.0]), x)[1], torch.rand(5))


def test_autograd_sees_that_a_list_was_written():
    for device in ("cpu", DEVICE):
        xs = [torch.rand(3, device=device, requires_grad=True) for _ in range(2)]
        saved = [x * 1 for x in xs]
        squares = [x * x for x in saved]
        torch._foreach_mul_(saved[:1], 2.0)
        assert [x._version for x in saved] == [1, 0]
        squares[1].sum().backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squares[0].sum().backward()
    with torch.inference_mode():
        frozen = [torch.ones(3, device=DEVICE)]
        torch._foreach_add_(frozen, 1)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        torch._foreach_add_(frozen, 1)


REFUSED = {
    "lengths": lambda xs: torch._foreach_add(xs, xs[:1]),
    "numbers": lambda xs: torch._foreach_mul(xs, [1.0]),
    "boolean": lambda xs: torch._foreach_sub(xs, True),
    "empty": lambda xs: torch._foreach_add([], 1),
    "shapes": lambda xs: torch._foreach_add_(xs, [xs[1], xs[0]]),
    "no alpha": lambda xs: torch._foreach_add(xs, xs, alpha=True),
    "symbols": lambda xs: torch._foreach_mul(xs, "two"),
    "overlap": lambda xs: torch._foreach_add_([xs[0][1:]], [xs[0][:-1]]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_core_refuses_what_it_refuses_on_the_cpu(case):
    refused(REFUSED[case], [torch.rand(3), torch.rand(2)])


def test_tensors_of_two_devices():
    """Elements may lie on different devices, as long as each meets its own."""
    xs = [torch.ones(3, device="npusim:0"), torch.ones(3, device="npusim:1")]
    out = torch._foreach_add(xs, xs)
    assert [x.device.index for x in out] == [0, 1]
    assert all(x.tolist() == [2.0] * 3 for x in out)
    with pytest.raises(RuntimeError, match="same device"):
        torch._foreach_add(xs, xs[::-1])
    with pytest.raises(RuntimeError, match="same device"):
        torch._foreach_add(xs[:1], [torch.ones(3)])


def test_gradients():
    xs = [x.requires_grad_() for x in tensors(torch.float64, SHAPES[:4])]
    compare(lambda *xs: torch._foreach_mul(torch._foreach_exp(xs), xs), *xs, backward=True)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch was built without MKL")
def test_small_vectors_keep_to_one_thread_and_leave_the_limit_alone(run_script):
    """MKL would start its threads for 128 elements; this is why one operand is special."""
    finished = run_script(
        """
import os
import torch
import torch_npusim

torch.set_num_threads(2)
started = lambda: len(os.listdir("/proc/self/task"))
x = torch.rand(4096)
device = x.to("npusim")
before = started()
for _ in range(2):
    device.exp(), device.sqrt(), torch._foreach_sin([device, device]), device[:0].exp()
    assert torch.get_num_threads() == 2
try:
    device.bool().exp_()
except RuntimeError:
    assert torch.get_num_threads() == 2
assert started() == before
bits = [device.exp().cpu(), x.exp()]
assert started() > before, "upstream keeps to one thread now: OneVectorThread can go"
assert torch.equal(*bits)
""",
        environment={"OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr
