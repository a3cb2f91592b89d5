# SPDX-License-Identifier: BSD-3-Clause
"""One call in other forms: in place, with out= between strange memory, and with its gradient.

Each form is a function of an agreement and a device that raises where the device is wrong.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from npusim_conformance.inputs import torch_testing
from npusim_conformance.inputs.transfer import Transfer, tensors_of
from npusim_conformance.inputs.variation import Variation
from npusim_conformance.judge.agreement import Agreement
from npusim_conformance.properties.base import require
from npusim_conformance.properties.calls import are_plain, garbage
from npusim_conformance.verdict import Mismatch

Call = tuple[tuple[Any, ...], dict[str, Any]]
Form = Callable[[Agreement, torch.device], None]
ELEMENTS_MAX = 4096  # a longer call is asked as a function only


def form_of(operator: torch_testing.Operator, call: Call, result: Any, turn: int) -> Form | None:
    """The form whose turn it is for a call whose result on the CPU is `result`, if it has that."""
    given = call[0][0] if call[0] else None
    if (
        not are_plain(result)
        or sum(one.numel() for one in tensors_of((call, result))) > ELEMENTS_MAX
    ):
        return None
    is_one = isinstance(result, torch.Tensor)
    # Memory with gaps is rare among the calls, and an operator in place easily wrong there.
    if is_one and isinstance(given, torch.Tensor) and operator.inplace_variant is not None:
        has_turn = turn % 3 == 2 or given.untyped_storage().nbytes() > given.nbytes
        if has_turn and (result.shape, result.dtype) == (given.shape, given.dtype):
            return partial(_in_place, operator.inplace_variant, call, result)
    if turn % 3 == 0 and is_one and operator.supports_out:
        return partial(_into_gaps, operator, call, result)
    differentiable = [one for one in tensors_of(call) if one.is_floating_point()]
    has_gradient = operator.supports_autograd and differentiable
    if turn % 3 == 1 and has_gradient and is_one and result.is_floating_point():
        return partial(_gradient, operator, call)
    return None


def _in_place(
    function: Callable[..., Any],
    call: Call,
    result: torch.Tensor,
    agreement: Agreement,
    device: torch.device,
) -> None:
    args, kwargs = Transfer(device)(call)
    function(*args, **kwargs)
    agreement.check(result, args[0], device, "in place")
    before, after = (tensors_of((call[0][1:], call[1])), tensors_of((args[1:], kwargs)))
    agreement.check(before, after, device, "an operand after the call in place")


def _into_gaps(
    operator: Callable[..., Any],
    call: Call,
    result: torch.Tensor,
    agreement: Agreement,
    device: torch.device,
) -> None:
    """Written are the elements of out=, not the memory between them."""
    move = Transfer(device)
    args, kwargs = move(call)
    memory = move(garbage(2 * result.numel() + 1, result.dtype))
    strides = torch.empty(result.shape[::-1], device="meta").stride()[::-1]
    out = memory.as_strided(result.shape, [2 * stride for stride in strides], 1)
    operator(*args, **kwargs, out=out)
    agreement.check(result, out, device, "out= with gaps, transposed")
    agreement.check(
        tensors_of(call), tensors_of((args, kwargs)), device, "an operand after the call with out="
    )
    size = result.itemsize
    gaps = memory.cpu().view(torch.uint8).view(-1, size)[::2]
    untouched = garbage(1, result.dtype).view(torch.uint8)
    require(bool((gaps == untouched).all()), "out= with gaps: memory between elements is written")


def _gradient(
    operator: Callable[..., Any], call: Call, agreement: Agreement, device: torch.device
) -> None:
    wanted = pytree.tree_map_only(torch.Tensor, _wanting, call)
    expected = with_gradients(operator, wanted)
    there = Transfer(device)(wanted)
    got = with_gradients(operator, there)

    def recompute(number: int, vary: Variation) -> Any:
        varied = pytree.tree_map_only(torch.Tensor, _wanting, pytree.tree_map(vary, call))
        return with_gradients(operator, varied)[1][number]

    for number, (one, other) in enumerate(zip(expected[1], got[1], strict=True)):
        name = f"gradient {number}"
        try:
            agreement.check(one, other, device, name)
        except Mismatch:  # unless it is as exact as the CPU's
            agreement.check(one, other, device, name, partial(recompute, number))
    before, after = tensors_of(wanted), tensors_of(there)
    agreement.check(before, after, device, "an operand after its gradient")


def _wanting(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor


def with_gradients(operator: Callable[..., Any], call: Call) -> Any:
    """The result, and the gradients of what wants one."""
    args, kwargs = call
    result = operator(*args, **kwargs)
    leaves = [leaf for leaf in tensors_of((args, kwargs)) if leaf.requires_grad]
    if not leaves:
        return result
    cotangent = (torch.arange(float(result.numel())) + 1).view(result.shape)
    given = cotangent.clone().to(result.device)
    found = torch.autograd.grad(result, leaves, given, allow_unused=True)
    require(torch.equal(given.cpu(), cotangent), "backward writes to the gradient that it gets")
    return result, found
