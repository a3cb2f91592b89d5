# SPDX-License-Identifier: BSD-3-Clause
"""An evaluation gathers the logits of all batches on the device.

Report: https://github.com/EuroEval/EuroEval/pull/973
Resolution: eval_accumulation_steps moves what is gathered to the host every 32 batches.
"""

import torch

from claims.reports.library import library

MEMORY = 192 << 20
CAUSE = "growth"
ADVICE = r"nested_concat.*(host|CPU)"

transformers = library(
    "transformers/trainer.py",
    """
import torch

def nested_concat(tensors, new):
    return torch.cat((tensors, new), dim=0)

def evaluation_loop(model, batches, eval_accumulation_steps):
    all_preds, host = None, []
    for step, batch in enumerate(batches):
        logits = model(batch)
        all_preds = logits if all_preds is None else nested_concat(all_preds, logits)
        if eval_accumulation_steps and (step + 1) % eval_accumulation_steps == 0:
            host.append(all_preds.cpu())
            all_preds = None
""",
)


def program(mended: bool) -> None:
    """Asks a classifier about 160 batches."""
    steps = 32 if mended else None
    model = torch.nn.Linear(64, 8192).to("cuda")
    batches = (torch.randn(32, 64, device="cuda") for _ in range(160))
    with torch.no_grad():
        transformers.evaluation_loop(model, batches, steps)
