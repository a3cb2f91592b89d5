# SPDX-License-Identifier: BSD-3-Clause
"""sdpa_kernel() without MATH: the backend that CUDA would take, or CUDA's refusal."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

from torch_npusim.sim import timeline

FLASH, EFFICIENT = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
CUDNN = SDPBackend.CUDNN_ATTENTION


def tensors(dtype=torch.half, shape=(2, 3, 8, 16), **more):
    """Query, key and value on the device."""
    torch.manual_seed(0)
    drawn = (torch.randn(shape, dtype=torch.float32).to(dtype) for _ in range(3))
    return [each.to("npusim").requires_grad_(**more) for each in drawn]


def mask_of(dtype):
    """A mask for the default shape."""
    return torch.linspace(-1, 1, 64, dtype=dtype, device="npusim").view(8, 8)


@pytest.mark.parametrize(
    ("backend", "dtype", "name"),
    [
        (FLASH, torch.half, "flash_attention_for_cpu"),
        (EFFICIENT, torch.half, "efficient_attention"),
        (EFFICIENT, torch.float32, "efficient_attention"),
        (CUDNN, torch.bfloat16, "cudnn_attention"),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_the_command_is_the_backends_and_the_values_are_maths(backend, dtype, name, causal):
    operands = tensors(dtype, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        expected = attention(*operands, is_causal=causal)
        gradients = torch.autograd.grad(expected.sum(), operands)
    with sdpa_kernel(backend), timeline.record() as made:
        found = attention(*operands, is_causal=causal)
        found_gradients = torch.autograd.grad(found.sum(), operands)
    names = [command.name for command in made.commands()]
    assert names.count(f"aten::_scaled_dot_product_{name}") == 1
    assert names.count(f"aten::_scaled_dot_product_{name}_backward") == 1
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    for one, other in zip(found_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=4e-2, rtol=4e-2)


@pytest.mark.parametrize(
    ("backend", "wants_gradient"), [(EFFICIENT, False), (EFFICIENT, True), (CUDNN, False)]
)
def test_a_mask_is_taken_and_efficient_attention_has_its_gradient(backend, wants_gradient):
    operands = tensors()
    mask = mask_of(torch.half).requires_grad_(wants_gradient)
    with sdpa_kernel(SDPBackend.MATH):
        expected = attention(*operands, mask)
    with sdpa_kernel(backend):
        found = attention(*operands, mask)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    if wants_gradient:
        assert torch.autograd.grad(found.sum(), mask)[0].shape == mask.shape


def test_dropout_runs_through_math():
    with sdpa_kernel(EFFICIENT), timeline.record() as made:
        attention(*tensors(), dropout_p=0.5)
    assert not any("efficient" in command.name for command in made.commands())


@pytest.mark.parametrize(
    ("backend", "operands", "more", "words"),
    [
        (FLASH, tensors(torch.float32), {}, "Expected query, key and value to all be of dtype"),
        (FLASH, tensors(), {"attn_mask": mask_of(torch.half)}, "does not support non-null"),
        (FLASH, tensors(shape=(1, 1, 8, 264)), {}, "less than or equal to 256"),
        (EFFICIENT, tensors(torch.float64), {}, "Expected query, key and value to all be of"),
        (EFFICIENT, tensors(shape=(1, 1, 8, 12)), {}, "to be divisible by 8. Got Query.size"),
        (CUDNN, tensors(torch.float32), {}, "Expected query, key and value to all be of dtype"),
        (CUDNN, tensors(shape=(1, 1, 8, 12)), {}, "head_dim should be a multiple of 8"),
        (CUDNN, tensors(shape=(1, 1, 8, 256)), {}, "head_dim should be no more than 128"),
    ],
)
def test_what_a_backend_of_cuda_refuses_is_refused_in_its_words(backend, operands, more, words):
    with (
        sdpa_kernel(backend),
        pytest.warns(UserWarning, match="kernel not used because") as warned,
        pytest.raises(RuntimeError, match=r"^No available kernel\. Aborting execution\."),
    ):
        attention(*operands, **more)
    assert any(words in str(each.message) for each in warned)


def test_efficient_attention_takes_no_grouped_heads():
    query, key, _ = tensors(shape=(2, 4, 8, 16))
    with (
        sdpa_kernel(EFFICIENT),
        pytest.warns(UserWarning, match="to have the same num_heads"),
        pytest.raises(RuntimeError, match=r"^No available kernel"),
    ):
        attention(query, key[:, :2], key[:, :2], enable_gqa=True)


def test_with_math_allowed_nothing_is_refused():
    with sdpa_kernel([FLASH, SDPBackend.MATH]):
        assert attention(*tensors(torch.float32)).dtype == torch.float32
