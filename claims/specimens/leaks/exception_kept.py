# SPDX-License-Identifier: BSD-3-Clause
"""A worker keeps the exceptions of failed requests for its report.

Defect: a traceback holds the frames, and the frames hold their tensors.
Passes on the CPU: memory grows there too, and no test looks.
Kind: https://github.com/vllm-project/vllm-omni/pull/6385
"""

from collections.abc import Callable

import torch

CHECK = "leak"


def _request(device: str) -> None:
    activations = torch.randn(256, device=device)
    raise ValueError(f"cannot serve {tuple(activations.shape)}")


def wrong(device: str) -> Callable[[], object]:
    """Keeps the exceptions."""
    failures: list[Exception] = []

    def step() -> None:
        try:
            _request(device)
        except ValueError as error:
            failures.append(error)

    return step


def fixed(device: str) -> Callable[[], object]:
    """Keeps what they say."""
    failures: list[str] = []

    def step() -> None:
        try:
            _request(device)
        except ValueError as error:
            failures.append(str(error))

    return step
