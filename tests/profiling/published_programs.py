# SPDX-License-Identifier: BSD-3-Clause
"""The programs behind the published figures of docs/validation.md, for dry runs on npusim."""

import contextlib

import torch
from profiling.published_models import Bottleneck as Bottleneck
from profiling.published_models import Gpt, resnet50
from torch.nn import functional as F

from torch_npusim.profiling import dry_run
from torch_npusim.sim import timeline


@contextlib.contextmanager
def recorded():
    """A timeline that begins with idle devices."""
    torch.npusim.synchronize()
    with timeline.record() as made:
        yield made


def training(make, inputs, targets, optimizer, autocast=None):
    """Returns the timeline of one step of training; another one came before it."""
    with torch.device("npusim"):
        model = make()
    chosen = optimizer(model.parameters())

    def step():
        chosen.zero_grad(set_to_none=True)
        with autocast or contextlib.nullcontext():
            out = model(inputs)
            loss = F.cross_entropy(out.flatten(0, -2), targets.flatten())
        loss.backward()
        chosen.step()

    step()
    with recorded() as made:
        step()
    return made


def resnet_training(batch, *, amp=False, tf32=False):
    """One step with SGD, as NVIDIA's DeepLearningExamples: AMP goes with channels_last."""
    with dry_run(), precision(tf32):
        images = torch.empty(batch, 3, 224, 224, device="npusim")
        labels = torch.empty(batch, dtype=torch.int64, device="npusim")
        layout = torch.channels_last if amp else torch.contiguous_format
        return training(
            lambda: resnet50().to(memory_format=layout),
            images.to(memory_format=layout),
            labels,
            lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.875, foreach=False),
            torch.autocast("npusim", torch.float16, enabled=amp),
        )


def resnet_inference(batch, *, amp=False):
    """One batch of an evaluation, with its upload."""
    with dry_run(), precision(False), torch.no_grad():
        layout = torch.channels_last if amp else torch.contiguous_format
        with torch.device("npusim"):
            model = resnet50().to(memory_format=layout).eval()
        images = torch.empty(batch, 3, 224, 224).to(memory_format=layout)
        with recorded() as made, torch.autocast("npusim", torch.float16, enabled=amp):
            model(images.to("npusim", non_blocking=True))
        return made


def gpt_training():
    """A step of nanoGPT's GPT-2 124M, eager: 12 sequences of 1,024 tokens, bfloat16."""
    with dry_run(), precision(True):
        tokens = torch.empty(12, 1024, dtype=torch.int64, device="npusim")
        return training(
            Gpt,
            tokens,
            tokens,
            lambda parameters: torch.optim.AdamW(parameters, 6e-4, betas=(0.9, 0.95)),
            torch.autocast("npusim", torch.bfloat16),
        )


def product(rows, inner, columns):
    with dry_run(), torch.device("npusim"):
        a = torch.empty(rows, inner, dtype=torch.bfloat16)
        b = torch.empty(inner, columns, dtype=torch.bfloat16)
        with recorded() as made:
            a @ b
        return made


def upload(size):
    with dry_run():
        data = torch.empty(size, dtype=torch.uint8)
        with recorded() as made:
            data.to("npusim", non_blocking=True)
        return made


@contextlib.contextmanager
def precision(tf32):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
