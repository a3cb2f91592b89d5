# SPDX-License-Identifier: BSD-3-Clause
"""Bugs of kinds that a stranger's list found missing, each with its mended twin."""

import warnings

import torch
from seeded_bugs import Bug, x
from torch import nn

from torch_npusim.testing import allow_sync


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


def downloaded(read, early):
    host = torch.zeros(4096, pin_memory=True)
    host.copy_(x(4096), non_blocking=True)
    if not early:
        torch.cuda.current_stream().synchronize()
    value = read(host)
    torch.cuda.synchronize()
    return value


def kept_results(keep):
    step = torch.compile(lambda data: data * 2, mode="reduce-overhead")
    results = [keep(step(x(8))) for _ in range(3)]
    torch._dynamo.reset()
    with allow_sync():
        assert [result.sum().item() for result in results] == [16.0] * 3


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


STRANGER = {
    "counts_of_a_sparse_matrix": Bug(
        r"\"addmm_sparse_cuda\" not implemented for 'Long'",
        lambda data: torch.sparse.mm(graph_of(torch.int64), x(2, 2).long()),
        lambda data: torch.sparse.mm(graph_of(torch.float32), x(2, 2)).long(),
    ),
    "counts_of_sparse_batches": Bug(
        r"\"bmm_sparse_cuda\" not implemented for 'Int'",
        lambda data: torch.stack([graph_of(torch.int32)]).bmm(x(1, 2, 2).int()),
        lambda data: torch.stack([graph_of(torch.float32)]).bmm(x(1, 2, 2)).int(),
    ),
    "sparse_product_that_stays_sparse": Bug(
        r"NYI: CUDA sspaddmm is not implemented",
        lambda data: torch.smm(graph_of(torch.float32), x(2, 2)),
        lambda data: torch.sparse.mm(graph_of(torch.float32), x(2, 2)),
    ),
    "largest_of_many_axes": Bug(
        r"CUDA Tensors cannot have more than 25 dimensions",
        lambda data: x(3).view(*[1] * 25, 3).topk(1, dim=-1),
        lambda data: x(3).topk(1, dim=-1),
    ),
    "axes_that_do_not_merge": Bug(
        r"tensor has too many \(>25\) dims", lambda data: qubits(26), lambda data: qubits(16)
    ),
    "number_beyond_the_integers": Bug(
        r"\[2147483647,", lambda data: bucket(3e9), lambda data: bucket(-3e9)
    ),
    "quotient_by_no_count": Bug(
        r"\[-1,",
        lambda data: mean_or_zero(0 * x(4).long()),
        lambda data: mean_or_zero(2 * x(4).long()),
    ),
    "model_that_was_quantized_for_the_host": Bug(
        r"Could not run 'quantized::linear' with arguments from the 'QuantizedCUDA' backend",
        lambda data: served("cuda"),
        lambda data: served("cpu"),
    ),
    "array_of_a_download": Bug(
        r"an array of Tensor.numpy\(\) reads float32\[4096\] on the host",
        lambda data: downloaded(lambda host: host.numpy().sum(), early=True),
        lambda data: downloaded(lambda host: host.numpy().sum(), early=False),
    ),
    "list_of_a_download": Bug(
        r"Tensor.tolist\(\) reads float32\[4096\] on the host",
        lambda data: downloaded(lambda host: host.tolist()[0], early=True),
        lambda data: downloaded(lambda host: host.tolist()[0], early=False),
    ),
    "array_that_is_read_after_the_wait": Bug(
        r"an array of Tensor.numpy\(\) reads",
        lambda data: downloaded(lambda host: host.numpy().tolist()[0], early=True),
        lambda data: downloaded(lambda host: host.numpy(), early=True).sum(),
    ),
    "result_of_the_step_before": Bug(
        r"accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run",
        lambda data: kept_results(lambda result: result),
        lambda data: kept_results(torch.clone),
    ),
}
