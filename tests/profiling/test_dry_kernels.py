# SPDX-License-Identifier: BSD-3-Clause
"""Profiles of dry runs as CUDA: how many kernels an operator is, and the memory beside them."""

import pytest
import torch
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from torch_npusim import _C
from torch_npusim.sim import dry_run


@pytest.fixture
def as_cuda():
    with dry_run(spec="h100-sxm", temporaries="cuda") as run:
        yield run


def made(*shape, **options):
    return torch.empty(shape, device="npusim", **options)


def kernels(call):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as seen:
        call()
    rows = [event for event in seen.events() if event.device_type != DeviceType.CPU]
    return sum(not event.is_user_annotation for event in rows)


def grids():
    x = made(5, 10, 7, dtype=torch.complex64)
    return {
        "rows": lambda: torch.fft.fft(x, dim=2),
        "middle": lambda: torch.fft.fft(x, dim=1),
        "planes": lambda: torch.fft.fft2(x, norm="ortho"),
        "to real": lambda: torch.fft.irfft(x, n=12, dim=2),
    }


def triangle(x):
    return torch.linalg.solve_triangular(x, x, upper=True)


#: An operator, and how many kernels CUDA launches for it.
LAUNCHED = {
    "add": (1, lambda x: x + x),
    "nothing": (0, lambda x: x[:0] + x[:0]),
    "masked fill": (2, lambda x: x.masked_fill(made(4, 4, dtype=torch.bool), 1)),
    "product with a matrix": (2, lambda x: torch.addmm(x, x, x)),
    "product with a vector": (1, lambda x: torch.addmm(x[0], x, x)),
    "dot": (2, lambda x: x[0] @ x[0]),
    "products of a batch": (1 + 3, lambda x: torch.addbmm(x, made(3, 4, 4), made(3, 4, 4))),
    "sum": (1, lambda x: x.sum()),
    "sum of bools": (2, lambda x: made(4, dtype=torch.bool).sum()),
    "all": (2, lambda x: x.all()),
    "mean squares": (2, lambda x: F.mse_loss(x, x)),
    "cross entropy": (2, lambda x: F.binary_cross_entropy(x, x, reduction="none") + 1),
    "narrow norm": (2, lambda x: F.layer_norm(x.view(-1)[:3], (3,), x[0, :3], x[0, :3])),
    "norm": (1, lambda x: F.layer_norm(x, (4,), x[0], x[0])),
    "groups": (3, lambda x: F.group_norm(x[None], 2)),
    "empty rows": (0, lambda x: x[:0].masked_fill(made(0, 4, dtype=torch.bool), 1)),
    "means of places": (2 + 6, lambda x: x.index_reduce(0, made(4, dtype=torch.long), x, "mean")),
    "largest": (2, lambda x: x.topk(2)),
    "logarithms of sums": (9, lambda x: x.logsumexp(0)),
    "a number": (2, lambda x: x.sum().item()),
    "triangle": (4, triangle),
}


@pytest.mark.parametrize("name", LAUNCHED)
def test_an_operator_is_as_many_kernels_as_on_cuda(as_cuda, name):
    count, call = LAUNCHED[name]
    x = made(4, 4)
    assert kernels(lambda: call(x)) == count


@pytest.mark.parametrize(
    ("name", "count"), [("rows", 1), ("middle", 1 + 1), ("planes", 2 + 1), ("to real", 1 + 1 + 1)]
)
def test_a_fourier_transform_is_copies_dimensions_and_a_scale(as_cuda, name, count):
    assert kernels(grids()[name]) == count


def test_a_gradient_that_adds_to_zeros_is_two_kernels(as_cuda):
    x = made(1, 3, 8, 8, requires_grad=True)
    out = F.interpolate(x, scale_factor=2, mode="bilinear")
    grad = torch.empty_like(out)
    assert kernels(lambda: torch.autograd.grad(out, (x,), grad)) == 2


def test_without_the_prediction_an_operator_is_one_command():
    with dry_run(spec="h100-sxm"):
        x = made(4, 4)
        assert kernels(lambda: torch.addmm(x, x, x)) == 1


def test_the_table_names_operators_that_exist():
    names = [name for row in _C.cuda_kernels() for name in row[0].split()]
    assert len(names) == len(set(names))
    for name in names:
        base, _, overload = name.partition(".")
        assert (overload or "default") in getattr(torch.ops.aten, base).overloads()


# --- Memory beside results


def requested(run, job):
    """The bytes that `job` asked for at most, beside the memory of its results."""
    torch.npusim.reset_peak_memory_stats()
    before = run.stats()["requested_bytes.all.current"]
    kept = job()
    now, peak = (run.stats()[f"requested_bytes.all.{name}"] for name in ("current", "peak"))
    assert now - before == sum(
        each.untyped_storage().nbytes() for each in (kept if isinstance(kept, tuple) else (kept,))
    )
    return peak - now


#: An input, what an H100 allocates beside the result in bytes, and the call.
BESIDE = {
    "bools": ((4, 4), torch.float32, 16, lambda x: x.all()),
    "losses": ((4, 4), torch.float32, 64, lambda x: F.mse_loss(x, x)),
    "sum of bools": ((16,), torch.bool, 8 * 16, lambda x: x.sum()),
    "a power of a number": ((4, 4), torch.float32, 8, lambda x: 2.0**x),
    "pointers": (
        (4, 4),
        torch.float32,
        16,
        lambda x: torch.linalg.solve_triangular(x, x, upper=True),
    ),
    "scan": ((9,), torch.float32, 1023, lambda x: x.cumsum(0)),
    "rows": ((256, 512), torch.float32, 8 * 512, lambda x: x.sort()),
    "one row": ((8000,), torch.float32, 64000 + 106751, lambda x: x.sort()),
}


@pytest.mark.parametrize("name", BESIDE)
def test_temporaries_are_those_of_an_h100(as_cuda, name):
    shape, dtype, beside, job = BESIDE[name]
    x = made(*shape, dtype=dtype)
    assert requested(as_cuda, lambda: job(x)) == beside


def test_group_norms_take_factors_per_channel_and_sums(as_cuda):
    x = made(4, 32, 56, 56, dtype=torch.bfloat16, requires_grad=True)
    weight, bias = (made(32, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))

    def call():
        return torch.native_group_norm(x, weight, bias, 4, 32, 56 * 56, 8, 1e-5)

    assert requested(as_cuda, call) == 2 * 512
    out = call()[0]
    grad = torch.empty_like(out)

    def back():
        return torch.autograd.grad(out, (x, weight, bias), grad, retain_graph=True)

    assert requested(as_cuda, back) == 3 * 512 + 2 * 128
