# SPDX-License-Identifier: BSD-3-Clause
"""Programs of the second list of blind_peaks.py: convolutional networks over four ranks with
synchronised batch norm, and a transformer over two ranks with FSDP.

The networks are those of mmsegmentation 0.x, in plain torch: its configurations fcn_r50-d8 and
fcn_unet_s5-d16, and the modules that these name. The transformer is lightning.pytorch.demos's.
"""

import gc
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

DEVICE = "npusim"
STEPS = 3


def _group(ranks: int) -> None:
    store = dist.HashStore()
    dist.init_process_group("uniform", rank=0, world_size=ranks, store=store)


# --- mmsegmentation


def unit(inputs: int, outputs: int, size: int = 3, *, stride=1, dilation=1, relu=True):
    """A convolution without bias, batch norm, and a ReLU in place."""
    padding = dilation * (size // 2)
    layers = [
        nn.Conv2d(inputs, outputs, size, stride, padding, dilation, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if relu else []))


class Block(nn.Module):
    """A residual block: of two convolutions, or of three where `deep`."""

    def __init__(self, inputs, width, stride, dilation, deep):
        super().__init__()
        outputs = 4 * width if deep else width
        if deep:
            layers = [
                unit(inputs, width, 1),
                unit(width, width, stride=stride, dilation=dilation),
                unit(width, outputs, 1, relu=False),
            ]
        else:
            layers = [
                unit(inputs, width, stride=stride, dilation=dilation),
                unit(width, width, relu=False),
            ]
        self.layers = nn.Sequential(*layers)
        changes = stride != 1 or inputs != outputs
        self.shortcut = unit(inputs, outputs, 1, stride=stride, relu=False) if changes else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        known = x if self.shortcut is None else self.shortcut(x)
        out = self.layers(x)
        out += known
        return self.relu(out)


class ResNet(nn.Module):
    """ResNetV1c: three convolutions for a stem; the last two stages dilate instead of halving."""

    def __init__(self, depth):
        super().__init__()
        deep = depth > 34
        counts = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth]
        self.stem = nn.Sequential(
            unit(3, 32, stride=2), unit(32, 32), unit(32, 64), nn.MaxPool2d(3, 2, 1)
        )
        inputs, stages = 64, []
        for i, (stride, dilation) in enumerate(((1, 1), (2, 1), (1, 2), (1, 4))):
            width, blocks = 64 << i, []
            for j in range(counts[i]):
                first = j == 0
                contracted = dilation // 2 if first and dilation > 1 else dilation
                blocks.append(Block(inputs, width, stride if first else 1, contracted, deep))
                inputs = 4 * width if deep else width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)

    def forward(self, x):
        x, found = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found


class UNet(nn.Module):
    """UNet-S5-D16 with interpolation and a convolution for each step up."""

    def __init__(self):
        super().__init__()
        widths = [64 << i for i in range(5)]
        self.down = nn.ModuleList(
            nn.Sequential(
                *([nn.MaxPool2d(2)] if i else []),
                unit(widths[i - 1] if i else 3, widths[i]),
                unit(widths[i], widths[i]),
            )
            for i in range(5)
        )
        self.up = nn.ModuleList(
            nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
                unit(widths[i + 1], widths[i], 1),
            )
            for i in range(4)
        )
        self.join = nn.ModuleList(
            nn.Sequential(unit(2 * widths[i], widths[i]), unit(widths[i], widths[i]))
            for i in range(4)
        )

    def forward(self, x):
        encoded = []
        for stage in self.down:
            x = stage(x)
            encoded.append(x)
        found = [x]
        for i in reversed(range(4)):
            x = self.join[i](torch.cat([encoded[i], self.up[i](x)], dim=1))
            found.append(x)
        return found


class Head(nn.Module):
    """FCNHead: convolutions, the input beside their result where `beside`, and classes."""

    def __init__(self, inputs, width, count, beside, classes):
        super().__init__()
        self.convolutions = nn.Sequential(
            *(unit(inputs if i == 0 else width, width) for i in range(count))
        )
        self.both = unit(inputs + width, width) if beside else None
        self.dropout = nn.Dropout2d(0.1)
        self.classes = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        out = self.convolutions(x)
        if self.both is not None:
            out = self.both(torch.cat([x, out], dim=1))
        return self.classes(self.dropout(out))


class Segmentor(nn.Module):
    """A backbone with two heads; forward() returns the sum of their losses."""

    def __init__(self, backbone, head, auxiliary, index, corners):
        super().__init__()
        self.backbone, self.head, self.auxiliary = backbone, head, auxiliary
        self.index, self.corners = index, corners

    def loss(self, logits, labels):
        logits = F.interpolate(
            logits, size=labels.shape[2:], mode="bilinear", align_corners=self.corners
        )
        labels = labels.squeeze(1)
        loss = F.cross_entropy(logits, labels, reduction="none", ignore_index=255).mean()
        with torch.no_grad():  # the accuracy in the log
            found = logits.topk(1, dim=1)[1].transpose(0, 1)
            right = found.eq(labels.unsqueeze(0).expand_as(found))
            right[:1].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / labels.numel())
        return loss

    def forward(self, images, labels):
        features = self.backbone(images)
        loss = self.loss(self.head(features[-1]), labels)
        return loss + 0.4 * self.loss(self.auxiliary(features[self.index]), labels)


def segmentation(
    depth: int, height: int, width: int, batch: int, classes: int, corners: bool = False
) -> None:
    """Steps of mmsegmentation's trainer on four GPUs: float32, SGD, DDP; depth 0 is the U-Net."""
    _group(4)
    if depth == 0:
        heads = Head(64, 64, 1, False, classes), Head(128, 64, 1, False, classes)
        model = Segmentor(UNet(), *heads, 3, corners)
    else:
        top = 2048 if depth > 34 else 512
        heads = Head(top, top // 4, 2, True, classes), Head(top // 2, top // 8, 1, False, classes)
        model = Segmentor(ResNet(depth), *heads, 2, corners)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model).to(DEVICE)
    model = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=False
    )
    for _ in range(STEPS):
        images = torch.zeros(batch, 3, height, width).to(DEVICE)
        labels = torch.zeros(batch, 1, height, width, dtype=torch.int64).to(DEVICE)
        loss = model(images, labels)
        optimizer.zero_grad(set_to_none=False)  # torch of 2020
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


# --- Lightning's guide to FSDP


class AdamOf20(torch.optim.Adam):
    """Adam with the step of torch 2.0 (torch/optim/adam.py, `_multi_tensor_adam`).

    Square roots and denominators are two lists of temporaries there; torch 2.13 has one.
    """

    @torch.no_grad()
    def step(self):
        """Takes a step with the default arguments of Adam."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        parameters = [p for p in parameters if p.grad is not None]
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
        gradients = [p.grad for p in parameters]
        means, squares = ([self.state[p][name] for p in parameters] for name in "mv")
        torch._foreach_mul_(means, 0.9)
        torch._foreach_add_(means, gradients, alpha=0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, 0.03)
        denominators = torch._foreach_add(roots, 1e-8)
        torch._foreach_addcdiv_(parameters, means, denominators, -1e-3)


def wikitext(strategy: str, checkpointed: bool = False, as_in_2_0: bool = False) -> None:
    """Steps of Lightning's example with two GPUs: float32, Adam, 8 sequences of 35 tokens."""
    from lightning.pytorch.demos import Transformer
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    _group(2)
    layers = {nn.TransformerEncoderLayer, nn.TransformerDecoderLayer}
    model = Transformer(vocab_size=33278, nlayers=32, nhid=4096, ninp=1024, nhead=64)
    adam = AdamOf20 if as_in_2_0 else torch.optim.Adam
    if strategy == "DDP":
        optimizer = adam(model.parameters())
        model = nn.parallel.DistributedDataParallel(model.to(DEVICE))
    else:
        model = FullyShardedDataParallel(
            model.to(DEVICE),
            sharding_strategy=ShardingStrategy[strategy],
            device_id=torch.device(DEVICE, 0),
            auto_wrap_policy=ModuleWrapPolicy(layers),
            use_orig_params=True,
            limit_all_gathers=not as_in_2_0,  # its default, which torch 2.1 changed
        )
        if checkpointed:
            from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper

            wrapper.apply_activation_checkpointing(
                model,
                checkpoint_wrapper_fn=partial(
                    wrapper.checkpoint_wrapper, checkpoint_impl=wrapper.CheckpointImpl.NO_REENTRANT
                ),
                check_fn=lambda module: isinstance(module, tuple(layers)),
            )
        optimizer = adam(model.parameters())
    for _ in range(STEPS):
        tokens, target = (torch.zeros(8, 35, dtype=torch.int64).to(DEVICE) for _ in range(2))
        output = model(tokens, target)
        loss = F.nll_loss(output, target.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    dist.destroy_process_group()
    gc.collect()
