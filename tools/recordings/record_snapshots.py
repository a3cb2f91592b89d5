# SPDX-License-Identifier: BSD-3-Clause
"""Records memory snapshots of real programs on a CUDA device, to be compared with replays.

    python record_snapshots.py snapshots          needs torch with CUDA, and nothing else
    sh snapshots/match.sh                         needs npusim-lab; no device

Every program runs in a process of its own from the first allocation on, under each of SETTINGS, and
leaves a snapshot, in which the driver's own addresses of the segments are. match.sh replays each
under the preset of that version of torch, prints how many blocks lie where they lay on the device,
and writes a CSV file per snapshot, a row per allocation.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4")


def transformer(device: str) -> None:
    """Trains a small transformer; batch and sequence length vary from step to step."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device=device)
    model = torch.nn.TransformerEncoder(layer, 6)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(30):
        batch, length = random.randint(2, 16), random.randint(32, 512)
        loss = model(torch.randn(batch, length, 512, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def accumulation(device: str) -> None:
    """Trains with gradients kept over four small batches, and recomputed activations."""
    import torch
    from torch.utils.checkpoint import checkpoint

    layers = [torch.nn.Linear(1024, 1024, device=device) for _ in range(12)]
    parameters = [p for layer in layers for p in layer.parameters()]
    optimizer = torch.optim.Adam(parameters)
    for step in range(40):
        x = torch.randn(random.randint(64, 2048), 1024, device=device)
        for layer in layers:
            x = checkpoint(lambda y, layer=layer: layer(y).relu(), x, use_reentrant=False)
        x.square().mean().backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def cache_growth(device: str) -> None:
    """Serves requests whose caches are copied to larger ones as they grow."""
    import torch

    def cache(tokens: int) -> torch.Tensor:
        return torch.empty(tokens, 32768, dtype=torch.uint8, device=device)

    requests = [cache(random.randint(16, 1500)) for _ in range(12)]
    for _ in range(200):
        for i, old in enumerate(requests):
            tokens = len(old) + 64
            requests[i] = cache(random.randint(16, 1500) if tokens > 2500 else tokens)


def prefetch(device: str) -> None:
    """Copies batches on a second stream ahead of use."""
    import torch

    module = getattr(torch, device)
    side = module.Stream()
    weight = torch.randn(1024, 1024, device=device)
    for _ in range(100):
        with module.stream(side):
            batch = torch.randn(random.randint(16, 4096), 1024).to(device, non_blocking=True)
        module.current_stream().wait_stream(side)
        batch.record_stream(module.current_stream())
        (batch @ weight).relu().sum()


def emptied(device: str) -> None:
    """Gives cached memory back between phases of different sizes."""
    import torch

    for phase in range(6):
        kept = []
        for _ in range(200):
            kept.append(torch.empty(random.randint(1, 1 << (16 + phase)), device=device))
            if len(kept) > 20:
                kept.pop(random.randrange(len(kept)))
        del kept
        getattr(torch, device).empty_cache()


PROGRAMS: dict[str, Callable[[str], None]] = {
    program.__name__: program
    for program in (transformer, accumulation, cache_growth, prefetch, emptied)
}


def record(name: str, path: Path, device: str) -> None:
    """Runs one program in this process and leaves its snapshot and what the lab has to know."""
    import torch

    module = getattr(torch, device)
    module.init()
    free, _ = module.mem_get_info()
    module.memory._record_memory_history("all", stacks="python", max_entries=10_000_000)
    random.seed(0)
    PROGRAMS[name](device)
    module.synchronize()
    module.memory._dump_snapshot(str(path))
    about = {
        "torch": torch.__version__,
        "device": module.get_device_name(0),
        "capacity_bytes": free,
    }
    path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")


def preset_of(version: str) -> str:
    """Returns the preset of a version of torch: the first one that is not older."""
    major, minor = (int(part) for part in version.split("+")[0].split(".")[:2])
    known = [preset for preset in (4, 9, 11, 12, 13) if preset >= minor] if major == 2 else []
    return f"cuda-2.{known[0] if known else 13}"


def main() -> int:
    """Records everything; or, called with four words, one program under the settings in effect."""
    if len(sys.argv) == 5:
        record(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
        return 0
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "snapshots")
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda"
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Replays every snapshot, and compares where its blocks lie."]
    for name in PROGRAMS:
        for number, settings in enumerate(SETTINGS):
            path = folder / f"{name}-{number}.pickle"
            environment = {
                **os.environ,
                "PYTORCH_CUDA_ALLOC_CONF": settings,
                "PYTORCH_ALLOC_CONF": settings,
            }
            command = [sys.executable, __file__, "--one", name, str(path), device]
            if subprocess.run(command, env=environment, check=False).returncode:
                sys.stderr.write(f"{name} under {settings!r} failed and is left out\n")
                continue
            about = json.loads(path.with_suffix(".json").read_text())
            policy = ",".join(filter(None, [preset_of(about["torch"]), settings]))
            lines.append(
                f'npusim-lab match "{path}" --policy {policy} '
                f'--capacity {about["capacity_bytes"]} --out "{path.with_suffix(".csv")}"'
            )
    (folder / "match.sh").write_text("\n".join(lines) + "\n")
    sys.stdout.write(f"{len(lines) - 1} snapshots; now: sh {folder}/match.sh\n")
    return 0 if len(lines) > 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
