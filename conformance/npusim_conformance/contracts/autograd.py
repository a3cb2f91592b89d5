# SPDX-License-Identifier: BSD-3-Clause
"""Autograd around operators: threads, hooks, accumulation, checkpoints, graphs that cross."""

import threading
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from npusim_conformance.contracts import contract, on, other_device, refuses, same
from npusim_conformance.contracts.stream import current
from npusim_conformance.properties.base import Run, require


def _grad(tensor: torch.Tensor) -> torch.Tensor:
    require(tensor.grad is not None, "there is no grad")
    assert tensor.grad is not None
    return tensor.grad


@contract()
def gradients_are_on_the_device(run: Run) -> None:
    """backward() leaves grad where the leaf lies, with its dtype and shape."""
    leaf = on(run.device, 1, 2, 3).requires_grad_()
    torch.autograd.backward((leaf * leaf).sum())
    same("device", _grad(leaf).device, run.device)
    same("grad", _grad(leaf), torch.tensor([2.0, 4.0, 6.0]))


@contract()
def gradients_accumulate(run: Run) -> None:
    """backward() adds to grad, retain_graph lets it run again, and without it raises."""
    leaf = on(run.device, 1, 2).requires_grad_()
    result = (leaf * leaf).sum()
    torch.autograd.backward(result, retain_graph=True)
    torch.autograd.backward(result)
    same("grad after two", _grad(leaf), torch.tensor([4.0, 8.0]))
    refuses("a third backward()", lambda: torch.autograd.backward(result))
    same("grad after it", _grad(leaf), torch.tensor([4.0, 8.0]))


@contract()
def second_derivatives(run: Run) -> None:
    """create_graph=True lets a gradient be differentiated again."""
    leaf = on(run.device, 1, 2, 3).requires_grad_()
    (first,) = torch.autograd.grad((leaf * leaf * leaf).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    same("second derivative", second, torch.tensor([6.0, 12.0, 18.0]))


@contract()
def hooks_run(run: Run) -> None:
    """Hooks of tensors, of accumulation and of modules run, and may change gradients."""
    leaf = on(run.device, 1, 2).requires_grad_()
    seen: list[str] = []

    def double(grad: torch.Tensor) -> torch.Tensor:
        seen.append(grad.device.type)
        return grad * 2

    leaf.register_hook(double)  # type: ignore[no-untyped-call]
    accumulated = leaf.register_post_accumulate_grad_hook
    accumulated(lambda tensor: seen.append("accumulated"))  # type: ignore[no-untyped-call]
    module = torch.nn.Linear(2, 2).to(run.device)
    module.register_full_backward_hook(lambda *_: seen.append("module"))
    with torch.no_grad():
        module.weight.copy_(torch.eye(2))
    torch.autograd.backward(module(leaf.unsqueeze(0)).sum())
    same("grad after a hook that doubles", _grad(leaf), torch.tensor([2.0, 2.0]))
    same("hooks that ran", seen, ["module", run.device.type, "accumulated"])


@contract()
def errors_of_hooks_come_through(run: Run) -> None:
    """An exception in a hook comes out of backward(), and the next backward() works."""
    leaf = on(run.device, 1, 2).requires_grad_()

    def fail(grad: torch.Tensor) -> None:
        raise KeyError("from the hook")

    handle = leaf.register_hook(fail)  # type: ignore[no-untyped-call]
    refuses("backward()", lambda: torch.autograd.backward((leaf * 2).sum()), KeyError)
    handle.remove()
    torch.autograd.backward((leaf * 2).sum())
    same("grad of the next", _grad(leaf), torch.tensor([2.0, 2.0]))


@contract()
def threads_share_a_leaf(run: Run) -> None:
    """Backward passes in four threads add up in one leaf."""
    leaf = on(run.device, 1, 2, 3).requires_grad_()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                torch.autograd.backward((leaf * 2).sum())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require(not errors, f"a thread raised {errors[:1]}")
    same("grad", _grad(leaf), torch.full((3,), 80.0))


@contract()
def checkpoints_recompute(run: Run) -> None:
    """torch.utils.checkpoint gives the same gradients, reentrant and not."""
    for use_reentrant in (False, True):
        leaf = on(run.device, 1, 2, 3).requires_grad_()
        result = checkpoint(lambda x: (x * x).tanh(), leaf, use_reentrant=use_reentrant)
        torch.autograd.backward(result.sum())
        plain = on(run.device, 1, 2, 3).requires_grad_()
        torch.autograd.backward((plain * plain).tanh().sum())
        same(f"grad with use_reentrant={use_reentrant}", _grad(leaf), _grad(plain))


@contract()
def checkpoints_draw_the_same_numbers(run: Run) -> None:
    """A checkpoint's second pass draws the random numbers of its first."""
    for use_reentrant in (False, True):
        leaf = torch.ones(200).to(run.device).requires_grad_()
        result = checkpoint(torch.nn.functional.dropout, leaf, 0.5, use_reentrant=use_reentrant)
        torch.rand(10, device=run.device)  # moves the generator on
        torch.autograd.backward(result.sum())
        same(f"grad with use_reentrant={use_reentrant}", _grad(leaf), result.detach())


@contract(no_cpu="all is on the CPU")
def graphs_cross_devices(run: Run) -> None:
    """A graph from the CPU over the device and back has gradients where its leaves lie."""
    here = torch.tensor([1.0, 2.0], requires_grad=True)
    there = on(run.device, 3, 4).requires_grad_()
    torch.autograd.backward(((here.to(run.device) * there).cpu() * here).sum())
    same("device here", _grad(here).device.type, "cpu")
    same("grad here", _grad(here), torch.tensor([6.0, 16.0]))
    same("device there", _grad(there).device, run.device)
    same("grad there", _grad(there), torch.tensor([1.0, 4.0]))


@contract(two_devices=True, no_cpu="there is one CPU")
def graphs_cross_two_devices(run: Run) -> None:
    """A graph over two devices of one kind has gradients on both."""
    second = other_device(run)
    one, other = on(run.device, 1, 2).requires_grad_(), on(second, 3, 4).requires_grad_()
    torch.autograd.backward((one.to(second) * other).sum())
    same("device of the first", _grad(one).device, run.device)
    same("grad of the first", _grad(one), torch.tensor([3.0, 4.0]))
    same("device of the second", _grad(other).device, second)
    same("grad of the second", _grad(other), torch.tensor([1.0, 2.0]))


@contract(two_devices=True, no_cpu="there is one CPU")
def hooks_find_their_device_current(run: Run) -> None:
    """In a hook, the current device is that of the gradient."""
    seen: list[int] = []
    found = torch.accelerator.current_device_index
    for device in (run.device, other_device(run)):
        leaf = on(device, 1, 2).requires_grad_()
        leaf.register_hook(lambda grad: seen.append(found()))  # type: ignore[no-untyped-call]
        torch.autograd.backward((leaf * 2).sum())
    same("current devices", seen, [run.device.index, other_device(run).index])


@contract(no_cpu="the CPU has no streams")
def backward_follows_the_streams(run: Run) -> None:
    """Gradients of work on a side stream are right after backward()."""
    side = torch.Stream(run.device)
    leaf = torch.ones(1 << 16).to(run.device).requires_grad_()
    side.wait_stream(current(run.device))
    with side:
        result = leaf
        for _ in range(8):
            result = result * 2
        total = result.sum()
    current(run.device).wait_stream(side)
    torch.autograd.backward(total)
    same("grad", _grad(leaf), torch.full((1 << 16,), 256.0))


class _Doubled(torch.autograd.Function):
    """2 x, with three for a gradient, so that its own backward is seen."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (saved,) = ctx.saved_tensors
        result: torch.Tensor = grads[0] * 3 + saved * 0
        return result


@contract()
def functions_of_users_run(run: Run) -> None:
    """A torch.autograd.Function runs its own backward on the device."""
    leaf = on(run.device, 1, 2).requires_grad_()
    result = _Doubled.apply(leaf)  # type: ignore[no-untyped-call]
    same("forward", result.detach(), torch.tensor([2.0, 4.0]))
    torch.autograd.backward(result.sum())
    same("grad", _grad(leaf), torch.tensor([3.0, 3.0]))


@contract()
def saved_tensors_can_wait_on_the_cpu(run: Run) -> None:
    """save_on_cpu() and hooks on saved tensors give the same gradients."""
    leaf = on(run.device, 1, 2, 3).requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        result = (leaf * leaf).sum()
    torch.autograd.backward(result)
    same("grad", _grad(leaf), torch.tensor([2.0, 4.0, 6.0]))


@contract()
def modes_switch_recording_off(run: Run) -> None:
    """no_grad() and inference_mode() record nothing; their tensors say so."""
    leaf = on(run.device, 1, 2).requires_grad_()
    with torch.no_grad():
        same("requires_grad in no_grad()", (leaf * 2).requires_grad, False)
    with torch.inference_mode():
        made = leaf * 2
    same("is_inference()", made.is_inference(), True)
    refuses("backward over it", lambda: torch.autograd.backward((made * leaf).sum()))
    same("requires_grad after", (leaf * 2).requires_grad, True)


@contract()
def writes_to_saved_tensors_are_noticed(run: Run) -> None:
    """backward() raises where a tensor that it needs was written to in place."""
    leaf = on(run.device, 1, 2).requires_grad_()
    needed = leaf * 2
    result = (needed * needed).sum()
    with torch.no_grad():
        needed.add_(1)
    refuses("backward()", lambda: torch.autograd.backward(result), RuntimeError, ("inplace",))


@contract()
def anomalies_are_found(run: Run) -> None:
    """detect_anomaly() finds a NaN in a gradient and raises."""
    leaf = on(run.device, 0).requires_grad_()

    def work() -> None:
        with torch.autograd.detect_anomaly(check_nan=True):
            torch.autograd.backward((leaf.sqrt() * 0).sum())

    refuses("backward()", work, RuntimeError, ("nan",))


@contract()
def transforms_compose(run: Run) -> None:
    """torch.func's grad, vmap and jvp work on the device."""
    values = on(run.device, 1, 2, 3)

    def cube(x: torch.Tensor) -> torch.Tensor:
        return (x * x * x).sum()

    same("grad", torch.func.grad(cube)(values), torch.tensor([3.0, 12.0, 27.0]))
    each = torch.func.vmap(torch.func.grad(lambda x: x * x * x))(values)
    same("vmap of grad", each, torch.tensor([3.0, 12.0, 27.0]))
    found = torch.func.jvp(cube, (values,), (torch.ones(3).to(run.device),))
    same("jvp", found[1], torch.tensor(42.0))
