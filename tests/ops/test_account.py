# SPDX-License-Identifier: BSD-3-Clause
"""Rule C1: what commands are charged, read from the clock of an idle stream.

The device of the tests moves 1,000 bytes in a nanosecond, does 20,000 operations of float32 or
10,000 of float64 in it, and takes 2,000 ns for the least command, which starts 4,000 ns after the
host asked for it. A command takes as long as the slower of its bytes and its operations, so tables
of bytes keep operations low, and tables of operations keep bytes low.
"""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from torch_npusim import _C
from torch_npusim.patches import is_version
from torch_npusim.sim import clock, faults

LAUNCH_NS = 4000
FLOOR_NS = 2000
BYTES_PER_NS = 1000
OPERATIONS_PER_NS = {torch.float32: 20_000, torch.float64: 10_000}

N = 4 << 20  # bytes of a matrix of 1,024 x 1,024 numbers of float32
ROWS = 4096  # rows that an index chooses
CHOSEN = 1 << 17  # elements that an index chooses


def work_ns(call):
    """Returns the time beyond the floor of the one command that `call` makes."""
    torch.npusim.synchronize()
    start = clock.host_time_ns()
    result = call()
    assert clock.host_time_ns() - start == LAUNCH_NS, "not one command"
    spent = clock.stream_time_ns() - start - LAUNCH_NS - FLOOR_NS
    torch.npusim.synchronize()
    del result
    return spent


def matrix(rows=1024, columns=1024, dtype=torch.float32):
    return torch.rand(rows, columns, device="npusim").to(dtype)


@pytest.fixture(scope="module")
def operands():
    device = "npusim"
    made = {
        "x": matrix(),
        "y": matrix(),
        "z": matrix(),
        "row": torch.rand(1024, device=device),
        "thin": matrix(1024, 8),
        "narrow": matrix(1024, 8),
        "mask": matrix() > 0.5,
        "long": matrix(4, 1 << 18),
        "table": matrix(8192, 256),
        "rows": torch.randint(8192, (ROWS,), device=device),
        "values": matrix(ROWS, 256),
        "columns": torch.randint(1024, (1024, 128), device=device),
        "image": torch.rand(16, 16, 64, 64, device=device),
        "one_by_one": torch.rand(16, 16, 1, 1, device=device),
        "channels": torch.rand(16, device=device),
        "scores": matrix(65536, 16),
        "classes": torch.randint(16, (65536,), device=device),
        "batch": torch.rand(16, 256, 256, device=device),
        "thin_batch": torch.rand(16, 256, 4, device=device),
    }
    torch.npusim.synchronize()
    return made


aten = torch.ops.aten
INDEX = 8 * ROWS
BYTES = {
    # Inputs once, results once; in place reads and writes.
    "add": (lambda o: o["x"] + o["y"], 3 * N),
    "add_": (lambda o: o["x"].add_(o["y"]), 3 * N),
    "sub out": (lambda o: torch.sub(o["x"], o["y"], out=o["z"]), 3 * N),
    "out= of no size": (lambda o: torch.sub(o["x"], o["y"], out=o["x"].new_empty(0)), 3 * N),
    "mul by a number": (lambda o: o["x"] * 2, 2 * N),
    "mul_ by a number": (lambda o: o["x"].mul_(1.5), 2 * N),
    "relu": (lambda o: o["x"].relu(), 2 * N),
    "exp": (lambda o: o["x"].exp(), 2 * N),
    "eq": (lambda o: o["x"] == o["y"], 2.25 * N),
    "where": (lambda o: torch.where(o["mask"], o["x"], o["y"]), 3.25 * N),
    "addcmul": (lambda o: torch.addcmul(o["x"], o["y"], o["z"]), 4 * N),
    "masked_fill": (lambda o: o["x"].masked_fill(o["mask"], 0.0), 2.25 * N),
    "clamp": (lambda o: o["x"].clamp(0, 1), 2 * N),
    "foreach_add_": (lambda o: torch._foreach_add_([o["x"], o["y"]], 1.0), 4 * N),
    "foreach_mul": (lambda o: torch._foreach_mul([o["x"], o["y"]], [o["y"], o["z"]]), 6 * N),
    "tril": (lambda o: o["x"].tril(), 2 * N),
    "flip": (lambda o: o["x"].flip(0), 2 * N),
    # Written without being read.
    "fill_": (lambda o: o["z"].fill_(1.0), N),
    "zero_": (lambda o: o["z"].zero_(), N),
    "uniform_": (lambda o: o["z"].uniform_(), N),
    "normal_": (lambda o: o["z"].normal_(), N),
    # Copies within the device.
    "copy_": (lambda o: o["z"].copy_(o["x"]), 2 * N),
    "clone": (lambda o: o["x"].clone(), 2 * N),
    "to float64": (lambda o: o["x"].double(), 3 * N),
    "cat": (lambda o: torch.cat([o["x"], o["y"]]), 4 * N),
    # Broadcast operands count once; gaps cost a sector of 32 bytes for each element.
    "add a row": (lambda o: o["x"] + o["row"], 2 * N + 4096),
    "add an expanded row": (lambda o: o["x"] + o["row"].expand(1024, 1024), 2 * N + 4096),
    "amax of an expanded matrix": (lambda o: o["x"].expand(2, 1024, 1024).amax(), N),
    "two transposed": (lambda o: o["x"].t() + o["y"].t(), 3 * N),
    "one transposed": (lambda o: o["x"] + o["y"].t(), 10 * N),
    "transposed, contiguous": (lambda o: o["x"].t().contiguous(), 9 * N),
    "every eighth column": (lambda o: o["x"][:, ::8] + 1, 1.125 * N),
    "every second column": (lambda o: o["x"][:, ::2].exp(), 1.5 * N),
    "half of each row": (lambda o: o["x"][:, :512].exp(), N),
    # Reductions, products, normalisation.
    "sum": (lambda o: o["x"].sum(), N),
    "sum of rows": (lambda o: o["x"].sum(1), N + 4096),
    "amax": (lambda o: o["x"].amax(0), N + 4096),
    "argmax": (lambda o: o["x"].argmax(1), N + 8192),
    "cumsum": (lambda o: o["x"].cumsum(0), 2 * N),
    "mm": (lambda o: o["x"] @ o["thin"], N + 2 * 32768),
    "mm, transposed": (lambda o: o["x"].t() @ o["thin"], N + 2 * 32768),
    "addmm": (lambda o: torch.addmm(o["row"][:8], o["x"], o["thin"]), N + 2 * 32768 + 32),
    "addmm, beta=0": (
        lambda o: torch.addmm(o["narrow"], o["x"], o["thin"], beta=0),
        N + 2 * 32768,
    ),
    "addmm_, beta=0": (
        lambda o: o["narrow"].addmm_(o["x"], o["thin"], beta=0),
        N + 2 * 32768,
    ),
    "addmm_": (lambda o: o["narrow"].addmm_(o["x"], o["thin"]), N + 3 * 32768),
    "bmm": (lambda o: torch.bmm(o["batch"], o["thin_batch"]), N + 2 * 65536),
    "softmax": (lambda o: o["x"].softmax(1), 2 * N),
    "softmax of long rows": (lambda o: o["long"].softmax(1), 3 * N),
    "log_softmax": (lambda o: o["x"].log_softmax(0), 2 * N),
    "softmax backward": (
        lambda o: aten._softmax_backward_data(o["x"], o["y"], 1, torch.float32),
        3 * N,
    ),
    "layer_norm": (
        lambda o: aten.native_layer_norm(o["x"], [1024], o["row"], o["row"], 1e-5),
        2 * N + 4 * 4096,
    ),
    "batch_norm": (
        lambda o: aten.native_batch_norm(
            o["image"], o["channels"], o["channels"], None, None, True, 0.1, 1e-5
        ),
        3 * N + 256,
    ),
    "batch_norm in evaluation": (
        lambda o: aten.native_batch_norm(o["image"], *[o["channels"]] * 4, False, 0.1, 1e-5),
        2 * N + 256,
    ),
    "conv2d": (lambda o: torch.conv2d(o["image"], o["one_by_one"]), 2 * N + 1024),
    "max_pool2d": (
        lambda o: aten.max_pool2d_with_indices(o["image"], [2, 2], [2, 2]),
        N + N / 4 + N / 2,
    ),
    "dropout": (lambda o: aten.native_dropout(o["x"], 0.5, True), 2.25 * N),
    # Rows and elements by index: what is chosen, not the table.
    "embedding": (lambda o: aten.embedding(o["table"], o["rows"]), 2 * N + INDEX),
    "embedding backward": (
        lambda o: aten.embedding_dense_backward(o["values"], o["rows"], 8192, -1, False),
        N + INDEX + 2 * N + 2 * N,
    ),
    "index_select": (lambda o: o["table"].index_select(0, o["rows"]), 2 * N + INDEX),
    "index": (lambda o: o["table"][o["rows"]], 2 * N + INDEX),
    "index_put_": (
        lambda o: o["table"].index_put_((o["rows"],), o["values"]),
        2 * N + INDEX,
    ),
    "index_add_": (lambda o: o["table"].index_add_(0, o["rows"], o["values"]), 3 * N + INDEX),
    "gather": (lambda o: o["x"].gather(1, o["columns"]), CHOSEN * (32 + 8 + 4)),
    "scatter_": (
        lambda o: o["z"].scatter_(1, o["columns"], o["x"]),
        CHOSEN * (32 + 8) + N,
    ),
    "nll_loss": (
        lambda o: aten.nll_loss_forward(o["scores"], o["classes"], None, 1, -100),
        65536 * (32 + 8),
    ),
    # Orders.
    "sort": (lambda o: o["x"].sort(1), 4 * N),
    "topk": (lambda o: o["x"].topk(8, 1), N + 1024 * 8 * 12),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes(operands, name):
    """Rule C1: the closed form, to the nanosecond or 0.2 %."""
    call, expected = BYTES[name]
    assert work_ns(lambda: call(operands)) == pytest.approx(
        expected / BYTES_PER_NS, rel=2e-3, abs=1.5
    )


def on_device(*shape, dtype=torch.float64):
    return torch.rand(*shape, dtype=torch.float64).to(dtype).to("npusim")


def charged(call):
    """Returns the operations of the commands of a call, by name without namespace and overload."""
    _C.start_event_log()
    try:
        call()
    finally:
        log = _C.take_event_log()
    operations = Counter()
    for entry in log:
        if entry["kind"] == "command":
            operations[entry["name"].removeprefix("aten::").split(".")[0]] += entry["flops"]
    return operations


t = on_device
CONVOLUTION = [None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1]
COUNTED = {
    # By the operator of the counter: operands, call.
    "mm": lambda: aten.mm(t(512, 256), t(256, 512)),
    "mm, transposed": lambda: aten.mm(t(256, 512).t(), t(256, 512)),
    "addmm": lambda: aten.addmm(t(512), t(512, 256), t(256, 512)),
    "bmm": lambda: aten.bmm(t(4, 256, 256), t(4, 256, 256)),
    "baddbmm": lambda: aten.baddbmm(t(4, 256, 256), t(4, 256, 256), t(4, 256, 256)),
    "_scaled_mm": lambda: aten._scaled_mm(
        t(64, 128, dtype=torch.float8_e4m3fn),
        t(32, 128, dtype=torch.float8_e4m3fn).t(),
        t(1, dtype=torch.float32),
        t(1, dtype=torch.float32),
        out_dtype=torch.bfloat16,
    ),
    "convolution": lambda: aten.convolution(t(4, 32, 32, 32), t(64, 32, 3, 3), *CONVOLUTION),
    "convolution, strides": lambda: aten.convolution(
        t(4, 32, 64, 64), t(64, 32, 3, 3), t(64), [2, 2], [1, 1], [1, 1], False, [0, 0], 1
    ),
    "convolution, groups": lambda: aten.convolution(
        t(4, 64, 32, 32), t(64, 32, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2
    ),
    "convolution, transposed": lambda: aten.convolution(
        t(4, 64, 16, 16), t(64, 32, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1
    ),
    "_convolution": lambda: aten._convolution(
        t(4, 32, 32, 32), t(64, 32, 3, 3), *CONVOLUTION, False, False, True, True
    ),
    "convolution_overrideable": lambda: aten.convolution_overrideable(
        t(4, 32, 32, 32), t(64, 32, 3, 3), *CONVOLUTION
    ),
    "convolution_backward": lambda: aten.convolution_backward(
        t(4, 64, 32, 32), t(4, 32, 32, 32), t(64, 32, 3, 3), *CONVOLUTION, [True, True, False]
    ),
    "convolution_backward, weight": lambda: aten.convolution_backward(
        t(4, 64, 32, 32), t(4, 32, 32, 32), t(64, 32, 3, 3), *CONVOLUTION, [False, True, False]
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_operations_agree_with_torchs_counter(name):
    """Rule C1, within 1 %."""
    with FlopCounterMode(display=False) as counter:
        operations = charged(COUNTED[name])
    expected = counter.get_total_flops()
    assert expected > 0
    assert operations.total() == pytest.approx(expected, rel=0.01)


def test_operations_of_a_convolution_that_the_counter_cannot_count():
    """Rule C1; torch's counter knows the name but not the arguments: compare it when it does."""

    def slow():
        return aten._slow_conv2d_forward(
            t(4, 32, 32, 32), t(64, 32, 3, 3), [3, 3], None, [1, 1], [1, 1]
        )

    with FlopCounterMode(display=False), pytest.raises(TypeError, match="transposed"):
        slow()
    assert charged(slow).total() == charged(COUNTED["convolution"]).total() > 0


@pytest.mark.parametrize("dtype", OPERATIONS_PER_NS)
def test_a_command_takes_as_long_as_its_operations(dtype):
    """Rule C1, on the clock: the peak of the precision."""
    a, b = (on_device(1024, 1024, dtype=dtype) for _ in range(2))
    expected = 2 * 1024**3 / OPERATIONS_PER_NS[dtype]
    assert work_ns(lambda: a @ b) == pytest.approx(expected, rel=1e-3)


def on_device(*shape, dtype=torch.float64):
    return torch.rand(*shape, dtype=dtype).to("npusim")


def square(n):
    a = torch.rand(n, n, dtype=torch.float64)
    return (a @ a.T + n * torch.eye(n, dtype=torch.float64)).to("npusim")


flash = aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
efficient = aten._scaled_dot_product_efficient_attention
efficient_backward = aten._scaled_dot_product_efficient_attention_backward
cudnn = aten._scaled_dot_product_cudnn_attention
cudnn_backward = aten._scaled_dot_product_cudnn_attention_backward
NO_SEED = (torch.tensor(0), torch.tensor(0))


def heads():
    return on_device(2, 8, 256, 64), on_device(2, 8, 320, 64), on_device(2, 8, 320, 64)


def heads_and_results():
    operands = heads()
    out, logsumexp = flash(*operands)
    return out, *operands, out, logsumexp


def layer():
    """Operands of a layer of an LSTM: input, weights, biases, state."""
    shapes = [(32, 16, 256), *[(1024, 256)] * 2, *[(1024,)] * 2, *[(16, 256)] * 2]
    return [on_device(*shape, dtype=torch.float32) for shape in shapes]


def lstm(*operands):
    return aten.mkldnn_rnn_layer(
        *operands[:3], *operands[3:], False, [], 2, 256, 1, True, False, False, False
    )


def sparse_and_dense():
    dense = on_device(512, 512)
    return (dense * (dense > 0.5)).to_sparse(), dense


SCORES = 2 * 8 * 256 * 320
NO_LENGTHS = (None, None, 256, 320)  # of sequences in a batch of equal ones


def test_attention_agrees_with_torchs_counter_under_the_names_of_cuda():
    """Rule C1; before 2.15 the counter knows no `_scaled_dot_product_flash_attention_for_cpu`."""
    q, k, v = heads()
    out, logsumexp = flash(q, k, v)
    known = {op: formula for op, formula in flop_registry.items() if "attention" in str(op)}
    given = {
        "_flash_attention_forward": (q, k, v, *NO_LENGTHS),
        "_flash_attention_backward": (out, q, k, v, out, logsumexp, *NO_LENGTHS),
        "_efficient_attention_forward": (q, k, v, None, *NO_LENGTHS),
        "_efficient_attention_backward": (out, q, k, v, None, out, *NO_LENGTHS),
        "flex_attention": (q, k, v),
        "flex_attention_backward": (q, k, v, out, logsumexp, out),
    }
    for op, formula in known.items():
        name = str(op).removeprefix("aten.")
        backward = name.endswith("backward")
        operands = given.get(name, (out, q, k, v) if backward else (q, k, v))
        expected = CLOSED_FORMS["attention backward" if backward else "attention"][2]
        if name.startswith("_flash") and is_version(">=2.14"):
            # The counter reads these as [batch, time, heads, width], which they are.
            operands = [
                x.transpose(1, 2) if isinstance(x, torch.Tensor) and x.dim() == 4 else x
                for x in operands
            ]
        assert formula(*operands, out_val=out) == expected, name


def test_the_counter_knows_nothing_else():
    """Every operator of its list is compared, is made of such, or has no kernel here: CUDA's."""
    compared = {name.split(",")[0] for name in COUNTED} | {"_slow_conv2d_forward"}
    for op in flop_registry:
        name = str(op).removeprefix("aten.")
        if name in compared or name.endswith(("attention_for_cpu", "attention_for_cpu_backward")):
            continue  # the latter by the test above
        if name.startswith(("_scaled_dot_product_efficient_", "_scaled_dot_product_cudnn_")):
            continue  # in closed form below
        if name == "cudnn_convolution":
            continue  # calls the convolution
        if name in ("_flash_attention_forward", "_efficient_attention_forward"):
            continue  # run what stands below in closed form
        assert "attention" in name, name
        if name.startswith("flex_attention"):
            continue  # a program of products that are compared (patches/flex_attention.py)
        for overload in op.overloads():
            qualified = getattr(op, overload).name()
            for key in ("CPU", "PrivateUse1"):
                assert not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key)


CLOSED_FORMS = {
    # Operands, call, operations, dtype.
    "attention": (heads, flash, 2 * SCORES * 2 * 64),
    "attention backward": (
        heads_and_results,
        lambda *operands: flash_backward(*operands, 0.0, False),
        2 * SCORES * 5 * 64,
    ),
    "efficient attention": (heads, lambda *qkv: efficient(*qkv, None, True), 2 * SCORES * 2 * 64),
    "efficient attention backward": (
        heads_and_results,
        lambda grad, q, k, v, out, logsumexp: efficient_backward(
            grad, q, k, v, None, out, logsumexp, *NO_SEED, 0.0, [True, True, True, False]
        ),
        2 * SCORES * 5 * 64,
    ),
    "cudnn attention": (heads, lambda *qkv: cudnn(*qkv, None, True), 2 * SCORES * 2 * 64),
    "cudnn attention backward": (
        heads_and_results,
        lambda grad, q, k, v, out, logsumexp: cudnn_backward(
            *(grad, q, k, v, out, logsumexp, *NO_SEED, None, None, None, 256, 320, 0.0, False)
        ),
        2 * SCORES * 5 * 64,
    ),
    "cholesky": (lambda: [square(1024)], aten.linalg_cholesky_ex, 1024**3 / 3),
    "lu": (lambda: [square(768)], aten.linalg_lu_factor_ex, 2 * 768**3 / 3),
    "inverse": (lambda: [square(512)], aten.linalg_inv_ex, 2 * 512**3),
    "qr": (lambda: [square(512)], aten.linalg_qr, 8 * 512**3 / 3),
    "triangular solve": (
        lambda: [square(512).tril(), on_device(512, 512)],
        lambda a, b: aten.linalg_solve_triangular(a, b, upper=False),
        512**3,
    ),
    "cdist": (
        lambda: [on_device(512, 256)],
        lambda a: aten._cdist_forward(a, a, 1.0, None),
        3 * 512 * 512 * 256,
    ),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_operations_in_closed_form(name):
    """Rule C1, within 1 %."""
    make, call, expected = CLOSED_FORMS[name]
    operands = make()
    assert charged(lambda: call(*operands)).total() == pytest.approx(expected, rel=0.01)


def test_operations_of_a_fused_layer():
    """Rule C1: two operations for each weight, step and sequence."""
    operands = layer()
    operations = charged(lambda: lstm(*operands)).total()
    assert operations == pytest.approx(2 * 32 * 16 * 1024 * (256 + 256), rel=0.01)


def of_products(operations):
    flash_attention = "_scaled_dot_product_flash_attention_for_cpu"
    return sum(operations[name] for name in ("mm", "addmm", "bmm", flash_attention))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (nn.TransformerEncoderLayer, "_transformer_encoder_layer_fwd"),
        (nn.MultiheadAttention, "_native_multi_head_attention"),
    ],
)
def test_operations_of_fused_attention(make, name):
    """Rule C1: one command does as many as the products of the operators that it stands for."""
    module = make(64, 4, batch_first=True).to("npusim")
    x = on_device(4, 32, 64, dtype=torch.float32)
    operands = (x,) if make is nn.TransformerEncoderLayer else (x, x, x, None, False)
    with torch.no_grad():
        single = charged(lambda: module(*operands))
        fused = charged(lambda: module.eval()(*operands))
    assert dict(fused) == {name: of_products(single)}


def test_operations_of_a_sparse_product():
    """Rule C1: elements that are not stored are not multiplied."""
    sparse, dense = sparse_and_dense()
    operations = charged(lambda: aten.addmm(dense, sparse, dense)).total()
    assert operations == pytest.approx(2 * sparse._nnz() * 512, rel=0.01)


def test_a_converting_copy_that_a_fault_hit_does_not_run():
    """Rule F3."""
    x = torch.ones(4, device="npusim")
    landed = torch.zeros(4, dtype=torch.float64)
    with faults.inject("launch", nth=1), pytest.raises(RuntimeError, match="launch failure"):
        landed.copy_(x)
    assert landed.tolist() == [0.0] * 4


def test_what_a_fault_hit_is_garbage():
    """Rule F3: every ordinary operator loses what it would have written."""
    x = torch.ones(4, device="npusim")
    for call in (lambda: x + 1, lambda: x.clone().add_(1), lambda: x.sum(), lambda: x.softmax(0)):
        torch.npusim.synchronize()
        with faults.inject("launch", every=1):
            out = call()
            with pytest.raises(RuntimeError, match="launch failure"):
                torch.npusim.synchronize()
        assert out.isnan().all()
    lists = [torch.ones(4, device="npusim"), torch.ones(2, device="npusim")]
    with faults.inject("launch", every=1):
        made = torch._foreach_mul(lists, 2.0)
        torch._foreach_add_(lists, 1.0)
        with pytest.raises(RuntimeError, match="launch failure"):
            torch.npusim.synchronize()
    assert all(tensor.isnan().all() for tensor in [*made, *lists])
    with faults.inject("launch", nth=1):
        values, indices = x.sort()
        with pytest.raises(RuntimeError, match=r"aten::sort"):
            torch.npusim.synchronize()
    assert values.isnan().all()
    assert indices.tolist() == [-1] * 4
