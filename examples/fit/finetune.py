# SPDX-License-Identifier: BSD-3-Clause
"""Fine-tuning of a model of the size of Llama 3 8B, in bfloat16, with AdamW."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--length", type=int, default=2048)
options = parser.parse_args()

config = LlamaConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
    num_attention_heads=32, num_key_value_heads=8, use_cache=False, dtype="bfloat16",
)  # fmt: skip
with torch.device("meta"):
    model = LlamaForCausalLM(config).to(dtype=torch.bfloat16)  # type: ignore[call-arg]
model = model.to_empty(device="cuda").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for _ in range(2):
    tokens = torch.zeros(options.batch, options.length, dtype=torch.int64, device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
