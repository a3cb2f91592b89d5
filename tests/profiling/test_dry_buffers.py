# SPDX-License-Identifier: BSD-3-Clause
"""Dry runs as CUDA: allocations and frees of an operator, in the order in which CUDA has them."""

import pytest
import torch
from torch.nn import functional as F

from torch_npusim import npusim
from torch_npusim.sim import dry_run


@pytest.fixture(autouse=True)
def as_cuda():
    with dry_run(spec="h100-sxm", temporaries="cuda") as run:
        yield run


def made(*shape, **options):
    return torch.empty(shape, device="npusim", **options)


def listed(call):
    """Allocations of a call, and its frees as -1 - (how many allocations ago)."""
    call()
    npusim.memory._record_memory_history("all", context=None, stacks="python")
    kept = call()
    entries = npusim.memory._snapshot()["device_traces"][0]
    npusim.memory._record_memory_history(None)
    del kept
    found, live, count = [], {}, 0
    for entry in entries:
        if entry["action"] == "alloc":
            live[entry["addr"]] = count
            count += 1
            found.append(entry["size"])
        elif entry["action"] == "free_requested" and entry["addr"] in live:
            found.append(live.pop(entry["addr"]) - count)
    return found


def test_logarithms_of_sums_hold_the_differences():
    x = made()
    assert listed(lambda: x.logsumexp(0, True)) == [4, 4, 1, -1, -2, 4, 4, -2, -5]


def test_a_comparison_and_its_copy_are_held_while_they_are_counted():
    x = made()
    assert listed(lambda: x.count_nonzero()) == [1, 8, 8, -1, -3]


def test_a_logarithm_of_a_sigmoid_keeps_no_buffer():
    x = made(20)
    assert listed(lambda: F.logsigmoid(x)) == [80]


def test_axes_are_rolled_one_after_the_other():
    x = made(9, 10)
    assert listed(lambda: torch.fft.fftshift(x)) == [360, 360, -2]


def test_values_come_before_their_indices():
    x = made(5, 5, 5)
    assert listed(lambda: x.kthvalue(2)) == [100, 200]


def test_places_that_a_mask_selects_are_listed_first():
    x, chosen = made(10, 10), made(10, 10, dtype=torch.bool)
    found = x.masked_select(chosen).numel()
    assert listed(lambda: x.masked_select(chosen)) == [
        *(4, 1, -1, 2 * 8 * found, 1023, -1, -4), *(4 * found, -3)
    ]  # fmt: skip


def test_indices_that_do_not_lie_alike_are_copied():
    x, rows, columns = (made(5, 5), *(made(10, dtype=torch.long) for _ in range(2)))
    assert listed(lambda: x[rows, columns]) == [40]
    assert listed(lambda: x[rows[:, None], columns]) == [800, 800, 400, -2, -3]


def test_a_norm_of_rows_with_gaps_copies_them():
    x = made(4, 128, 64).transpose(1, 2)
    whole, rows = 4 * 128 * 64 * 4, 4 * 64 * 4
    taken = listed(lambda: F.layer_norm(x, (128,)))
    assert taken[:5] == [whole, whole, rows, rows, -4]


def gradients(image, filters, padding=1, tf32=True, **how):
    """Allocations and frees of the two gradients of a convolution."""
    x = made(*image, requires_grad=True, **how)
    weight = made(*filters, requires_grad=True, **how)
    with torch.backends.cudnn.flags(allow_tf32=tf32):
        out = F.conv2d(x, weight, padding=padding)
        grad = torch.empty_like(out)
        return listed(lambda: torch.autograd.grad(out, (x, weight), grad, retain_graph=True))


# Of an H100 under torch 2.11: a layer, and layers of a ResNet and a U-Net, which are small.
@pytest.mark.parametrize(
    ("image", "number", "of_image", "of_filters"),
    [
        ((4, 32, 56, 56), 64, [4890640, -1], 11132928),
        ((8, 32, 16, 16), 32, [], 1327104),
        ((2, 32, 32, 32), 16, [], 958464),
    ],
)
def test_gradients_of_3_x_3_filters_are_winograds(image, number, of_image, of_filters):
    batch, channels, height, width = image
    filters = (number, channels, 3, 3)
    image_bytes, filter_bytes = 4 * batch * channels * height * width, 4 * 9 * channels * number
    assert gradients(image, filters) == [image_bytes, *of_image, filter_bytes, of_filters, -1]


# ResNet-50 and DenseNet-121 in float32 without TF32, by lists of an H200 under torch 2.11.
@pytest.mark.parametrize(
    ("image", "number", "workspace"),
    [
        ((64, 64, 56, 56), 64, 231800832),
        ((64, 512, 7, 7), 512, 75497472),
        ((32, 128, 7, 7), 32, 3538944),
    ],
)
def test_so_they_are_of_any_size_in_float32(image, number, workspace):
    taken = gradients(image, (number, image[1], 3, 3), tf32=False)
    assert taken[2:] == [workspace, -1]


def test_halves_are_converted():
    taken = gradients((4, 32, 56, 56), (64, 32, 3, 3), dtype=torch.bfloat16)
    assert taken == [802816, 2445328, -1, 36864, 2445328, -1]


def test_a_gradient_in_another_order_is_copied_for_cudnn():
    x, weight = made(2, 16, 32, 32), made(10, 16, 1, 1, requires_grad=True)
    out = F.conv2d(x, weight)
    grad = made(2, 32, 32, 10).movedim(-1, 1)
    taken = listed(lambda: torch.autograd.grad(out, (weight,), grad, retain_graph=True))
    assert taken[0] == out.nbytes  # and is held until the end
    assert taken[1] == weight.nbytes


def test_a_persistent_layer_has_8_mebibytes_for_each_layer():
    # An H100's layer: 32 steps of 8 sequences, 128 states.
    layer = torch.nn.LSTM(128, 128, device="npusim")
    x = made(32, 8, 128)
    assert 11829568 in listed(lambda: layer(x)[0])
