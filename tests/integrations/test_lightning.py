# SPDX-License-Identifier: BSD-3-Clause
"""Lightning's Trainer and Fabric on npusim, beside the same run on CPU."""

import lightning
import pytest
import torch
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.callbacks import DeviceStatsMonitor, ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import StrategyRegistry
from lightning.pytorch.utilities.memory import is_oom_error
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from torch_npusim.integrations import lightning as npusim_lightning

npusim_lightning.register()

ON_NPUSIM = {"accelerator": "npusim", "strategy": "single_npusim", "devices": 1}
ON_CPU = {"accelerator": "cpu", "devices": 1}
QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
# Lightning 2.6 uses what torch 2.13 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning:lightning")


class Classifier(lightning.LightningModule):
    """A small network that notes what each step saw."""

    def __init__(self, batch_size=16):
        super().__init__()
        self.save_hyperparameters()
        self.batch_size = batch_size
        self.network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.losses, self.devices, self.dtypes = [], set(), set()

    def training_step(self, batch, _):
        inputs, labels = batch
        outputs = self.network(inputs)
        # Autocast widens log_softmax on npusim, as on CUDA, but not on CPU.
        logits = outputs.float() if torch.is_autocast_enabled(outputs.device.type) else outputs
        loss = functional.cross_entropy(logits, labels)
        self.devices |= {inputs.device, labels.device, outputs.device}
        self.dtypes.add(outputs.dtype)
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def train_dataloader(self):
        inputs, labels = torch.randn(64, 16), torch.randint(0, 4, (64,))
        return DataLoader(TensorDataset(inputs, labels), batch_size=self.batch_size)


def fit(module=None, *, checkpoint=None, **settings):
    """Trains for two epochs, from one seed, and returns the module and its trainer."""
    lightning.seed_everything(7, verbose=False)
    module = Classifier() if module is None else module
    trainer = lightning.Trainer(**{"max_epochs": 2, **QUIET, **settings})
    trainer.fit(module, ckpt_path=checkpoint)
    return module, trainer


def values(module):
    return [loss.item() for loss in module.losses]


def test_registered_once_under_both_registries():
    npusim_lightning.register()
    assert AcceleratorRegistry.get("npusim").name() == "npusim"
    assert ACCELERATOR_REGISTRY.get("npusim").auto_device_count() == 1
    assert "single_npusim" in StrategyRegistry.available_strategies()


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true"])
def test_losses_and_weights_are_those_of_the_cpu(precision):
    ours, trainer = fit(**ON_NPUSIM, precision=precision, gradient_clip_val=0.5)
    theirs, _ = fit(**ON_CPU, precision=precision, gradient_clip_val=0.5)
    assert ours.devices == {torch.device("npusim", 0)} == {trainer.strategy.root_device}
    assert len(ours.losses) == 8
    assert values(ours) == values(theirs)
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight.cpu(), theirs.state_dict()[name]), name


@pytest.mark.parametrize(
    ("precision", "dtype"), [("16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16)]
)
@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled")
def test_mixed_precision_is_on_the_device_although_lightning_says_cuda(precision, dtype):
    ours, trainer = fit(**ON_NPUSIM, precision=precision)
    theirs, _ = fit(**ON_CPU, plugins=MixedPrecision(precision, "cpu"))
    assert ours.dtypes == {dtype}
    assert trainer.precision_plugin.device == "npusim"
    scaler = trainer.precision_plugin.scaler
    assert (scaler is not None and scaler.is_enabled()) == (precision == "16-mixed")
    assert values(ours) == values(theirs)


def test_a_precision_plugin_of_the_users_own_is_kept():
    plugin = MixedPrecision("bf16-mixed", "npusim")
    _, trainer = fit(**ON_NPUSIM, plugins=plugin, max_steps=1)
    assert trainer.precision_plugin is plugin


def test_the_other_distribution_of_lightning_is_served_too():
    import pytorch_lightning  # a second copy of every class, which knows nothing of the first

    npusim_lightning.register()
    trainer = pytorch_lightning.Trainer(**ON_NPUSIM, precision="bf16-mixed", **QUIET)
    assert isinstance(trainer.strategy, pytorch_lightning.strategies.SingleDeviceStrategy)
    assert trainer.strategy.root_device == torch.device("npusim", 0)
    assert trainer.precision_plugin.device == "npusim"


def test_an_index_chooses_the_device_and_makes_it_current():
    with torch.npusim.device(0):  # afterwards 0 again
        ours, trainer = fit(**{**ON_NPUSIM, "devices": [1]}, max_steps=1)
        assert torch.npusim.current_device() == 1
    assert ours.devices == {torch.device("npusim", 1)}
    assert trainer.device_ids == [1]


def test_cached_memory_is_given_back_at_the_end():
    torch.empty(1 << 25, device="npusim")
    cached = torch.npusim.memory_reserved()
    fit(**ON_NPUSIM, max_steps=1)
    assert torch.npusim.memory_reserved() <= cached - (1 << 25)


def test_training_resumes_from_a_checkpoint_where_it_was(tmp_path):
    whole, _ = fit(**ON_NPUSIM)
    keep = {"enable_checkpointing": True, "default_root_dir": tmp_path, "max_epochs": 1}
    saver = ModelCheckpoint(dirpath=tmp_path, filename="first")
    half, _ = fit(**ON_NPUSIM | keep, callbacks=[saver])
    resumed, _ = fit(**ON_NPUSIM, checkpoint=tmp_path / "first.ckpt")
    assert values(half) + values(resumed) == values(whole)

    stored = torch.load(tmp_path / "first.ckpt", weights_only=False)
    states = stored["optimizer_states"][0]["state"].values()
    assert {state["exp_avg"].device.type for state in states} == {"npusim"}
    on_cpu = Classifier.load_from_checkpoint(tmp_path / "first.ckpt", map_location="cpu")
    assert on_cpu.device.type == "cpu"


def test_device_statistics_are_logged(tmp_path):
    class Kept(lightning.pytorch.loggers.logger.DummyLogger):
        seen: dict = {}  # noqa: RUF012

        def log_metrics(self, metrics, step=None):
            self.seen.update(metrics)

    fit(**ON_NPUSIM | {"logger": Kept(), "log_every_n_steps": 1}, callbacks=[DeviceStatsMonitor()])
    key = "DeviceStatsMonitor.on_train_batch_end/allocated_bytes.all.current"
    assert Kept.seen[key] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accelerator": "npusim", "devices": 1}, "Pass strategy='single_npusim'"),
        ({**ON_CPU, "strategy": "single_npusim"}, "Pass accelerator='npusim' too"),
        ({**ON_NPUSIM, "devices": 2}, "trains in one process; choose one device"),
        ({**ON_NPUSIM, "devices": [7]}, "there are 2 npusim devices"),
        ({**ON_NPUSIM, "devices": "x"}, "expected a number of npusim devices"),
    ],
)
def test_what_cannot_work_says_what_to_do(settings, message):
    with pytest.raises(ValueError, match=message):
        fit(**settings)


@pytest.mark.parametrize("devices", [1, [0], "1", "0,", "auto", torch.npusim.device_count() - 1])
def test_devices_that_mean_the_first(devices):
    trainer = lightning.Trainer(**{**ON_NPUSIM, "devices": devices}, **QUIET)
    assert trainer.strategy.root_device == torch.device("npusim", 0)


def test_upstream_auto_knows_no_device_but_its_own():
    # When this fails, Lightning has learnt to ask, and docs/use/integrations.md can say so.
    assert lightning.Trainer(accelerator="auto", devices=1, **QUIET).strategy.root_device.type == (
        "cpu"
    )


def test_upstream_batch_size_finder_knows_only_errors_that_say_cuda():
    # When this fails, Lightning has learnt torch.OutOfMemoryError, and the document can say so.
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(1 << 50, device="npusim")
    assert not is_oom_error(caught.value)


def test_upstream_isolate_rng_forgets_the_devices():
    # As above. CUDA's generators it does keep.
    before = torch.npusim.get_rng_state()
    with isolate_rng():
        torch.rand(1, device="npusim")
    assert not torch.equal(torch.npusim.get_rng_state(), before)


def test_upstream_module_follows_only_its_own_methods():
    # As above: Module.npusim() moves the weights, but only to() and cuda() tell module.device.
    module = Classifier().npusim()
    assert next(module.parameters()).device.type == "npusim"
    assert module.device.type == "cpu"
    assert module.to("npusim").device.type == "npusim"


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_fabric_trains_as_on_the_cpu(precision, tmp_path):
    def run(**settings):
        lightning.seed_everything(7, verbose=False)
        fabric = lightning.Fabric(**settings)
        fabric.launch()
        network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        network, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), lr=0.1))
        inputs, labels = torch.randn(64, 16), torch.randint(0, 4, (64,))
        loader = DataLoader(TensorDataset(inputs, labels), batch_size=16)
        losses = []
        for features, targets in fabric.setup_dataloaders(loader):
            assert features.device == fabric.device
            loss = functional.cross_entropy(network(features), targets)
            fabric.backward(loss)
            fabric.clip_gradients(network, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        fabric.save(tmp_path / "state.pt", {"network": network, "optimizer": optimizer})
        fabric.load(tmp_path / "state.pt", {"network": network, "optimizer": optimizer})
        return fabric, losses

    fabric, ours = run(**ON_NPUSIM, precision=precision)
    _, theirs = run(accelerator="cpu", devices=1, precision=precision)
    assert fabric.device == torch.device("npusim", 0)
    assert ours == theirs
