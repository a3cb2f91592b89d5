# SPDX-License-Identifier: BSD-3-Clause
"""The chip that a run is judged as, and what its device answers."""

import os
import subprocess
import sys

import pytest
import torch
import torch.cuda.comm

from torch_npusim.sim import specs

PROGRAM = """
import torch
import torch.cuda.comm
x = torch.ones(16, 16, device="cuda").to(torch.float8_e4m3fn)
one = torch.ones((), device="cuda")
try:
    torch._scaled_mm(x, x.t(), one, one, out_dtype=torch.bfloat16)
    product = "runs"
except RuntimeError as error:
    product = str(error).partition("\\n")[0]
properties = torch.cuda.get_device_properties(0)
print(torch.cuda.get_device_capability(), torch.cuda.is_tf32_supported(),
      torch.cuda.is_bf16_supported(including_emulation=False),
      properties.max_threads_per_multi_processor, product, sep="|")
"""
REFUSED = (
    "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, "
    "or ROCm MI300+"
)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("7.5", f"(7, 5)|False|False|1024|{REFUSED}"),
        ("8.9", "(8, 9)|True|True|1536|runs"),
    ],
)
def test_a_run_is_judged_as_a_chip(capability, expected):
    variables = {"NPUSIM_AS_CUDA": "1", "NPUSIM_CUDA_CAPABILITY": capability}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip() == expected, done.stderr


def test_properties_have_the_names_of_cuda():
    assert specs.capability() == torch.cuda.get_device_capability() == (8, 0)
    first, second = (torch.cuda.get_device_properties(index) for index in (0, 1))
    assert first.warp_size == 32
    assert first.L2_cache_size == 40 << 20
    assert first.shared_memory_per_block_optin == 166912
    assert first.shared_memory_per_multiprocessor == 167936
    assert first.regs_per_multiprocessor == 65536
    assert first.max_threads_per_block == 1024
    assert str(first.uuid) != str(second.uuid)
    assert first.total_memory == torch.npusim.get_device_properties(0).total_memory


def test_architectures_are_in_one_form_and_the_other():
    assert "sm_80" in torch.cuda.get_arch_list()
    assert torch._C._cuda_getArchFlags().split() == torch.cuda.get_arch_list()
    assert "-gencode compute=compute_80,code=sm_80" in torch.cuda.get_gencode_flags()


def test_streams_have_handles_and_priorities():
    stream, urgent = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    assert torch.cuda.default_stream().cuda_stream == 0
    assert stream.cuda_stream != urgent.cuda_stream
    streams = [torch.cuda.Stream() for _ in range(32)]
    # 1 and 2 are CUDA's legacy and per-thread default streams, which DLPack refuses.
    assert len({*(s.cuda_stream for s in streams), 0, 1, 2}) == 35
    assert (stream.priority, urgent.priority) == (0, -1)
    assert stream._as_parameter_.value == stream.cuda_stream
    assert stream.__cuda_stream__() == (0, stream.cuda_stream)
    with torch.cuda.stream(stream):
        assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream
    assert repr(stream) == (
        f"<torch.cuda.Stream device=cuda:0 cuda_stream={stream.cuda_stream:#x}>"
    )


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_older_types_without_a_device_are_on_cuda():
    assert torch.cuda.FloatTensor(1, device=None).is_cuda
    storage = torch.cuda.FloatStorage(3)
    assert storage.is_cuda
    assert isinstance(storage, torch.cuda.FloatStorage)
    assert isinstance(torch.ones(2, device="cuda").storage(), torch.cuda.FloatStorage)
    assert not isinstance(torch.ones(2).storage(), torch.cuda.FloatStorage)


def test_scatter_and_gather_keep_channels_last():
    x = torch.ones(4, 3, 4, 4).contiguous(memory_format=torch.channels_last).cuda()
    parts = torch.cuda.comm.scatter(x, [0, 1])
    for part in (*parts, torch.cuda.comm.gather(parts, destination=0)):
        assert part.is_contiguous(memory_format=torch.channels_last)


def test_the_older_variable_of_the_allocator_counts():
    program = (
        "import torch; x = torch.ones(1, device='cuda'); "
        "print(torch.cuda.memory._snapshot()['allocator_settings']['max_split_bytes'])"
    )
    variables = {"NPUSIM_AS_CUDA": "1", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip() == str(64 << 20), done.stderr


SETTINGS = """
import torch
torch.cuda.memory._set_allocator_settings("max_split_size_mb:64")
try:
    torch.cuda.memory._set_allocator_settings("no_such_key:1")
except ValueError as error:
    print(error)
x = torch.ones(1, device="cuda")
print(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_bytes"])
torch.cuda.memory._set_allocator_settings("max_split_size_mb:32")
print(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_bytes"])
try:
    torch.cuda.memory._set_allocator_settings("quantum_bytes:64")
except ValueError as error:
    print(error)
print(torch.cuda.memory_allocated(torch.cuda.device(0)))
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
print(torch.cuda.memory._snapshot()["allocator_settings"]["PYTORCH_ALLOC_CONF"])
"""


def test_settings_of_the_allocator_count_before_and_after_the_first_allocation():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SETTINGS],
        env={
            **os.environ,
            "NPUSIM_AS_CUDA": "1",
            "PYTORCH_ALLOC_CONF": "max_split_size_mb:128",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    wrong, size, later, late, allocated, rules = done.stdout.splitlines()
    assert wrong.startswith("set_allocator_settings: ")
    assert "no_such_key" in wrong
    assert size == str(64 << 20)
    assert later == str(32 << 20)
    assert "in use already" in late
    assert allocated == "32"
    assert rules.endswith(",expandable_segments:True")
    assert "max_split" not in rules
