# SPDX-License-Identifier: BSD-3-Clause
"""Programs with the models of transformers, diffusers and peft, small enough for a laptop.

    python programs.py NAME

runs one on npusim; record.py beside it records them all. Weights are random: nothing is downloaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from small_models import of_transformers

DEVICE = "npusim"
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(run: Callable[[], None]) -> Callable[[], None]:
    """Put a program into the table under its name, with dashes."""
    PROGRAMS[run.__name__.strip("_").replace("_", "-")] = run
    return run


def _llama(use_cache=False):
    more = {"vocab_size": 2000, "num_key_value_heads": 4, "use_cache": use_cache}
    return of_transformers("Llama", "ForCausalLM", 256, 688, 6, 8, **more).to(DEVICE)


def _train(model, batches, loss_of, rate: float = 1e-3) -> None:
    model.train()
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=rate
    )
    for batch in batches:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 2000, (batch, length)).to(DEVICE)


def _language_loss(model, batch):
    return model(input_ids=batch, labels=batch).loss


def _lengths() -> list[torch.Tensor]:
    return [_tokens(4, length) for length in (96, 128, 64, 112, 80)]


@program
def llama_train() -> None:
    """Train Llama with lengths that differ from step to step."""
    _train(_llama(), _lengths(), _language_loss)


@program
def llama_checkpoint() -> None:
    """The same with gradient checkpointing."""
    model = _llama()
    model.gradient_checkpointing_enable()
    _train(model, _lengths(), _language_loss)


@program
def llama_lora() -> None:
    """Fine-tune Llama's attention with LoRA adapters of peft."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    _train(get_peft_model(_llama(), config), _lengths(), _language_loss)


@program
def llama_generate() -> None:
    """Generate from prompts of several lengths, one after the other: caches grow by a token."""
    model = _llama().eval()
    for length in (20, 60, 35):
        model.generate(
            _tokens(2, length), max_new_tokens=24, do_sample=False, use_cache=True, pad_token_id=0
        )


@program
def llama_continuous() -> None:
    """Continuous batching: eight requests, three at a time, each with a growing cache."""
    from transformers import DynamicCache

    model = _llama(use_cache=True).eval()
    waiting = [(20 + 13 * i % 50, 6 + 5 * i % 11) for i in range(8)]  # prompt, tokens to come
    running: list[list] = []
    with torch.no_grad():
        while waiting or running:
            while waiting and len(running) < 3:
                prompt, left = waiting.pop(0)
                cache = DynamicCache()
                logits = model(_tokens(1, prompt), past_key_values=cache, use_cache=True).logits
                running.append([cache, logits[:, -1:].argmax(-1), left])
            for request in running:
                cache, token, _ = request
                logits = model(token, past_key_values=cache, use_cache=True).logits
                request[1] = logits[:, -1:].argmax(-1)
                request[2] -= 1
            running = [request for request in running if request[2] > 0]


@program
def mixtral_train() -> None:
    """Train a mixture of eight experts, two for each token."""
    more = {"num_key_value_heads": 2, "num_local_experts": 8, "use_cache": False}
    # The other implementation counts tokens with an integer histc().
    more |= {"vocab_size": 2000, "experts_implementation": "eager"}
    model = of_transformers("Mixtral", "ForCausalLM", 128, 256, 3, 4, **more).to(DEVICE)
    _train(model, [_tokens(2, 64) for _ in range(3)], _language_loss)


@program
def bert_train() -> None:
    """Train BERT to classify sentences."""
    model = of_transformers("Bert", "ForSequenceClassification", 192, 768, 6, 6).to(DEVICE)
    labels = torch.tensor([0, 1, 0, 1]).to(DEVICE)
    _train(model, _lengths(), lambda model, batch: model(batch, labels=labels).loss)


@program
def vit_train() -> None:
    """Train a vision transformer."""
    more = {"image_size": 96, "num_labels": 10}
    model = of_transformers("ViT", "ForImageClassification", 192, 768, 6, 3, **more)
    _images(model.to(DEVICE), 96)


@program
def resnet_train() -> None:
    """Train a residual convolutional network."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 2, 2], num_labels=10
    )
    _images(ResNetForImageClassification(config).to(DEVICE), 64)


def _images(model, side: int) -> None:
    labels = torch.randint(0, 10, (4,)).to(DEVICE)
    batches = [torch.randn(4, 3, side, side).to(DEVICE) for _ in range(3)]
    _train(model, batches, lambda model, batch: model(batch, labels=labels).loss)


@program
def unet_train() -> None:
    """Train the U-Net of a diffusion model to find the noise in an image."""
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    ).to(DEVICE)
    scheduler = DDPMScheduler()
    noise = torch.randn(2, 3, 32, 32).to(DEVICE)
    times = torch.tensor([10, 500]).to(DEVICE)

    def loss(model, batch):
        noisy = scheduler.add_noise(batch, noise, times)
        return torch.nn.functional.mse_loss(model(noisy, times).sample, noise)

    _train(model, [torch.randn(2, 3, 32, 32).to(DEVICE) for _ in range(3)], loss)


if __name__ == "__main__":
    torch.manual_seed(0)
    PROGRAMS[sys.argv[1]]()
