# SPDX-License-Identifier: BSD-3-Clause
"""Internal overloads of aten called directly: an answer or an error, never a signal.

Each was found by `npusim-conformance fuzz`.
"""

import pytest
import torch
from oracle import DEVICE, compare

aten = torch.ops.aten


def some(*shape):
    return torch.testing.make_tensor(shape, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (
            lambda x, grid: aten._grid_sampler_2d_cpu_fallback(x, grid, 0, 0, False),
            [(2, 3, 5, 5), (2, 5, 5, 2)],
        ),
        (
            lambda x, grid: aten._grid_sampler_2d_cpu_fallback.out(
                x, grid, 0, 0, False, out=torch.empty_like(x)
            ),
            [(2, 3, 5, 5), (2, 5, 5, 2)],
        ),
        (
            lambda g, x, grid: aten._grid_sampler_2d_cpu_fallback_backward(g, x, grid, 0, 0, False),
            [(2, 3, 5, 5), (2, 3, 5, 5), (2, 5, 5, 2)],
        ),
        (aten._saturate_weight_to_fp16, [(2, 4)]),
        (lambda x: aten.choose_qparams_optimized(x, 8, 10, 0.1, 8), [(2, 4)]),
        (lambda x: aten.range.out_(0, 3, out=x), [(4,)]),
    ],
)
def test_kernels_for_every_backend_that_read_the_host_run_on_views(call, shapes):
    compare(call, *(some(*shape) for shape in shapes))


def test_an_alias_stays_within_its_storage():
    x = some(4).to(DEVICE)
    assert aten._reshape_alias(x, [2, 2], [2, 1]).shape == (2, 2)
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 16"):
        aten._reshape_alias(x, [2, 2], [3, 1])
    with pytest.raises(RuntimeError, match="2 sizes and 1 strides"):
        aten._reshape_alias(x, [2, 2], [1])


@pytest.mark.parametrize(
    ("call", "count"),
    [
        (lambda gates, h: aten._thnn_fused_lstm_cell(gates, gates, h), 4),
        (lambda gates, h: aten._thnn_fused_gru_cell(gates, gates, h), 3),
        (lambda gates, h: aten._thnn_fused_gru_cell_backward(h, gates, False), 5),
        (
            lambda gates, h: aten._thnn_fused_lstm_cell_backward_impl(h, h, h, h, gates, False),
            4,
        ),
    ],
)
@pytest.mark.parametrize("shape", [(4, 1), (4, 7), (12,), (2, 2, 12)])
def test_fused_cells_refuse_gates_that_cannot_be_split(call, count, shape):
    with pytest.raises(RuntimeError, match=f"a multiple of {count} columns"):
        call(some(*shape).to(DEVICE), some(4, 3).to(DEVICE))


def test_fused_cells_refuse_a_bias_of_the_host():
    gates = some(2, 12).to(DEVICE)
    with pytest.raises(RuntimeError, match="same device"):
        aten._thnn_fused_gru_cell(gates, gates, some(2, 4).to(DEVICE), some(12), some(12))


def test_a_quantized_tensor_does_not_pass_by_a_refusal():
    weight = torch.quantize_per_tensor(some(3, 3), 0.1, 2, torch.qint8).to(DEVICE)
    with pytest.raises(NotImplementedError, match="fbgemm_pack_quantized_matrix"):
        aten.fbgemm_pack_quantized_matrix.KN(weight, 3, 3)


PACKED = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4}


def packed(name, batch_sizes, rows_per_gate=2):
    """An RNN's result of a packed sequence of 2 steps."""
    state = some(1, 2, 2).to(DEVICE)
    rows = int(rows_per_gate * PACKED[name])
    weights = [some(rows, 2).to(DEVICE) for _ in range(2)]
    hidden = [state, state] if name == "lstm" else state
    run = getattr(aten, name).data
    return run(some(4, 2).to(DEVICE), batch_sizes, hidden, weights, False, 1, 0.0, False, False)


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_need_batch_sizes_of_the_host(name):
    assert packed(name, torch.tensor([2, 2]))[0].shape == (4, 2)
    for wrong in (
        torch.tensor([2, 2], device=DEVICE),
        torch.tensor([2, 2], dtype=torch.int32),
        torch.tensor([[2, 2]]),
        torch.tensor([], dtype=torch.int64),
    ):
        with pytest.raises(RuntimeError, match="batch_sizes must be a vector of int64 on the CPU"):
            packed(name, wrong)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_weights_without_a_block_per_gate_are_refused(name):
    with pytest.raises(RuntimeError, match="one block per gate"):
        packed(name, torch.tensor([2, 2]), rows_per_gate=0.5)
