# SPDX-License-Identifier: BSD-3-Clause
"""How long a dry step takes, and how much memory of the host.

    python tools/bench/dry.py            half a minute; processor time of one core

Each model runs in a process of its own. The steps are whole: forward, backward, AdamW.
"""

import json
import resource
import subprocess
import sys
import time

MODELS = {
    "GPT-2, 124M, 8 x 1024": ("GPT2", {}, 8, 1024),
    "Llama 3 8B, 1 x 2048": (
        "Llama",
        {
            "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        },
        1,
        2048,
    ),
}  # fmt: skip
STEPS = 5


def measured(name: str) -> dict[str, float]:
    """Returns seconds of the first step and of the fastest later one, and the process's MiB."""
    import torch
    import transformers

    from torch_npusim.sim import dry_run

    torch.set_num_threads(1)
    kind, sizes, batch, length = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(use_cache=False, **sizes)
    seconds = []
    with dry_run(memory="200GiB", temporaries="cuda"):
        with torch.device("meta"):
            model = getattr(
                transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
            )(config)
        model = model.to(dtype=torch.bfloat16).to_empty(device="npusim").train()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(STEPS):
            begun = time.process_time()
            tokens = torch.zeros(batch, length, dtype=torch.int64, device="npusim")
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.process_time() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"first": seconds[0], "later": min(seconds[1:]), "MiB": peak}


def main() -> None:
    """Prints a row per model."""
    for name in MODELS:
        words = [sys.executable, __file__, name]
        found = json.loads(
            subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[
                -1
            ]
        )
        print(
            f"{name:24} first step {found['first']:.2f} s, then {found['later']:.2f} s, "
            f"{found['MiB']:.0f} MiB in the process"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1])))
    else:
        main()
