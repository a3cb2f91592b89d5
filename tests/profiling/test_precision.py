# SPDX-License-Identifier: BSD-3-Clause
"""Matrix work is charged in the precision of its factors, forward and backward, wet and dry."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torch_npusim.profiling import diagnose, record
from torch_npusim.sim import dry_run, timeline
from torch_npusim.sim.timeline import DEPTHWISE, PRECISIONS, PRODUCTS, Rates

DEVICE = "npusim"
F16 = {PRECISIONS.index("f16")}
F32 = {PRECISIONS.index(name) for name in ("f32", "tf32")}  # convolutions: TF32, by torch's flags


def ones(*sizes, dtype):
    return torch.ones(sizes, dtype=dtype, device=DEVICE, requires_grad=True)


def module(make, *sizes):
    """A call of a module: its result, of tensors of these sizes."""

    def call(dtype):
        model = make().to(DEVICE, dtype)
        found = model(*(ones(*size, dtype=dtype) for size in sizes))
        return found[0] if isinstance(found, tuple) else found

    return call


def function(of, *sizes):
    return lambda dtype: of(*(ones(*size, dtype=dtype) for size in sizes))


def attention(**options):
    q = (1, 2, 16, 8)
    return function(lambda *x: F.scaled_dot_product_attention(*x, **options), q, q, q)


def masked(dtype):
    mask = torch.zeros(16, 16, dtype=dtype, device=DEVICE)
    return attention(attn_mask=mask)(dtype)


def autocast(dtype):
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)).to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16):
        return model(torch.ones(4, 8, device=DEVICE))


def encoder():
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)


MATRIX, BATCH, VECTOR = (8, 8), (2, 8, 8), (8,)
FORWARD_AND_BACKWARD = {
    "mm": function(torch.mm, MATRIX, MATRIX),
    "bmm": function(torch.bmm, BATCH, BATCH),
    "addmm": function(torch.addmm, MATRIX, MATRIX, MATRIX),
    "baddbmm": function(torch.baddbmm, BATCH, BATCH, BATCH),
    "addbmm": function(torch.addbmm, MATRIX, BATCH, BATCH),
    "addmv": function(torch.addmv, VECTOR, MATRIX, VECTOR),
    "dot": function(torch.dot, VECTOR, VECTOR),
    "einsum": function(lambda a, b: torch.einsum("bij,bjk->bik", a, b), BATCH, BATCH),
    "linear": module(lambda: nn.Linear(8, 4), MATRIX),
    "bilinear": module(lambda: nn.Bilinear(8, 8, 4), MATRIX, MATRIX),
    "conv1d": module(lambda: nn.Conv1d(4, 4, 3), (2, 4, 9)),
    "conv2d": module(lambda: nn.Conv2d(4, 4, 3), (2, 4, 9, 9)),
    "conv3d": module(lambda: nn.Conv3d(4, 4, 2), (2, 4, 5, 5, 5)),
    "transposed convolution": module(lambda: nn.ConvTranspose2d(4, 4, 2), (2, 4, 5, 5)),
    "attention": attention(),
    "causal attention": attention(is_causal=True),
    "masked attention": masked,
    "attention with dropout": attention(dropout_p=0.5),
    "encoder layer": module(encoder, (2, 8, 16)),
    "LSTM": module(lambda: nn.LSTM(8, 8), (3, 2, 8)),
    "GRU": module(lambda: nn.GRU(8, 8), (3, 2, 8)),
    "autocast": autocast,
}
FORWARD = {
    "mm, wide": function(lambda a, b: torch.mm(a, b, out_dtype=torch.float32), MATRIX, MATRIX),
    "bmm, wide": function(lambda a, b: torch.bmm(a, b, out_dtype=torch.float32), BATCH, BATCH),
    "addmm, wide": function(
        lambda a, b: torch.addmm(torch.ones_like(a), a, b, out_dtype=torch.float32), MATRIX, MATRIX
    ),
    "encoder layer, evaluated": module(lambda: encoder().eval(), (2, 8, 16)),
}


NOT_YET = {
    "attention with dropout": "the CPU's composite computes in float32; CUDA has a fused kernel",
}


def matrix_work(call, dtype, backward):
    with timeline.record() as made:
        if backward:
            call(dtype).float().sum().backward()
        else:
            with torch.no_grad():
                call(dtype)
    return [row for row in made.commands() if row.work in PRODUCTS]


@pytest.mark.parametrize("dry", [False, True], ids=["wet", "dry"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.xfail(reason=NOT_YET[case], strict=True))
        if case in NOT_YET
        else case
        for case in (*FORWARD_AND_BACKWARD, *FORWARD)
    ],
)
def test_matrix_work_in_bfloat16_has_the_peak_of_bfloat16(case, dry):
    call = (FORWARD_AND_BACKWARD | FORWARD)[case]
    backward = case in FORWARD_AND_BACKWARD
    h100 = Rates.of_spec("h100-sxm")
    arithmetic = {}
    for dtype, precisions in ((torch.float32, F32), (torch.bfloat16, F16)):
        if dry:
            with dry_run():
                rows = matrix_work(call, dtype, backward)
        else:
            rows = matrix_work(call, dtype, backward)
        assert rows
        assert {row.name: row.precision for row in rows if row.precision not in precisions} == {}
        arithmetic[dtype] = [
            h100.duration_ns(row._replace(flops=1e12, bytes=0.0, tiles=0.0, done=1.0))
            for row in rows
        ]
    assert min(arithmetic[torch.float32]) > 1.9 * max(arithmetic[torch.bfloat16])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_channels_by_themselves_are_summed_in_float32(dtype):
    call = module(lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 9, 9))
    rows = matrix_work(call, dtype, backward=True)
    assert {row.work for row in rows} == set(DEPTHWISE)
    assert {PRECISIONS[row.precision] for row in rows} == {"f32"}
    with record() as made:
        for _ in range(4):
            call(dtype).sum().backward()
    made.timeline.rates = Rates.of_spec("h100-sxm")
    made.timeline.rows = [row._replace(flops=row.flops * 1e6) for row in made.timeline.rows]
    assert "precision" not in {advice.cause for advice in diagnose(made).advice}


def test_a_model_in_bfloat16_is_not_told_to_use_the_matrix_units():
    call = FORWARD_AND_BACKWARD["causal attention"]
    with record() as made:
        for _ in range(4):
            call(torch.bfloat16).sum().backward()
    made.timeline.rates = Rates.of_spec("h100-sxm")
    made.timeline.rows = [row._replace(flops=row.flops * 1e6) for row in made.timeline.rows]
    assert "precision" not in [advice.cause for advice in diagnose(made).advice]


ON_A_CHIP = """
import torch
from torch_npusim.sim import dry_run, timeline
with dry_run(), timeline.record() as made:
    for dtype in (torch.float64, torch.float32, torch.float16):
        square = torch.ones(2048, 2048, dtype=dtype, device="npusim")
        image, filters = torch.ones(8, 64, 56, 56), torch.ones(64, 64, 3, 3)
        square @ square
        torch.conv2d(image.to("npusim", dtype), filters.to("npusim", dtype))
rows = [row for row in made.commands() if row.work in timeline.PRODUCTS]
assert all(row.end_ns - row.start_ns == made.rates.duration_ns(row) for row in rows)
print(*(timeline.PRECISIONS[row.precision] for row in rows))
"""


@pytest.mark.parametrize(("spec", "single"), [("h100-sxm", "tf32"), ("t4", "f32")])
def test_precisions_that_a_chip_lacks_and_float64_are_timed_and_replayed_alike(
    run_script, spec, single
):
    done = run_script(ON_A_CHIP, environment={"NPUSIM_SPEC": spec})
    assert done.stdout.split() == ["f64", "f64", "f32", single, "f16", "f16"], done.stderr


# --- Alignment: elements of a product's matrices that one load may move


def aligned(call):
    """Of the last product's row."""
    with timeline.record() as made:
        call()
    return [row.aligned for row in made.rows if row.work in PRODUCTS][-1]


def matrix(rows, columns, dtype=torch.bfloat16):
    return torch.ones(rows, columns, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("k", "n", "dtype", "elements"),
    [
        (16, 24, torch.bfloat16, 0), (16, 25, torch.bfloat16, 1), (16, 26, torch.float16, 2),
        (20, 24, torch.float16, 4), (16, 25, torch.float32, 0), (16, 1, torch.bfloat16, 0),
        (17, 24, torch.bfloat16, 1),
    ],
)  # fmt: skip
def test_a_product_states_what_a_load_may_move(k, n, dtype, elements):
    a, b = matrix(8, k, dtype), matrix(k, n, dtype)
    assert aligned(lambda: a @ b) == elements
    assert aligned(lambda: torch.addmm(matrix(8, n, dtype), a, b)) == elements
    assert aligned(lambda: torch.bmm(a.expand(2, 8, k), b.expand(2, k, n))) == elements


def test_rows_count_and_no_sizes_across_them():
    """A part of a wide matrix has the rows of the whole."""
    assert aligned(lambda: matrix(16, 40)[:, :25].t() @ matrix(16, 8)) == 0
    assert aligned(lambda: matrix(8, 25) @ matrix(25, 8)) == 1
    assert aligned(lambda: matrix(25, 8).t() @ matrix(25, 8)) == 0  # a weight's gradient
    assert aligned(lambda: matrix(8, 25).t() @ matrix(8, 16)) == 1


IN_TF32 = """
import torch
from torch_npusim.sim import timeline
torch.backends.cuda.matmul.allow_tf32 = True
with timeline.record() as made:
    torch.ones(8, 16, device="npusim") @ torch.ones(16, 26, device="npusim")
print(*(row.aligned for row in made.rows if row.work in timeline.PRODUCTS))
"""


def test_tf32_counts_elements_of_four_bytes(run_script):
    done = run_script(IN_TF32, environment={"NPUSIM_SPEC": "a100-80-sxm"})
    assert float(done.stdout) == 2, done.stderr
