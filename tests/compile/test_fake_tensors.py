# SPDX-License-Identifier: BSD-3-Clause
"""A fake tensor says of an operator what the operator does on npusim."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from torch_npusim import patches

CONVOLUTIONS = {
    "1d": (F.conv1d, (2, 3, 17), (4, 3, 3)),
    "2d": (F.conv2d, (2, 8, 9, 8), (4, 8, 3, 3)),
    "2d pointwise": (F.conv2d, (3, 8, 5, 5), (16, 8, 1, 1)),
    "2d one channel": (F.conv2d, (2, 1, 9, 9), (3, 1, 3, 3)),
    "3d": (F.conv3d, (2, 3, 5, 6, 7), (4, 3, 3, 3, 3)),
    "2d transposed": (F.conv_transpose2d, (2, 4, 7, 7), (4, 3, 3, 3)),
}


def strides_of_a_convolution(function, x, weight):
    """Strides of the result and of both gradients."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
        y = function(*leaves)
        gradients = torch.autograd.grad(y.sum(), leaves)
    return [tuple(t.stride()) for t in (y, *gradients)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_strides_of_fake_convolutions(case, dtype):
    function, *shapes = CONVOLUTIONS[case]
    layouts = [torch.contiguous_format]
    if len(shapes[0]) > 3:
        layouts.append(torch.channels_last if len(shapes[0]) == 4 else torch.channels_last_3d)
    for chosen in itertools.product(layouts, repeat=2):
        real = [
            torch.ones(shape, dtype=dtype, device="npusim").to(memory_format=layout)
            for shape, layout in zip(shapes, chosen, strict=True)
        ]
        on_host = [tensor.cpu() for tensor in real]
        done, said = real_and_fake(function, real)
        done_on_host, said_on_host = real_and_fake(function, on_host)
        assert done == done_on_host
        assert said == said_on_host, (case, chosen)
        # The CPU's fake tensors do not know the kernels of other dtypes, which differ by processor.
        if dtype == torch.float32:
            assert said == done, (case, chosen)


def real_and_fake(function, operands):
    """Strides as the operator makes them, and as fake tensors say."""
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(tensor) for tensor in operands]
        said = strides_of_a_convolution(function, *fake)
        assert function(*fake).device == operands[0].device
    return strides_of_a_convolution(function, *operands), said


def test_fake_convolution_patch_is_still_needed():
    """When this fails, the patch can go: a fake convolution keeps a layout on any device."""
    table = patches.original("torch._subclasses.fake_impls:op_implementations_dict")
    impl = table[torch.ops.aten.convolution.default]
    with FakeTensorMode() as mode:
        x, weight = (
            mode.from_tensor(torch.ones(2, 3, 5, 5, device="npusim")).to(
                memory_format=torch.channels_last
            )
            for _ in range(2)
        )
        args = (x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        said = impl(mode, torch.ops.aten.convolution.default, *args)
    assert said.is_contiguous()


HALF = {"dtype": torch.float16}
BAG = (torch.arange(30.0).view(10, 3), torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2, 4]))
OPERATORS = {
    "_embedding_bag, sum": ("_embedding_bag", *BAG, False, 0),
    "_embedding_bag, mean": ("_embedding_bag", *BAG, False, 1),
    "_embedding_bag, max, last offset": ("_embedding_bag", *BAG, False, 2, False, None, True),
    "pixel_shuffle": (
        "pixel_shuffle",
        torch.ones(2, 8, 3, 3).to(memory_format=torch.channels_last),
        2,
    ),
    "nonzero_static": ("nonzero_static", torch.ones(3, 4)),
    "layer norm": ("native_layer_norm", torch.ones(2, 4, **HALF), [4], None, None, 1e-5),
    "layer norm, wider weight": (
        "native_layer_norm",
        torch.ones(2, 4, **HALF),
        [4],
        torch.ones(4),
        None,
        1e-5,
    ),
    **{
        f"batch norm, {name}": ("native_batch_norm", x, w, w, ones, ones, training, 0.1, 1e-5)
        for name, x, w, ones, training in (
            ("evaluation", torch.ones(2, 3, 4), None, torch.ones(3), False),
            ("training", torch.ones(2, 3, 4), None, torch.ones(3), True),
            ("half", torch.ones(2, 3, 4, **HALF), None, torch.ones(3, **HALF), True),
            ("wider weight", torch.ones(2, 3, 4, **HALF), torch.ones(3), torch.ones(3), True),
        )
    },
}


@pytest.mark.parametrize("case", OPERATORS)
def test_fake_results_are_those_of_the_kernels(case):
    name, *args = OPERATORS[case]
    operator = getattr(torch.ops.aten, name)
    named = {"size": 5} if name == "nonzero_static" else {}

    def described(operands):
        found = torch.utils._pytree.tree_leaves(operator(*operands, **named))
        return [(x.shape, x.stride(), x.dtype) for x in found]

    on_npusim = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda x: x.to("npusim", memory_format=torch.preserve_format), args
    )
    with FakeTensorMode() as mode:
        fake = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, on_npusim)
        said = described(fake)
    assert said == described(on_npusim) == described(args)


def fake_devices():
    """Devices of fake results that name none, while one device and then the other is current."""
    found = []
    for index in (0, 1, 0):
        with torch.npusim.device(index), FakeTensorMode():
            found.append(
                [
                    torch.empty(2, device="npusim").device.index,
                    torch.ones(3).to("npusim").device.index,
                    torch.ones(4, device="npusim:1").device.index,
                ]
            )
    return found


def test_fake_results_are_on_the_current_device():
    """Below 2.15 the patch keeps them there: the key of torch's cache has no current device."""
    right = [[0, 0, 1], [1, 1, 1], [0, 0, 1]]
    FakeTensorMode.cache.clear()
    assert fake_devices() == right
    if patches.is_version("<2.15"):
        with patches.undone("torch._subclasses.fake_tensor:FakeTensorMode._cache_key"):
            FakeTensorMode.cache.clear()
            assert fake_devices() != right
        FakeTensorMode.cache.clear()


def test_meta_and_normalization_patches_are_still_needed():
    """When this fails, one of the patches can go: nobody asks for the name of the device."""
    x = torch.ones(2, 3, 4, device="npusim")
    assert patches.original("torch._meta_registrations:device_hint")(x) == "npusim"
    ones = torch.ones(3, device="npusim")
    batch_norm = patches.original("torch._decomp:decompositions.native_batch_norm_helper")
    _, saved, *_ = batch_norm(x, None, None, ones, ones, False, 0.1, 1e-5, functional=True)
    assert saved.numel() == 3
    (decomposed,) = patches.original("torch._decomp:decomposition_table").values()
    for layer_norm in (patches.original("torch._refs:native_layer_norm"), decomposed):
        _, mean, _ = layer_norm(x.half(), [4], None, None, 1e-5)
        assert mean.dtype == torch.float32


def test_a_compiled_layer_norm_saves_what_eager_saves():
    def function(x):
        return torch.native_layer_norm(x, [4], None, None, 1e-5)

    x = torch.randn(3, 4, device="npusim", dtype=torch.float16)
    expected = function(x)
    for ours, theirs in zip(torch.compile(function)(x), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_compiled_channels_last_convolution_has_the_strides_of_eager():
    def flat(x, weight):
        return F.conv2d(x, weight).flatten(1)

    x = torch.randn(2, 3, 8, 8, device="npusim").to(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 3, 3, device="npusim")
    torch._dynamo.reset()
    assert torch.equal(torch.compile(flat, backend="aot_eager")(x, weight), flat(x, weight))
