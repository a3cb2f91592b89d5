# SPDX-License-Identifier: BSD-3-Clause
"""Runs models of torchvision and transformers on a GPU: their times, memory and kernels.

    python tools/gpu/programs.py measured.json                              on a machine with a GPU
    python tools/gpu/programs.py predicted.json --spec h100-sxm             the same by npusim, dry

Each program runs in a process of its own: two steps to warm up, then a step's memory, its list of
allocations, its times, its kernels. Weights and inputs are random: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Step = Callable[[], Any]


class Program(NamedTuple):
    """A model, its batch, and how it runs."""

    model: str
    batch: int
    how: (
        str  # words: train or infer, float32 tf32 float16 bfloat16 amp, channels_last, an optimizer
    )
    length: int = 0  # of sequences, or of an image's side

    @property
    def name(self) -> str:
        """The program's name in the results."""
        length = f" x {self.length}" if self.length else ""
        return f"{self.model}, {self.batch}{length}, {self.how}"


PROGRAMS = [
    Program("resnet50", 64, "train float32 sgd", 224),
    Program("resnet50", 64, "train tf32 sgd", 224),
    Program("resnet50", 64, "train amp channels_last sgd", 224),
    Program("resnet50", 1, "infer float32", 224),
    Program("resnet50", 128, "infer float16 channels_last", 224),
    Program("vgg16", 32, "train tf32 sgd", 224),
    Program("mobilenet_v3_large", 128, "train amp channels_last sgd", 224),
    Program("mobilenet_v3_large", 1, "infer float16", 224),
    Program("efficientnet_b0", 64, "train tf32 adamw", 224),
    Program("convnext_tiny", 64, "train amp adamw", 224),
    Program("convnext_tiny", 64, "infer float16", 224),
    Program("densenet121", 32, "train float32 sgd", 224),
    Program("swin_t", 32, "train amp adamw", 224),
    Program("vit_b_16", 64, "train amp adamw", 224),
    Program("vit_b_16", 64, "infer bfloat16", 224),
    Program("deeplabv3_resnet50", 4, "train tf32 sgd", 320),
    Program("r3d_18", 4, "train tf32 sgd", 112),
    Program("bert", 16, "train float32 adamw", 128),
    Program("bert", 32, "train amp adamw-fused", 256),
    Program("bert", 1, "infer float16", 128),
    Program("gpt2", 8, "train amp adamw", 512),
    Program("gpt2", 8, "train bfloat16 adamw-fused", 1024),
    Program("gpt2", 1, "infer float16", 256),
    Program("llama-1b", 2, "train bfloat16 adamw-fused", 1024),
    Program("llama-1b", 2, "train bfloat16 checkpointed adamw-fused", 2048),
    Program("llama-1b", 8, "decode bfloat16", 512),
    Program("t5", 16, "train tf32 adafactor", 128),
    Program("mixtral", 4, "train bfloat16 adamw-fused", 512),
    Program("whisper", 8, "train amp adamw", 64),
    Program("lstm", 64, "train float32 adamw", 128),
    Program("recommender", 2048, "train float32 sgd"),
    Program("unet", 8, "train amp channels_last adamw", 128),
    Program("unet", 8, "train tf32 adamw", 128),
    Program("transformer", 16, "train tf32 adamw", 256),
]


def _vision(program: Program) -> tuple[Any, Callable[[Any], Any]]:
    import torch
    import torchvision

    side, functional = program.length, torch.nn.functional
    room = torchvision.models
    if program.model == "r3d_18":
        model = room.video.r3d_18()
        x = torch.randn(program.batch, 3, 16, side, side)
    elif program.model == "deeplabv3_resnet50":
        model = room.segmentation.deeplabv3_resnet50(weights_backbone=None, num_classes=21)
        x = torch.randn(program.batch, 3, side, side)
        y = torch.randint(21, (program.batch, side, side))
        return model, lambda m: functional.cross_entropy(m(x)["out"], y)
    else:
        model = getattr(room, program.model)()
        x = torch.randn(program.batch, 3, side, side)
    if "channels_last" in program.how:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    y = torch.randint(400 if "r3d" in program.model else 1000, (program.batch,))
    if "infer" in program.how:
        if half := _dtype(program):
            x = x.to(half)
        return model, lambda m: m(x)
    return model, lambda m: functional.cross_entropy(m(x), y)


def _language(program: Program) -> tuple[Any, Callable[[Any], Any]]:
    import torch
    import transformers as t

    batch, length = program.batch, program.length
    words = torch.randint(1, 1000, (batch, length))
    no = {"use_cache": False}
    if program.model == "bert":
        model = t.BertForMaskedLM(t.BertConfig())
        inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    elif program.model == "gpt2":
        model = t.GPT2LMHeadModel(t.GPT2Config(**no))
        inputs = {"input_ids": words}
    elif program.model == "llama-1b":
        # The sizes of Llama 3.2 1B.
        config = t.LlamaConfig(
            vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
            num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True,
            use_cache="decode" in program.how, max_position_embeddings=4096,
        )  # fmt: skip
        model = t.LlamaForCausalLM(config)
        if "checkpointed" in program.how:
            model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        inputs = {"input_ids": words}
    elif program.model == "t5":
        model = t.T5ForConditionalGeneration(t.T5Config(decoder_start_token_id=0, pad_token_id=0))
        inputs = {"input_ids": words}
    elif program.model == "mixtral":
        config = t.MixtralConfig(
            vocab_size=32000, hidden_size=1024, intermediate_size=2048, num_hidden_layers=4,
            num_attention_heads=16, num_key_value_heads=4, num_local_experts=8, **no,
        )  # fmt: skip
        model = t.MixtralForCausalLM(config)
        inputs = {"input_ids": words}
    else:
        model = t.WhisperForConditionalGeneration(
            t.WhisperConfig(decoder_start_token_id=1, pad_token_id=0)
        )
        inputs = {"input_features": torch.randn(batch, 80, 3000)}
    if "decode" in program.how:
        return model, lambda m: m(words)
    if "infer" in program.how:
        return model, lambda m: m(**inputs).logits
    labels = words[:, : program.length]
    return model, lambda m: m(**inputs, labels=labels).loss


def _own(program: Program) -> tuple[Any, Callable[[Any], Any]]:
    import torch
    from torch import nn
    from torch.nn import functional

    batch, length = program.batch, program.length

    class Words(nn.Module):
        def __init__(self, inner: Any, width: int) -> None:
            super().__init__()
            self.words, self.inner = nn.Embedding(10000, width), inner
            self.out = nn.Linear(width, 10000)

        def forward(self, x: Any) -> Any:
            made = self.inner(self.words(x))
            return self.out(made[0] if isinstance(made, tuple) else made)

    def block(a: int, b: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(),
            nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(),
        )  # fmt: skip

    class Diffuser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (64, 128, 256)
            self.enter = nn.Conv2d(3, 64, 3, padding=1)
            self.down = nn.ModuleList(
                [block(a, b) for a, b in zip((64, 64, 128), widths, strict=True)]
            )
            self.middle = block(256, 256)
            self.up = nn.ModuleList([block(a, b) for a, b in ((512, 128), (256, 64), (128, 64))])
            self.leave = nn.Conv2d(64, 3, 3, padding=1)

        def forward(self, x: Any) -> Any:
            x, kept = self.enter(x), []
            for down in self.down:
                x = down(x)
                kept.append(x)
                x = functional.avg_pool2d(x, 2)
            x = self.middle(x)
            for up in self.up:
                x = functional.interpolate(x, scale_factor=2, mode="nearest")
                x = up(torch.cat([x, kept.pop()], 1))
            return self.leave(x)

    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList([nn.EmbeddingBag(100000, 64, mode="sum") for _ in range(26)])
            self.bottom = nn.Sequential(
                nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU()
            )
            self.top = nn.Sequential(nn.Linear(27 * 64, 512), nn.ReLU(), nn.Linear(512, 1))

        def forward(self, dense: Any, sparse: Any) -> Any:
            parts = [bag(sparse[:, i]) for i, bag in enumerate(self.bags)]
            return self.top(torch.cat([self.bottom(dense), *parts], 1)).squeeze(1)

    if program.model == "recommender":
        dense = torch.randn(batch, 13)
        sparse, y = torch.randint(100000, (batch, 26, 4)), torch.rand(batch)
        loss = functional.binary_cross_entropy_with_logits
        return Recommender(), lambda m: loss(m(dense, sparse), y)
    if program.model == "unet":
        x, model = torch.randn(batch, 3, length, length), Diffuser()
        if "channels_last" in program.how:
            x = x.to(memory_format=torch.channels_last)
            model = model.to(memory_format=torch.channels_last)
        return model, lambda m: functional.mse_loss(m(x), x)
    words = torch.randint(10000, (batch, length))
    if program.model == "lstm":
        model = Words(nn.LSTM(512, 512, 2, batch_first=True), 512)
    else:
        layer = nn.TransformerEncoderLayer(512, 8, 2048, 0.1, batch_first=True, norm_first=True)
        model = Words(nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), 512)
    return model, lambda m: functional.cross_entropy(m(words).flatten(0, 1), words.flatten())


def _dtype(program: Program) -> Any:
    import torch

    for word in ("float16", "bfloat16"):
        if word in program.how.split():
            return getattr(torch, word)
    return None


def build(program: Program) -> tuple[Step, Any]:
    """Returns a step of a program, and its model, on the device."""
    import torch

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = "tf32" in program.how
    torch.backends.cudnn.allow_tf32 = "tf32" in program.how
    makers = {"bert": _language, "gpt2": _language, "llama-1b": _language, "t5": _language,
              "mixtral": _language, "whisper": _language, "lstm": _own, "recommender": _own,
              "unet": _own, "transformer": _own}  # fmt: skip
    with torch.device("cuda"):
        model, loss = makers.get(program.model, _vision)(program)
        if (dtype := _dtype(program)) is not None:
            model = model.to(dtype)
    how = program.how.split()
    if "train" not in how:
        model.eval()
        if "decode" in how:
            return _decoder(model, program), model

        def infer() -> Any:
            with torch.no_grad():
                return loss(model)

        return infer, model
    model.train()
    rules = {
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
        "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
        "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
    }
    optimizer = rules[how[-1]](model.parameters())

    def train() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled="amp" in how):
            value = loss(model)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train, model


def _decoder(model: Any, program: Program) -> Step:
    """A step: one more token for each sequence, with a cache that was filled by `length` words."""
    import torch

    words = torch.randint(1, 1000, (program.batch, program.length), device="cuda")
    with torch.no_grad():
        cache = model(words).past_key_values
    one = words[:, :1].contiguous()

    def step() -> None:
        with torch.no_grad():
            model(one, past_key_values=cache)

    return step


# --- What is measured


def _sizes(entries: list[Any]) -> list[int]:
    """Returns allocations as bytes and frees as -1 - (how many allocations ago)."""
    made: list[int] = []
    live: dict[int, int] = {}
    count = 0
    for entry in entries:
        if entry["action"] == "alloc":
            live[entry["addr"]] = count
            count += 1
            made.append(entry["size"])
        elif entry["action"] == "free_requested" and entry["addr"] in live:
            made.append(live.pop(entry["addr"]) - count)
    return made


def _host_and_step(step: Step) -> tuple[float, float]:
    """Returns the host's time to submit a step to an idle device, and until it is done, in us."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    submitted = time.perf_counter()
    torch.cuda.synchronize()
    return (submitted - began) * 1e6, (time.perf_counter() - began) * 1e6


def _median(values: list[float]) -> list[float]:
    """Returns the median, the 10th and the 90th percentile."""
    values = sorted(values)
    return [round(values[int(share * (len(values) - 1))], 2) for share in (0.5, 0.1, 0.9)]


def _times(step: Step, seconds: float) -> list[float]:
    """Returns the times of steps that follow each other, by events, in us."""
    import torch

    found: list[float] = []
    until = time.monotonic() + seconds
    while len(found) < 3 or (len(found) < 20 and time.monotonic() < until):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        step()  # so that the device has work when the first event comes
        first.record()
        step()
        step()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) * 1e3 / 2)
    return _median(found)


def _kernels(step: Step) -> dict[str, Any]:
    """Returns the kernels of a step: name -> how many, and their time in us."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in seen.events():
        if event.device_type == torch._C._autograd.DeviceType.CUDA:
            row = found.setdefault(re.sub(r"\s+", " ", event.name)[:110], [0, 0.0])
            row[0] += 1
            row[1] = round(row[1] + event.device_time, 2)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _modelled(step: Step) -> dict[str, Any]:
    """Returns the modelled times of a step, in us: of the host, of its commands, and alone."""
    from torch_npusim.sim import timeline

    with timeline.record() as made:
        step()
    replay = made.replay(no_host_waits=True)
    times = (replay.host_ns, made.span_ns, sum(replay.busy_ns.values()))
    return dict(zip(("host", "alone", "device"), (round(ns / 1e3, 2) for ns in times), strict=True))


def measure(program: Program, seconds: float, is_simulated: bool) -> dict[str, Any]:
    """Returns a program's figures: bytes, us, and counts."""
    import torch

    step, model = build(program)
    torch.cuda.synchronize()
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    found["built"] = torch.cuda.memory_allocated()
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    found["peak"] = torch.cuda.max_memory_allocated()
    found["reserved"] = torch.cuda.max_memory_reserved()
    free, total = torch.cuda.mem_get_info()
    found["outside"] = total - free - torch.cuda.memory_reserved()
    step()
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python")
    step()
    torch.cuda.synchronize()
    found["list"] = _sizes(torch.cuda.memory._snapshot()["device_traces"][0])
    torch.cuda.memory._record_memory_history(None)
    found["us"] = _times(step, 0.01 if is_simulated else seconds)
    if is_simulated:
        found |= _modelled(step)
    else:
        pairs = [_host_and_step(step) for _ in range(7)]
        found["host"] = _median([host for host, _ in pairs])
        found["alone"] = _median([whole for _, whole in pairs])
        found["kernels"] = _kernels(step)
    return found


@contextlib.contextmanager
def _simulated(spec: str | None, host: str) -> Iterator[None]:
    """Runs a block as `npusim fit --spec --host` runs a script."""
    if spec is None:
        yield
        return
    from torch_npusim.sim import dry_run, specs
    from torch_npusim.sim.host_layers import charged

    with dry_run(spec=spec, temporaries="cuda", dispatch_us=specs.dispatch_us(host, spec)):
        with charged(specs.layers(host, spec)):
            yield


def _in_a_fork(ask: Callable[[], dict[str, Any]], limit: float) -> dict[str, Any]:
    """Returns the answer of a forked process, or its error: this one must not touch the device."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            made = ask()
        except BaseException as error:
            text = traceback.format_exc().splitlines()[-12:]
            made = {"raised": [type(error).__name__, str(error)[:300]], "at": text}
        with os.fdopen(theirs, "w") as file:
            json.dump(made, file)
        os._exit(0)
    os.close(theirs)
    text, until = b"", time.monotonic() + limit
    while select.select([ours], [], [], max(until - time.monotonic(), 0))[0]:
        got = os.read(ours, 1 << 16)
        if not got:
            break
        text += got
    else:
        os.kill(child, signal.SIGKILL)
    os.close(ours)
    os.waitpid(child, 0)
    try:
        made: dict[str, Any] = json.loads(text)
    except ValueError:
        made = {"raised": ["no answer", f"within {limit:g} s"]}
    return made


def _identity() -> dict[str, Any]:
    import torch

    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for name in ("torchvision", "transformers"):
        versions[name] = sys.modules[name].__version__
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {**versions, "host": names[0] if names else "unknown", "cores": os.cpu_count()}


def _chip() -> dict[str, Any]:
    import torch

    return {"chip": torch.cuda.get_device_name(0)}


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--spec", help="measure npusim as this chip, dry")
    parser.add_argument("--host", default="eager", help="npusim's host")
    parser.add_argument("--seconds", type=float, default=0.8, help="of timed steps per program")
    parser.add_argument("--minutes", type=float, default=60, help="begin no program after these")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    options = parser.parse_args()
    if options.spec and "NPUSIM_AS_CUDA" not in os.environ:
        settings = {"NPUSIM_AS_CUDA": "1", "NPUSIM_ALLOCATOR": "cuda-2.11"}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})
    # Forks of a process that has asked the driver for GPUs cannot use one.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    hidden = dict.fromkeys(("numba", "cupy"))
    sys.modules.update(hidden)  # type: ignore[arg-type]
    if options.spec:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages"))
        import without_vision_ops  # noqa: F401
    import torchvision  # noqa: F401
    import transformers  # noqa: F401

    began = time.monotonic()
    chip = {"chip": options.spec} if options.spec else _in_a_fork(_chip, 60)
    made: dict[str, Any] = {"identity": {**chip, **_identity()}, "programs": {}}

    def ask(program: Program) -> dict[str, Any]:
        with _simulated(options.spec, options.host):
            return measure(program, options.seconds, options.spec is not None)

    for program in PROGRAMS:
        if options.only not in program.name:
            continue
        if time.monotonic() - began > options.minutes * 60:
            print("no time left for", program.name)
            continue
        start = time.monotonic()
        found = _in_a_fork(functools.partial(ask, program), 600 if options.spec else 40)
        made["programs"][program.name] = found
        words = found.get("raised") or [found["us"][0], "us", found["peak"] >> 20, "MiB"]
        print(f"{program.name:50} {time.monotonic() - start:5.1f} s ", *words, flush=True)
        with open(options.out + ".part", "w") as file:
            json.dump(made, file, separators=(",", ":"))
        os.replace(options.out + ".part", options.out)


if __name__ == "__main__":
    main()
