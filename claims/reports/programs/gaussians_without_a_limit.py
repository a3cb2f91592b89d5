# SPDX-License-Identifier: BSD-3-Clause
"""The splats of a scene are split and cloned until they fill the device.

Report: https://github.com/WebODM/OpenSplat/issues/15
Resolution: --max-gaussians: no more splats than that.
"""

import torch

MEMORY = 192 << 20
CAUSE = "growth"
ADVICE = r"limit|cap\b"


class Model:
    """Splats with their optimizers' moments."""

    def __init__(self, count: int) -> None:
        shapes = {"means": 3, "scales": 3, "quats": 4, "features": 48}
        self.splats = {
            name: torch.rand(count, width, device="cuda", requires_grad=True)
            for name, width in shapes.items()
        }
        self.moments = {name: torch.zeros_like(value) for name, value in self.splats.items()}

    def render(self) -> torch.Tensor:
        """Returns an image's loss."""
        colors = self.splats["features"].mean(-1) * self.splats["means"].sum(-1)
        shapes = self.splats["scales"].prod(-1) * self.splats["quats"].norm(dim=-1)
        return (colors * shapes).square().mean()

    def densify(self, share: float, most: int) -> None:
        """Clones a share of the splats, up to a number of them."""
        count = len(self.splats["means"])
        extra = min(int(count * share), most - count)
        for name, value in self.splats.items():
            grown = torch.cat((value.detach(), value.detach()[:extra]))
            self.splats[name] = grown.requires_grad_()
            moment = self.moments[name]
            self.moments[name] = torch.cat((moment, torch.zeros_like(moment[:extra])))


def program(mended: bool) -> None:
    """Trains 400 steps, with more splats every tenth."""
    model = Model(20000)
    for step in range(400):
        model.render().backward()
        for name, value in model.splats.items():
            model.moments[name].lerp_(value.grad, 0.1)
            value.grad = None
        if step % 10 == 9:
            model.densify(0.08, 100000 if mended else 1 << 30)
