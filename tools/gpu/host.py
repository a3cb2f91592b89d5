# SPDX-License-Identifier: BSD-3-Clause
"""The host of recordings, by layer of the framework: torch_npusim/specs/hosts/xeon-vm-16.toml.

    python tools/gpu/host.py     # fits four numbers to the visible halves, and writes the file

Times are the recorder's: calls of small operators and layers, and eager steps of ten small models,
all decided by the host. A dry run of each says how many commands it launches, how many of them in a
backward pass, how many calls of modules it makes, and how many parameters its optimizer changes.
The least time of a kernel is that of captured steps, where no host decides. The programs of
programs.py have no part in it.
"""

import contextlib
import os
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
RECORDINGS, CHIPS = ("h100-torch-2.11", "h200-torch-2.11"), ("h100-sxm", "h200")
HOST = ROOT / "torch_npusim" / "specs" / "hosts" / "xeon-vm-16.toml"
LAYERS = ("dispatch_us", "backward_us", "module_us", "parameter_us")
#: Logarithms of what is expected, how strongly, and from where on errors count less than squared.
PRIOR, HOLD, SCALE = np.log([10.0, 10.0, 8.0, 40.0]), 0.1, 0.2


def counted(call):
    """(Commands of the forward pass, of the backward pass, calls of modules, parameters)."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from torch_npusim.sim import timeline

    call()
    modules, parameters = [], []
    hooks = [
        register_module_forward_pre_hook(lambda module, inputs: modules.append(module)),
        register_optimizer_step_pre_hook(
            lambda optimizer, arguments, named: parameters.extend(
                p for group in optimizer.param_groups for p in group["params"] if p.grad is not None
            )
        ),
    ]
    torch.cuda.synchronize()
    with timeline.record() as made:
        call()
    for hook in hooks:
        hook.remove()
    commands = made.commands()
    main = sum(row.thread == commands[0].thread for row in commands) if commands else 0
    return main, len(commands) - main, len(modules), len(parameters)


def floors():
    """Chip -> the least time of a kernel, in us, by visible captured steps, less their work."""
    import torch

    from torch_npusim.sim import timeline
    from torch_npusim.truth.recorder import models, steps
    from torch_npusim.truth.recordings import Key, is_held_out, load

    def commands(call):
        call()
        torch.cuda.synchronize()
        with timeline.record() as made:
            call()
        return made.commands()

    steps.timed = lambda call, **_: commands(call)
    captured = {f"time|{name}|captured": name for name in models.models()}
    rows = {key: steps.train(name, "captured")["time"] for key, name in captured.items()}
    found = {}
    for recording, chip in zip(RECORDINGS, CHIPS, strict=True):
        answers = load(
            ROOT / "tests" / "truth" / "recordings" / recording / "recording.zip"
        ).answers
        rates = timeline.Rates.of_spec(chip)
        least = []
        for key, made in rows.items():
            if not is_held_out(Key("steps", key)):
                work = sum(rates.duration_ns(row) - rates.kernel_floor_ns for row in made)
                least.append((answers["steps"][key]["us"] - work / 1e3) / len(made))
        found[chip] = float(np.median(least))
    return found


def counts():
    """Question -> what its call has of each layer."""
    import torch

    from torch_npusim.truth.recorder import device, models, rates, steps

    rates.timed = steps.timed = lambda call, **_: counted(call)
    device.device()
    found = {}
    with torch.no_grad():
        for key, ask in rates.gap_rates():
            if key.startswith("gap|"):
                with contextlib.suppress(Exception):
                    made = ask()
                    found["rates", key] = found["rates", key.replace("gap|", "host|")] = made
    for name in models.models():
        for mode in ("eager", "amp"):
            found["steps", f"time|{name}|{mode}"] = steps.train(name, mode)["time"]
    return {of: made for of, made in found.items() if made[0]}


def rows(made, held_out):
    """(Counts, microseconds) of both recordings' questions of a half."""
    from torch_npusim.truth.recordings import Key, is_held_out, load

    pairs = []
    for name in RECORDINGS:
        answers = load(ROOT / "tests" / "truth" / "recordings" / name / "recording.zip").answers
        for (section, key), count in made.items():
            answer = answers[section].get(key)
            if is_held_out(Key(section, key)) == held_out and answer and "us" in answer:
                pairs.append((count, answer["us"]))
    return np.array([count for count, _ in pairs], float), np.array([us for _, us in pairs])


def fit(count, us):
    """Returns the layers' costs that make the logarithmic errors least."""
    x = PRIOR.copy()
    for _ in range(100):
        made = count @ np.exp(x)
        error, slope = np.log(made / us), count * np.exp(x) / made[:, None]
        weight = 1 / np.sqrt(1 + (error / SCALE) ** 2)
        curve = (slope * weight[:, None]).T @ slope + HOLD**2 * np.eye(len(x))
        down = (slope * weight[:, None]).T @ error + HOLD**2 * (x - PRIOR)
        x -= np.linalg.solve(curve, down).clip(-0.5, 0.5)
    return np.exp(x)


def main():
    from torch_npusim.truth import claims

    if "NPUSIM_AS_CUDA" not in os.environ:
        variables = claims.environment("h100-sxm", None, "2.11.0")
        os.execve(sys.executable, [sys.executable, *sys.argv], variables)
    made = counts()
    costs = fit(*rows(made, held_out=False))
    text = HOST.read_text()
    for name, cost in zip(LAYERS, costs, strict=True):
        text = re.sub(rf"\n{name} = \[[\d.]+", f"\n{name} = [{cost:.1f}", text)
        print(f"{name} = {cost:.1f}")
    HOST.write_text(text)
    for chip, us in floors().items():
        print(f"{chip}: the least time of a kernel is {us:.2f} us")
    for held_out in (False, True):
        count, us = rows(made, held_out)
        errors = count @ costs / us - 1
        print(
            f"{'held-out' if held_out else 'visible'} half: {len(us)} times, median error "
            f"{np.median(abs(errors)):.1%}, signed {np.median(errors):+.1%}"
        )


if __name__ == "__main__":
    main()
