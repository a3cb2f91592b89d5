# SPDX-License-Identifier: BSD-3-Clause
"""Attributions leave each layer's input and output on the layer, when its hooks are gone.

Report: https://github.com/jmschrei/tangermeme/pull/84
Resolution: delete module.input and module.output with the hooks.
"""

import torch
from torch import nn

from claims.reports.library import library

MEMORY = 160 << 20
CAUSE = "growth"
ADVICE = r"[Dd]rop"

tangermeme = library(
    "tangermeme/deep_lift_shap.py",
    """
def _keep(module, inputs, output):
    module.input, module.output = inputs[0].detach(), output.detach()

def deep_lift_shap(model, X, clears):
    hooks = [layer.register_forward_hook(_keep) for layer in model]
    X.requires_grad_()
    model(X).sum().backward()
    for layer, hook in zip(model, hooks):
        hook.remove()
        if clears:
            del layer.input, layer.output
    return X.grad.cpu()
""",
)


def program(mended: bool) -> None:
    """Explains ten models, one after the other."""
    models = []
    for _ in range(10):
        models.append(nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).to("cuda"))
        tangermeme.deep_lift_shap(models[-1], torch.randn(4096, 256, device="cuda"), mended)
