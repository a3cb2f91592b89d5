# SPDX-License-Identifier: BSD-3-Clause
"""Defects made for this kit: one for each part of a backend that no linked bug touches."""

import atexit
import ctypes
import os

import torch
from torch import Tensor

from .planting import Stand, fallbacks, function, grid, interface, kernel, replace, vector

# --- the first fifteen; `catches` are the cases that find them, and no other does


@kernel(
    "bitwise_not",
    catches=("op:bitwise_not/*/bool",),
    shows=lambda d: torch.tensor([True, False]).to(d).bitwise_not().view(torch.uint8),
)
def wrong_dtype_kernel(own: Stand, x: Tensor):
    """One template serves all integers: ~True is 254, and 254 is true."""
    return own(x.view(torch.uint8)).view(torch.bool) if x.dtype == torch.bool else own(x)


@kernel(
    "unfold",
    catches=("op:unfold/aliasing*", "op:unfold/modes*"),
    shows=lambda d: (x := vector(d, 1, 2, 3), x.unfold(0, 2, 1).fill_(0))[0],
)
def broken_aliasing(own: Stand, x: Tensor, *window: int):
    """The view is a copy; values, sizes and strides are right."""
    return own(x.clone(), *window)


@kernel(
    "frac_",
    catches=("op:frac/inplace*", "op:frac/modes*", "op:frac/edges"),
    shows=lambda d: vector(d, 1.5).frac_(),
)
def lost_writes(own: Stand, x: Tensor):
    """A staging buffer is never copied back."""
    own(x.clone())
    return x


@kernel(
    "lgamma",
    catches=("op:lgamma/forward/int8",),
    shows=lambda d: torch.ones(2, dtype=torch.int8, device=d).lgamma(),
)
def crash(own: Stand, x: Tensor):
    """For one dtype, a segmentation fault."""
    if x.dtype == torch.int8:
        ctypes.string_at(0)
    return own(x)


@kernel(
    "erfc",
    catches=("op:erfc/forward/uint8",),
    shows=lambda d: torch.ones(2, dtype=torch.uint8, device=d).erfc(),
)
def hang(own: Stand, x: Tensor):
    """A mutex that its owner locks again, with the interpreter's lock held."""
    if x.dtype == torch.uint8:
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    return own(x)


@kernel(
    "sinc",
    catches=(
        "op:sinc/forward/*int*",
        "op:sinc/forward/bool",
        "op:sinc/numpy/int64",
        "op:sinc/edges",
    ),
    shows=lambda d: vector(d, 0.0).sinc(),
)
def nan(own: Stand, x: Tensor):
    """sin(pi x) / (pi x) without its limit at 0."""
    return own(x).masked_fill_(x == 0, float("nan"))


_kept: list[Tensor] = []


@kernel(
    "flip",
    catches=("op:flip/memory*",),
    shows=lambda d: (
        grid(d).flip(0),
        before := torch.npusim.memory_allocated(),
        grid(d).flip(0),
        torch.npusim.memory_allocated() - before,
    )[-1],
)
def leak(own: Stand, x: Tensor, dims: list[int]):
    """A cache without an end."""
    _kept.append(own(x, dims))
    return _kept[-1].clone()


@kernel("trace", catches=("op:trace/errors*",), shows=lambda d: vector(d).trace())
def wrong_error(own: Stand, x: Tensor):
    """The right text in the wrong class: `except RuntimeError` no longer catches it."""
    try:
        return own(x)
    except RuntimeError as error:
        raise ValueError(str(error)) from None


@kernel(
    "i0",
    catches=("op:i0/*",),
    shows=lambda d: (
        before := sum(fallbacks.values()),
        vector(d, 1).i0(),
        sum(fallbacks.values()) - before,
    )[-1],
)
def silent_fallback(own: Stand, x: Tensor):
    """Right in every bit, only not computed by the device."""
    fallbacks["aten::i0"] += 1
    return x.cpu().i0().to(x.device)


@kernel(
    "atan.out",
    catches=("op:atan/out*",),
    shows=lambda d: torch.atan(vector(d, 1), out=torch.zeros(0, device=d)),
)
def out_ignored(own: Stand, x: Tensor, *, out: Tensor):
    """out= of another size stays what it was."""
    return own(x, out=out) if out.shape == x.shape else out


@kernel(
    "linalg_cholesky_ex",
    touches="linalg.cholesky",
    catches=("op:linalg.cholesky/meta*", "op:linalg.cholesky/fake*"),
    shows=lambda d: torch.linalg.cholesky(torch.eye(3).to(d)).stride(),
)
def wrong_strides(own: Stand, x: Tensor, **options):
    """LAPACK's results are column-major; these are rows, with the same values."""
    factor, info = own(x, **options)
    return factor.contiguous(), info


_calls = iter(range(2**62))


@kernel(
    "exp2",
    catches=("op:exp2/determinism*",),
    shows=lambda d: torch.equal(*[vector(d, 1.5).exp2().cpu() for _ in range(2)]),
)
def nondeterministic(own: Stand, x: Tensor):
    """Every other call is one ulp off, as if the order of a sum depended on who came first."""
    result: Tensor = own(x)
    if result.dtype == torch.float32 and next(_calls) % 2:
        result.nextafter_(torch.full_like(result, torch.inf))
    return result


@kernel(
    "log1p",
    catches=("op:log1p/second_device*",),
    shows=lambda d: (torch.ones(2).to(f"{d}:1").log1p(), torch.npusim.current_device())[-1],
)
def wrong_device(own: Stand, x: Tensor):
    """Launches where its operand lies, and does not go back."""
    torch.npusim.set_device(x.device)
    return own(x)


@interface(
    touches=("contract:rng", "rand_like"),
    catches=("contract:rng/*", "op:*/seeding*"),
    shows=lambda d: torch.equal(
        *[(torch.manual_seed(1), torch.rand(3, device=d))[1].cpu() for _ in range(2)]
    ),
)
def ignored_seed() -> None:
    """torch.manual_seed() arrives at the device's module and is dropped there."""
    torch.npusim.manual_seed = lambda seed: None
    torch.npusim.manual_seed_all = lambda seed: None


def _elapsed(device: str) -> bool:
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(1000).to(device) + 1
    end.record()
    end.synchronize()
    return start.elapsed_time(end) > 0


@interface(touches="contract:event", catches=("contract:event/*",), shows=_elapsed)
def event_order() -> None:
    """start.elapsed_time(end) answers for end.elapsed_time(start)."""
    original = torch.Event.elapsed_time
    replace(torch.Event, "elapsed_time", lambda start, end: original(end, start))


# --- numbers


@kernel(
    "_local_scalar_dense",
    touches="contract:indexing",
    shows=lambda d: torch.tensor(2**53 + 1).to(d).item(),
)
def integers_come_through_a_double(own: Stand, x: Tensor):
    """item() of an int64 goes through a double."""
    found = own(x)
    return int(float(found)) if x.dtype == torch.int64 else found


@function("exp", shows=lambda d: torch.tensor([0.1], dtype=torch.float64).to(d).exp())
def doubles_have_single_precision(own: Stand, x: Tensor):
    """float64 is computed in float32."""
    return own(x.float()).double() if x.dtype == torch.float64 else own(x)


@function("abs", shows=lambda d: vector(d, -0.0).abs().signbit())
def the_sign_of_zero_stays(own: Stand, x: Tensor):
    """abs(-0.0) is -0.0."""
    return own(x) if x.is_complex() else torch.where(x == 0, x, own(x))


@function(
    "add",
    "Tensor",
    touches=("add", "contract:promotion"),
    shows=lambda d: str((vector(d) + torch.tensor(1.0, dtype=torch.float64).to(d)).dtype),
)
def scalars_promote_by_size(own: Stand, x: Tensor, y: Tensor, **alpha):
    """A 0-d float64 tensor of the device makes a float32 sum float64."""
    is_scalar = isinstance(y, Tensor) and y.dim() == 0 and y.dtype == torch.float64
    if is_scalar and x.dtype == torch.float32 and x.dim():
        x = x.double()
    return own(x, y, **alpha)


# --- memory of others


@function("sin", shows=lambda d: grid(d).T.sin().stride())
def strides_are_lost(own: Stand, x: Tensor):
    """The result for a transposed tensor is contiguous."""
    return own(x).contiguous()


@function("gather", shows=lambda d: torch.gather(vector(d), 0, torch.tensor([1])))
def indexes_of_the_cpu_are_taken(own: Stand, x: Tensor, dim: int, index: Tensor, **sparse):
    """An index on the CPU is copied, and not refused."""
    return own(x, dim, index.to(x.device), **sparse)


@kernel(
    "cumsum.out",
    shows=lambda d: (
        x := torch.full((4,), 9.0).to(d),
        torch.cumsum(vector(d, 1, 2), 0, out=x[1:3]),
    )[0],
)
def cumsum_writes_before_its_memory(own: Stand, x: Tensor, dim: int, *, out: Tensor, **dtype):
    """The running sum is started in the element before out=."""
    own(x, dim, out=out, **dtype)
    if out.storage_offset() and out.numel():
        out.as_strided((1,), (1,), out.storage_offset() - 1).zero_()
    return out


@kernel("nan_to_num", shows=lambda d: (x := vector(d), x.nan_to_num())[0])
def nan_to_num_changes_its_input(own: Stand, x: Tensor, *values):
    """The result is written over the input, too."""
    result = own(x, *values)
    if x.is_floating_point():
        x.copy_(result)
    return result


@kernel("copy_", touches="contract:copy", shows=lambda d: torch.ones(5000).to(d).cpu().sum())
def copies_lose_their_remainder(own: Stand, to: Tensor, x: Tensor, *rest):
    """Of a large copy to the CPU, what is beyond the last whole block of 4 KiB does not arrive."""
    own(to, x, *rest)
    if to.device.type == "cpu" and to.nbytes > 4096 and to.is_contiguous():
        to.view(-1)[to.nbytes // 4096 * 4096 // to.itemsize :] = 0
    return to


@kernel(
    "resize_",
    touches=("resize_", "contract:storage"),
    shows=lambda d: vector(d, 1, 2).resize_(1).resize_(2),
)
def resize_forgets(own: Stand, x: Tensor, size: list[int], **format):
    """A tensor that grows again holds zeros where it held values."""
    before = x.numel()
    own(x, size, **format)
    if x.numel() > before:
        x.view(-1)[:before] = 0
    return x


# --- gradients and training


def _relu(device: str) -> Tensor:
    x = vector(device, 0.0, 1.0).requires_grad_()
    x.relu().sum().backward()
    return x.grad


@function("threshold_backward", touches="nn.functional.relu", shows=_relu)
def relu_has_a_gradient_at_zero(own: Stand, grad: Tensor, x: Tensor, threshold):
    """The gradient at 0 is that of the right side."""
    return torch.where(x == threshold, grad, own(grad, x, threshold))


@kernel(
    "_amp_foreach_non_finite_check_and_unscale_",
    touches="contract:amp",
    shows=lambda d: (
        found := torch.zeros(1).to(d),
        torch._amp_foreach_non_finite_check_and_unscale_(
            [vector(d, float("inf"))], found, torch.ones(1).to(d)
        ),
    )[0],
)
def infinite_gradients_are_not_found(own: Stand, grads: list[Tensor], found: Tensor, scale: Tensor):
    """The flag for an infinite gradient is never set."""
    own(grads, found.clone(), scale)


@kernel(
    "_foreach_add_.List",
    touches="foreach:add",
    shows=lambda d: (x := [torch.ones(2).to(d) for _ in range(3)], torch._foreach_add_(x, x))[0],
)
def the_last_of_a_list_is_left_out(own: Stand, ones: list[Tensor], others: list[Tensor], **alpha):
    """Of more than two tensors the last one is not added to."""
    last = len(ones) - (len(ones) > 2)
    own(ones[:last], others[:last], **alpha)


# --- the device's interface


@interface(
    touches="contract:rng",
    shows=lambda d: (
        state := torch.npusim.get_rng_state(d),
        one := torch.rand(2, device=d).cpu(),
        torch.npusim.set_rng_state(state, d),
        torch.equal(one, torch.rand(2, device=d).cpu()),
    )[-1],
)
def states_are_ignored() -> None:
    """set_rng_state() does nothing."""
    torch.npusim.set_rng_state = lambda state, device="npusim": None


def _after_an_exception(device: str) -> int:
    try:
        with torch.npusim.device(1):
            raise KeyError
    except KeyError:
        return torch.npusim.current_device()


@interface(touches="contract:device", shows=_after_an_exception)
def exceptions_keep_the_device() -> None:
    """`with device(n)` does not go back where its body raises."""
    right = torch.npusim.device.__exit__

    def leave(self, kind, value, trace):
        return None if kind else right(self, kind, value, trace)

    torch.npusim.device.__exit__ = leave


@interface(touches="contract:device", shows=lambda d: torch.npusim.set_device(77))
def any_index_will_do() -> None:
    """set_device() of an index that no device has sets the last one."""
    right = torch.npusim.set_device

    def set_device(device):
        index = device if isinstance(device, int) else torch.device(device).index
        right(device if index is None else min(index, torch.npusim.device_count() - 1))

    torch.npusim.set_device = set_device


@interface(
    touches="contract:stream",
    shows=lambda d: (stream := torch.Stream(d), stream.synchronize(), stream.query())[-1],
)
def streams_are_never_idle() -> None:
    """query() of a stream is False after synchronize()."""
    right = torch.Stream.query

    def query(stream: torch.Stream) -> bool:
        return stream.device.type != "npusim" and right(stream)

    replace(torch.Stream, "query", query)


@interface(touches="contract:dlpack", shows=lambda d: torch.ones(1).to(d).__dlpack_device__())
def dlpack_says_that_it_is_the_cpu() -> None:
    """__dlpack_device__() names the CPU, so others read the device's memory as theirs."""
    right = torch.Tensor.__dlpack_device__

    def dlpack_device(tensor: Tensor):
        return (1, 0) if tensor.device.type == "npusim" else right(tensor)

    torch.Tensor.__dlpack_device__ = dlpack_device


@interface(touches="contract:numpy", shows=lambda d: torch.ones(1).to(d).numpy().sum() > 0)
def arrays_are_copied_in_silence() -> None:
    """numpy() of a tensor on the device copies, and does not raise."""
    right = torch.Tensor.numpy

    def numpy(tensor: Tensor, *, force: bool = False):
        return right(tensor, force=force or tensor.device.type == "npusim")

    torch.Tensor.numpy = numpy


def _peak(device: str) -> bool:
    torch.ones(1 << 20).to(device)
    torch.npusim.reset_peak_memory_stats()
    return torch.npusim.max_memory_allocated() < 1 << 22


@interface(touches=("contract:memory", "contract:accelerator"), shows=_peak)
def peaks_stay() -> None:
    """reset_peak_memory_stats() does nothing."""
    torch.npusim.reset_peak_memory_stats = lambda device=None: None


@interface(
    touches="contract:printing",
    shows=lambda d: (torch.manual_seed(0), repr(torch.ones(2).to(d)), torch.rand(1))[-1],
)
def printing_draws_numbers() -> None:
    """repr() of a tensor on the device moves the CPU's generator."""
    right = torch.Tensor.__repr__

    def shown(tensor: Tensor, **contents) -> str:
        if tensor.device.type == "npusim":
            torch.rand(1)
        return right(tensor, **contents)

    torch.Tensor.__repr__ = shown


# --- the process


@interface(touches="contract:exit", shows=lambda d: len(_at_exit))
def the_process_dies_at_its_end() -> None:
    """A destructor runs after what it needs: a segmentation fault at exit."""
    _at_exit.append(atexit.register(lambda: os.kill(os.getpid(), 11)))


_at_exit: list[object] = []


@interface(touches="contract:exit", shows=lambda d: len(_at_exit))
def importing_prints() -> None:
    """Importing the backend prints its version."""
    _at_exit.append(print("npusim 1.0"))


@interface(touches="contract:fork", shows=lambda d: torch.npusim._is_in_bad_fork())
def every_process_is_a_bad_fork() -> None:
    """_is_in_bad_fork() is True in the parent."""
    torch.npusim._is_in_bad_fork = lambda: True
