# SPDX-License-Identifier: BSD-3-Clause
"""Dry runs that allocate as CUDA does: temporaries, attention, and peaks that others measured."""

import functools

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import torch_npusim
from claims.evidence.memory_peaks import peaks
from torch_npusim import _C
from torch_npusim.sim import dry_run, timeline

HALF = {"dtype": torch.bfloat16, "device": "npusim"}


@pytest.fixture
def as_cuda():
    with dry_run(spec="h100-sxm", temporaries="cuda") as run:
        yield run


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.seen.append(op.name().removeprefix("aten::"))
        return op(*args, **(kwargs or {}))


def requested(run):
    return run.stats()["requested_bytes.all.current"]


def peak_of(run, job):
    """The bytes that `job` asked for at most, beside its result."""
    torch_npusim.npusim.reset_peak_memory_stats()
    before = requested(run)
    made = job()
    return run.stats()["requested_bytes.all.peak"] - before, made


def attention_ops(query, key, **options):
    with Names() as names:
        out = F.scaled_dot_product_attention(query, key, key, **options)
        if out.requires_grad:
            out.sum().backward()
    return [name for name in names.seen if "scaled_dot" in name]


@pytest.fixture
def as_ampere():
    with dry_run(spec="a100-80-sxm", temporaries="cuda") as run:
        yield run


def test_attention_without_autograd_is_cudas_too(as_ampere):
    query = torch.empty(2, 12, 1024, 64, **HALF)
    with torch.inference_mode(), timeline.record() as made:
        F.scaled_dot_product_attention(query, query, query)
    (command,) = made.commands()
    assert command.name == "aten::_scaled_dot_product_flash_attention"


def kernels(job):
    """The names of a profile's kernels."""
    with profile(activities=[ProfilerActivity.PrivateUse1]) as made:
        job()
    return [event.name for event in made.events() if event.name.startswith("aten::")]


def test_work_on_nothing_is_no_kernel_of_cudas(as_ampere):
    x = torch.empty(0, 4, device="npusim")
    assert kernels(lambda: (x + 1, x * x, torch.mul(x, 2, out=x), x.sum())) == [
        "aten::sum.dim_IntList"
    ]


def test_a_profile_after_a_dry_run_as_cuda_shows_work_on_nothing():
    with dry_run(temporaries="cuda"):
        pass
    x = torch.empty(0, 4, device="npusim")
    assert kernels(lambda: x + 1) == ["aten::add.Tensor"]


# gpt2 of blind_peaks.md, in bfloat16, and the groups of its Llama.
@pytest.mark.parametrize(
    ("key_heads", "heads", "batch", "backward"), [(12, 12, 8, 25559296), (8, 32, 2, 33816832)]
)
def test_cudnn_attention_allocates_what_an_h200_did(as_cuda, key_heads, heads, batch, backward):
    query = torch.empty(batch, 1024, heads, 64, **HALF).transpose(1, 2).requires_grad_()
    key = torch.empty(batch, 1024, key_heads, 64, **HALF).transpose(1, 2).requires_grad_()
    with Names() as names:
        out = F.scaled_dot_product_attention(
            query, key, key, is_causal=True, enable_gqa=heads != key_heads
        )
    assert "_scaled_dot_product_cudnn_attention" in names.seen
    grad = torch.empty_like(out)
    needed, _ = peak_of(as_cuda, lambda: torch.autograd.grad(out, (query,), grad))
    assert needed == query.nbytes + 2 * key.nbytes + backward


def test_a_dry_run_replaces_no_kernel(run_script):
    code = """
from torch_npusim.sim import dry_run
with dry_run(spec="h100-sxm", temporaries="cuda"):
    pass
"""
    done = run_script(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mask_that_learns_gets_its_gradient_from_efficient_attention(as_cuda):
    query = torch.empty(2, 8, 128, 64, **HALF, requires_grad=True)
    bias = torch.empty(1, 8, 128, 128, **HALF, requires_grad=True)
    efficient = "_scaled_dot_product_efficient_attention"
    assert attention_ops(query, query, attn_mask=bias) == [efficient, f"{efficient}_backward"]
    assert bias.grad.shape == bias.shape


def test_attention_that_no_kernel_of_cuda_takes_is_refused(as_ampere):
    single = torch.empty(2, 8, 128, 64, device="npusim")
    with (
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        pytest.warns(UserWarning, match="kernel not used because"),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        F.scaled_dot_product_attention(single, single, single)


def test_causal_attention_over_more_keys_is_efficient_attention(as_ampere):
    query, key = torch.empty(2, 8, 16, 64, **HALF), torch.empty(2, 8, 128, 64, **HALF)
    assert attention_ops(query, key, is_causal=True) == ["_scaled_dot_product_efficient_attention"]


def test_attention_has_the_names_that_cuda_has(as_ampere):
    query = torch.empty(2, 8, 128, 64, **HALF, requires_grad=True)
    key = torch.empty(2, 2, 128, 64, **HALF, requires_grad=True)
    flash = "_scaled_dot_product_flash_attention"
    assert attention_ops(query, key, is_causal=True, enable_gqa=True) == [
        flash,
        f"{flash}_backward",
    ]
    assert attention_ops(query, query, dropout_p=0.1) == [flash, f"{flash}_backward"]
    efficient = "_scaled_dot_product_efficient_attention"
    single = query.detach().float().requires_grad_()
    assert attention_ops(single, single) == [efficient, f"{efficient}_backward"]
    mask = torch.zeros(128, 128, **HALF)
    assert attention_ops(query, query, attn_mask=mask)[0] == efficient
    assert attention_ops(query, key, attn_mask=mask, enable_gqa=True) == []


def test_a_narrow_head_is_padded_for_flash_attention(as_ampere):
    query = torch.empty(2, 8, 128, 60, **HALF, requires_grad=True)
    out = F.scaled_dot_product_attention(query, query, query)
    out.sum().backward()
    assert out.shape == query.grad.shape == query.shape


def test_attention_has_its_own_names_afterwards():
    with dry_run(temporaries="cuda"):
        pass
    query = torch.empty(1, 1, 16, 8, device="npusim")
    assert attention_ops(query, query) == ["_scaled_dot_product_flash_attention_for_cpu"]


def test_flash_attention_backward_accumulates_in_float(as_ampere):
    shape = (1, 4, 100, 64)  # rows are rounded up to 128
    query, key, value = (torch.empty(shape, **HALF, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(query, key, value)
    grad = torch.empty_like(out)
    needed, grads = peak_of(as_ampere, lambda: torch.autograd.grad(out, (query, key, value), grad))
    assert len(grads) == 3
    accumulated = 4 * (4 * 128) + 4 * (4 * 128 * 64)
    copied = grad.nbytes + out.nbytes  # the kernel wants them by time
    assert needed == 3 * query.nbytes + accumulated + copied


@pytest.mark.parametrize(
    ("spec", "config", "expected"),
    [
        ("h100-sxm", None, 33554432),
        ("a100-80-sxm", None, 8519680),
        ("a100-80-sxm", ":16:8:4096:1", 16 * 8 * 1024 + 4096 * 1024),
    ],
)
def test_a_thread_has_one_workspace_of_cublas(spec, config, expected, monkeypatch):
    if config is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    with dry_run(spec=spec, temporaries="cuda") as run:
        x = torch.empty(8, 8, device="npusim")
        before = requested(run)
        for _ in range(2):
            y = x @ x
        assert requested(run) - before == expected + y.nbytes


def test_a_product_with_a_bias_keeps_a_workspace_of_cublaslt(as_cuda):
    # An H100 under torch 2.11 holds 1 MiB more, once for each thread and stream.
    x, bias = torch.empty(8, 8, device="npusim"), torch.empty(8, device="npusim")
    x @ x
    before = requested(as_cuda)
    torch.addmm(x, x, x)
    assert requested(as_cuda) == before
    for _ in range(2):
        made = F.linear(x, x, bias)
    assert requested(as_cuda) - before == (1 << 20) + made.nbytes


# The layer `conv2d` of the recording of an H100 (torch 2.11), where channels_last and 3 channels
# have no workspace; layers of ResNet-50, DeepLab and a U-Net on an H200, the first two within 147.
@pytest.mark.parametrize(
    ("image", "filters", "last", "forward"),
    [
        ((4, 32, 56, 56), (64, 3, 1), False, 1679376),
        ((4, 32, 56, 56), (64, 3, 1), True, 0),
        ((4, 3, 56, 56), (64, 3, 1), False, 0),
        ((8, 64, 64, 64), (128, 3, 1), False, 8683536),
        ((64, 3, 224, 224), (64, 7, 2), False, 244093712),
        ((4, 512, 40, 40), (512, 3, 1), False, 35651600),
    ],
)
def test_images_are_converted_in_a_workspace_of_cudnn(as_cuda, image, filters, last, forward):
    layout = torch.channels_last if last else torch.contiguous_format
    channels, size, stride = filters
    x = torch.empty(image, device="npusim").to(memory_format=layout)
    weight = torch.empty(channels, image[1], size, size, device="npusim").to(memory_format=layout)
    run = functools.partial(F.conv2d, x, weight, padding=size // 2, stride=stride)
    needed, made = peak_of(as_cuda, run)
    assert needed == made.nbytes + forward


# First and last layers of ViT-B, ResNet-50, a U-Net, ConvNeXt, Swin and MobileNet, in lists of an
# H200 under torch 2.11: cuDNN's kernels for matrix units want channels by eights.
PADDED = [
    # image, filters (number, size, stride), channels_last, workspaces of result and of gradient
    ((64, 3, 224, 224), (768, 16, 16), False, 73793552, 73793552),
    ((64, 3, 224, 224), (64, 7, 2), True, 51430416, 51430416),
    ((8, 3, 128, 128), (64, 3, 1), True, 2106384, 2106384),
    ((8, 64, 128, 128), (3, 3, 1), True, 2106384, 2106384),
    ((64, 3, 224, 224), (96, 4, 4), False, 0, 89939984),
    ((32, 3, 224, 224), (96, 4, 4), False, 0, 44982288),
    ((128, 3, 224, 224), (16, 3, 2), True, 0, 102762768),
]


def half_convolution(image, filters, last, dtype=torch.bfloat16):
    layout = torch.channels_last if last else torch.contiguous_format
    number, size, stride = filters
    x = torch.empty(image, dtype=dtype, device="npusim").to(memory_format=layout)
    weight = torch.empty(number, image[1], size, size, dtype=dtype, device="npusim")
    padding = 0 if size == stride else size // 2
    weight = weight.to(memory_format=layout)
    return x, weight, functools.partial(F.conv2d, x, weight, padding=padding, stride=stride)


@pytest.mark.parametrize(("image", "filters", "last", "forward", "backward"), PADDED)
def test_channels_of_16_bits_are_padded_to_eights(as_cuda, image, filters, last, forward, backward):
    _, weight, run = half_convolution(image, filters, last)
    needed, made = peak_of(as_cuda, run)
    assert needed == made.nbytes + forward
    weight.requires_grad_()
    made = run()
    grad = torch.empty_like(made)
    needed, _ = peak_of(as_cuda, lambda: torch.autograd.grad(made, weight, grad))
    # The lists have partial sums beside, which are not in the run: 3 for ViT, 61 for ResNet-50.
    assert needed == weight.nbytes + backward


def test_a_first_layer_of_float16_is_padded_to_four_channels(as_cuda):
    # ResNet-50's inference on an H200: the kernel's name has first_layer and k64c4r7s7.
    _, _, run = half_convolution((128, 3, 224, 224), (64, 7, 2), True, torch.float16)
    needed, made = peak_of(as_cuda, run)
    assert needed == made.nbytes + 51405328


# The step's list of an H200 under torch 2.11: 64 sequences of 128, 512 features, two layers.
def test_cudnn_has_the_buffers_of_a_recurrent_layer(as_cuda):
    layer = torch.nn.LSTM(512, 512, 2, batch_first=True, device="npusim")
    x = torch.empty(64, 128, 512, device="npusim", requires_grad=True)
    state, reserve, workspace = 262144, 184549632, 136839936
    with Names() as names:
        needed, (out, _) = peak_of(as_cuda, lambda: layer(x))
    assert "_cudnn_rnn" in names.seen
    assert (out.shape, out.stride()) == (x.shape, (512, 64 * 512, 1))
    # Two states for zeros, the sequence by time, the result and last states.
    assert needed == 2 * x.nbytes + 4 * state + reserve + workspace
    held = requested(as_cuda)
    grad = torch.empty_like(out)
    needed, grads = peak_of(
        as_cuda, lambda: torch.autograd.grad(out, [x, *layer.parameters()], grad)
    )
    assert [each.shape for each in grads] == [x.shape, *(p.shape for p in layer.parameters())]
    weights = sum(parameter.nbytes for parameter in layer.parameters())
    assert weights == 16809984
    assert requested(as_cuda) <= held + grad.nbytes + x.nbytes + weights - reserve
    # Of the last states, which nobody asked for, and of the first; the sequence by time once more.
    assert needed == 2 * x.nbytes + 4 * state + weights + workspace


@pytest.mark.parametrize(
    ("kind", "share"), [("LSTM", 5 + 5 + 1), ("GRU", 4 + 4 + 1), ("RNN", 1 + 1 + 1)]
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_a_recurrent_layer_keeps_for_its_gradient(as_cuda, kind, share, packed):
    layer = getattr(torch.nn, kind)(16, 64, 2, bidirectional=True, device="npusim")
    x = torch.empty(10, 4, 16, device="npusim")
    rows = 40
    if packed:
        rows, lengths = 25, torch.tensor([10, 8, 4, 3])
        x = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: sizes.append(t.nbytes) or t, lambda t: t
    ):
        layer(x)
    assert share * rows * 2 * 64 * 4 + 256 in sizes
    sizes.clear()
    layer.eval()(x)
    with torch.backends.cudnn.flags(enabled=False), Names() as names:
        layer(x)
    assert "_cudnn_rnn" not in names.seen


# "RNN module weights are not part of single contiguous chunk of memory", as CUDA warns.
@pytest.mark.parametrize("biases", [True, False])
def test_weights_that_are_not_one_chunk_are_copied_into_one(as_cuda, biases):
    layer = torch.nn.LSTM(32, 64, 2, bias=biases, device="npusim")
    x, state = torch.empty(5, 2, 32, device="npusim"), torch.zeros(2, 2, 64, device="npusim")

    def run(weights):
        return torch.lstm(x, (state, state), weights, biases, 2, 0.0, True, False, False)

    weights = [parameter * 1 for parameter in layer.parameters()]
    flat, kept = peak_of(as_cuda, lambda: run(list(layer.parameters())))
    copied, kept = peak_of(as_cuda, lambda: run(weights))
    # cuDNN has two biases for each of four gates and each layer, also where the module has none.
    chunk = sum(each.nbytes for each in weights) + (0 if biases else 2 * 2 * 4 * 64 * 4)
    assert copied - flat == chunk
    held = requested(as_cuda)
    del kept
    assert held - requested(as_cuda) > chunk  # until the backward pass


def test_dropout_of_a_recurrent_layer_keeps_states_of_random_numbers(as_cuda):
    x = torch.empty(5, 2, 32, device="npusim")
    plain, dropped = (torch.nn.GRU(32, 64, 2, dropout=p, device="npusim") for p in (0, 0.1))
    without, _ = peak_of(as_cuda, lambda: plain(x))
    evaluated, _ = peak_of(as_cuda, lambda: dropped.eval()(x))
    assert evaluated < without  # no reserve
    first, _ = peak_of(as_cuda, lambda: dropped.train()(x))
    again, _ = peak_of(as_cuda, lambda: dropped(x))
    assert again == without
    assert 2 << 20 < first - again < 3 << 20


def test_the_gradient_of_an_image_is_converted_too(as_cuda):
    x = torch.empty(4, 32, 56, 56, device="npusim", requires_grad=True)
    weight = torch.empty(64, 32, 3, 3, device="npusim")
    made = F.conv2d(x, weight, padding=1)
    grad = torch.empty_like(made)
    needed, _ = peak_of(as_cuda, lambda: torch.autograd.grad(made, x, grad))
    assert needed == x.nbytes + 4890640


def test_filters_of_one_by_one_convert_in_the_backward_pass_alone(as_cuda):
    # The last block of ResNet-50 on an H200, batch 64.
    x = torch.empty(64, 512, 7, 7, device="npusim", requires_grad=True)
    weight = torch.empty(2048, 512, 1, 1, device="npusim")
    needed, made = peak_of(as_cuda, lambda: F.conv2d(x, weight))
    assert needed == made.nbytes
    grad = torch.empty_like(made)
    needed, _ = peak_of(as_cuda, lambda: torch.autograd.grad(made, x, grad))
    assert needed == x.nbytes + 32112656


# Sizes that snapshots of an H100 show: 512 outputs in neighbouring addresses.
@pytest.mark.parametrize(
    ("reduce", "inputs", "expected"),
    [
        (lambda x: x.sum(0), 2560, 10485760 + 16),
        (lambda x: x.sum(0, keepdim=True), 10000, 41156608 + 16),
        (lambda x: x.max(0), 10000, 164626432 + 16),
        (lambda x: x.t().contiguous().sum(1), 10000, 0),
    ],
)
def test_blocks_that_share_a_reduction_have_a_buffer(as_cuda, reduce, inputs, expected):
    x = torch.empty(inputs, 512, device="npusim")
    if expected == 0:
        rows = x.t().contiguous()
        needed, made = peak_of(as_cuda, lambda: rows.sum(1))
        assert needed == made.nbytes
        return
    needed, made = peak_of(as_cuda, lambda: reduce(x))
    results = [made] if isinstance(made, torch.Tensor) else list(made)
    assert needed == expected + sum(result.nbytes for result in results)


def test_mixed_operands_are_converted_element_by_element():
    sizes = []
    for kind in ("cuda", "npusim"):
        with dry_run(temporaries=kind) as run:
            x = torch.empty(1000, device="npusim")
            y = torch.empty(1000, device="npusim", dtype=torch.float64)
            sizes.append(peak_of(run, lambda x=x, y=y: x + y)[0])
            del x, y
    assert sizes == [8000, 16000]


def test_the_gradient_of_an_index_sorts(as_cuda):
    weight = torch.empty(1000, 8, device="npusim", requires_grad=True)
    index = torch.zeros(5000, dtype=torch.int64, device="npusim")
    out, grad = weight[index], torch.empty(5000, 8, device="npusim")
    needed, _ = peak_of(as_cuda, lambda: torch.autograd.grad(out, weight, grad))
    # CUB: two lists to multiples of 256, eight histograms, a counter, two tiles, an alignment.
    sort = 2 * 40192 + 8 * 256 * 8 + 256 + 2 * 1024 + 255
    assert needed == weight.nbytes + 4 * index.nbytes + sort


def test_a_convolution_has_the_format_of_its_operands(as_cuda):
    x = torch.empty(2, 8, 16, 16, device="npusim")
    weight = torch.empty(4, 8, 3, 3, device="npusim")
    last = torch.channels_last
    assert F.conv2d(x, weight).is_contiguous()
    assert F.conv2d(x.to(memory_format=last), weight).is_contiguous(memory_format=last)


def test_temporaries_are_of_two_kinds():
    with (
        pytest.raises(ValueError, match="'cuda' or 'npusim', got 'rocm'"),
        dry_run(temporaries="rocm"),
    ):
        pass
    assert all(source for _, _, source, _ in _C.cuda_temporaries())


# The others run with the nightly checks.
@pytest.mark.parametrize(
    "name", ["phi-1.5-lora-4", "StableLM-3B-lora-1", "bert-large-all", "llama-3.2-3b"]
)
def test_peaks_are_those_that_others_measured(name):
    (row,) = (row for row in peaks.rows() if row.name == name)
    found = peaks.in_process("--predict", name)
    error = found["predicted"] / row.measured - 1
    print(
        f"{row.job}: measured {row.measured:.4g}, predicted {found['predicted']:.4g}, {error:+.1%}"
    )
    assert abs(error) < peaks.WORST_GOAL
    assert found["fits"] == [False, True]
