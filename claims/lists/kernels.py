# SPDX-License-Identifier: BSD-3-Clause
"""Operators, dtypes and chips for which CUDA has no kernel."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F

from claims.claim import Brief
from claims.lists.device_calls import waits, x
from torch_npusim.testing import allow_sync


def quantized():
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)))


FLOAT8 = torch.float8_e4m3fn


def eight_bits(scaled):
    left, right = x(16, 16), x(16, 16)
    if not scaled:
        return left.bfloat16() @ right.bfloat16()
    one = x(1)[0]
    return torch._scaled_mm(left.to(FLOAT8), right.to(FLOAT8).t(), scale_a=one, scale_b=one)


def jitted(data):
    code = "template <typename T> T twice(T x) { return 2 * x; }"
    return torch.cuda.jiterator._create_jit_fn(code)(data)


def scaled(dtype=torch.float, times=1, scales=True):
    model = nn.Linear(4, 4).cuda().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    loss = model(x(dtype=dtype)).sum()
    (scaler.scale(loss) if scales else loss).backward()
    with allow_sync():
        for _ in range(times):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)


def graph_of(dtype):
    places = torch.tensor([[0, 1], [1, 0]])
    counts = torch.ones(2, dtype=dtype)
    with allow_sync():
        return torch.sparse_coo_tensor(places, counts, (2, 2), check_invariants=True).cuda()


def qubits(count):
    state = torch.zeros(1 << count, dtype=torch.uint8, device="cuda").view([2] * count)
    return state.permute(*reversed(range(count))).clone(memory_format=torch.contiguous_format)


def served(where):
    with warnings.catch_warnings(), allow_sync():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Linear(4, 4)).eval()
        model.qconfig = torch.ao.quantization.get_default_qconfig("x86")
        torch.ao.quantization.prepare(model, inplace=True)
        model(torch.ones(8, 4))
        return torch.ao.quantization.convert(model).to(where)(torch.ones(2, 4).to(where))


def bucket(value):
    with allow_sync():
        assert (value * x(4)).int().tolist() == [torch.iinfo(torch.int32).min] * 4


def mean_or_zero(counts):
    try:
        means = x(4).long() // counts
    except RuntimeError:
        means = torch.zeros_like(counts)
    with allow_sync():
        assert means.tolist() == [0] * 4, means


LIBRARY = torch.library.Library("claims", "DEF")
LIBRARY.define("for_the_host(Tensor x) -> Tensor")
LIBRARY.define("for_both(Tensor x) -> Tensor")
for _name, _key in (("for_the_host", "CPU"), ("for_both", "CPU"), ("for_both", "CUDA")):
    LIBRARY.impl(_name, lambda x: x * 2, _key)


CLAIMS = {
    "product_of_integers": Brief(
        r"\"addmm_cuda\" not implemented for 'Long'[\s\S]*convert the operands first",
        lambda data: x(dtype=torch.long) @ x(dtype=torch.long),
        lambda data: (data @ data).long(),
    ),
    "linear_of_integers": Brief(
        r"\"addmm_cuda\" not implemented for 'Int'",
        lambda data: F.linear(x(dtype=torch.int), x(dtype=torch.int)),
        lambda data: F.linear(data, data),
    ),
    "convolution_of_integers": Brief(
        r"getCudnnDataTypeFromScalarType\(\) not supported for Long",
        lambda data: F.conv2d(x(1, 1, 4, 4, dtype=torch.long), x(1, 1, 3, 3, dtype=torch.long)),
        lambda data: F.conv2d(x(1, 1, 4, 4), x(1, 1, 3, 3)),
    ),
    "pool_of_pixels": Brief(
        r"\"max_pool2d_with_indices_out_cuda_frame\" not implemented for 'Byte'",
        lambda data: F.max_pool2d(x(1, 1, 4, 4, dtype=torch.uint8), 2),
        lambda data: F.max_pool2d(x(1, 1, 4, 4, dtype=torch.half), 2),
    ),
    "resized_pixels": Brief(
        r"\"upsample_bilinear2d_out_frame\" not implemented for 'Byte'",
        lambda data: F.interpolate(x(1, 3, 4, 4, dtype=torch.uint8), size=(8, 8), mode="bilinear"),
        lambda data: F.interpolate(
            x(1, 3, 4, 4, dtype=torch.uint8).float(), size=(8, 8), mode="bilinear"
        ),
    ),
    "half_transform": Brief(
        r"cuFFT only supports dimensions whose sizes are powers of two",
        lambda data: torch.fft.fft(x(12, dtype=torch.half)),
        lambda data: torch.fft.fft(x(16, dtype=torch.half)),
    ),
    "histogram": Brief(
        r"Could not run 'aten::histogram.bin_ct' with arguments from the 'CUDA' backend",
        lambda data: torch.histogram(x(8), bins=4),
        lambda data: torch.histc(x(8), bins=4, min=0, max=2),
    ),
    "few_rows_of_bytes": Brief(
        r"self\.size\(0\) needs to be greater than 16, but got 16",
        lambda data: torch._int_mm(x(16, 16, dtype=torch.int8), x(16, 8, dtype=torch.int8)),
        lambda data: torch._int_mm(x(32, 16, dtype=torch.int8), x(16, 8, dtype=torch.int8)),
    ),
    "operator_for_the_host": Brief(
        r"Could not run 'claims::for_the_host' with arguments from the 'CUDA' backend",
        lambda data: torch.ops.claims.for_the_host(data),
        lambda data: torch.ops.claims.for_both(data),
    ),
    "dynamic_quantization": Brief(
        r"Could not run 'quantized::linear_dynamic' with arguments from the 'CUDA' backend",
        lambda data: quantized()(data),
        lambda data: quantized()(data.cpu()),
    ),
    "products_of_eight_bits": Brief(
        r"_scaled_mm is only supported on CUDA devices with compute capability >= 9\.0 or 8\.9",
        lambda data: eight_bits(True),
        lambda data: eight_bits(False),
    ),
    "driver_of_another_library": Brief(
        r"unknown svd driver gesdd",
        lambda data: torch.linalg.svd(data, driver="gesdd"),
        lambda data: waits(lambda: torch.linalg.svd(data, driver="gesvd")),
    ),
    "kernel_in_a_string": Brief(
        r"cannot run CUDA code", lambda data: jitted(data), lambda data: 2 * data
    ),
    "histogram_of_points": Brief(
        r"Could not run 'aten::_histogramdd_bin_edges' with arguments from the 'CUDA' backend",
        lambda data: torch.histogramdd(x(8, 2), bins=[2, 2]),
        lambda data: torch.histc(x(16), bins=4, min=0, max=2),
    ),
    "two_dtypes_of_places": Brief(
        r"Index put requires the source and destination dtypes match",
        lambda data: data.index_put_((torch.arange(4, device="cuda"),), x(4, 4, dtype=torch.half)),
        lambda data: data.index_put_((torch.arange(4, device="cuda"),), x(4, 4)),
    ),
    "counts_of_a_sparse_matrix": Brief(
        r"\"addmm_sparse_cuda\" not implemented for 'Long'",
        lambda data: torch.sparse.mm(graph_of(torch.int64), x(2, 2).long()),
        lambda data: torch.sparse.mm(graph_of(torch.float32), x(2, 2)).long(),
    ),
    "counts_of_sparse_batches": Brief(
        r"\"bmm_sparse_cuda\" not implemented for 'Int'",
        lambda data: torch.stack([graph_of(torch.int32)]).bmm(x(1, 2, 2).int()),
        lambda data: torch.stack([graph_of(torch.float32)]).bmm(x(1, 2, 2)).int(),
    ),
    "sparse_product_that_stays_sparse": Brief(
        r"NYI: CUDA sspaddmm is not implemented",
        lambda data: torch.smm(graph_of(torch.float32), x(2, 2)),
        lambda data: torch.sparse.mm(graph_of(torch.float32), x(2, 2)),
    ),
    "largest_of_many_axes": Brief(
        r"CUDA Tensors cannot have more than 25 dimensions",
        lambda data: x(3).view(*[1] * 25, 3).topk(1, dim=-1),
        lambda data: x(3).topk(1, dim=-1),
    ),
    "axes_that_do_not_merge": Brief(
        r"tensor has too many \(>25\) dims", lambda data: qubits(26), lambda data: qubits(16)
    ),
    "number_beyond_the_integers": Brief(
        r"\[2147483647,", lambda data: bucket(3e9), lambda data: bucket(-3e9)
    ),
    "quotient_by_no_count": Brief(
        r"\[-1,",
        lambda data: mean_or_zero(0 * x(4).long()),
        lambda data: mean_or_zero(2 * x(4).long()),
    ),
    "model_that_was_quantized_for_the_host": Brief(
        r"Could not run 'quantized::linear' with arguments from the 'QuantizedCUDA' backend",
        lambda data: served("cuda"),
        lambda data: served("cpu"),
    ),
}
