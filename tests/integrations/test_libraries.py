# SPDX-License-Identifier: BSD-3-Clause
"""Libraries that need no adapter: what they do with tensors on npusim."""

import pytest
import safetensors
import torch
import torchmetrics
from safetensors.torch import load_file, load_model, safe_open, save_file, save_model
from torch import nn


def test_safetensors_saves_from_and_loads_to_a_device(tmp_path):
    path = tmp_path / "tensors.safetensors"
    stored = {
        "a": torch.randn(4, 4, device="npusim:1"),
        "b": torch.arange(3, device="npusim").bfloat16(),
    }
    save_file(stored, path)
    for index in (0, 1):
        loaded = load_file(path, device=index)
        assert {tensor.device for tensor in loaded.values()} == {torch.device("npusim", index)}
        assert all(torch.equal(loaded[name].cpu(), stored[name].cpu()) for name in stored)
        with safe_open(path, "pt", device=index) as file:
            assert torch.equal(file.get_slice("a")[1:3].cpu(), stored["a"][1:3].cpu())


def test_safetensors_loads_a_model(tmp_path):
    model, other = nn.Linear(4, 4).to("npusim"), nn.Linear(4, 4).to("npusim")
    save_model(model, tmp_path / "model.safetensors")
    load_model(other, tmp_path / "model.safetensors", device=0)
    assert torch.equal(model.weight, other.weight)


def test_upstream_safetensors_knows_devices_by_a_list_of_names(tmp_path):
    # When this fails, docs/use/integrations.md can drop the sentence about the index.
    save_file({"a": torch.zeros(1)}, tmp_path / "one.safetensors")
    with pytest.raises(safetensors.SafetensorError, match="device npusim is invalid"):
        load_file(tmp_path / "one.safetensors", device="npusim")


def test_torchmetrics_are_those_of_the_cpu():
    scores, labels = torch.randn(64, 5), torch.randint(0, 5, (64,))

    def computed(device):
        metrics = torchmetrics.MetricCollection(
            [
                torchmetrics.Accuracy("multiclass", num_classes=5),
                torchmetrics.F1Score("multiclass", num_classes=5, average="macro"),
                torchmetrics.ConfusionMatrix("multiclass", num_classes=5),
                torchmetrics.AUROC("multiclass", num_classes=5),
            ]
        ).to(device)
        for half in (slice(0, 32), slice(32, 64)):
            metrics.update(scores[half].softmax(-1).to(device), labels[half].to(device))
        return metrics.compute()

    ours, theirs = computed("npusim"), computed("cpu")
    for name, value in theirs.items():
        assert ours[name].device.type == "npusim"
        assert torch.equal(ours[name].cpu(), value), name
