# SPDX-License-Identifier: BSD-3-Clause
"""Dry runs launch what the same program launches on tensors with memory: name by name, ns by ns."""

import contextlib
import io
import pickle

import pytest
import torch
from processes import python
from profiling import small_programs as programs
from torch import nn
from torch.nn import functional as F

from torch_npusim._blame import short_path
from torch_npusim.sim import clock, dry_run, specs, timeline

DEVICE = torch.device("npusim")


def rows(made):
    return [(row.name, row.kind, row.end_ns - row.start_ns) for row in made.commands()]


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
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
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


def test_memory_has_addresses_and_no_backing():
    """(rule Y1)."""
    before = torch.npusim.memory_allocated()
    with dry_run(memory="100GiB") as run:
        x = torch.empty(40 << 30, dtype=torch.uint8, device=DEVICE)
        start = clock.stream_time_ns()
        y = x + 1
        took = clock.stream_time_ns() - start
        assert abs(y.data_ptr() - x.data_ptr()) >= x.nbytes
        assert torch.npusim.memory_allocated() == 80 << 30
        free, capacity = torch.npusim.mem_get_info()
        assert 19 << 30 < free <= 20 << 30
        assert capacity == 100 << 30
        with pytest.raises(torch.OutOfMemoryError, match=r"21\.00 GiB"):
            torch.empty(21 << 30, dtype=torch.uint8, device=DEVICE)
    assert run.peak_reserved() >> 30 == 80
    assert torch.npusim.memory_allocated() == before
    # 80 GiB moved at 1,000 bytes per ns, as npusim-one does.
    assert took > 80 << 20


def test_another_specification_is_in_force_for_the_block():
    def bandwidth():
        x = torch.empty(1 << 26, device=DEVICE)
        torch.npusim.synchronize()  # else the command may follow earlier ones without a launch
        start = clock.stream_time_ns()
        x.zero_()
        return x.nbytes / (clock.stream_time_ns() - start)

    here = bandwidth()
    with dry_run(spec="h100-sxm"):
        capacity = specs.load("h100-sxm").numbers["memory.capacity_gib"]
        assert torch.npusim.get_device_properties(0).total_memory == int(capacity * (1 << 30))
        there = bandwidth()
    assert there > 2 * here
    assert bandwidth() == here


def test_real_and_dry_tensors_do_not_meet():
    """(rule Y2)."""
    real = torch.ones(3, device=DEVICE)
    with dry_run():
        made = torch.ones(3, device=DEVICE)
        for call in (torch.neg, made.add, torch.zero_, torch.Tensor.cpu):
            with pytest.raises(RuntimeError, match="made before the dry run began"):
                call(real)
    for call in (torch.neg, real.add, torch.Tensor.sum, torch.Tensor.tolist):
        with pytest.raises(RuntimeError, match="made by a dry run that has ended"):
            call(made)
    del made
    assert (real + 1).tolist() == [2, 2, 2]


def test_one_dry_run_at_a_time():
    with dry_run(), pytest.raises(RuntimeError, match="a dry run is on already"), dry_run():
        pass
    assert torch.ones(2, device=DEVICE).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"spec": "h101"}, "accepted: npusim-one"), ({"memory": "much"}, "such as 512MiB"),
     ({"memory": 0}, "at least 1 byte"), ({"selected": 2}, "a share from 0 to 1"),
     ({"patience": 0}, "at least 1")],
)  # fmt: skip
def test_bad_arguments_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text), dry_run(**arguments):
        pass


def test_tensors_of_the_cpu_are_real():
    with dry_run():
        x = torch.arange(4.0)
        assert (x * 2).tolist() == [0, 2, 4, 6]
        there = x.to(DEVICE)
        assert there.shape == (4,)
        assert torch.zeros(2, 2)[torch.tensor([True, False])].shape == (1, 2)
        assert torch.zeros(2, 2, device=DEVICE)[torch.tensor([True, False])].shape == (1, 2)


DRY = {"NPUSIM_DRY_RUN": "1", "NPUSIM_DEVICE_MEMORY": "64GiB"}


def test_a_variable_makes_a_whole_process_dry():
    code = (
        "import torch, torch_npusim;"
        "x = torch.empty(1 << 34, dtype=torch.uint8, device='npusim') + 1;"
        "print(torch.npusim.max_memory_reserved() >> 30, x.sum().item())"
    )
    assert python("-c", code, variables=DRY).stdout == "32 1\n"


def test_the_variable_leaves_the_devices_alone_until_they_are_used():
    code = """
import os, torch, torch_npusim
from torch_npusim.sim import dry

assert not torch.npusim.is_initialized()
child = os.fork()
x = torch.empty(1 << 34, dtype=torch.uint8, device="npusim") + 1
assert torch.npusim.is_initialized() and dry.active() and x.sum().item() == 1
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python("-c", code, variables=DRY).stdout == "7\n"


def ones(*sizes, dtype=torch.float32):
    return torch.ones(sizes, dtype=dtype, device=DEVICE)


def indices(*sizes):
    return ones(*sizes, dtype=torch.int64)


def unknown(*sizes):
    return torch.randint(9, sizes, device=DEVICE)


def mask(*sizes):
    return ones(*sizes) > 0


def aligned(lengths):
    scores = torch.zeros(5, 2, 6, device=DEVICE, requires_grad=True)
    loss, table = torch._ctc_loss(scores, indices(2, 3), [5, 5], lengths.tolist())
    loss.sum().backward()
    return loss, table, scores.grad


def coo():
    return torch.sparse_coo_tensor(indices(2, 5), ones(5), (4, 4))


# Answers that a policy gives: what it is asked for, and the operator that is counted.
ANSWERED = {
    "a loss": (lambda: ones(4).sum().item(), 1.0, "aten::_local_scalar_dense"),
    "a number": (lambda: unknown(4).sum().item(), 1, "aten::_local_scalar_dense"),
    "a largest number": (lambda: unknown(4).max().item(), 8, "aten::max"),
    "a sum of a mask": (lambda: mask(4).sum().item(), 2, "aten::sum"),
    "a part of the largest": (lambda: (unknown(18) == 3).sum().item(), 2, "aten::sum"),
    "any of it": (lambda: (unknown(18) == 3).any().item(), True, "aten::any"),
    "a flag": (lambda: torch.isnan(ones(4)).any().item(), False, "aten::_local_scalar_dense"),
    "a finite check": (
        lambda: torch.isfinite(ones(4)).all().item(), True, "aten::_local_scalar_dense"
    ),
    "equal": (lambda: torch.equal(ones(4), ones(4)), True, "aten::equal"),
    "allclose": (lambda: torch.allclose(ones(4), ones(4)), True, "aten::_local_scalar_dense"),
    "values": (lambda: ones(2).tolist(), [0.0, 0.0], "aten::copy_"),
    "nonzero": (lambda: torch.nonzero(ones(4, 2)).shape, (4, 2), "aten::nonzero"),
    "where": (lambda: torch.where(mask(4))[0].shape, (2,), "aten::nonzero"),
    "masked_select": (
        lambda: torch.masked_select(ones(4, 1), mask(4)).shape, (8,), "aten::masked_select"
    ),
    "a mask": (lambda: ones(4, 4)[mask(4, 4)].shape, (8,), "aten::index"),
    "a mask of rows": (lambda: ones(4, 4)[mask(4)].shape, (2, 4), "aten::index"),
    "unique": (lambda: torch.unique(ones(4)).shape, (2,), "aten::_unique2"),
    "bincount": (lambda: torch.bincount(unknown(4), minlength=9).shape, (9,), "aten::bincount"),
    "repeats": (
        lambda: ones(4).repeat_interleave(indices(4)).shape, (4,), "aten::repeat_interleave.Tensor"
    ),
}  # fmt: skip
# Operators that are refused by name.
REFUSED = {
    "unique, rows": ("aten::unique_dim", lambda: torch.unique(ones(4, 4), dim=0)),
    "unique_consecutive": (
        "aten::unique_consecutive",
        lambda: torch.unique_consecutive(ones(4)),
    ),
    "bincount": ("aten::bincount", lambda: torch.bincount(indices(4))),
    "least squares": ("aten::linalg_lstsq", lambda: torch.linalg.lstsq(ones(4, 3), ones(4, 2))),
    "to_sparse": ("aten::_to_sparse", lambda: ones(4, 4).to_sparse()),
    "to_sparse_csr": ("aten::_to_sparse_csr", lambda: ones(4, 4).to_sparse_csr()),
    "sparse product": ("aten::addmm", lambda: torch.sparse.mm(coo(), ones(4, 4))),
    "sparse sum": ("aten::_coalesce", lambda: coo().coalesce()),
    "nested": ("aten::mul", lambda: torch.nested.nested_tensor([ones(2, 3), ones(4, 3)]) * 2),
}
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
    "out": lambda: torch.add(ones(4), ones(3, 1), out=ones(1).resize_(0)),
    "stft": lambda: torch.stft(ones(40), 16, window=ones(16), return_complex=True),
    "ctc_loss": lambda: aligned(torch.tensor([3, 2])),
    "inverse": lambda: torch.linalg.inv(ones(4, 4).triu()),
    "packed": lambda: nn.utils.rnn.pack_padded_sequence(ones(4, 2, 3), torch.tensor([4, 2])).data,
}


def shapes(made):
    return [(x.shape, x.dtype) for x in torch.utils._pytree.tree_leaves(made)]


@pytest.mark.parametrize("case", ANSWERED)
def test_values_are_answered_by_a_policy_and_counted(case):
    """(rule Y3)."""
    call, expected, operator = ANSWERED[case]
    with dry_run() as run:
        assert call() == expected
    assert type(call()) is type(expected) or isinstance(expected, tuple)
    (answer,) = run.answers()
    assert (answer.operator, answer.count) == (operator, 1)
    file, line = answer.place.rsplit(":", 1)
    assert file == short_path(__file__)
    assert int(line) == call.__code__.co_firstlineno


def test_the_share_of_a_mask_is_the_users():
    with dry_run(selected=0.25):
        assert ones(8)[mask(8)].shape == (2,)
        assert torch.nonzero(ones(8)).shape == (2, 1)


def test_checks_of_numbers_pass():
    with dry_run():
        x = ones(4)
        bad = torch.isnan(x) | torch.isinf(x)
        assert not bad.any()
        assert not bad.sum() > 0
        assert not (~torch.isfinite(x)).sum() > 0


def test_a_loop_that_waits_for_a_value_ends():
    rounds = 0
    with dry_run(patience=7):
        done = torch.isnan(ones())
        while not done:
            rounds += 1
        error = ones(1)
        while error.item() > 0.5:
            rounds += 1
        while mask(4).sum() > 0:
            rounds += 1
        while (unknown(18) == 3).any():
            rounds += 1
    assert 24 <= rounds <= 28  # a loop's first test and its next ones may be two places


@pytest.mark.parametrize("case", REFUSED)
def test_an_unknown_shape_is_refused_by_name(case):
    name, call = REFUSED[case]
    call()
    with dry_run(), pytest.raises(NotImplementedError, match=name):
        call()


@pytest.mark.parametrize("case", DEPENDS_ON_SHAPES)
def test_a_shape_that_depends_on_shapes_is_known(case):
    call = DEPENDS_ON_SHAPES[case]
    real = shapes(call())
    with dry_run() as run:
        assert shapes(call()) == real
    assert all(answer.what == "value" for answer in run.answers())


def test_lengths_of_the_device_are_as_long_as_they_can_be():
    real = shapes(aligned(torch.tensor([3, 2])))
    with dry_run():
        assert shapes(aligned(unknown(2))) == real


def test_a_scaler_takes_its_steps():
    with dry_run():
        model = nn.Linear(4, 4, device=DEVICE)
        optimizer = torch.optim.Adam(model.parameters())
        scaler = torch.amp.GradScaler("npusim")
        scaler.scale(model(ones(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert len(optimizer.state) == 2


def test_uploads_wait_unless_they_need_not():
    with dry_run(), timeline.record() as made:
        data = torch.ones(1000)
        data.to(DEVICE)
        data.pin_memory().to(DEVICE, non_blocking=True)
    kinds = [row.kind for row in made.rows]
    assert kinds.count("copy_h2d_pageable") == 1
    assert kinds.count("copy_h2d") == 1
    assert kinds.count("stream_wait") == 1


def test_a_checkpoint_of_before_is_kept(tmp_path):
    path = tmp_path / "checkpoint.pt"
    model = nn.Linear(2, 2)
    torch.save(model.state_dict(), path)
    with dry_run():
        for dry in (nn.Linear(2, 2, device=DEVICE), {"a": [torch.ones(2, device=DEVICE)]}):
            with pytest.raises(RuntimeError, match="npusim:0 has no values in a dry run"):
                torch.save(dry, path)
        torch.save(torch.ones(2), tmp_path / "of_the_host.pt")
        with pytest.raises(AttributeError, match="local"):
            torch.save(lambda: 0, tmp_path / "function.pt")
    assert torch.load(path)["weight"].equal(model.weight)
    assert torch.load(tmp_path / "of_the_host.pt").tolist() == [1, 1]


@pytest.mark.parametrize("save", [torch.save, pickle.dump])
def test_a_tensor_without_values_is_not_saved(save):
    with dry_run():
        kept = {"cpu": torch.ones(2), "device": torch.ones(2, device=DEVICE)}
        with pytest.raises(RuntimeError, match="npusim:0 has no values in a dry run"):
            save(kept, io.BytesIO())
        save(kept["cpu"], io.BytesIO())
    assert torch.save is save or save is pickle.dump
    torch.save(torch.ones(2, device=DEVICE), written := io.BytesIO())
    written.seek(0)
    assert torch.load(written).tolist() == [1, 1]
