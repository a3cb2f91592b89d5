# SPDX-License-Identifier: BSD-3-Clause
"""Pretrains a small language model the way large ones are: the loop of torchtitan on one device.

The model is built on the meta device and gets its memory by to_empty(); blocks are recomputed in
backward; bfloat16 by autocast; gradients clipped with foreach, fused AdamW, warm-up and cosine;
peak memory, throughput and utilisation are logged; torch.distributed.checkpoint saves and loads.

Run as a program it proves three things, and exits with 1 if one of them is not so: the loss falls,
a run that stops at half and resumes from its checkpoint has the losses of the whole run bit for
bit, and no step waits for the device (set_sync_debug_mode("error") is on where nothing is logged).

    python examples/integrations/pretrain.py --device npusim:1
    NPUSIM_DEVICE_MEMORY=4MiB python examples/integrations/pretrain.py   # too small: says so
"""

import argparse
import math
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

SEED = 2026


@dataclass(frozen=True)
class Shape:
    """How large the model is.

    Attributes:
        vocabulary: Number of tokens.
        width: Size of a token's vector.
        layers: Number of blocks.
        heads: Number of attention heads; divides `width`.
        context: Longest sequence.
    """

    vocabulary: int = 256
    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 64


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.project_in = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.project_out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """Returns (batch, time, width) from `x` of that shape and `rotation` (time, head / 2)."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.project_in(x).chunk(3, dim=-1)
        )
        rotation = rotation[: x.shape[1]]
        mixed = functional.scaled_dot_product_attention(
            rotate(query, rotation), rotate(key, rotation), value, is_causal=True
        )
        projected: torch.Tensor = self.project_out(mixed.transpose(1, 2).flatten(2))
        return projected


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Turns the pairs of `x` (..., time, head) by the angles `rotation` (time, head / 2)."""
    cosine, sine = rotation.cos().to(x.dtype), rotation.sin().to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, left * sine + right * cosine), dim=-1)


class Block(nn.Module):
    """Attention and a gated network, each added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.network_norm = nn.RMSNorm(shape.width)
        self.gate = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """Returns the shape of `x`."""
        x = x + self.attention(self.attention_norm(x), rotation)
        hidden = self.network_norm(x)
        added: torch.Tensor = x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return added


class Transformer(nn.Module):
    """The decoder.

    Args:
        shape: How large it is.
        recompute: Whether blocks keep only their inputs and compute the rest again in backward.
    """

    rotation: torch.Tensor

    def __init__(self, shape: Shape, recompute: bool = False) -> None:
        super().__init__()
        self.shape, self.recompute = shape, recompute
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        angles = torch.empty(shape.context, shape.width // shape.heads // 2)
        self.register_buffer("rotation", angles, persistent=False)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Fills everything; to_empty() leaves memory as it is. Draws on the parameters' device."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.trunc_normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                nn.init.ones_(module.weight)
        half = self.rotation.shape[1]
        device = self.rotation.device
        speed = 10_000.0 ** -(torch.arange(half, device=device) / half)
        self.rotation.copy_(torch.arange(self.shape.context, device=device)[:, None] * speed)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, time, vocabulary) for `tokens` (batch, time)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.recompute and self.training:
                x = checkpoint(block, x, self.rotation, use_reentrant=False)
            else:
                x = block(x, self.rotation)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def flops_per_token(self) -> int:
        """Returns the operations of one token, forward and backward, by the usual estimate.

        Six for each weight of a product, and twelve times width times context for attention.
        """
        weights = sum(p.numel() for p in self.parameters()) - self.embedding.weight.numel()
        return 6 * weights + 12 * self.shape.layers * self.shape.width * self.shape.context


@dataclass
class Settings:
    """Settings of a run."""

    device: str = "npusim"
    steps: int = 40
    batch: int = 16
    learning_rate: float = 3e-3
    warmup: int = 5
    clip: float = 1.0
    log_every: int = 10
    shape: Shape = field(default_factory=Shape)


def rate(settings: Settings, step: int) -> float:
    """Returns what the learning rate is multiplied with: warm-up, then a cosine down to a tenth."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


class Corpus(IterableDataset[torch.Tensor]):
    """Endless sequences of a language with three likely successors for each token.

    Sequence i is a function of i alone, so a run resumes with a number.
    """

    def __init__(self, shape: Shape, start: int = 0) -> None:
        self.shape, self.start = shape, start
        rules = torch.Generator().manual_seed(SEED)
        self.successors = torch.randint(shape.vocabulary, (shape.vocabulary, 3), generator=rules)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yields tensors (context + 1) of tokens."""
        index = self.start
        while True:
            draw = torch.Generator().manual_seed(index)
            choices = torch.randint(3, (self.shape.context,), generator=draw).tolist()
            token = index % self.shape.vocabulary
            sequence = [token]
            for choice in choices:
                token = int(self.successors[token, choice])
                sequence.append(token)
            yield torch.tensor(sequence)
            index += 1


class Run:
    """A model in training: what changes from step to step, and how to save it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = torch.device(settings.device)
        self.module: Any = torch.get_device_module(self.device)
        if self.device.index is not None:
            self.module.set_device(self.device)  # events are recorded on the current device
        torch.manual_seed(SEED)  # of the host and of every device
        with torch.device("meta"):
            self.model = Transformer(settings.shape, recompute=True)
        self.model.to_empty(device=self.device)
        self.model.init_weights()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), fused=True
        )
        self.schedule = LambdaLR(self.optimizer, partial(rate, settings))
        self.step = 0
        self.losses: list[torch.Tensor] = []

    def train(self, until: int) -> None:
        """Trains until step number `until`, and logs."""
        settings = self.settings
        corpus = Corpus(settings.shape, self.step * settings.batch)
        batches = iter(DataLoader(corpus, batch_size=settings.batch, pin_memory=True))
        started = self._mark()
        while self.step < until:
            host = next(batches)  # pinned, so the copy need not wait
            self.module.set_sync_debug_mode("error")
            norm = self._train_step(host.to(self.device, non_blocking=True))
            self.module.set_sync_debug_mode("default")
            if self.step % settings.log_every == 0:
                ended = self._mark()
                ended.synchronize()
                self._log(norm, started.elapsed_time(ended))
                started = ended

    def _train_step(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            logits = self.model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.settings.clip, foreach=True
        )
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.losses.append(loss.detach())
        return norm

    def _mark(self) -> Any:
        event = self.module.Event(enable_timing=True)
        event.record()
        return event

    def _log(self, norm: torch.Tensor, milliseconds: float) -> None:
        """Prints one line; the times are the device's, so on npusim they are modelled."""
        properties = self.module.get_device_properties(self.device)
        peak = self.module.max_memory_allocated(self.device)
        self.module.reset_peak_memory_stats(self.device)
        tokens = self.settings.log_every * self.settings.batch * self.settings.shape.context
        speed = tokens / milliseconds * 1e3
        line = (
            f"step {self.step:3}  loss {self.losses[-1].item():.4f}  gradient {norm.item():.3f}  "
            f"memory {peak / 2**20:.2f} MiB ({100 * peak / properties.total_memory:.2f} %)  "
            f"{speed:,.0f} tokens/s"
        )
        if hasattr(properties, "peak_flops"):  # only a simulated device says what it could do
            used = speed * self.model.flops_per_token() / properties.peak_flops["float16"]
            line += f"  {100 * used:.2f} % of peak"
        print(line)

    def weights(self) -> list[torch.Tensor]:
        """Returns the parameters, on CPU."""
        return [parameter.detach().cpu() for parameter in self.model.parameters()]

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "schedule": self.schedule.state_dict(),
            "random": self.module.get_rng_state(self.device),
            "step": self.step,
        }

    def save(self, folder: Path) -> None:
        """Writes everything that the rest of the run depends on."""
        save(self._state(), checkpoint_id=folder, no_dist=True)

    def load(self, folder: Path) -> None:
        """Reads what save() has written, into the memory that is already there."""
        state = self._state()
        load(state, checkpoint_id=folder, no_dist=True)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.schedule.load_state_dict(state["schedule"])
        self.module.set_rng_state(state["random"], self.device)
        self.step = state["step"]


def compare(settings: Settings) -> bool:
    """Trains once as a whole and once with a stop at half; prints and returns what was proved."""
    whole = Run(settings)
    whole.train(settings.steps)
    losses, weights = torch.stack(whole.losses).tolist(), whole.weights()
    del whole

    with tempfile.TemporaryDirectory() as folder:
        half = Run(settings)
        half.train(settings.steps // 2)
        half.save(Path(folder))
        together = torch.stack(half.losses).tolist()
        del half
        resumed = Run(settings)
        resumed.load(Path(folder))
    resumed.train(settings.steps)
    together += torch.stack(resumed.losses).tolist()

    same = together == losses and all(
        torch.equal(one, other) for one, other in zip(weights, resumed.weights(), strict=True)
    )
    falls = losses[-1] < 0.8 * losses[0]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}: {'falls' if falls else 'DOES NOT FALL'}")
    print(f"stopped and resumed: {'the same bits' if same else 'NOT THE SAME'}")
    return same and falls


def main() -> int:
    """Reads the options and returns the exit status."""
    defaults = Settings()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("device", "steps", "batch", "learning_rate", "warmup", "clip", "log_every"):
        value = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    # torch.distributed.checkpoint says so each time that it serves one process.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    try:
        return 0 if compare(Settings(**vars(parser.parse_args()))) else 1
    except torch.OutOfMemoryError as error:
        print(f"the model does not fit: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
