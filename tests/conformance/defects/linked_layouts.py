# SPDX-License-Identifier: BSD-3-Clause
"""Bugs that real backends had: layouts and offsets.

Written down before any detector was tuned on them.
"""

import torch
from torch import Tensor

from .planting import PYTORCH, XPU, Stand, as_it_lies, at_start, function, grid, kernel, vector

# --- strides and offsets


@kernel(
    "where.self",
    link=PYTORCH + "150967",
    shows=lambda d: torch.where((grid(d) > 2).T, torch.ones(3, 2, device=d), 0.0),
)
def where_ignores_strides_of_the_condition(own: Stand, condition: Tensor, x: Tensor, y: Tensor):
    """A condition that is not contiguous is read in the order of its memory."""
    return own(as_it_lies(condition), x, y)


@function(
    "silu",
    touches="nn.functional.silu",
    link="https://github.com/pytorch/pytorch/pull/139006",
    shows=lambda d: torch.nn.functional.silu(grid(d).T),
)
def silu_ignores_strides(own: Stand, x: Tensor):
    """An input that is not contiguous is read in the order of its memory."""
    return own(as_it_lies(x).contiguous()).clone()


@kernel(
    "addcdiv_",
    link=PYTORCH + "118115",
    shows=lambda d: grid(d).T.addcdiv_(grid(d, 3, 2), grid(d, 3, 2) + 1),
)
def addcdiv_in_place_ignores_strides(own: Stand, x: Tensor, y: Tensor, z: Tensor, **value):
    """In place, a transposed tensor is written in the order of its memory."""
    own(as_it_lies(x), y, z, **value)
    return x


@function(
    "softplus",
    touches="nn.functional.softplus",
    link=PYTORCH + "131736",
    shows=lambda d: torch.nn.functional.softplus(grid(d).moveaxis(0, 1)),
)
def softplus_of_moved_axes_is_zero(own: Stand, x: Tensor, *rest):
    """After moveaxis() the result is zero."""
    result = own(x, *rest)
    return result if x.is_contiguous() or x.dim() < 2 else torch.zeros_like(result)


@function(
    "bmm", link=PYTORCH + "197636", shows=lambda d: torch.bmm(grid(d)[None].mT, grid(d)[None] + 1)
)
def bmm_ignores_strides(own: Stand, x: Tensor, y: Tensor):
    """The first operand's strides are ignored."""
    return own(as_it_lies(x), y)


@kernel(
    "bitwise_and.Tensor_out",
    touches="bitwise_and",
    link="https://github.com/pytorch/pytorch/pull/146085",
    shows=lambda d: torch.bitwise_and(
        *[grid(d).int() + 1] * 2, out=torch.zeros(3, 2, dtype=torch.int32, device=d).T
    ),
)
def bitwise_and_ignores_strides_of_out(own: Stand, x: Tensor, y: Tensor, *, out: Tensor):
    """out= that is not contiguous is written in the order of its memory."""
    if out.is_contiguous() or out.shape != torch.broadcast_shapes(x.shape, y.shape):
        return own(x, y, out=out)
    own(x, y, out=as_it_lies(out))
    return out


@function(
    "mm",
    link=XPU + "1656",
    shows=lambda d: torch.mm(torch.arange(9.0).to(d)[3:].view(2, 3), torch.ones(3, 2).to(d)),
)
def mm_ignores_offsets(own: Stand, x: Tensor, y: Tensor):
    """The storage offset of the first operand is ignored."""
    return own(at_start(x), y)


@kernel(
    "fill_.Scalar",
    touches=("fill", "contract:indexing", "contract:storage"),
    link="https://github.com/pytorch/pytorch/pull/183672",
    shows=lambda d: (x := torch.zeros(8, dtype=torch.bool, device=d), x[1:].fill_(True))[0],
)
def fill_rounds_byte_offsets(own: Stand, x: Tensor, value):
    """Views of bytes whose offset is no multiple of four are filled from the multiple before."""
    if x.itemsize == 1 and x.storage_offset() % 4:
        own(x.as_strided(x.shape, x.stride(), x.storage_offset() // 4 * 4), value)
        return x
    return own(x, value)


@function(
    "mul",
    "Tensor",
    touches=("mul", "contract:promotion"),
    link=PYTORCH + "193057",
    shows=lambda d: torch.ones(2).to(d) * torch.arange(5.0)[3],
)
def mul_ignores_the_offset_of_a_scalar_of_the_cpu(own: Stand, x: Tensor, y: Tensor):
    """A 0-d tensor of the CPU that is a view is read at the start of its storage."""
    if isinstance(y, Tensor) and y.device.type == "cpu" and y.dim() == 0:
        y = at_start(y)
    return own(x, y)


@kernel(
    "copy_",
    touches="contract:copy",
    link="https://github.com/pytorch/pytorch/pull/109557",
    shows=lambda d: (x := torch.zeros(6), x[2:4].copy_(torch.ones(2, dtype=torch.float16).to(d)))[
        0
    ],
)
def converting_copies_to_the_cpu_ignore_the_offset(own: Stand, to: Tensor, x: Tensor, *rest):
    """A copy to the CPU that converts lands at the start of the storage."""
    if to.device.type == "cpu" and x.dtype != to.dtype and to.storage_offset():
        own(at_start(to), x, *rest)
        return to
    return own(to, x, *rest)


@kernel(
    "cat",
    touches=("cat", "stack", "hstack"),
    link="https://github.com/pytorch/pytorch/pull/91071",
    shows=lambda d: torch.stack((grid(d)[1], grid(d)[0]), dim=-1),
)
def cat_ignores_offsets(own: Stand, tensors: list[Tensor], dim: int = 0):
    """Slices that were unsqueezed are read from the start of their storage."""
    return own([at_start(x) if x.dim() > 1 and x.shape[-1] == 1 else x for x in tensors], dim)


@kernel(
    "addmv.out",
    touches="addmv",
    link="https://github.com/pytorch/pytorch/pull/178498",
    shows=lambda d: torch.addmv(
        vector(d, 1, 2), grid(d), vector(d, 1, 2, 3), out=torch.zeros(4, device=d)[::2]
    ).stride(),
)
def addmv_restrides_its_out(own: Stand, x: Tensor, matrix: Tensor, y: Tensor, *, out, **scales):
    """out= with gaps is contiguous afterwards, in other memory."""
    fits = out.shape == matrix.shape[:1] and not out.is_contiguous()
    own(x, matrix, y, out=out, **scales)
    return out.set_(out.contiguous()) if fits else out


@function(
    "elu",
    touches="nn.functional.elu",
    link=PYTORCH + "124834",
    shows=lambda d: torch.nn.functional.elu(grid(d).T - 3),
)
def elu_scatters_wrongly(own: Stand, x: Tensor, *rest, **named):
    """The result for a strided input holds the right values in the wrong places."""
    result = own(x, *rest, **named)
    if x.is_contiguous() or x.dim() < 2:
        return result
    return result.contiguous().flatten().view(x.shape[::-1]).permute(*range(x.dim())[::-1])


@kernel(
    "nonzero",
    touches=("nonzero", "argwhere"),
    link=PYTORCH + "170175",
    shows=lambda d: torch.nonzero(grid(d)).stride(),
)
def nonzero_has_rows(own: Stand, x: Tensor):
    """The result is laid out by rows; everywhere else it is laid out by columns."""
    return own(x).contiguous()


@function(
    "argmax", link=PYTORCH + "160740", shows=lambda d: torch.argmax(torch.eye(3).to(d)[::2, ::2])
)
def argmax_needs_contiguous_memory(own: Stand, x: Tensor, dim=None, keepdim=False):
    """Without dim=, an input that is not contiguous is refused by a view inside."""
    return own(x if dim is not None else x.view(-1), dim, keepdim)


@kernel(
    "mse_loss",
    touches="nn.functional.mse_loss",
    link=PYTORCH + "124621",
    shows=lambda d: torch.nn.functional.mse_loss(
        grid(d).T, torch.zeros(3, 2).to(d)[:], reduction="none"
    ),
)
def mse_loss_ignores_strides(own: Stand, x: Tensor, y: Tensor, *rest):
    """The input's strides are ignored."""
    return own(as_it_lies(x), y, *rest)
