# SPDX-License-Identifier: BSD-3-Clause
"""Arguments that CUDA refuses: it has the operator and the dtype."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from claims.claim import Brief
from claims.lists.device_calls import x
from torch_npusim.testing import allow_sync


def rnn(training=True):
    return nn.LSTM(4, 4).cuda().train(training)


def penalty(of_cudnn):
    data = x(3, 2, 4).requires_grad_()
    with torch.backends.cudnn.flags(enabled=of_cudnn):
        output = rnn()(data)[0]
    (gradient,) = torch.autograd.grad(output.sum(), data, create_graph=True)
    gradient.square().sum().backward()


def attended(backend, width, dtype=torch.half, **options):
    query = x(1, 2, 8, width, dtype=dtype)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(query, query, query, **options)


def captured(step):
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        step()
    graph.replay()


def scaled_gradients(dtype):
    weight = nn.Parameter(x(3, dtype=dtype))
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)


def elapsed(timing, waits=True):
    begin, end = (torch.cuda.Event(enable_timing=timing) for _ in range(2))
    begin.record()
    x(512, 512) @ x(512, 512)
    end.record()
    if waits:
        end.synchronize()
    return begin.elapsed_time(end)


#: Words of the report, the wrong call, its mended twin.
CALLS = {
    "gradient_of_an_rnn_in_eval": (
        r"cudnn RNN backward can only be called in training mode",
        lambda: rnn(training=False)(x(3, 2, 4))[0].sum().backward(),
        lambda: rnn()(x(3, 2, 4))[0].sum().backward(),
    ),
    "strided_state_of_an_rnn": (
        r"rnn: hx is not contiguous",
        lambda: rnn()(x(3, 2, 4), (x(1, 2, 8)[..., ::2],) * 2),
        lambda: rnn()(x(3, 2, 4), (x(1, 2, 8)[..., ::2].contiguous(),) * 2),
    ),
    "penalty_on_gradients_of_an_rnn": (
        r"Double backwards is not supported for CuDNN RNNs",
        lambda: penalty(of_cudnn=True),
        lambda: penalty(of_cudnn=False),
    ),
    "lengths_of_a_pack_on_the_device": (
        r"lengths.*1D CPU int64 tensor",
        lambda: nn.utils.rnn.pack_padded_sequence(x(3, 2, 4), 3 * x(2).long()),
        lambda: nn.utils.rnn.pack_padded_sequence(x(3, 2, 4), torch.tensor([3, 2])),
    ),
    "flash_attention_of_floats": (
        r"No available kernel",
        lambda: attended(SDPBackend.FLASH_ATTENTION, 16, torch.float),
        lambda: attended(SDPBackend.FLASH_ATTENTION, 16),
    ),
    "flash_attention_of_wide_heads": (
        r"No available kernel",
        lambda: attended(SDPBackend.FLASH_ATTENTION, 264),
        lambda: attended(SDPBackend.FLASH_ATTENTION, 256),
    ),
    "flash_attention_with_a_mask": (
        r"No available kernel",
        lambda: attended(SDPBackend.FLASH_ATTENTION, 16, attn_mask=x(8, 8).bool()),
        lambda: attended(SDPBackend.EFFICIENT_ATTENTION, 16, attn_mask=x(8, 8).bool()),
    ),
    "driver_of_least_squares": (
        r"`driver` other than `gels` is not supported on CUDA",
        lambda: torch.linalg.lstsq(torch.eye(4, device="cuda"), x(), driver="gelsd"),
        lambda: torch.linalg.lstsq(torch.eye(4, device="cuda"), x(), driver="gels"),
    ),
    "rank_of_least_squares": (
        r"with 0 elements cannot be converted to Scalar",
        lambda: torch.linalg.lstsq(torch.eye(4, device="cuda"), x()).rank.item(),
        lambda: torch.linalg.matrix_rank(torch.eye(4, device="cuda")).cpu(),
    ),
    "scattered_product_of_flags": (
        r"\"cuda_scatter_gather_base_kernel_func\" not implemented for 'Bool'",
        lambda: (x() > 0).scatter_(0, x(1, 4).long(), x(1, 4) > 0, reduce="multiply"),
        lambda: x().int().scatter_(0, x(1, 4).long(), x(1, 4).int(), reduce="multiply").bool(),
    ),
    "index_of_small_integers": (
        r"Expected dtype int64 for index|index.*int64",
        lambda: x().scatter(0, x(1, 4).short(), 2.0),
        lambda: x().scatter(0, x(1, 4).long(), 2.0),
    ),
    "too_many_categories": (
        r"number of categories cannot exceed 2\^24",
        lambda: torch.multinomial(x(1, 2**24 + 1), 1),
        lambda: torch.multinomial(x(1, 2**10), 1),
    ),
    "weights_of_a_maximum": (
        r"per_sample_weights is only supported for mode='sum'",
        lambda: F.embedding_bag(x(1, 2).long(), x(), mode="max", per_sample_weights=x(1, 2)),
        lambda: F.embedding_bag(x(1, 2).long(), x(), mode="sum", per_sample_weights=x(1, 2)),
    ),
    "decomposition_of_halves": (
        r"not implemented for 'Half'|Low precision dtypes not supported",
        lambda: torch.linalg.inv(torch.eye(4, device="cuda", dtype=torch.half)),
        lambda: torch.linalg.inv(torch.eye(4, device="cuda")).half(),
    ),
    "distances_of_halves": (
        r"not implemented for 'Half'|cdist only supports floating-point",
        lambda: torch.cdist(x().half(), x().half()),
        lambda: torch.cdist(x(), x()).half(),
    ),
    "scaled_halves": (
        r"Attempting to unscale FP16 gradients",
        lambda: scaled_gradients(torch.half),
        lambda: scaled_gradients(torch.float),
    ),
    "sum_of_bytes_of_eight_bits": (
        r"not implemented for 'Float8_e4m3fn'",
        lambda: x().to(torch.float8_e4m3fn) + x().to(torch.float8_e4m3fn),
        lambda: (x() + x()).to(torch.float8_e4m3fn),
    ),
    "value_in_a_capture": (
        r"operation not permitted when stream is capturing",
        lambda: captured(lambda: x(dtype=torch.half).sum().tolist()),
        lambda: captured(lambda: x(dtype=torch.half).sum()),
    ),
    "pageable_copy_in_a_capture": (
        r"operation not permitted when stream is capturing",
        lambda: captured(lambda: torch.tensor([1.0, 2.0], device="cuda")),
        lambda: captured(lambda: torch.arange(1.0, 3.0, device="cuda")),
    ),
    "capture_on_the_default_stream": (
        r"CUDA graphs must be captured on a non-default stream",
        lambda: torch.cuda.CUDAGraph().capture_begin(),
        lambda: captured(lambda: x() * 2),
    ),
    "time_between_events_of_no_time": (
        r"Both events must be created with argument 'enable_timing=True'",
        lambda: elapsed(timing=False),
        lambda: elapsed(timing=True),
    ),
    "time_before_the_end": (
        r"Both events must be completed before calculating elapsed time",
        lambda: elapsed(timing=True, waits=False),
        lambda: elapsed(timing=True),
    ),
    "pinned_memory_of_the_device": (
        r"cannot pin|only dense CPU tensors can be pinned",
        lambda: x().pin_memory(),
        lambda: torch.ones(4).pin_memory(),
    ),
    "sparse_maximum": (
        r"Could not run 'aten::_sparse_mm_reduce_impl' with arguments from the 'SparseCsrCUDA'",
        lambda: torch.sparse.mm(torch.eye(4).to_sparse_csr().cuda(), x(), "amax"),
        lambda: torch.sparse.mm(torch.eye(4).to_sparse_csr().cuda(), x()),
    ),
}


def _may_wait(call: Callable[[], object]) -> Callable[[torch.Tensor], object]:
    def run(_: torch.Tensor) -> object:
        with allow_sync():
            return call()

    return run


CLAIMS = {name: Brief(says, *map(_may_wait, calls)) for name, (says, *calls) in CALLS.items()}
