# SPDX-License-Identifier: BSD-3-Clause
"""What a fake tensor says of an operator is what the operator does on npusim."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from torch_npusim import _tracing

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
        # Some float64 kernels make strides on the CPU too that its fake tensors do not tell.
        if dtype != torch.float64:
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
    impl = _tracing.ORIGINAL_FAKE_CONVOLUTION
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


def test_a_compiled_channels_last_convolution_has_the_strides_of_eager():
    def flat(x, weight):
        return F.conv2d(x, weight).flatten(1)

    x = torch.randn(2, 3, 8, 8, device="npusim").to(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 3, 3, device="npusim")
    torch._dynamo.reset()
    assert torch.equal(torch.compile(flat, backend="aot_eager")(x, weight), flat(x, weight))
