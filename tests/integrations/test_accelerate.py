# SPDX-License-Identifier: BSD-3-Clause
"""Hugging Face accelerate on npusim, beside the same loop on CPU."""

import copy
import gc

import pytest
import torch
from accelerate import Accelerator, cpu_offload, dispatch_model, infer_auto_device_map
from accelerate.state import PartialState
from accelerate.utils import find_executable_batch_size, get_max_memory, set_seed
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from torch_npusim.integrations import accelerate as npusim_accelerate

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def prepared(accelerator, dropout=0.0):
    """Returns a prepared model, optimizer, schedule and loader, the same after every seed."""
    set_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=True)
    return accelerator.prepare(model, optimizer, schedule, loader)


def epoch(accelerator, model, optimizer, schedule, loader):
    losses = []
    for inputs, labels in loader:
        assert inputs.device.type == accelerator.device.type
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(inputs).float(), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_losses_are_those_of_the_cpu(fresh_accelerate, precision, accumulation):
    def run(**device):
        accelerator = Accelerator(
            mixed_precision=precision, gradient_accumulation_steps=accumulation, **device
        )
        return accelerator.device, epoch(accelerator, *prepared(accelerator))

    npusim_accelerate.enable()
    device, ours = run()
    fresh_accelerate()
    _, theirs = run(cpu=True)
    assert device.type == "npusim"
    assert ours == theirs


def test_upstream_chooses_cpu_unless_told():
    # When this fails, accelerate has learnt to ask torch.accelerator: enable() can go.
    assert Accelerator().device.type == "cpu"


def test_enable_takes_one_of_the_devices():
    npusim_accelerate.enable("npusim:1")
    assert Accelerator().device == torch.device("npusim", 1)
    npusim_accelerate.enable("npusim:1")
    with pytest.raises(RuntimeError, match="has already chosen 'npusim:1'"):
        npusim_accelerate.enable("npusim:0")


def test_enable_says_what_it_cannot_do():
    with pytest.raises(ValueError, match="expected an npusim device"):
        npusim_accelerate.enable("cpu")
    PartialState()
    with pytest.raises(RuntimeError, match=r"has already chosen 'cpu'.*before the first"):
        npusim_accelerate.enable()


def test_fp16_scales_and_steps_as_a_plain_loop_does(fresh_accelerate):
    npusim_accelerate.enable()
    accelerator = Accelerator()
    npusim_accelerate.use_fp16(accelerator, init_scale=2.0**20, growth_interval=2)
    model, optimizer, schedule, loader = prepared(accelerator)
    ours = epoch(accelerator, model, optimizer, schedule, loader)
    weights = copy.deepcopy(model.state_dict())
    assert accelerator.scaler.get_scale() != 2.0**20

    fresh_accelerate()
    npusim_accelerate.enable()
    plain, _, _, loader = prepared(Accelerator())
    scaler = torch.amp.GradScaler("npusim", init_scale=2.0**20, growth_interval=2)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
    theirs = []
    for inputs, labels in loader:
        with torch.autocast("npusim", dtype=torch.float16):
            outputs = plain(inputs)
        assert outputs.dtype == torch.float16
        loss = functional.cross_entropy(outputs.float(), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # accelerate's schedule waits for skipped steps
            schedule.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    assert ours == theirs
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    assert scaler.get_scale() == accelerator.scaler.get_scale()


def test_upstream_refuses_fp16_on_devices_it_does_not_list():
    # When this fails, mixed_precision="fp16" works and use_fp16() can go.
    npusim_accelerate.enable()
    with pytest.raises(ValueError, match="fp16 mixed precision requires a device in"):
        Accelerator(mixed_precision="fp16")


def test_use_fp16_says_when_it_is_too_late_or_wrong(fresh_accelerate):
    with pytest.raises(ValueError, match="device 'cpu' and mixed_precision='no'"):
        npusim_accelerate.use_fp16(Accelerator())
    fresh_accelerate()
    npusim_accelerate.enable()
    with pytest.raises(ValueError, match="mixed_precision='bf16'"):
        npusim_accelerate.use_fp16(Accelerator(mixed_precision="bf16"))
    fresh_accelerate()
    npusim_accelerate.enable()
    accelerator = Accelerator()
    accelerator.prepare(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="no effect after prepare"):
        npusim_accelerate.use_fp16(accelerator)


@pytest.mark.parametrize("kept", [True, False])
def test_dropout_after_load_state_is_the_same_with_the_random_state_kept(tmp_path, kept):
    npusim_accelerate.enable()
    accelerator = Accelerator()
    if kept:
        accelerator.register_for_checkpointing(npusim_accelerate.RandomState())
    objects = prepared(accelerator, dropout=0.5)
    epoch(accelerator, *objects)
    accelerator.save_state(tmp_path)
    wanted = epoch(accelerator, *objects)
    accelerator.load_state(tmp_path)
    # Without it: accelerate keeps the random states of the devices in its list only.
    assert (epoch(accelerator, *objects) == wanted) == kept


def test_max_memory_is_what_the_devices_have_free():
    held = torch.empty(1 << 20, device="npusim:1")
    free = npusim_accelerate.max_memory()
    assert free == {index: torch.npusim.mem_get_info(index)[0] for index in (0, 1)}
    assert free[1] < torch.npusim.mem_get_info(1)[1]
    assert npusim_accelerate.max_memory(cpu=10)["cpu"] == 10
    assert list(get_max_memory()) == ["cpu"]  # upstream's list; when this fails, ours can go
    del held


@pytest.mark.parametrize(
    "places",
    [
        {"0": 0, "1": 1, "2": 0},
        {"0": "npusim:1", "1": "npusim:0", "2": "npusim:1"},
        {"0": 0, "1": "cpu", "2": 1},
        {"0": 0, "1": "disk", "2": "cpu"},
    ],
)
def test_layers_run_where_the_device_map_says(places, tmp_path):
    ran_on = []

    class Layer(nn.Linear):
        def forward(self, inputs):
            ran_on.append(self.weight.device)
            return super().forward(inputs)

    model = nn.Sequential(Layer(8, 16), Layer(16, 16), Layer(16, 2))
    inputs = torch.randn(3, 8)
    wanted = model(inputs)
    ran_on.clear()
    model = dispatch_model(model, places, offload_dir=tmp_path)
    assert torch.equal(model(inputs).cpu(), wanted)
    # A layer that is kept on CPU or disk comes to the first device for its turn.
    first = next(place for place in places.values() if place not in ("cpu", "disk"))
    assert ran_on == [
        torch.device(first if place in ("cpu", "disk") else place) for place in places.values()
    ]


def test_a_device_map_within_the_memory_given():
    # 576, 1088 and 136 bytes; accelerate keeps room on the first device for the largest.
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2))
    places = infer_auto_device_map(model, max_memory={0: 1700, 1: 1200, "cpu": 1 << 20})
    assert dict(places) == {"0": 0, "1": 1, "2": "cpu"}


@torch.no_grad()
def test_cpu_offload_brings_each_layer_to_the_device():
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    inputs = torch.randn(3, 256)
    wanted = model(inputs)
    gc.collect()  # what earlier tests left in cycles
    before = torch.npusim.memory_allocated()
    offloaded = cpu_offload(model, torch.device("npusim"))
    torch.npusim.reset_peak_memory_stats()
    assert torch.equal(offloaded(inputs), wanted)
    # One layer at a time has been there, and none is left.
    assert 256 * 256 * 4 < torch.npusim.max_memory_allocated() - before < 2 * 256 * 256 * 4
    assert torch.npusim.memory_allocated() == before


def test_the_batch_size_shrinks_until_it_fits():
    tried = []
    gc.collect()  # what earlier tests left in cycles
    torch.npusim.empty_cache()
    limit = torch.npusim.memory_reserved() + (64 << 20)
    torch.npusim.set_per_process_memory_fraction(limit / torch.npusim.mem_get_info()[1])

    @find_executable_batch_size(starting_batch_size=20)
    def train(batch_size):
        tried.append(batch_size)
        return torch.empty(batch_size, 1 << 20, device="npusim").shape[0]

    try:
        assert train() == 16  # of 4 MiB each
    finally:
        torch.npusim.set_per_process_memory_fraction(1.0)
        torch.npusim.empty_cache()
    assert tried == [20, 18, 16]
