# SPDX-License-Identifier: BSD-3-Clause
"""Small models for whole steps."""

from __future__ import annotations

import functools
from typing import Any, Callable

from .device import device


def models() -> dict[str, Callable[[], tuple[Any, Callable[[], Any]]]]:
    """Returns ten small models: each a function that makes the module and the function of a loss."""
    import torch
    from torch import nn
    from torch.nn import functional

    def rand(*size: int) -> Any:
        return torch.randn(*size, device=device())

    def tokens(n: int, length: int, most: int = 1000) -> Any:
        return torch.arange(n * length, device=device()).view(n, length) * 7 % most

    def simple(module: Any, x: Any, y: Any) -> tuple[Any, Callable[[], Any]]:
        module = module.to(device())

        def loss() -> Any:
            out = module(x)
            out = out[0] if isinstance(out, tuple) else out
            return functional.cross_entropy(out.flatten(0, -2).float(), y.flatten())

        return module, loss

    class Residual(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    class Attention(nn.Module):
        def __init__(self, width: int, heads: int, causal: bool) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.heads, self.causal = heads, causal

        def forward(self, x: Any) -> Any:
            n, length, width = x.shape
            parts = self.qkv(x).view(n, length, 3, self.heads, width // self.heads)
            q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            return self.out(mixed.transpose(1, 2).reshape(n, length, width))

    class Experts(nn.Module):
        def __init__(self, width: int, count: int) -> None:
            super().__init__()
            self.gate = nn.Linear(width, count)
            self.up = nn.Parameter(torch.randn(count, width, 2 * width) / width**0.5)
            self.down = nn.Parameter(torch.randn(count, 2 * width, width) / width**0.5)

        def forward(self, x: Any) -> Any:
            flat = x.flatten(0, 1)
            weight, chosen = self.gate(flat).softmax(-1).topk(2)
            every = torch.einsum("tw,ewh->teh", flat, self.up)
            every = torch.einsum("teh,ehw->tew", functional.gelu(every), self.down)
            index = chosen.unsqueeze(-1).expand(-1, -1, every.shape[-1])
            return (every.gather(1, index) * weight.unsqueeze(-1)).sum(1).view_as(x)

    def block(width: int, heads: int, causal: bool, feed: Any = None, drop: float = 0.0) -> Any:
        feed = feed or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        first = nn.Sequential(
            nn.LayerNorm(width), Attention(width, heads, causal), nn.Dropout(drop)
        )
        return nn.Sequential(Residual(first), Residual(nn.Sequential(nn.LayerNorm(width), feed)))

    def transformer(causal: bool, feed: Any = None, drop: float = 0.0) -> Any:
        middle = [block(128, 4, causal, feed and feed(), drop) for _ in range(2)]
        return nn.Sequential(nn.Embedding(1000, 128), *middle, nn.Linear(128, 1000))

    def conv(a: int, b: int, stride: int = 1) -> list[Any]:
        return [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    def resnet() -> Any:
        body = [Residual(nn.Sequential(*conv(32, 32), *conv(32, 32))) for _ in range(2)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
        return nn.Sequential(*conv(3, 32, 2), nn.MaxPool2d(2), *body, *conv(32, 64, 2), *head)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(*conv(3, 16))
            self.middle = nn.Sequential(
                nn.MaxPool2d(2), *conv(16, 32), nn.ConvTranspose2d(32, 16, 2, 2)
            )
            self.up = nn.Sequential(*conv(32, 16), nn.Conv2d(16, 10, 1))

        def forward(self, x: Any) -> Any:
            kept = self.down(x)
            return self.up(torch.cat([kept, self.middle(kept)], 1)).movedim(1, -1)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.lstm = nn.Embedding(1000, 64), nn.LSTM(64, 64, 2, batch_first=True)
            self.out = nn.Linear(64, 1000)

        def forward(self, x: Any) -> Any:
            return self.out(self.lstm(self.words(x))[0])

    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList([nn.EmbeddingBag(500, 16, mode="sum") for _ in range(4)])
            self.top = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

        def forward(self, x: Any) -> Any:
            return self.top(torch.cat([bag(x) for bag in self.bags], 1))

    class Variational(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(256, 64), nn.Linear(32, 256)

        def forward(self, x: Any) -> Any:
            mean, spread = self.enter(x).chunk(2, -1)
            return self.leave(mean + torch.randn_like(mean) * spread.exp())

    def vision() -> Any:
        stem = [nn.Conv2d(3, 128, 8, 8), nn.Flatten(2), Turned()]
        return nn.Sequential(*stem, block(128, 4, False), block(128, 4, False), nn.Linear(128, 10))

    class Turned(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.transpose(1, 2)

    def mlp() -> Any:
        return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))

    words = functools.partial(tokens, 4, 64)
    return {
        "mlp": lambda: simple(mlp(), rand(64, 256), tokens(64, 1, 10)),
        "resnet": lambda: simple(resnet(), rand(8, 3, 64, 64), tokens(8, 1, 10)),
        "bert": lambda: simple(transformer(False, drop=0.1), words(), words()),
        "gpt": lambda: simple(transformer(True), words(), words()),
        "lstm": lambda: simple(Recurrent(), words(), words()),
        "unet": lambda: simple(UNet(), rand(2, 3, 32, 32), tokens(2, 1024, 10)),
        "moe": lambda: simple(transformer(True, lambda: Experts(128, 4)), words(), words()),
        "vit": lambda: simple(vision(), rand(4, 3, 64, 64), tokens(4, 64, 10)),
        "dlrm": lambda: simple(Recommender(), tokens(64, 8, 500), tokens(64, 1, 2)),
        "vae": lambda: simple(Variational(), rand(64, 256), tokens(64, 1, 256)),
    }
