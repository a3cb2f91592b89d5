# SPDX-License-Identifier: BSD-3-Clause
"""Libraries that need no adapter: what they do with tensors on npusim."""

from contextlib import nullcontext

import pytest
import safetensors
import torch
from safetensors.torch import load_file, load_model, safe_open, save_file, save_model
from torch import nn

from torch_npusim import patches
from torch_npusim.sim import dry_run


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


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize(("name", "index"), [("npusim", 0), ("npusim:0", 0), ("npusim:1", 1)])
def test_safetensors_takes_the_name_of_a_device(tmp_path, name, index, dry):
    path = tmp_path / "one.safetensors"
    save_file({"a": torch.arange(6.0).view(3, 2)}, path)
    with dry_run() if dry else nullcontext():
        loaded = load_file(path, device=name)["a"]
        with safe_open(path, "pt", name) as file:
            part = file.get_slice("a")[1:]
        assert loaded.device == part.device == torch.device("npusim", index)
        assert (loaded.shape, part.shape) == ((3, 2), (2, 2))
        with torch.device("meta"):
            model = nn.Linear(2, 3, bias=False)
        model.load_state_dict({"weight": loaded}, assign=True)
        assert model(torch.ones(1, 2, device=name)).shape == (1, 3)
    if not dry:
        assert loaded.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_upstream_safetensors_knows_devices_by_a_list_of_names(tmp_path):
    """When this fails, the patch can go."""
    save_file({"a": torch.zeros(1)}, tmp_path / "one.safetensors")
    with (
        patches.undone("safetensors:safe_open"),
        pytest.raises(safetensors.SafetensorError, match="device npusim is invalid"),
    ):
        safetensors.safe_open(tmp_path / "one.safetensors", "pt", "npusim")


def test_tensors_without_values_are_not_saved(tmp_path):
    path = tmp_path / "one.safetensors"
    save_file({"a": torch.ones(1)}, path)
    with dry_run():
        dry = {"a": torch.ones(1, device="npusim")}
        for save in (lambda: save_file(dry, path), lambda: safetensors.torch.save(dry)):
            with pytest.raises(RuntimeError, match="npusim:0 has no values in a dry run"):
                save()
        with patches.undone("safetensors.torch:save"):
            assert safetensors.torch.save(dry)  # zeros
        save_file({"a": torch.full((1,), 2.0)}, tmp_path / "of_the_host.safetensors")
    assert load_file(path)["a"].item() == 1


def test_torchmetrics_are_those_of_the_cpu():
    import torchmetrics

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
