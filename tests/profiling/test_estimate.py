# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim.estimate(): the answer of `npusim fit` for a model at hand, which stays as it is."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import torch_npusim

STEP = """
import sys
import torch
from torch import nn
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to("npusim")
x = torch.empty(64, 256, device="npusim")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    out = model(x)
    loss = out.float().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    del out, loss
"""


def net(device="cpu"):
    with torch.device(device):
        return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))


def estimate(model, inputs, **options):
    return torch_npusim.estimate(model, inputs, chip="a100-40-sxm", **options)


def test_a_fork_and_a_script_have_the_same_peak_and_time(run_python, tmp_path):
    (tmp_path / "script.py").write_text(STEP)
    printed = run_python(
        f"""
import torch
import torch_npusim
from torch import nn
from torch_npusim.fit.run import fit_script
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
x = torch.empty(64, 256, device="meta")
ours = torch_npusim.estimate(model, x, chip="a100-40-sxm", optimizer="AdamW")
assert not torch.npusim.is_initialized()
script = fit_script({str(tmp_path / "script.py")!r}, spec="a100-40-sxm", outside="high")
for fit in (ours, script):
    print(fit.allocator, fit.peak_reserved, fit.devices[0].at_peak, fit.step.per_second)
""",
        environment={"NPUSIM_ALLOCATOR": "cuda-2.13", "NPUSIM_DEVICE_COUNT": "1"},
    )
    ours, script = printed.splitlines()
    assert ours == script
    assert ours.startswith("cuda-2.13 ")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_model_stays_as_it_is(device):
    model = net(device).eval()
    model.register_buffer("mean", torch.ones(3, device=device))
    before = {name: (id(x), x.data_ptr()) for name, x in model.state_dict(keep_vars=True).items()}
    found = estimate(model, torch.empty(8, 256, device=device), optimizer="SGD")
    assert found.fits
    assert found.devices[0].at_peak["parameters"] == 4 * sum(p.numel() for p in model.parameters())
    after = {name: (id(x), x.data_ptr()) for name, x in model.state_dict(keep_vars=True).items()}
    assert after == before
    assert not model.training
    assert [p.grad for p in model.parameters()] == [None] * 4


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net("meta")

    def forward(self, x, *, scale):
        return SimpleNamespace(loss=(self.inner(x) * scale).sum(), other=x)


def test_inputs_by_name_and_the_loss_of_a_result():
    named = {"x": torch.empty(8, 256, device="meta"), "scale": 2}
    found = estimate(Named(), named, optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
    assert found.error == ""
    assert found.step.what == "step"
    plain = estimate(net("meta"), (named["x"],), loss=lambda y: y.mean(), optimizer="SGD")
    assert plain.error == ""
    inferred = estimate(Named(), named)
    assert inferred.step.what == "call of Named"
    assert inferred.peak_reserved < found.peak_reserved


def test_autocast_holds_activations_of_half_the_size():
    model, x = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]), torch.empty(4096, 512)
    wide = estimate(model, x, optimizer="SGD").devices[0].at_peak["activations"]
    narrow = estimate(model, x, optimizer="SGD", autocast=torch.bfloat16)
    assert narrow.devices[0].at_peak["activations"] < 0.8 * wide


def test_the_largest_batch_fits_and_twice_as_much_does_not():
    x = torch.empty(64, 256, device="meta")
    found = estimate(net("meta"), x, optimizer="AdamW", memory="700MiB", find_batch=True)

    def fits(batch):
        given = torch.empty(batch, 256, device="meta")
        return estimate(net("meta"), given, optimizer="AdamW", memory="700MiB").fits

    assert found.fits
    assert fits(found.batch)
    assert not fits(found.batch + 1)
    assert f"The largest batch that fits is {found.batch}." in str(found)


def test_chips_that_would_do_are_those_with_more_memory():
    x = torch.empty(1, 256, device="meta")
    small = estimate(net("meta"), x)
    large = estimate(nn.Linear(60_000, 100_000, device="meta"), torch.empty(1, 60_000))
    assert small.chips().index("t4") < small.chips().index("h100-sxm")
    assert "a100-40-sxm" in large.chips()
    assert "t4" not in large.chips()
    assert large.chips() == [chip for chip in small.chips() if chip in large.chips()]


def test_a_model_that_does_not_fit_is_told_and_shown():
    found = estimate(nn.Linear(60_000, 200_000, device="meta"), torch.empty(1, 60_000))
    assert not found.fits
    assert found.need > 60_000 * 200_000 * 4
    assert "b200" in found.chips()
    assert "a100-40-sxm" not in found.chips()
    assert "does not fit npusim:0 (a100-40-sxm" in str(found)
    assert "&lt;svg" in found._repr_html_()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "adamw"}, "torch.optim has no optimizer 'adamw'; did you mean 'AdamW'"),
        ({"optimizer": torch.optim.SGD([torch.ones(2)])}, "a parameter that the model does not"),
        ({"inputs": torch.ones(2, device="npusim")}, "takes tensors of cpu and meta"),
        ({"inputs": 3, "find_batch": True}, "find_batch needs a tensor"),
        ({"chip": "no-chip"}, "there is no device specification `no-chip`"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(options, words):
    given = {"inputs": torch.ones(2, 256), "chip": "t4"} | options
    with pytest.raises(ValueError, match=words):
        torch_npusim.estimate(net(), given.pop("inputs"), **given)


def test_an_optimizer_at_hand_is_asked_about_without_its_state():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(64, 256)
    model(x).sum().backward()
    optimizer.step()
    before = {name: each.clone() for name, each in optimizer.state[model[0].weight].items()}
    ours, named = estimate(model, x, optimizer=optimizer), estimate(model, x, optimizer="AdamW")
    assert ours.error == ""
    assert ours.devices[0].at_peak == named.devices[0].at_peak
    assert ours.devices[0].at_peak["optimizer state"] > 0
    state = optimizer.state[model[0].weight]
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_a_function_that_takes_the_parameters_of_the_cpu_is_told_so():
    model = net()
    found = estimate(
        model, torch.ones(2, 256), optimizer=lambda _: torch.optim.SGD(model.parameters())
    )
    assert "has taken other parameters than its own" in found.error


def test_errors_of_the_model_are_the_answer_and_the_device_goes_on():
    mine = torch.arange(3, device="npusim")
    found = estimate(net("meta"), torch.empty(8, 255, device="meta"))
    assert "shapes cannot be multiplied" in found.error
    assert mine.tolist() == [0, 1, 2]
    assert estimate(net("meta"), torch.empty(8, 256, device="meta")).fits


def test_an_error_of_a_fork_is_raised_here(run_python):
    printed = run_python("""
import os
import torch
import torch_npusim
model = torch.nn.Linear(4, 4)
for chip, hook in (("no-chip", None), ("t4", lambda *_: os.kill(os.getpid(), 9))):
    if hook:
        model.register_forward_pre_hook(hook)
    try:
        torch_npusim.estimate(model, torch.ones(2, 4), chip=chip)
    except (ValueError, RuntimeError) as error:
        print(type(error).__name__, error)
""")
    refused, killed = printed.splitlines()
    assert refused.startswith("SpecError there is no device specification `no-chip`")
    assert killed == "RuntimeError the fork of estimate() ended with -9"
