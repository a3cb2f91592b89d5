# SPDX-License-Identifier: BSD-3-Clause
"""Programs for CUDA that a launcher starts twice; test_launched.py compares the losses they write.

torchrun --nproc-per-node 2 tests/distributed/launched.py trainer cuda losses.json
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4


def samples():
    torch.manual_seed(5)
    return TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def trainer(device, folder):
    """transformers.Trainer."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
        )
    )
    tokens = torch.randint(128, (64, 16), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_steps=STEPS,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=device == "cpu",
        ddp_backend="gloo" if device == "cpu" else "nccl",
        disable_tqdm=True,
    )
    done = Trainer(model=model, args=arguments, train_dataset=rows)
    assert dist.get_world_size() == 2
    done.train()
    return [entry["loss"] for entry in done.state.log_history if "loss" in entry]


def accelerated(device, folder):
    """accelerate's own loop."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device == "cpu")
    assert accelerator.num_processes == 2
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(samples(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, labels in loader:
        loss = functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    return losses[:STEPS]


def lightning_with(strategy):
    """Lightning's Trainer with a strategy."""

    def run(device, folder):
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.network = network()
                self.losses = []

            def configure_model(self):
                if strategy == "fsdp2":
                    from torch.distributed.fsdp import fully_shard

                    fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

            def training_step(self, batch, _):
                loss = functional.cross_entropy(self.network(batch[0]), batch[1])
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                self.losses.append(mean.item() / 2)
                return loss

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-2)

        chosen = strategy
        if strategy == "fsdp2":
            from lightning.pytorch.strategies import ModelParallelStrategy

            chosen = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        module = Module()
        lightning.Trainer(
            accelerator="cpu" if device == "cpu" else "gpu",
            devices=2,
            strategy=chosen,
            max_steps=STEPS,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        ).fit(module, DataLoader(samples(), batch_size=4))
        assert dist.get_world_size() == 2
        return module.losses

    return run


PROGRAMS = {
    "trainer": trainer,
    "accelerate": accelerated,
    "lightning_ddp": lightning_with("ddp"),
    "lightning_fsdp2": lightning_with("fsdp2"),
}


def main():
    name, device, path = sys.argv[1:]
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    losses = PROGRAMS[name](device, str(Path(path).parent))
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps({"losses": losses, "backend": dist.get_backend()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
