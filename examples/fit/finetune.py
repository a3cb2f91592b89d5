# SPDX-License-Identifier: BSD-3-Clause
"""Fine-tuning of a model of the size of Llama 3 8B, in bfloat16, with AdamW.

`--how all` trains every parameter, `lora` adapters of rank 16 beside them (package peft), and
`shard` every parameter, each rank of torchrun its share (FSDP2).
"""

import argparse

import torch
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--length", type=int, default=2048)
parser.add_argument("--how", choices=("all", "lora", "shard"), default="all")
options = parser.parse_args()

config = LlamaConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
    num_attention_heads=32, num_key_value_heads=8, use_cache=False, dtype="bfloat16",
)  # fmt: skip
with torch.device("meta"):
    model = LlamaForCausalLM(config).to(dtype=torch.bfloat16)  # type: ignore[call-arg]
    if options.how == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    if options.how == "shard":
        torch.distributed.init_process_group("nccl")
        for block in model.model.layers:
            fully_shard(block)
        fully_shard(model)
model = model.to_empty(device="cuda").train()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-5)
for _ in range(2):
    tokens = torch.zeros(options.batch, options.length, dtype=torch.int64, device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
