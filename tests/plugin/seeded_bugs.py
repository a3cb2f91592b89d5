# SPDX-License-Identifier: BSD-3-Clause
"""Bugs that a CPU hides, each with its mended twin, as a library has them: written for CUDA.

`bug` must be caught under `pytest --npusim-as-cuda --npusim-sync=error`, with a sentence that
matches `says`; `fixed` must pass.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from seeded_arguments import ARGUMENTS
from torch import nn
from torch.nn import functional as F


class Bug(NamedTuple):
    """A sentence of the report, and two functions of a tensor of 4 x 4 ones on the device."""

    says: str
    bug: Callable[[torch.Tensor], object]
    fixed: Callable[[torch.Tensor], object]


KEPT = []
CACHE = {}


def x(*shape, **options):
    return torch.ones(*(shape or (4, 4)), device="cuda", **options)


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


@functools.lru_cache
def table(size):
    return x(size)


def running_loss(data):
    weight = data.requires_grad_()
    return sum((weight * step).exp().sum() for step in range(3))


def strictly(function):
    @functools.wraps(function)
    def run(data):
        torch.use_deterministic_algorithms(True)
        try:
            function(data)
        finally:
            torch.use_deterministic_algorithms(False)

    return run


def caught(error, call):
    try:
        call()
    except error:
        pass


def quantized():
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)))


LIBRARY = torch.library.Library("seeded", "DEF")
LIBRARY.define("for_the_host(Tensor x) -> Tensor")
LIBRARY.define("for_both(Tensor x) -> Tensor")
for _name, _key in (("for_the_host", "CPU"), ("for_both", "CPU"), ("for_both", "CUDA")):
    LIBRARY.impl(_name, lambda x: x * 2, _key)

SAME = r"Expected all tensors to be on the same device, but found at least two devices, "
SAME_CPU = SAME + r"cuda:0 and cpu.*\.to\(\"cuda:0\"\)"
BUGS = {
    # Placement
    "tensor_that_is_no_buffer": Bug(
        SAME_CPU, lambda data: Scaled(False).cuda()(data), lambda data: Scaled(True).cuda()(data)
    ),
    "noise_on_the_host": Bug(
        SAME_CPU,
        lambda data: data + torch.randn(data.shape),
        lambda data: data + torch.randn_like(data),
    ),
    "targets_on_the_host": Bug(
        r"cuda:0 and cpu",
        lambda data: F.cross_entropy(data, torch.zeros(4, dtype=torch.long)),
        lambda data: F.cross_entropy(data, torch.zeros(4, dtype=torch.long, device="cuda")),
    ),
    "two_devices": Bug(
        r"cuda:0 and cuda:1",
        lambda data: data + torch.ones(4, device="cuda:1"),
        lambda data: data + torch.ones(4, device="cuda:1").to("cuda:0"),
    ),
    "numpy_of_a_device": Bug(
        r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\)",
        lambda data: data.numpy(),
        lambda data: data.cpu().numpy(),
    ),
    "generator_of_the_host": Bug(
        r"Expected a 'cuda' device type for generator but found 'cpu'",
        lambda data: torch.randn(3, device="cuda", generator=torch.Generator()),
        lambda data: torch.randn(3, device="cuda", generator=torch.Generator("cuda")),
    ),
    "state_of_a_recurrent_network": Bug(
        r"cuda:0 and cpu|same device",
        lambda data: nn.GRU(4, 4).cuda()(x(2, 1, 4), torch.zeros(1, 1, 4)),
        lambda data: nn.GRU(4, 4).cuda()(x(2, 1, 4), torch.zeros(1, 1, 4, device="cuda")),
    ),
    "factor_of_the_host": Bug(
        r"cuda:0 and cpu",
        lambda data: torch.gcd(x(4).long(), torch.tensor(2)),
        lambda data: torch.gcd(x(4).long(), torch.full((), 2, device="cuda")),
    ),
    "only_the_branch_for_devices": Bug(
        SAME_CPU,
        lambda data: data * torch.ones(4) if data.device.type == "cuda" else data,
        lambda data: (
            data * torch.ones(4, device=data.device) if data.device.type == "cuda" else data
        ),
    ),
    # Waits
    "loss_of_every_step": Bug(
        r"called a synchronizing CUDA operation: \.item\(\).*keep it on the device",
        lambda data: sum((data * step).sum().item() for step in range(3)),
        lambda data: sum((data * step).sum() for step in range(3)).cpu(),
    ),
    "branch_on_a_value": Bug(
        r"`if` or `in` of a tensor, waits for a value",
        lambda data: data if data.sum() > 3 else -data,
        lambda data: torch.where(data.sum() > 3, data, -data),
    ),
    "chosen_elements": Bug(
        r"waits for the number of elements that the mask chooses; torch\.where",
        lambda data: data[data > 0].sum(),
        lambda data: torch.where(data > 0, data, 0).sum(),
    ),
    "positions": Bug(
        r"nonzero\(\).*nonzero_static",
        lambda data: data.nonzero(),
        lambda data: torch.nonzero_static(data, size=16),
    ),
    "printing": Bug(
        r"printing a tensor waits for its values",
        lambda data: print(data),
        lambda data: print(data.shape),
    ),
    "constant_of_every_step": Bug(
        r"torch\.tensor\(\.\.\., device=\).*pin_memory\(\) and non_blocking=True",
        lambda data: x(3) * torch.tensor([1.0, 2.0, 3.0], device="cuda"),
        lambda data: x(3) * torch.arange(1.0, 4.0, device="cuda"),
    ),
    "batch_from_pageable_memory": Bug(
        r"a copy from the host.*pin_memory\(\)",
        lambda data: torch.ones(4, 4).to("cuda"),
        lambda data: torch.ones(4, 4).pin_memory().to("cuda", non_blocking=True),
    ),
    "norm_in_the_log": Bug(
        r"bool\(\), int\(\), float\(\).*waits for a value",
        lambda data: float(data.norm()),
        lambda data: data.norm(),
    ),
    "check_for_nans": Bug(
        r"waits for a value",
        lambda data: bool(torch.isnan(data).any()),
        lambda data: torch._assert_async(torch.isfinite(data).all()),
    ),
    "different_values": Bug(
        r"unique\(\) waits for values that decide the size",
        lambda data: data.unique(),
        lambda data: torch.bincount(x(4).long().cpu()).to("cuda", non_blocking=True),
    ),
    "repeats": Bug(
        r"repeat_interleave\(\) waits for the sum of the repeats; pass output_size",
        lambda data: torch.repeat_interleave(x(3), torch.arange(3, device="cuda")),
        lambda data: torch.repeat_interleave(x(3), torch.arange(3, device="cuda"), output_size=3),
    ),
    "comparing": Bug(
        r"torch\.equal\(\) waits for its answer",
        lambda data: torch.equal(data, data),
        lambda data: (data == data).all(),
    ),
    # Memory
    "history_of_outputs": Bug(
        r"the test left .* of device memory[\s\S]*global variable 'KEPT'",
        lambda data: KEPT.append(data),
        lambda data: KEPT.append(data.cpu()),
    ),
    "cached_table": Bug(
        r"results cached by functools\.lru_cache of table\(\)",
        lambda data: table(64),
        lambda data: (table(32), table.cache_clear()),
    ),
    "graphs_of_a_running_loss": Bug(
        r"in the autograd graph of|the test left",
        lambda data: CACHE.update(loss=running_loss(data)),
        lambda data: CACHE.update(loss=running_loss(data).detach().cpu()),
    ),
    "too_large": Bug(
        r"CUDA out of memory\. Tried to allocate",
        lambda data: torch.empty(20 << 30, dtype=torch.uint8, device="cuda"),
        lambda data: torch.empty(20 << 10, dtype=torch.uint8, device="cuda"),
    ),
    # What CUDA's kernels do not have
    "product_of_integers": Bug(
        r"\"addmm_cuda\" not implemented for 'Long'[\s\S]*convert the operands first",
        lambda data: x(dtype=torch.long) @ x(dtype=torch.long),
        lambda data: (data @ data).long(),
    ),
    "linear_of_integers": Bug(
        r"\"addmm_cuda\" not implemented for 'Int'",
        lambda data: F.linear(x(dtype=torch.int), x(dtype=torch.int)),
        lambda data: F.linear(data, data),
    ),
    "convolution_of_integers": Bug(
        r"getCudnnDataTypeFromScalarType\(\) not supported for Long",
        lambda data: F.conv2d(x(1, 1, 4, 4, dtype=torch.long), x(1, 1, 3, 3, dtype=torch.long)),
        lambda data: F.conv2d(x(1, 1, 4, 4), x(1, 1, 3, 3)),
    ),
    "pool_of_pixels": Bug(
        r"\"max_pool2d_with_indices_out_cuda_frame\" not implemented for 'Byte'",
        lambda data: F.max_pool2d(x(1, 1, 4, 4, dtype=torch.uint8), 2),
        lambda data: F.max_pool2d(x(1, 1, 4, 4, dtype=torch.half), 2),
    ),
    "resized_pixels": Bug(
        r"\"upsample_bilinear2d_out_frame\" not implemented for 'Byte'",
        lambda data: F.interpolate(x(1, 3, 4, 4, dtype=torch.uint8), size=(8, 8), mode="bilinear"),
        lambda data: F.interpolate(
            x(1, 3, 4, 4, dtype=torch.uint8).float(), size=(8, 8), mode="bilinear"
        ),
    ),
    "half_transform": Bug(
        r"cuFFT only supports dimensions whose sizes are powers of two",
        lambda data: torch.fft.fft(x(12, dtype=torch.half)),
        lambda data: torch.fft.fft(x(16, dtype=torch.half)),
    ),
    "token_beyond_the_table": Bug(
        r"AcceleratorError: CUDA error: device-side assert[\s\S]*index out of range in self",
        lambda data: F.embedding(torch.arange(5, device="cuda"), data),
        lambda data: F.embedding(torch.arange(4, device="cuda"), data),
    ),
    "loss_of_logits": Bug(
        r"device-side assert triggered[\s\S]*all elements of input should be between 0 and 1",
        lambda data: F.binary_cross_entropy(data * 3, data),
        lambda data: F.binary_cross_entropy_with_logits(data * 3, data),
    ),
    "error_that_is_no_index_error": Bug(
        r"AcceleratorError",
        lambda data: caught(IndexError, lambda: data[torch.arange(5, device="cuda")]),
        lambda data: caught(IndexError, lambda: data[9]),
    ),
    "histogram": Bug(
        r"Could not run 'aten::histogram.bin_ct' with arguments from the 'CUDA' backend",
        lambda data: torch.histogram(x(8), bins=4),
        lambda data: torch.histc(x(8), bins=4, min=0, max=2),
    ),
    "few_rows_of_bytes": Bug(
        r"self\.size\(0\) needs to be greater than 16, but got 16",
        lambda data: torch._int_mm(x(16, 16, dtype=torch.int8), x(16, 8, dtype=torch.int8)),
        lambda data: torch._int_mm(x(32, 16, dtype=torch.int8), x(16, 8, dtype=torch.int8)),
    ),
    "operator_for_the_host": Bug(
        r"Could not run 'seeded::for_the_host' with arguments from the 'CUDA' backend",
        lambda data: torch.ops.seeded.for_the_host(data),
        lambda data: torch.ops.seeded.for_both(data),
    ),
    "dynamic_quantization": Bug(
        r"Could not run 'quantized::linear_dynamic' with arguments from the 'CUDA' backend",
        lambda data: quantized()(data),
        lambda data: quantized()(data.cpu()),
    ),
    # Determinism
    "pooled_gradient": Bug(
        r"adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation",
        strictly(
            lambda data: F.adaptive_avg_pool2d(x(1, 1, 4, 4).requires_grad_(), 2).sum().backward()
        ),
        strictly(lambda data: F.avg_pool2d(x(1, 1, 4, 4).requires_grad_(), 2).sum().backward()),
    ),
    "weighted_counts": Bug(
        r"_bincount_cuda does not have a deterministic implementation",
        strictly(lambda data: torch.bincount(x(4).long(), weights=x(4), minlength=3)),
        strictly(lambda data: torch.zeros(3, device="cuda").index_add_(0, x(4).long(), x(4))),
    ),
    "median_with_places": Bug(
        r"median CUDA with indices output does not have a deterministic implementation",
        strictly(lambda data: data.median(dim=0)),
        strictly(lambda data: data.quantile(0.5, dim=0)),
    ),
    "reflected_gradient": Bug(
        r"reflection_pad1d_backward_out_cuda does not have a deterministic implementation",
        strictly(
            lambda data: F.pad(x(1, 4).requires_grad_(), (1, 1), mode="reflect").sum().backward()
        ),
        strictly(lambda data: F.pad(x(1, 4).requires_grad_(), (1, 1)).sum().backward()),
    ),
}


def that_may_wait(call):
    def run(data):
        from torch_npusim.testing import allow_sync

        with allow_sync():
            call()

    return run


for _name, (_says, *_calls) in ARGUMENTS.items():
    BUGS[_name] = Bug(_says, *map(that_may_wait, _calls))


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
