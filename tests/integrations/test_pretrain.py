# SPDX-License-Identifier: BSD-3-Clause
"""examples/integrations/pretrain.py proves what it says, and would notice if it were not so."""

import importlib.util
import re

import pytest
import torch
from repo.sources import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def pretrain():
    path = ROOT / "examples" / "integrations" / "pretrain.py"
    specification = importlib.util.spec_from_file_location("pretrain", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_loss_falls_and_resuming_changes_no_bit(pretrain, capsys):
    assert pretrain.compare(pretrain.Settings(steps=20, log_every=5, warmup=2))
    logged = re.findall(
        r"step +(\d+) +loss ([\d.]+)(?:.*?)([\d,]+) tokens/s", capsys.readouterr().out
    )
    assert [int(step) for step, _, _ in logged] == [5, 10, 15, 20] * 2
    assert logged[1][1] == logged[5][1]
    # Modelled time: every run of five steps takes the same, but for the first, which fills pools.
    assert len({speed for _, _, speed in logged[1:4]}) == 1


def test_a_checkpoint_brings_the_devices_random_state(pretrain, tmp_path):
    run = pretrain.Run(pretrain.Settings())
    torch.rand(3, device="npusim")
    run.save(tmp_path)
    wanted = torch.rand(3, device="npusim")
    pretrain.Run(pretrain.Settings()).load(tmp_path)
    assert torch.equal(torch.rand(3, device="npusim"), wanted)


def test_nothing_is_allocated_before_to_empty(pretrain):
    with torch.device("meta"):
        model = pretrain.Transformer(pretrain.Shape())
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    before = torch.npusim.memory_allocated()
    model.to_empty(device="npusim")
    assert size <= torch.npusim.memory_allocated() - before < size + 512 * 40


def test_recomputing_blocks_saves_memory_and_changes_no_bit(pretrain):
    def step(recompute):
        torch.manual_seed(1)
        model = pretrain.Transformer(pretrain.Shape(layers=4), recompute).to("npusim")
        model.init_weights()
        tokens = torch.randint(256, (16, 64), device="npusim")
        before = torch.npusim.memory_allocated()
        torch.npusim.reset_peak_memory_stats()
        model(tokens).float().logsumexp(-1).sum().backward()
        peak = torch.npusim.max_memory_allocated() - before
        return peak, [parameter.grad.cpu() for parameter in model.parameters()]

    large, wanted = step(recompute=False)
    small, gradients = step(recompute=True)
    assert small < 0.6 * large
    assert all(map(torch.equal, gradients, wanted))


def test_a_step_that_waits_for_the_device_is_an_error(pretrain):
    class Waiting(pretrain.Run):
        def _train_step(self, tokens):
            norm = super()._train_step(tokens)
            return norm if norm.item() > 0 else -norm

    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            Waiting(pretrain.Settings()).train(until=1)
    finally:
        torch.npusim.set_sync_debug_mode("default")


def test_a_device_too_small_is_told(pretrain, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pretrain.py", "--batch", "64"])
    torch.npusim.empty_cache()
    torch.npusim.set_per_process_memory_fraction(4 / 16384)  # 4 MiB
    try:
        assert pretrain.main() == 1
    finally:
        torch.npusim.set_per_process_memory_fraction(1.0)
        torch.npusim.set_sync_debug_mode("default")
    assert capsys.readouterr().err.startswith("the model does not fit: NPUSIM out of memory.")
