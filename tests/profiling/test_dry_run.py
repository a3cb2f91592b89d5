# SPDX-License-Identifier: BSD-3-Clause
"""Dry runs launch what the same program launches on tensors with memory: name by name, ns by ns."""

import contextlib

import pytest
import torch
from pages import published_programs as programs
from torch import nn
from torch.nn import functional as F

from torch_npusim.patches import is_version
from torch_npusim.profiling import dry_run
from torch_npusim.sim import clock, timeline

DEVICE = torch.device("npusim")


def rows(made):
    """Names and times.

    What a copy is called depends on whether bytes are converted, and autograd adds gradients up in
    place if they are no fake tensors; times are the same.
    """
    return [
        (
            row.name.replace("add_.", "add.") if row.kind == "kernel" else row.kind,
            row.end_ns - row.start_ns,
        )
        for row in made.commands()
    ]


def trained(make, shape, optimizer, autocast=None):
    with DEVICE:
        model = make()
    chosen = optimizer(model.parameters())
    x = torch.ones(shape, device=DEVICE)

    def step():
        chosen.zero_grad()
        with autocast or contextlib.nullcontext():
            loss = model(x).float().square().mean()
        loss.backward()
        chosen.step()

    step()
    with timeline.record() as made:
        step()
    return made


class Attention(nn.Module):
    """Fused attention with dropout around it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.norm = nn.Linear(64, 192), nn.LayerNorm(64)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (4, 16)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return F.dropout(F.gelu(self.norm(x + y)), 0.1)


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=2), nn.MaxPool2d(3, 2, 1), nn.ConvTranspose2d(8, 4, 2, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10), nn.LogSoftmax(-1),
    )  # fmt: skip


PROGRAMS = {
    "attention, AdamW": lambda: trained(Attention, (2, 9, 64), torch.optim.AdamW),
    "attention, bfloat16": lambda: trained(
        Attention, (2, 9, 64), torch.optim.AdamW, torch.autocast("npusim", torch.bfloat16)
    ),
    "convolutions, SGD": lambda: trained(
        small_net, (2, 3, 17, 17), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False)
    ),
    "convolutions, float16": lambda: trained(
        lambda: small_net().to(memory_format=torch.channels_last),
        (2, 3, 17, 17),
        # Lists of tensors in different orders go one by one on the device, and as one dry.
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
        torch.autocast("npusim", torch.float16),
    ),
    "a bottleneck": lambda: trained(
        lambda: programs.Bottleneck(8, 4, 2), (2, 8, 9, 9), torch.optim.Adam
    ),
    "nanoGPT": lambda: gpt(),
    "strides and indices": lambda: recorded(strides_and_indices),
}  # fmt: skip


def gpt():
    tokens = torch.ones(2, 16, dtype=torch.int64, device=DEVICE)
    return programs.training(
        lambda: programs.Gpt(2, 32, 4, 64, 16),
        tokens,
        tokens,
        lambda p: torch.optim.AdamW(p, 1e-3),
        torch.autocast("npusim", torch.bfloat16),
    )


def recorded(program):
    with timeline.record() as made, DEVICE:
        program()
    return made


def strides_and_indices():
    x = torch.zeros(64, 128)
    y = x.t().contiguous() + x.t()
    x[:, ::4] += 1
    y.clone().half().sum(0, dtype=torch.float32)
    torch.cat([x, x]).softmax(-1).amax(1)
    torch.stack([x, x]).cumsum(0)
    x.index_select(0, torch.arange(8)).sort()
    x.gather(1, torch.zeros(64, 3, dtype=torch.int64)).scatter_add_(
        1, torch.zeros(64, 2, dtype=torch.int64), torch.ones(64, 2)
    )
    torch.full((3, 3), 2.0).tril().var(0)
    x.masked_fill_(x > 0, 1.0).topk(3)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_dry_run_launches_what_the_program_does(program):
    real = PROGRAMS[program]()
    with dry_run():
        dry = PROGRAMS[program]()
    assert rows(dry) == rows(real)
    assert len(rows(real)) > 5


def test_nothing_takes_memory_and_nothing_runs():
    before = torch.npusim.memory_allocated()
    with dry_run():
        x = torch.empty(1 << 40, dtype=torch.uint8, device=DEVICE)
        start = clock.stream_time_ns()
        y = x + 1
        took = clock.stream_time_ns() - start
    assert torch.npusim.memory_allocated() == before
    assert y.shape == x.shape
    # Two TiB moved at 1,000 bytes per ns, as npusim-one does.
    assert took > 2 << 30


def ones(*sizes, dtype=torch.float32):
    return torch.ones(sizes, dtype=dtype, device=DEVICE)


def indices(*sizes):
    return ones(*sizes, dtype=torch.int64)


def mask(*sizes):
    return ones(*sizes) > 0


def gradient(make, of):
    make().sum().backward()
    return of.grad


def coo():
    return torch.sparse_coo_tensor(indices(2, 5), ones(5), (4, 4))


def embedding(kind, *sizes):
    model = kind(1000, 8, sparse=True, device=DEVICE)
    return gradient(lambda: model(indices(*sizes)), model.weight)


def gathered():
    x = ones(4, 4).requires_grad_()
    return gradient(lambda: torch.gather(x, 0, indices(2, 4), sparse_grad=True), x)


def packed():
    return nn.utils.rnn.pack_padded_sequence(ones(4, 2, 3), torch.tensor([4, 2], device="cpu")).data


# Results whose shape, or number of stored elements, depends on values: operator, or "a function".
DEPENDS_ON_VALUES = {
    "nonzero": ("aten::nonzero", lambda: torch.nonzero(ones(4))),
    "argwhere": ("aten::nonzero", lambda: torch.argwhere(ones(4))),
    "where": ("aten::nonzero", lambda: torch.where(mask(4))),
    "masked_select": ("aten::masked_select", lambda: torch.masked_select(ones(4), mask(4))),
    "a mask": ("aten::index", lambda: ones(4, 4)[mask(4, 4)]),
    "a mask of rows": ("aten::index", lambda: ones(4, 4)[mask(4), 1]),
    "unique": ("aten::_unique2", lambda: torch.unique(ones(4))),
    "unique, rows": ("aten::unique_dim", lambda: torch.unique(ones(4, 4), dim=0)),
    "unique_consecutive": (
        "aten::unique_consecutive",
        lambda: torch.unique_consecutive(ones(4)),
    ),
    "bincount": ("aten::bincount", lambda: torch.bincount(indices(4), minlength=9)),
    "repeats": ("aten::repeat_interleave", lambda: ones(4).repeat_interleave(indices(4))),
    "one_hot": ("aten::_local_scalar_dense", lambda: F.one_hot(indices(4))),
    "a slice": ("aten::_local_scalar_dense", lambda: ones(4)[: indices()]),
    "an index": ("aten::_local_scalar_dense", lambda: ones(4)[indices()]),
    "narrow": ("aten::_local_scalar_dense", lambda: ones(4).narrow(0, indices(), 2)),
    "arange": ("aten::_local_scalar_dense", lambda: torch.arange(indices(), device=DEVICE)),
    "full": ("aten::_local_scalar_dense", lambda: torch.full((indices(),), 1.0)),
    "tensor_split": ("a function", lambda: ones(4).tensor_split(torch.tensor([1], device="cpu"))),
    "item": ("aten::_local_scalar_dense", lambda: ones(4).sum().item()),
    "tolist": ("aten::_local_scalar_dense", lambda: ones(4).tolist()),
    "equal": ("aten::equal", lambda: torch.equal(ones(4), ones(4))),
    "inverse": ("aten::item", lambda: torch.linalg.inv(ones(4, 4).triu())),
    "least squares": ("aten::linalg_lstsq", lambda: torch.linalg.lstsq(ones(4, 3), ones(4, 2))),
    "istft": ("aten::equal", lambda: torch.istft(ones(9, 5, dtype=torch.complex64), 16)),
    "packed sequence": ("a function", packed),
    "to_sparse": ("aten::_to_sparse", lambda: ones(4, 4).to_sparse()),
    "to_sparse_csr": ("aten::_to_sparse_csr", lambda: ones(4, 4).to_sparse_csr()),
    "to_sparse_bsr": ("aten::_to_sparse_bsr", lambda: ones(4, 4).to_sparse_bsr((2, 2))),
    "sparse": ("aten::_sparse_coo_tensor_with_dims_and_tensors", coo),
    "sparse product": ("aten::_sparse_coo_tensor_with_dims_and_tensors",
                       lambda: torch.sparse.mm(coo(), ones(4, 4))),
    "sparse gradient": ("sparse", lambda: embedding(nn.Embedding, 500)),
    "sparse gradient of bags": ("sparse", lambda: embedding(nn.EmbeddingBag, 5, 100)),
    "sparse gradient of gather": ("a function", gathered),
    "nested": ("", lambda: torch.nested.nested_tensor([ones(2, 3), ones(4, 3)])),
    "jagged": ("", lambda: torch.nested.nested_tensor([ones(2, 3), ones(4, 3)],
                                                      layout=torch.jagged)),
}  # fmt: skip
if is_version("<2.15"):  # later it selects by numbers that depend on shapes alone
    DEPENDS_ON_VALUES["combinations"] = (
        "aten::masked_select",
        lambda: torch.combinations(ones(4)),
    )
# Near to these, and of one shape.
DEPENDS_ON_SHAPES = {
    "a mask that is written": lambda: ones(4, 4).index_put_((mask(4, 4),), ones(1)),
    "masked_scatter": lambda: ones(4, 4).masked_scatter(mask(4, 4), ones(16)),
    "nonzero_static": lambda: torch.nonzero_static(ones(4), size=3),
    "repeats of a known sum": lambda: ones(4).repeat_interleave(indices(4), output_size=4),
    "a remainder by a number": lambda: torch.take_along_dim(ones(3, 4), indices(3, 2), 1),
    "multinomial": lambda: torch.multinomial(ones(4), 2),
    "topk": lambda: ones(4).topk(2),
    "cartesian_prod": lambda: torch.cartesian_prod(ones(4), ones(3)),
    "resize": lambda: ones(4).resize_(3),
    "stft": lambda: torch.stft(ones(40), 16, window=ones(16), return_complex=True),
}


def shapes(made):
    return [(x.shape, x.dtype) for x in torch.utils._pytree.tree_leaves(made)]


@pytest.mark.parametrize("case", DEPENDS_ON_VALUES)
def test_a_shape_that_depends_on_values_is_refused_by_name(case):
    name, call = DEPENDS_ON_VALUES[case]
    with DEVICE:
        call()
    with pytest.raises(RuntimeError, match=f"{name}.*values, and tensors of a dry run have none"):
        with dry_run(), DEVICE:
            call()


@pytest.mark.parametrize("case", DEPENDS_ON_SHAPES)
def test_a_shape_that_depends_on_shapes_is_known(case):
    call = DEPENDS_ON_SHAPES[case]
    with DEVICE:
        real = shapes(call())
    with dry_run(), DEVICE:
        assert shapes(call()) == real


def test_uploads_wait_unless_they_need_not():
    with dry_run(), timeline.record() as made:
        data = torch.ones(1000)
        data.to(DEVICE)
        data.to(DEVICE, non_blocking=True)
    kinds = [row.kind for row in made.rows]
    assert kinds.count("copy_h2d_pageable") == 1
    assert kinds.count("copy_h2d") == 1
    assert kinds.count("stream_wait") == 1
