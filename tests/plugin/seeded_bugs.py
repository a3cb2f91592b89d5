# SPDX-License-Identifier: BSD-3-Clause
"""Bugs that a CPU hides, each with its mended twin, as a library has them: written for CUDA.

`bug` must be caught under `pytest --npusim-as-cuda --npusim-sync=error`, with a sentence that
matches `says`; `fixed` must pass.
"""

import functools

import torch
from torch import nn
from torch.nn import functional as F

SAYS = {}
WHAT = {}
KEPT = []
CACHE = {}


def pair(says):
    """Notes a class with the functions bug() and fixed()."""

    def note(both):
        SAYS[both.__name__] = says
        WHAT[both.__name__] = both
        return both

    return note


def x(*shape, **options):
    return torch.ones(*(shape or (4, 4)), device="cuda", **options)


# --- Placement

SAME = r"Expected all tensors to be on the same device, but found at least two devices, "
SAME_CPU = SAME + r"cuda:0 and cpu.*\.to\(\"cuda:0\"\)"


class Scaled(nn.Module):
    def __init__(self, registered):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        if registered:
            self.register_buffer("scale", torch.ones(4))
        else:
            self.scale = torch.ones(4)

    def forward(self, data):
        return self.inner(data) * self.scale


@pair(SAME_CPU)
class TensorThatIsNoBuffer:
    def bug():
        Scaled(False).cuda()(x())

    def fixed():
        Scaled(True).cuda()(x())


@pair(SAME_CPU)
class NoiseOnTheHost:
    def bug():
        data = x()
        return data + torch.randn(data.shape)

    def fixed():
        data = x()
        return data + torch.randn_like(data)


@pair(r"cuda:0 and cpu")
class TargetsOnTheHost:
    def bug():
        F.cross_entropy(x(), torch.zeros(4, dtype=torch.long))

    def fixed():
        F.cross_entropy(x(), torch.zeros(4, dtype=torch.long, device="cuda"))


@pair(r"cuda:0 and cuda:1")
class TwoDevices:
    def bug():
        x() + torch.ones(4, device="cuda:1")

    def fixed():
        x() + torch.ones(4, device="cuda:1").to("cuda:0")


@pair(r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\)")
class NumpyOfADevice:
    def bug():
        x().numpy()

    def fixed():
        x().cpu().numpy()


@pair(r"Expected a 'cuda' device type for generator but found 'cpu'")
class GeneratorOfTheHost:
    def bug():
        torch.randn(3, device="cuda", generator=torch.Generator())

    def fixed():
        torch.randn(3, device="cuda", generator=torch.Generator("cuda"))


@pair(r"cuda:0 and cpu|same device")
class StateOfARecurrentNetwork:
    def bug():
        nn.GRU(4, 4).cuda()(x(2, 1, 4), torch.zeros(1, 1, 4))

    def fixed():
        nn.GRU(4, 4).cuda()(x(2, 1, 4), torch.zeros(1, 1, 4, device="cuda"))


@pair(r"cuda:0 and cpu")
class FactorOfTheHost:
    def bug():
        torch.gcd(x(4).long(), torch.tensor(2))

    def fixed():
        torch.gcd(x(4).long(), torch.full((), 2, device="cuda"))


@pair(SAME_CPU)
class OnlyTheBranchForDevices:
    def bug():
        data = x()
        return data * torch.ones(4) if data.device.type == "cuda" else data

    def fixed():
        data = x()
        return data * torch.ones(4, device=data.device) if data.device.type == "cuda" else data


# --- Waits


@pair(r"called a synchronizing CUDA operation: \.item\(\).*keep it on the device")
class LossOfEveryStep:
    def bug():
        return sum((x() * step).sum().item() for step in range(3))

    def fixed():
        return sum((x() * step).sum() for step in range(3)).cpu()


@pair(r"`if` or `in` of a tensor, waits for a value")
class BranchOnAValue:
    def bug():
        total = x().sum()
        return total if total > 3 else -total

    def fixed():
        total = x().sum()
        return torch.where(total > 3, total, -total)


@pair(r"waits for the number of elements that the mask chooses; torch\.where")
class ChosenElements:
    def bug():
        data = x()
        return data[data > 0].sum()

    def fixed():
        data = x()
        return torch.where(data > 0, data, 0).sum()


@pair(r"nonzero\(\).*nonzero_static")
class Positions:
    def bug():
        return x().nonzero()

    def fixed():
        return torch.nonzero_static(x(), size=16)


@pair(r"printing a tensor waits for its values")
class Printing:
    def bug():
        print(x())

    def fixed():
        print(x().shape)


@pair(r"torch\.tensor\(\.\.\., device=\).*pin_memory\(\) and non_blocking=True")
class ConstantOfEveryStep:
    def bug():
        return x(3) * torch.tensor([1.0, 2.0, 3.0], device="cuda")

    def fixed():
        return x(3) * torch.arange(1.0, 4.0, device="cuda")


@pair(r"a copy from the host.*pin_memory\(\)")
class BatchFromPageableMemory:
    def bug():
        return torch.ones(4, 4).to("cuda")

    def fixed():
        return torch.ones(4, 4).pin_memory().to("cuda", non_blocking=True)


@pair(r"bool\(\), int\(\), float\(\).*waits for a value")
class NormInTheLog:
    def bug():
        return float(x().norm())

    def fixed():
        return x().norm()


@pair(r"waits for a value")
class CheckForNans:
    def bug():
        assert not torch.isnan(x()).any()

    def fixed():
        torch._assert_async(torch.isfinite(x()).all())


@pair(r"unique\(\) waits for values that decide the size")
class DifferentValues:
    def bug():
        return x().unique()

    def fixed():
        return torch.bincount(x(4).long().cpu()).to("cuda", non_blocking=True)


@pair(r"repeat_interleave\(\) waits for the sum of the repeats; pass output_size")
class Repeats:
    def bug():
        return torch.repeat_interleave(x(3), torch.arange(3, device="cuda"))

    def fixed():
        return torch.repeat_interleave(x(3), torch.arange(3, device="cuda"), output_size=3)


@pair(r"torch\.equal\(\) waits for its answer")
class Comparing:
    def bug():
        return torch.equal(x(), x())

    def fixed():
        return (x() == x()).all()


# --- Memory


@pair(r"the test left .* of device memory[\s\S]*global variable 'KEPT'")
class HistoryOfOutputs:
    def bug():
        KEPT.append(x())

    def fixed():
        KEPT.append(x().cpu())


@functools.lru_cache
def table(size):
    return x(size)


@pair(r"results cached by functools\.lru_cache of table\(\)")
class CachedTable:
    def bug():
        table(64)

    def fixed():
        table(32)
        table.cache_clear()


@pair(r"in the autograd graph of|the test left")
class GraphsOfARunningLoss:
    def bug():
        weight = x().requires_grad_()
        CACHE["loss"] = sum((weight * step).exp().sum() for step in range(3))

    def fixed():
        weight = x().requires_grad_()
        CACHE["loss"] = sum((weight * step).exp().sum().detach() for step in range(3)).cpu()


@pair(r"CUDA out of memory\. Tried to allocate")
class TooLarge:
    def bug():
        return torch.empty(20 << 30, dtype=torch.uint8, device="cuda")

    def fixed():
        return torch.empty(20 << 10, dtype=torch.uint8, device="cuda")


# --- What CUDA's kernels do not have


@pair(r"\"addmm_cuda\" not implemented for 'Long'[\s\S]*convert the operands first")
class ProductOfIntegers:
    def bug():
        return x(dtype=torch.long) @ x(dtype=torch.long)

    def fixed():
        return (x() @ x()).long()


@pair(r"\"addmm_cuda\" not implemented for 'Int'")
class LinearOfIntegers:
    def bug():
        return F.linear(x(dtype=torch.int), x(dtype=torch.int))

    def fixed():
        return F.linear(x(), x())


@pair(r"getCudnnDataTypeFromScalarType\(\) not supported for Long")
class ConvolutionOfIntegers:
    def bug():
        return F.conv2d(x(1, 1, 4, 4, dtype=torch.long), x(1, 1, 3, 3, dtype=torch.long))

    def fixed():
        return F.conv2d(x(1, 1, 4, 4), x(1, 1, 3, 3))


@pair(r"\"max_pool2d_with_indices_out_cuda_frame\" not implemented for 'Byte'")
class PoolOfPixels:
    def bug():
        return F.max_pool2d(x(1, 1, 4, 4, dtype=torch.uint8), 2)

    def fixed():
        return F.max_pool2d(x(1, 1, 4, 4, dtype=torch.half), 2)


@pair(r"\"upsample_bilinear2d_out_frame\" not implemented for 'Byte'")
class ResizedPixels:
    def bug():
        return F.interpolate(x(1, 3, 4, 4, dtype=torch.uint8), size=(8, 8), mode="bilinear")

    def fixed():
        return F.interpolate(x(1, 3, 4, 4, dtype=torch.uint8).float(), size=(8, 8), mode="bilinear")


@pair(r"cuFFT only supports dimensions whose sizes are powers of two")
class HalfTransform:
    def bug():
        return torch.fft.fft(x(12, dtype=torch.half))

    def fixed():
        return torch.fft.fft(x(16, dtype=torch.half))


@pair(r"index out of range in self[\s\S]*On CUDA this is a device-side assert")
class TokenBeyondTheTable:
    def bug():
        return F.embedding(torch.arange(5, device="cuda"), x())

    def fixed():
        return F.embedding(torch.arange(4, device="cuda"), x())


@pair(r"Could not run 'aten::histogram.bin_ct' with arguments from the 'CUDA' backend")
class Histogram:
    def bug():
        return torch.histogram(x(8), bins=4)

    def fixed():
        return torch.histc(x(8), bins=4, min=0, max=2)


# --- Determinism


def strictly(function):
    @functools.wraps(function)
    def run():
        torch.use_deterministic_algorithms(True)
        try:
            function()
        finally:
            torch.use_deterministic_algorithms(False)

    return run


@pair(
    r"adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set"
)
class PooledGradient:
    @strictly
    def bug():
        F.adaptive_avg_pool2d(x(1, 1, 4, 4).requires_grad_(), 2).sum().backward()

    @strictly
    def fixed():
        F.avg_pool2d(x(1, 1, 4, 4).requires_grad_(), 2).sum().backward()


@pair(r"_bincount_cuda does not have a deterministic implementation")
class WeightedCounts:
    @strictly
    def bug():
        torch.bincount(x(4).long(), weights=x(4), minlength=3)

    @strictly
    def fixed():
        torch.zeros(3, device="cuda").index_add_(0, x(4).long(), x(4))


@pair(r"median CUDA with indices output does not have a deterministic implementation")
class MedianWithPlaces:
    @strictly
    def bug():
        x().median(dim=0)

    @strictly
    def fixed():
        x().quantile(0.5, dim=0)


@pair(r"reflection_pad1d_backward_out_cuda does not have a deterministic implementation")
class ReflectedGradient:
    @strictly
    def bug():
        F.pad(x(1, 4).requires_grad_(), (1, 1), mode="reflect").sum().backward()

    @strictly
    def fixed():
        F.pad(x(1, 4).requires_grad_(), (1, 1)).sum().backward()


# --- Correct programs that wait where one may


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, data):
        return self.inner(data)


def moves_a_model():
    return Model().to("cuda")


def loads_weights():
    model = Model().cuda()
    model.load_state_dict(Model().state_dict())


def from_pretrained():
    weights = {"inner.weight": torch.ones(4, 4), "inner.bias": torch.zeros(4)}
    return {name: weight.to("cuda") for name, weight in weights.items()}


def steps_with_a_scaler():
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x()).float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def waits_for_a_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x().sum()
    stream.synchronize()
    torch.cuda.synchronize()


def returns_values_at_the_end():
    return x().sum(0).cpu().numpy()


def moves_a_number_without_blocking():
    return torch.tensor(0.0).to("cuda", non_blocking=True)


def says_so():
    from torch_npusim.testing import allow_sync

    with allow_sync():
        return x().sum().item()


CORRECT = (
    moves_a_model,
    loads_weights,
    from_pretrained,
    steps_with_a_scaler,
    waits_for_a_stream,
    returns_values_at_the_end,
    moves_a_number_without_blocking,
    says_so,
)
