# SPDX-License-Identifier: BSD-3-Clause
"""Charges of whole models, beside torch.utils.flop_counter: writes docs/reference/account.md.

    python tools/pages/account.py

Rule C1 fixes every number, so a change of one is a change of the account: look at the difference.
"""

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode, flop_registry

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from small_models import LastStep, ResidualBlock

from torch_npusim import _C
from torch_npusim.sim import clock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "account.md"
BEGIN, END = "<!-- begin: written by tools/pages/account.py -->", "<!-- end -->"
COUNTED = {str(op) for op in flop_registry}  # "aten.mm"
LAYERS = "aten::mkldnn_rnn_layer"


class CausalBlock(nn.Module):
    """Attention to what came before and a feed-forward part, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, time, width] to the same shape."""
        parts = self.project(self.norms[0](x)).chunk(3, dim=-1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


def resnet() -> tuple[nn.Module, torch.Tensor]:
    widths, blocks = [16, 16, 32, 64, 128], []
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        first_of = ResidualBlock(before, after, 2 if i else 1, identity=not i)
        blocks += [first_of, ResidualBlock(after, after, identity=True)]
    first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 16)]
    return nn.Sequential(*first, *blocks, *last), torch.randn(4, 3, 32, 32)


def bert() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(
        128, 4, 512, dropout=0.0, activation="gelu", batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(512, 128), encoder, nn.Linear(128, 512))
    return model, torch.randint(512, (4, 64))


def gpt() -> tuple[nn.Module, torch.Tensor]:
    blocks = [CausalBlock(128, 4) for _ in range(2)]
    last = [nn.LayerNorm(128), nn.Linear(128, 512)]
    return nn.Sequential(nn.Embedding(512, 128), *blocks, *last), torch.randint(512, (4, 64))


def lstm() -> tuple[nn.Module, torch.Tensor]:
    return LastStep(64, 128, 16), torch.randn(8, 32, 64)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "ResNet-18, width 16": resnet,
    "BERT, 2 layers of 128": bert,
    "GPT, 2 layers of 128": gpt,
    "LSTM, 2 layers of 128": lstm,
}


@dataclass
class Row:
    """Operations of a pass by whom they are charged to, and how long the device takes."""

    model: str
    what: str
    counter: int  # torch's
    counted: int  # here, by the operators that torch's counter knows
    layers: int
    others: dict[str, int]
    time_ns: int

    @property
    def other(self) -> int:
        return sum(self.others.values())

    @property
    def total(self) -> int:
        return self.counted + self.layers + self.other


def passes(model: nn.Module, data: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Returns what is measured: a forward, and a training step with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def train() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    train()  # makes the optimizer's state
    return {"forward": torch.no_grad()(lambda: model(data)), "training step": train}


def measured() -> list[Row]:
    """Runs every model on both sides."""
    rows = []
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model, data = make()
        counters = {}
        for what, run in passes(model, data).items():
            with FlopCounterMode(display=False) as counter:
                run()
            counters[what] = counter.get_total_flops()
        model, data = model.to("npusim"), data.to("npusim")
        for what, run in passes(model, data).items():
            torch.npusim.synchronize()
            start = clock.host_time_ns()
            _C.start_event_log()
            run()
            log = _C.take_event_log()
            torch.npusim.synchronize()
            time_ns = clock.host_time_ns() - start
            charged: dict[str, float] = defaultdict(float)
            for entry in log:
                if entry["kind"] == "command":
                    charged[entry["name"]] += entry["flops"]
            rows.append(_row(name, what, counters[what], charged, time_ns))
    return rows


def _row(model: str, what: str, counter: int, charged: dict[str, float], time_ns: int) -> Row:
    sums = {"counted": 0, "layers": 0}
    others = {}
    for name, flops in charged.items():
        packet = "aten." + name.removeprefix("aten::").split(".")[0]
        if packet in COUNTED:
            sums["counted"] += round(flops)
        elif name.startswith(LAYERS):
            sums["layers"] += round(flops)
        else:
            others[name] = round(flops)
    return Row(model, what, counter, **sums, others=others, time_ns=time_ns)


def table(rows: list[Row]) -> str:
    """Returns the Markdown between the marks."""
    lines = [
        "| model | pass | torch's counter | the same operators | fused RNN layers "
        "| all others | of them most | time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        most = max(row.others, key=lambda name: row.others[name])
        lines.append(
            f"| {row.model} | {row.what} | {row.counter:,} | {row.counted:,} "
            f"| {row.layers:,} | {row.other:,} ({row.other / row.total:.1%}) | `{most}` "
            f"| {row.time_ns:,} ns |"
        )
    return "\n".join(lines)


def rewritten(page: str, rows: list[Row]) -> str:
    """Returns the page with a new table."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(), measured()))
    sys.stdout.write(f"{PAGE}: look at the difference\n")
