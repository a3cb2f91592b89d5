# SPDX-License-Identifier: BSD-3-Clause
"""`npusim info`: the devices, the memory behind them, and the configuration in effect."""

import argparse
import json
import platform
from dataclasses import asdict
from typing import Any

import torch

from torch_npusim import __version__, npusim
from torch_npusim._text import format_bytes, format_table
from torch_npusim.sim import knobs


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the subcommand to the `npusim` command."""
    text = "print the devices and the configuration in effect"
    parser: argparse.ArgumentParser = subparsers.add_parser("info", help=text, description=text)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the report; fails where there is no device."""
    facts = collect()
    print(json.dumps(facts, indent=2) if arguments.json else as_text(facts))
    return 0 if facts["devices"] else 1


def collect() -> dict[str, Any]:
    """Returns everything that the report says."""
    devices = []
    for index in range(npusim.device_count()):
        free, _ = npusim.mem_get_info(index)
        device = asdict(npusim.get_device_properties(index))
        devices.append({"index": index, **device, "free_memory": free})
    return {
        "torch_npusim": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "memory_backing": knobs.memory_backing() if devices else None,
        "devices": devices,
        "knobs": [asdict(knob) for knob in knobs.knobs()],
    }


def as_text(facts: dict[str, Any]) -> str:
    """Returns the report for people."""
    lines = [f"{name:<15} {facts[name]}" for name in ("torch_npusim", "torch", "python")]
    lines.append(f"{'cpu capability':<15} {facts['cpu_capability']}")
    lines.append(f"{'device memory':<15} {facts['memory_backing'] or 'none: no device is visible'}")
    for device in facts["devices"]:
        peaks = "  ".join(
            f"{name} {rate / 1e12:.3g} Tflop/s" for name, rate in device["peak_flops"].items()
        )
        lines += [
            "",
            f"npusim:{device['index']}  {device['name']}, "
            f"capability {device['major']}.{device['minor']}",
            f"  memory      {format_bytes(device['total_memory'])}, "
            f"{format_bytes(device['free_memory'])} free",
            f"  peak        {peaks}",
            f"  bandwidth   memory {device['memory_bandwidth'] / 1e9:.4g} GB/s, "
            f"host {device['host_bandwidth'] / 1e9:.4g} GB/s, "
            f"peer {device['peer_bandwidth'] / 1e9:.4g} GB/s",
            f"  launch      {device['launch_latency_ns']} ns",
        ]
    rows = [[k["name"], k["value"] or '""', k["origin"]] for k in facts["knobs"]]
    lines += ["", *format_table(["knob", "value", "from"], rows)]
    return "\n".join(lines)
