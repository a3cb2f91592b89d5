# SPDX-License-Identifier: BSD-3-Clause
"""Features on the device are pickled and loaded by a worker process.

Defect: loading puts them back on the device, which the forked worker cannot use.
Passes on the CPU: the worker may have tensors there. Starts one worker process.
Kind: https://github.com/pytorch/pytorch/issues/40403
"""

import io
import multiprocessing

import torch


def _load(data: bytes, answers: "multiprocessing.SimpleQueue[str]") -> None:
    try:
        torch.load(io.BytesIO(data))
        answers.put("")
    except Exception as error:
        answers.put(str(error))


def _share(features: torch.Tensor) -> None:
    file = io.BytesIO()
    torch.save(features, file)
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    worker = context.Process(target=_load, args=(file.getvalue(), answers))
    worker.start()
    problem = answers.get()
    worker.join()
    if problem:
        raise RuntimeError(f"worker: {problem}")


def wrong(device: str) -> None:
    """Saves them as they are."""
    _share(torch.randn(4, device=device))


def fixed(device: str) -> None:
    """Saves a copy on the host."""
    _share(torch.randn(4, device=device).cpu())
