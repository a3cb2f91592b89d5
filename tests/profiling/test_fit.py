# SPDX-License-Identifier: BSD-3-Clause
"""`npusim fit`: whether a script fits, the parts of its peak, and what would help."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from profiling.fit_process import fit

from torch_npusim._blame import short_path
from torch_npusim.fit import outside, page, remedies, text, trials
from torch_npusim.fit.changes import Change
from torch_npusim.fit.parts import ACTIVATIONS, ROUNDED
from torch_npusim.fit.run import fit_script
from torch_npusim.fit.steps import Part, not_counted, step_time
from torch_npusim.fit.trials import Job
from torch_npusim.sim import specs

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT, BLOCKS = str(SCRIPTS / "fitted.py"), str(SCRIPTS / "fitted_blocks.py")
DECODER = str(SCRIPTS / "fitted_decoder.py")
MIB = 1 << 20


def blocks(*changes, batch=8):
    # A workspace of cuBLAS would count as an activation of the first module with a product.
    return fit_script(
        BLOCKS,
        ["--batch", str(batch)],
        temporaries="npusim",
        changes=[Change(name) for name in changes],
    )


def test_the_parts_of_a_peak_and_the_answers_are_listed():
    status, out, error = fit("--json", "--memory", "1GiB", "--require-fits", SCRIPT, "8")
    found = json.loads(out)  # and nothing but JSON: the script's own output is elsewhere
    assert "1.0" in error
    device = found["devices"]["0"]
    assert (status, found["fits"]) == (0, True)
    assert found["verdict"].startswith(f"{SCRIPT} fits npusim:0")
    assert device["capacity"] == 1 << 30
    parts = device["at_peak"]
    assert parts["parameters"] == parts["gradients"] == parts["optimizer state"] == 8 * MIB
    assert sum(parts.values()) == device["peak_allocated"]
    assert 0 <= parts.get(ROUNDED, 0) < 1 << 14
    assert device["peak_reserved"] >= device["peak_allocated"]
    assert device["timeline"]["reserved"][-1] == device["peak_reserved"]
    (answer,) = found["answers"]
    assert answer["count"] == 2
    assert answer["place"] == f"{short_path(SCRIPT)}:14"


def test_activations_are_told_by_module():
    found = blocks()
    (device,) = found.devices.values()
    shares = {share.name: share for share in device.modules}
    tokens = 8 * 256
    # GELU saves the result of `up` and its own is saved by `down`; the sum is kept by the next.
    assert shares["blocks.*.up"].bytes == 4 * tokens * 1024 * 4
    assert shares["blocks.*.up"].blocks == 4
    assert shares["blocks.*"].bytes == 4 * tokens * (1024 + 256) * 4
    assert shares["words"].kind == "Embedding"
    assert device.at_peak[ACTIVATIONS] == sum(share.bytes for share in device.modules)
    parameters = 1024 * 256 + 4 * (2 * 256 * 1024 + 256 + 1024) + 1024 * 256 + 1024
    assert device.at_peak["parameters"] == 4 * parameters
    assert 2 * 4 * parameters <= device.at_peak["optimizer state"] < 2 * 4 * parameters + 100
    assert device.peak_phase == "backward"


def test_workspaces_of_cublas_are_a_part_of_their_own():
    (plain,) = blocks().devices.values()  # without workspaces
    for spec, workspace in (("a100-80-sxm", 8_519_680), ("h100-sxm", 32 * MIB)):
        found = fit_script(BLOCKS, ["--batch", "8"], spec=spec)
        (device,) = found.devices.values()
        # Forward and backward pass run on threads of their own. The forward pass adds biases.
        assert device.at_peak["workspaces of cuBLAS"] == 2 * workspace + MIB
        assert sum(device.at_peak.values()) == device.peak_allocated
        assert "workspaces of cuBLAS" in text.as_text(found)
        shares = {(share.name, share.bytes) for share in device.modules}
        assert shares <= {(share.name, share.bytes) for share in plain.modules}


RANKS = """import torch
from torch_npusim.testing import run_ranks

def train():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, device="npusim"))
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(3):
        model(torch.zeros(8, 64, device="npusim")).sum().backward()
        optimizer.step()

run_ranks(train, {ranks})
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_in_threads_have_peaks_and_no_time_of_a_step(tmp_path, ranks):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS.format(ranks=ranks))
    found = fit_script(str(script))
    assert found.error == ""
    assert list(found.devices) == list(range(ranks))
    assert len({device.peak_allocated for device in found.devices.values()}) == 1
    told = "The time of a step is not stated: steps ran on 2 threads, which share one clock"
    for words in (text.as_text(found), page.as_page(found)):
        assert (told in words) == (found.step is None) == (ranks == 2)


OF_TORCHRUN = """import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl", device_id=torch.device("npusim", int(os.environ["LOCAL_RANK"])))
assert (dist.get_rank(), dist.get_world_size()) == (0, int(os.environ["WORLD_SIZE"]))
half = dist.new_group(list(range(dist.get_world_size() // 2)), backend="gloo")
assert half.size() == dist.get_world_size() // 2
mesh = init_device_mesh("npusim", (dist.get_world_size(),))
model = torch.nn.Linear(1024, 1024, bias=False, device="npusim")
optimizer = torch.optim.AdamW(fully_shard(model, mesh=mesh).parameters())
for _ in range(3):
    model(torch.zeros(8, 1024, device="npusim")).sum().backward()
    optimizer.step()
"""


def test_a_script_of_torchrun_is_one_of_many_ranks(tmp_path):
    script = tmp_path / "of_torchrun.py"
    script.write_text(OF_TORCHRUN)
    before = dict(os.environ)
    for ranks in (8, 64):
        found = fit_script(str(script), ranks=ranks)
        assert found.error == ""
        (device,) = found.devices.values()
        assert device.at_peak["parameters"] == 4 * MIB // ranks
        assert device.at_peak["optimizer state"] // MIB == 8 // ranks
    assert dict(os.environ) == before
    assert not torch.distributed.is_initialized()


def test_the_time_of_a_step_counts_samples_and_tokens():
    step = blocks().step
    assert step.steps == 3
    assert step.inputs == [8, 256]
    assert step.per_second * step.ns / 1e9 == pytest.approx(8)
    assert step.tokens_per_second == pytest.approx(256 * step.per_second)


LOOP = """import torch
from torch import nn
device = "npusim"
model, loss = nn.Linear(64, 10).to(device), nn.CrossEntropyLoss()
other, frozen = nn.Linear(10, 10).to(device), nn.Linear(64, 64).to(device).requires_grad_(False)
words, places = nn.Embedding(9, 10).to(device), nn.Embedding(9, 10).to(device)
pair = nn.Bilinear(64, 10, 10).to(device)
optimizer = torch.optim.SGD(model.parameters())
x, labels = torch.zeros(8, 64, device=device), torch.zeros(8, dtype=torch.int64, device=device)
for _ in range(3):
    loss({call}, labels).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("call", "samples"),
    [
        ("model(x)", 8),
        ("other(model(x))", 8),
        ("model(frozen(x))", 8),
        ("torch.cat([model(x[:4]), model(x[4:])])", 8),  # both halves
        ("words(labels) + model(x)", None),
        ("words(labels) + places(labels)", None),
        ("pair(x, model(x))", None),
    ],
)
def test_samples_are_the_inputs_of_the_model(tmp_path, call, samples):
    """A loss that is a module has no part in them; where two modules begin, none are told."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP.replace("{call}", call))
    step = fit_script(str(script)).step
    told = step.per_second and step.per_second * step.ns / 1e9
    assert told == (samples and pytest.approx(samples))


INFERS = """import torch
from torch import nn
device = "npusim"
model, soft = nn.Linear(64, 10, bias=False).to(device).eval(), nn.Softmax(1)
other = nn.Sequential(nn.Linear(10, 10, bias=False)).to(device)
x = torch.zeros(8, 64, device=device)
with torch.inference_mode():
    for _ in range({count}):
        {call}
"""


@pytest.mark.parametrize(
    ("count", "call", "samples"),
    [(3, "soft(model(x))", 8), (1, "soft(model(x))", 8), (3, "other(model(x))", None)],
)
def test_without_an_optimizer_a_step_is_a_call_of_the_model(tmp_path, count, call, samples):
    script = tmp_path / "infers.py"
    script.write_text(INFERS.format(count=count, call=call))
    step = fit_script(str(script)).step
    assert (step.steps, step.what) == (count, "call of Linear")
    told = step.per_second and step.per_second * step.ns / 1e9
    assert told == (samples and pytest.approx(samples))
    assert step.work.flops == 2 * 8 * 64 * 10 + (0 if samples else 2 * 8 * 10 * 10)
    assert text.step_text(step).startswith("A call of Linear takes 0.0")


def test_parameters_without_a_module_are_parameters(tmp_path):
    script = tmp_path / "raw.py"
    script.write_text(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(1 << 20, device='npusim'))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(2):\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
    )
    _, out, _ = fit("--json", str(script))
    assert json.loads(out)["devices"]["0"]["at_peak"]["parameters"] == 4 * MIB


TOKENS, LAYERS, WIDTH, LENGTH = 4 * 128, 2, 256, 128  # of fitted_decoder.py
PARAMETERS = LAYERS * 12 * WIDTH**2 + 512 * WIDTH  # without the embedding: no product


@pytest.mark.parametrize(
    ("dtype", "precision", "peak"), [("bfloat16", "f16", 312e12), ("float32", "f32", 19.5e12)]
)
def test_the_share_of_the_peak_is_that_of_a_closed_form(dtype, precision, peak):
    step = fit_script(DECODER, [dtype], spec="a100-80-sxm").step
    # Attention: two products forward and five backward, as torch's FlopCounterMode counts.
    flops = 6 * PARAMETERS * TOKENS + LAYERS * 7 * 2 * TOKENS * LENGTH * WIDTH
    work = step.work
    assert (work.flops, work.again, work.precision, work.peak) == (flops, 0, precision, peak)
    assert work.mfu == pytest.approx(flops / (step.ns / 1e9 * peak))
    low, high = step.interval
    assert work.mfu_interval == pytest.approx((work.mfu / high, work.mfu / low))
    told = text.step_text(step)
    ends = [f"{step.tokens_per_second / factor:,.0f}" for factor in (high, low)]
    assert f"tokens/s ({ends[0]} to {ends[1]})" in told
    assert f"the MFU is {work.mfu:.1%} ({work.mfu / high:.1%} to {work.mfu / low:.1%}) of" in told


def test_a_report_on_the_compiler_takes_no_operations_from_a_step(tmp_path):
    script = tmp_path / "reports.py"
    script.write_text("""import torch
from torch_npusim.inductor.compile_report import counted_commands
model = torch.nn.Linear(256, 256, bias=False, device="npusim")
optimizer = torch.optim.SGD(model.parameters())
x = torch.zeros(64, 256, device="npusim")
for _ in range(3):
    with counted_commands() as rows:  # as compile_report() does
        y = model(x)
    assert sum(row["flops"] for row in rows.values()) >= 2 * 64 * 256 * 256
    with counted_commands() as whole:
        y.sum().backward()
        optimizer.step()
    assert sum(row["flops"] for row in whole.values()) >= 2 * 64 * 256 * 256
""")
    found = fit_script(str(script))
    assert found.error == ""
    assert found.step.work.flops == 2 * 2 * 64 * 256 * 256


COMPILED = """import torch
x = torch.zeros(64, 64, device="npusim", requires_grad=True)
optimizer = torch.optim.SGD([x])
multiply = torch.compile(lambda x: (x @ x).relu().sum() + (x @ x[0]).relu().sum())
for _ in range(3):
    multiply(x).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_products_of_compiled_code_are_counted_or_their_kernels_named(tmp_path, monkeypatch):
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    found = fit_script(str(script))
    assert found.error == ""
    matrices, vectors = 3 * 2 * 64**3, 3 * 2 * 64**2
    step = found.step
    if step.work.flops == matrices + vectors:
        assert step.not_counted == []
    else:
        assert step.work.flops >= matrices
        assert any("mv" in name for name in step.not_counted)
        told = f"Products, if any, are not counted of {', '.join(step.not_counted)}."
        assert told in text.step_text(step)
    triton = SimpleNamespace(launched={"softmax_kernel"})
    monkeypatch.setitem(sys.modules, "torch_npusim.triton_interpreter", triton)
    assert not_counted(["aten::mm", "softmax_kernel"]) == {"softmax_kernel"}


def test_what_checkpoints_compute_again_is_no_part_of_the_model():
    plain, again = (
        fit_script(DECODER, spec="a100-80-sxm", changes=changes).step.work
        for changes in ([], [Change("checkpoint")])
    )
    assert again.flops == plain.flops
    # All of the blocks' forward pass but their last product, whose result nobody saved.
    blocks = 2 * TOKENS * LAYERS * (12 - 4) * WIDTH**2 + LAYERS * 4 * TOKENS * LENGTH * WIDTH
    assert (plain.again, again.again) == (0, blocks)
    assert again.mfu < plain.mfu


def test_the_host_pays_for_eager_python_and_the_step_has_an_interval():
    steps = {
        host: fit_script(BLOCKS, ["--batch", "1"], spec="a100-80-sxm", host=host).step
        for host in ("eager", "spec", "100")
    }
    assert steps["spec"].ns < steps["eager"].ns < steps["100"].ns
    low, high = steps["eager"].interval
    assert low < 1 < high
    ms = steps["eager"].ns / 1e6
    assert steps["eager"].device_idles  # a batch of one
    told = f"(the device idles, no promise: {low * ms:.3f} to {high * ms:.3f} ms)"
    assert told in text.step_text(steps["eager"])


def test_a_device_that_is_busy_has_the_interval_of_nine_of_ten_programs():
    busy, idle = (
        step_time([Part("step"), Part("step", 1000, busy_ns=ns)], "t4", [1.0] * 6, 1)
        for ns in (950.0, 800.0)
    )
    assert (busy.device_idles, idle.device_idles) == (False, True)
    assert idle.interval[0] < busy.interval[0] < 1 < busy.interval[1] < idle.interval[1]
    assert "(nine of ten programs: " in text.step_text(busy)


def test_a_device_that_is_made_up_has_no_interval_and_its_own_launches():
    eager, alone = (fit_script(BLOCKS, host=host).step for host in ("eager", "spec"))
    assert eager == alone
    assert eager.interval == (1.0, 1.0)


@pytest.mark.parametrize("host", ["fast", "-1", "nan", "1e9"])
def test_a_cost_of_the_host_that_cannot_be_is_refused(host):
    with pytest.raises(ValueError, match=r"--host takes microseconds, spec, eager, .* got"):
        fit_script(BLOCKS, host=host)


def test_changes_are_made_and_named_where_they_are():
    plain = blocks()
    found = {name: blocks(name) for name in ("checkpoint", "bf16", "fused")}
    assert found["checkpoint"].changes == {"checkpoint": ["Block of Model.blocks"]}
    assert found["bf16"].changes == {"bf16": ["Model"]}
    assert found["fused"].changes == {"fused": ["AdamW"]}
    assert blocks().peak_reserved == plain.peak_reserved  # nothing of them is left

    def activations(of):
        (device,) = of.devices.values()
        return device.at_peak[ACTIVATIONS]

    assert activations(found["checkpoint"]) < activations(plain) / 2
    assert activations(found["bf16"]) < activations(plain) * 0.7
    assert found["checkpoint"].step.ns > plain.step.ns


def test_an_optimizer_without_a_fused_form_is_not_changed(tmp_path):
    script = tmp_path / "rprop.py"
    script.write_text("""import torch
x = torch.ones(8, device="npusim", requires_grad=True)
optimizer = torch.optim.Rprop([x])
x.sum().backward()
optimizer.step()
""")
    assert fit_script(str(script), changes=[Change("fused")]).changes == {"fused": []}


def test_what_would_help_is_tried(tmp_path):
    out = tmp_path / "page.html"
    words = ["--memory", "140MiB", "--require-fits", "--json", "--page", str(out)]
    words += ["--temporaries", "npusim"]
    status, found, _ = fit(*words, BLOCKS, "--batch", "12")
    found = json.loads(found)
    assert status == 1
    assert found["need"] > 140 * MIB
    remedies = {remedy["paste"]: remedy for remedy in found["remedies"]}
    wanted = remedies["torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"]
    assert (wanted["outcome"], wanted["tried"]) == ("fits", "dry run")
    assert wanted["peak_reserved"] <= 140 * MIB
    assert [r["outcome"] for r in found["remedies"] if r["tried"] == "replay"]
    assert [r for r in found["remedies"] if not r["tried"]] == found["remedies"][-5:]
    assert found["remedies"][-5]["note"].startswith("Cause: the peak of one step. ")
    (device,) = found["devices"].values()
    assert device["asked"] > 0
    assert "does not fit" in found["verdict"]
    written = out.read_text()
    assert written.count("<svg") == 1
    assert "://" not in written


def test_a_setting_that_replay_finds_holds_in_a_dry_run(tmp_path):
    script = tmp_path / "holes.py"
    script.write_text("""import torch
kept = []
for size in range(20, 60, 2):
    kept = [torch.empty(size << 20, dtype=torch.uint8, device="npusim") for _ in range(4)]
    kept = kept[::2]
""")
    job = Job(str(script), settings={"memory": "600MiB", "allocator": "cuda-2.13"})
    snapshot = str(tmp_path / "snapshot.pickle")
    whole = job.run(snapshot)
    replayed = remedies.by_replay(snapshot, whole, 600 * MIB, lambda _: None)
    best = min(replayed, key=lambda remedy: remedy.peak_reserved)
    assert (best.outcome, best.tried) == ("fits", "replay")
    name, _, conf = best.paste.partition("=")
    assert name == "PYTORCH_ALLOC_CONF"
    again = job.having("conf", conf).run()
    assert trials.peak_of(again) == best.peak_reserved < trials.peak_of(whole)
    first = next(remedies.by_replay(snapshot, whole, 64 * MIB, lambda _: None))
    assert (first.tried, first.note.split(".")[0]) == ("", "Cause: too large, however it is placed")


def test_runs_leave_the_fork_server_of_the_program_alone():
    code = f"""
from multiprocessing import forkserver
from torch_npusim.fit.trials import Job
server = forkserver._forkserver
before = dict(vars(server))
assert Job({SCRIPT!r}, ("8",)).run()["fits"]
assert vars(server) == before and server._forkserver_pid is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


ASKS = """import torch
kept = torch.empty(100 << 20, dtype=torch.uint8, device="npusim")
"""


@pytest.mark.parametrize(
    ("memory", "fits", "close"), [(300, True, False), (218, False, True), (150, False, False)]
)
def test_the_verdict_counts_what_is_outside_of_the_allocator(tmp_path, memory, fits, close):
    script = tmp_path / "asks.py"
    script.write_text(ASKS)
    job = Job(str(script), settings={"spec": "t4", "memory": f"{memory}MiB"})
    answer = fit_script(str(script), spec="t4", memory=f"{memory}MiB")
    (device,) = answer.devices.values()
    low, high = device.outside_between()
    assert 100 * MIB + low < 218 * MIB < 100 * MIB + high < 300 * MIB
    assert device.left_outside == low
    assert device.capacity == memory * MIB  # as torch.cuda.mem_get_info() says it
    found = answer.as_dict()
    told = []
    settled = trials.settle(job, found, told.append)
    assert (found["fits"], found["close"]) == (fits, close)
    assert settled.settings["outside"] == str(high)
    assert len(told) == close  # another run, where it could differ
    assert found["fails_at"] == (f"{script}:2" if close else "")
    answer.fits, answer.close, answer.fails_at = fits, close, found["fails_at"]
    words = text.as_text(answer)
    assert "context of the driver, outside of the allocator" in words
    assert ("is close to the capacity of npusim:0" in words) == close
    assert ("beside 81.26 MiB to 155.29 MiB outside" in words) != close


def test_memory_outside_of_the_allocator_may_be_given():
    options = {"spec": "t4", "memory": "150MiB"}
    assert fit_script(SCRIPT, ["8"], outside="1MiB", **options).fits
    found = fit_script(SCRIPT, ["8"], outside="140MiB", **options)
    assert not found.fits
    assert "beside 140.00 MiB outside of the allocator" in found.verdict


CONVOLVES = """import torch
layer = torch.nn.Conv2d(64, 64, 3, device="npusim", dtype=torch.{dtype})
layer(torch.empty(8, 64, {side}, {side}, device="npusim", dtype=torch.{dtype}))
"""


def test_a_small_convolution_leaves_a_small_interval_whatever_the_peak(tmp_path):
    script = tmp_path / "convolves.py"
    other = 'other = torch.empty(1 << 28, device="npusim")'  # 1 GiB
    script.write_text(f"import torch\n{other}\n" + CONVOLVES.format(dtype="float32", side=8))
    (device,) = fit_script(str(script), spec="t4").devices.values()
    moved = 4 * (8 * 64 * (8 * 8 + 3 * 6 * 6) + 64 * 64 * 9)  # the bias is added to the result
    assert device.outside[1].high == pytest.approx(5.37 * moved, rel=0.01)


@pytest.mark.parametrize(
    ("spec", "dtype", "share"),
    [("t4", "float32", 0.205), ("t4", "bfloat16", 0.068), ("a100-40-sxm", "float32", 0.283)],
)
def test_convolutions_leave_the_verdict_open_as_far_as_peaks_were_missed(
    tmp_path, spec, dtype, share
):
    script = tmp_path / "convolves.py"
    script.write_text(CONVOLVES.format(dtype=dtype, side=128))
    (device,) = fit_script(str(script), spec=spec).devices.values()
    context, workspaces = device.outside
    assert (workspaces.what, workspaces.low) == (outside.WORKSPACES, 0)
    assert workspaces.high == pytest.approx(share * device.peak_reserved, rel=0.01)
    limit = device.peak_reserved + context.high
    for beside, fits in ((1.01 * workspaces.high, True), (0.99 * workspaces.high, False)):
        memory = f"{int((limit + beside) / 1024)}KiB"
        job = Job(str(script), settings={"spec": spec, "memory": memory})
        answer = fit_script(str(script), spec=spec, memory=memory)
        found = answer.as_dict()
        trials.settle(job, found, lambda _: None)
        assert (found["fits"], found["close"]) == (fits, not fits)
    answer.fits, answer.close, answer.fails_at = False, True, found["fails_at"]
    assert "outside of the allocator or not in the run" in answer.verdict
    assert "workspaces of convolutions, not in the run" in text.as_text(answer)


def test_chips_of_the_table_have_a_context_and_others_do_not():
    chips = {name for name in specs.names() if name not in specs.BUILT_IN}
    known = {name for name in chips if specs.load(name).title.startswith("NVIDIA")}
    assert {name for name in chips if outside.context(name) is not None} == known
    seen = outside.context("a100-80-sxm")
    assert (seen.low >> 20, seen.high >> 20) == (393, 537)
    assert outside.communicators([1, 1]) is None
    two = outside.communicators([8, 1, 2])
    assert (two.low >> 20, two.high >> 20) == (820, 1376)
