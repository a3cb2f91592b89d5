# SPDX-License-Identifier: BSD-3-Clause
"""Tiny models, compiled on npusim, against eager npusim: forward and gradients.

The tolerance is twice the error of compiled CPU against eager CPU on the same sample, and no less
than a few roundings. All models: python tests/compile/test_models.py.
"""

import copy
import sys

import pytest
import torch
from small_models import NO_DROPOUT, LastStep, ResidualBlock, of_transformers
from torch import nn


def resnet():
    head = nn.Conv2d(3, 8, 3, padding=1)
    model = nn.Sequential(
        head,
        ResidualBlock(8, 8, identity=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    return model, torch.randn(2, 3, 12, 12)


def lstm():
    return LastStep(8, 12, 3, layers=1), torch.randn(2, 5, 8)


def llama():
    more = {"vocab_size": 64, "num_key_value_heads": 2, "use_cache": False}
    model = of_transformers("Llama", "ForCausalLM", 32, 48, 1, 4, **more)
    return model, torch.randint(0, 64, (2, 9))


def bert():
    model = of_transformers("Bert", "Model", 32, 48, 1, 4, vocab_size=64, **NO_DROPOUT)
    return model, torch.randint(0, 64, (2, 9))


def vit():
    model = of_transformers("ViT", "Model", 32, 48, 1, 4, image_size=16, patch_size=8, **NO_DROPOUT)
    return model, torch.randn(2, 3, 16, 16)


def detr():
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = DetrConfig(
        backbone_config=backbone,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        d_model=32,
        num_queries=5,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        dropout=0.0,
        num_labels=3,
    )
    return DetrForObjectDetection(config), torch.randn(2, 3, 32, 32)


def timm_resnet():
    import timm

    return timm.create_model("resnet10t", num_classes=4), torch.randn(2, 3, 32, 32)


def timm_convnext():
    import timm

    sizes = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}
    return timm.create_model("convnext_atto", num_classes=4, **sizes), torch.randn(2, 3, 32, 32)


class Denoiser(nn.Module):
    """The U-Net of diffusers at one time step."""

    def __init__(self):
        super().__init__()
        from diffusers import UNet2DModel

        self.unet = UNet2DModel(
            sample_size=16,
            in_channels=3,
            out_channels=3,
            layers_per_block=1,
            block_out_channels=(8, 16),
            norm_num_groups=4,
            attention_head_dim=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )

    def forward(self, x):
        return self.unet(x, 7).sample


def unet():
    return Denoiser(), torch.randn(2, 3, 16, 16)


# The last three want the packages timm and diffusers.
ALL = (resnet, lstm, llama, bert, vit, detr, timm_resnet, timm_convnext, unet)
MODELS = {make.__name__: make for make in ALL}
SAMPLE = ("resnet",)


def results(model, x, device, compile):
    """The first output and all gradients, on the CPU.

    Where the loss does not reach a parameter, compiled code makes a gradient of zeros.
    """
    torch._dynamo.reset()
    model = copy.deepcopy(model).to(device)
    out = (torch.compile(model) if compile else model)(x.to(device))
    first = out if isinstance(out, torch.Tensor) else next(iter(out.values()))
    first.square().mean().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return [t.detach().cpu() for t in (first, *gradients)]


def distance(ours, theirs):
    return max(
        ((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).item()
        for a, b in zip(ours, theirs, strict=True)
    )


def errors(name):
    """How far compiled is from eager: on npusim, and on the CPU."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    return tuple(
        distance(results(model, x, device, True), results(model, x, device, False))
        for device in ("npusim", "cpu")
    )


@pytest.mark.parametrize("name", SAMPLE)
def test_compiled_models_are_eagers(name):
    ours, theirs = errors(name)
    assert ours <= 2 * max(theirs, 1e-6)


if __name__ == "__main__":  # all, or those that are named
    import torch_npusim  # noqa: F401

    for chosen in sys.argv[1:] or MODELS:
        found, on_cpu = errors(chosen)
        verdict = "ok" if found <= 2 * max(on_cpu, 1e-6) else "FAIL"
        print(f"{verdict:4}  {chosen:13} npusim {found:.2e}  CPU {on_cpu:.2e}", flush=True)
