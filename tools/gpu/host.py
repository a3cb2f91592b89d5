# SPDX-License-Identifier: BSD-3-Clause
"""The host of recordings, by layer of the framework: torch_npusim/specs/hosts/xeon-vm-16.toml.

    python tools/gpu/host.py     # fits ten numbers to the visible halves, and writes the file

Times are the recorder's: calls of small operators and layers, and eager steps of ten small models,
all decided by the host. A dry run of each says how many commands it launches, how many of them in a
backward pass and how many products, how many calls of modules and views it makes, how many steps of
recurrent layers, and how many parameters its optimizer changes. Compiled steps, which run, add how
many tensors their graphs take.
The least time of a kernel is that of captured steps, where no host decides. The programs of
programs.py have no part in it.
"""

import contextlib
import dataclasses
import math
import os
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
RECORDINGS, CHIPS = ("h100-torch-2.11", "h200-torch-2.11"), ("h100-sxm", "h200")
HOST = ROOT / "torch_npusim" / "specs" / "hosts" / "xeon-vm-16.toml"
LAYERS = (
    *("dispatch_us", "backward_us", "module_us", "parameter_us", "step_us"),
    *("library_us", "reduction_us", "call_us", "kernel_us"),
)
#: Logarithms of what is expected, how strongly, and from where on errors count less than squared.
PRIOR, HOLD, SCALE = np.log([10.0, 10.0, 8.0, 20.0, 200.0, 4.0, 2.0, 2.0, 4.0]), 0.1, 0.2
TILE = 128  # kTile of backend/cost_model.h
#: Nanoseconds by which host layers are counted: views, steps, products, reductions and inputs.
UNITS = (1, 10**4, 10**8, 10**11, 10**14)
CASTS = ("aten::copy_", "aten::_to_copy")
#: Calls of the recorder's rates that the host decides, by the begin of their keys.
SHORT = re.compile(
    r"stream\|.*\|(65536|1048576)|mm\|[^ ]*(16|64)\|256x256x256"
    r"|conv\|.*float16\|contiguous\|32x(128x28|256x14|512x7)x3"
)


def counted(call):
    """Counts by layer: commands, those of the backward pass, the rest of LAYERS, and inputs."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from torch_npusim import _C
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
    _C.set_host_layers(0, UNITS[2], UNITS[3], UNITS[0], UNITS[1], UNITS[4])
    with timeline.record() as made:
        call()
    _C.set_host_layers(0, 0, 0, 0, 0, 0)
    for hook in hooks:
        hook.remove()
    commands = made.commands()
    beside = sum(row.end_ns for row in made.rows if row.kind == "host_layer")
    inputs, beside = divmod(beside, UNITS[4])
    reductions, beside = divmod(beside, UNITS[3])
    products, beside = divmod(beside, UNITS[2])
    kernels, views = divmod(beside, UNITS[1])
    # Casts of a backward pass cost what they cost elsewhere.
    main = sum(row.thread == commands[0].thread or row.name in CASTS for row in commands)
    backward = len(commands) - main
    beside = products, reductions, views, kernels, inputs
    return len(commands), backward, len(modules), len(parameters), int(bool(parameters)), *beside


def floors():
    """Chip -> the least time of a kernel, in us, by visible captured steps, less their work."""
    import torch

    from npusim_truth.recorder import models, steps
    from npusim_truth.recordings import Key, is_held_out, load
    from torch_npusim.sim import timeline

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
                kernels = sum(max(row.kernels, 1) for row in made)
                floors = len(made) * rates.kernel_floor_ns
                floors += (kernels - len(made)) * rates.next_floor_ns
                work = sum(map(rates.duration_ns, made)) - floors
                least.append((answers["steps"][key]["us"] - work / 1e3) / kernels)
        found[chip] = float(np.median(least))
    return found


def shares(host_us):
    """Chip -> shares of the peaks that make visible convolutions and attention take their time.

    A call takes the host's time, or the device's if that is longer. Filters of one element are
    products, other layouts are converted, and causal attention leaves products out.
    """
    import torch

    from npusim_truth.recorder import rates as questions
    from npusim_truth.recordings import Key, is_held_out, load
    from torch_npusim.sim import timeline

    def commands(call):
        torch.cuda.synchronize()
        with timeline.record() as made:
            call()
        return made.commands()

    questions.timed = lambda call, **_: commands(call)
    asked = {
        key: ask()
        for key, ask in questions._product_rates()
        if re.match("conv.*channels_last.*x3$|sdpa.*full", key)
        and not is_held_out(Key("rates", key))
    }
    kinds = {
        "achievable.convolution": ("conv", "achievable", 2),
        "achievable.attention": ("sdpa|bfloat16", "achievable", 3),
        "achievable_plain.attention": ("sdpa|float32", "achievable_plain", 3),
    }
    found = {}
    for recording, chip in zip(RECORDINGS, CHIPS, strict=True):
        answers = load(ROOT / "tests/truth/recordings" / recording / "recording.zip").answers
        rates = timeline.Rates.of_spec(chip)
        for name, (begin, field, work) in kinds.items():
            loss = {}
            for share in np.arange(0.2, 1.001, 0.005):
                table = list(getattr(rates, field))
                table[work] = share
                tried = dataclasses.replace(rates, **{field: tuple(table)})
                errors = [
                    math.log(
                        max(sum(map(tried.duration_ns, rows)) / 1e3, host_us * len(rows))
                        / answers["rates"][key]["us"]
                    )
                    for key, rows in asked.items()
                    if key.startswith(begin) and key in answers["rates"]
                ]
                loss[share] = sum(math.sqrt(1 + (error / SCALE) ** 2) - 1 for error in errors)
            found[chip, name] = min(loss, key=loss.get)
    return found


def attention():
    """(kSoftmaxWidth of csrc/aten/attention.cpp, kUneven of csrc/cost/account.cpp), fitted.

    The first is the width of heads in bfloat16 from which on products decide: the share of the peak
    that heads of 128 reach then explains narrower ones too. The second is how much longer causal
    attention takes than what it sees. Each is the median over chips and rows.
    """
    import torch

    from npusim_truth.recorder import rates as questions
    from npusim_truth.recordings import Key, is_held_out, load
    from torch_npusim.sim import timeline

    def commands(call):
        torch.cuda.synchronize()
        with timeline.record() as made:
            call()
        return made.commands()

    questions.timed = lambda call, **_: commands(call)
    asked = {
        key: ask()
        for key, ask in questions._product_rates()
        if key.startswith("sdpa|bfloat16") and not is_held_out(Key("rates", key))
    }
    shape = {key: [int(number) for number in key.split("|")[-1].split("x")] for key in asked}
    whole = sorted((key for key in asked if "full" in key), key=lambda key: -shape[key][-1])
    shares, longer = np.arange(0.2, 1.001, 0.001), np.arange(1, 2, 0.005)
    widths, factors = [], []
    for recording, chip in zip(RECORDINGS, CHIPS, strict=True):
        measured = load(ROOT / "tests/truth/recordings" / recording / "recording.zip").answers
        rates = timeline.Rates.of_spec(chip)

        def nearest(key, tries, rates=rates, measured=measured["rates"]):
            """The place of the (share, done) that takes a row's time."""

            def error(place):
                share, done = tries[place]
                table = (*rates.achievable[:3], share, *rates.achievable[4:])
                tried = dataclasses.replace(rates, achievable=table)
                rows = (row._replace(done=done) for row in asked[key])
                return abs(sum(map(tried.duration_ns, rows)) / 1e3 / measured[key]["us"] - 1)

            return min(range(len(tries)), key=error)

        share = shares[nearest(whole[0], [(share, 1) for share in shares])]
        done = {shape[whole[0]][-1]: 1.0}
        for key in whole[1:]:
            head = shape[key][-1]
            widths.append(head + nearest(key, [(share, w / head) for w in range(head, 257)]))
            done.setdefault(head, widths[-1] / head)
        for key in asked.keys() - set(whole):
            length, wide = shape[key][-2], done[shape[key][-1]]
            sees = wide * ((length + 1) / 2 + TILE / 2) / length
            tries = [(share, min(wide, factor * sees)) for factor in longer]
            factors.append(longer[nearest(key, tries)])
    return float(np.median(widths)), float(np.median(factors))


def links(dispatch_us):
    """(The least time of a copy in us, chip -> GB/s of the cache), by visible copies.

    Two pinned copies in a row wait for one launch. A transposed copy of float32 reads a sector of
    32 bytes for each element, and most of these sectors again.
    """
    from npusim_truth.recordings import Key, is_held_out, load
    from torch_npusim.sim import specs

    copies, caches = [], {}
    for recording, chip in zip(RECORDINGS, CHIPS, strict=True):
        rates = load(ROOT / "tests/truth/recordings" / recording / "recording.zip").answers["rates"]
        spec, found = specs.load(chip), []
        for key, answer in rates.items():
            words = key.split("|")
            if is_held_out(Key("rates", key)):
                continue
            if words[0] == "copy" and words[2:] == ["pinned", str(1 << 20)]:
                moved = (1 << 20) / spec.value("link.host_gb_s") * 1e6
                copies.append(answer["us"] - moved - dispatch_us / 2)
            elif words[1] == "transposed copy" and int(words[-1]) >= 1 << 24:
                sectors = int(words[-1]) * (32 / 4 + 1)
                floor_us = spec.value("latency_us.kernel_floor") / 1e3
                found.append(sectors / (answer["us"] - floor_us) / 1e3)
        caches[chip] = float(np.median(found))
    return float(np.median(copies)), caches


def counts():
    """Question -> what its call has of each layer."""
    import torch

    from npusim_truth.recorder import device, models, rates, steps

    rates.timed = steps.timed = lambda call, **_: counted(call)
    device.device()
    found = {}
    with torch.no_grad():
        for key, ask in rates.gap_rates():
            if key.startswith("gap|"):
                with contextlib.suppress(Exception):
                    made = ask()
                    found["rates", key] = found["rates", key.replace("gap|", "host|")] = made
    for questions in (rates._streaming_rates, rates._product_rates):
        for key, ask in questions():
            if SHORT.fullmatch(key):
                found["rates", key] = ask()
    for name in models.models():
        for mode in ("eager", "amp"):
            found["steps", f"time|{name}|{mode}"] = steps.train(name, mode)["time"]
    return {of: made for of, made in found.items() if any(made)}


def rows(made, held_out):
    """(Counts, microseconds) of both recordings' questions of a half."""
    from npusim_truth.recordings import Key, is_held_out, load

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


def inputs_us(costs):
    """Microseconds for a tensor that a compiled graph takes, by visible compiled steps."""
    from npusim_truth.recorder import models, steps

    steps.timed = lambda call, **_: counted(call)
    made = {
        ("steps", f"time|{name}|compiled"): steps.train(name, "compiled")["time"]
        for name in models.models()
    }
    count, us = rows(made, held_out=False)

    def loss(cost):
        return np.sqrt(1 + (np.log(count @ [*costs, cost] / us) / SCALE) ** 2).sum()

    return min(np.arange(0, 100, 0.1), key=loss)


def main():
    from npusim_truth import claims
    from torch_npusim.sim import dry_run

    if "NPUSIM_AS_CUDA" not in os.environ:
        variables = claims.environment("h100-sxm", None, "2.11.0")
        os.execve(sys.executable, [sys.executable, *sys.argv], variables)
    with dry_run(memory="512GiB", temporaries="cuda"):  # with CUDA's kernels
        costs = report()
    write({"input_us": inputs_us(costs)})


def write(costs):
    """Writes costs to the host's file, and prints them."""
    text = HOST.read_text()
    for name, cost in costs.items():
        text = re.sub(rf"\n{name} = \[[\d.]+", f"\n{name} = [{round(cost, 1):g}", text)
        print(f"{name} = {cost:.1f}")
    HOST.write_text(text)


def report():
    """Writes and returns what eager steps say of the host; prints what else was fitted."""
    made = {of: count[:-1] for of, count in counts().items()}
    costs = fit(*rows(made, held_out=False))
    stated = costs.copy()
    stated[1] += costs[0]  # beside the launch, until here
    write(dict(zip(LAYERS, stated, strict=True)))
    for (chip, name), share in shares(costs[0] + costs[LAYERS.index("library_us")]).items():
        print(f"{chip}: {name} = {share:.3f}")
    width, factor = attention()
    print(
        f"heads of {width:.0f} keep the units busy; causal attention: {factor:.2f} of what it sees"
    )
    copy_us, caches = links(costs[0])
    print(f"the least time of a copy is {copy_us:.1f} us")
    for chip, rate in caches.items():
        print(f"{chip}: the cache moves {rate:.0f} GB/s")
    for chip, us in floors().items():
        print(f"{chip}: the least time of a kernel is {us:.2f} us")
    for held_out in (False, True):
        count, us = rows(made, held_out)
        errors = count @ costs / us - 1
        print(
            f"{'held-out' if held_out else 'visible'} half: {len(us)} times, median error "
            f"{np.median(abs(errors)):.1%}, signed {np.median(errors):+.1%}"
        )
    return costs


if __name__ == "__main__":
    main()
