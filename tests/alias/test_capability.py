# SPDX-License-Identifier: BSD-3-Clause
"""The chip that a run is judged as, and what its device answers."""

import pytest
import torch
import torch.cuda.comm
from processes import python

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


def of_cuda(program, **variables):
    return python("-c", program, variables={"NPUSIM_AS_CUDA": "1", **variables})


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("7.5", f"(7, 5)|False|False|1024|{REFUSED}"),
        ("8.9", "(8, 9)|True|True|1536|runs"),
    ],
)
def test_a_run_is_judged_as_a_chip(capability, expected):
    done = of_cuda(PROGRAM, NPUSIM_CUDA_CAPABILITY=capability)
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
    assert torch.cuda.FloatTensor(1, device="cuda:1").device.index == 1
    for make in (torch.cuda.FloatTensor, torch.cuda.sparse.FloatTensor):
        with pytest.raises(RuntimeError, match="device type: cuda but device type: cpu was passed"):
            make(1, device="cpu")
    storage = torch.cuda.FloatStorage(3)
    assert storage.is_cuda
    assert isinstance(storage, torch.cuda.FloatStorage)
    assert isinstance(torch.ones(2, device="cuda").storage(), torch.cuda.FloatStorage)
    assert not isinstance(torch.ones(2).storage(), torch.cuda.FloatStorage)


@pytest.mark.parametrize(
    ("spec", "clocks"),
    [
        # MHz as nvidia-smi says them: boost of the data sheet, memory
        ("a100-40-sxm", (1410, 1215, 5120)),
        ("rtx-3090", (1696, 9750, 384)),
        ("t4", (1582, 5000, 256)),
        ("npusim-one", (None, 0, 0)),
    ],
)
def test_clocks_are_those_of_the_data_sheet(run_script, spec, clocks):
    program = """
import torch
p = torch.cuda.get_device_properties(0)
print(round(p.clock_rate / 1000), round(p.memory_clock_rate / 1000), p.memory_bus_width)
print(torch.cuda.clock_rate(0) * 1000 == p.clock_rate)
"""
    done = run_script(program, environment={"NPUSIM_AS_CUDA": "1", "NPUSIM_SPEC": spec})
    first, second = done.stdout.splitlines()
    own, memory, bits = map(int, first.split())
    assert (memory, bits) == clocks[1:]
    assert own > 0 if clocks[0] is None else abs(own - clocks[0]) <= 1
    assert second == "True"


WRONG = {
    "source tensor": lambda comm, x: comm.broadcast(x, out=[x.cuda(0), x.cuda(1)[None]]),
    "output tensors to be CUDA tensors, but output tensor at index 1 is on device 'cpu'": (
        lambda comm, x: comm.broadcast(x, out=[x.cuda(0), x])
    ),
    "Expected devices and chunk_sizes to be of same length": (
        lambda comm, x: comm.scatter(x, [0, 1], [1, 1, 2])
    ),
    "output tensors to be CUDA tensors, but output tensor at index 0": (
        lambda comm, x: comm.scatter(x, out=[x, x.cuda()])
    ),
    "Output tensor at index 0 has incorrect shape": (
        lambda comm, x: comm.scatter(x, out=[x.cuda()[None], x.cuda()])
    ),
    r"Total size for output tensors along scatter dim \d+ does not match": (
        lambda comm, x: comm.scatter(x, out=[x.cuda(), x.cuda()])
    ),
    "input tensors to be CUDA tensors, but tensor at index 0": (
        lambda comm, x: comm.gather((x, x.cuda()))
    ),
    "input tensors to have the same number of dimensions": (
        lambda comm, x: comm.gather((x.cuda(), x.cuda()[None]))
    ),
    "Input tensor at index 1 has invalid shape": (
        lambda comm, x: comm.gather((x.cuda(), x.cuda()[:, :1]))
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_copies_to_devices_are_refused_in_the_words_of_cuda(words):
    with pytest.raises(RuntimeError, match=words):
        WRONG[words](torch.cuda.comm, torch.ones(4, 3))


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
    done = of_cuda(program, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64")
    assert done.stdout.strip() == str(64 << 20), done.stderr


SETTINGS = """
import torch
torch.cuda.memory._set_allocator_settings("max_split_size_mb:64")
try:
    torch.cuda.memory._set_allocator_settings("no_such_key:1")
except RuntimeError as error:
    print(error)
x = torch.ones(1, device="cuda")
print(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_bytes"])
torch.cuda.memory._set_allocator_settings("max_split_size_mb:32")
print(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_bytes"])
try:
    torch.cuda.memory._set_allocator_settings("quantum_bytes:64")
except RuntimeError as error:
    print(error)
print(torch.cuda.memory_allocated(torch.cuda.device(0)))
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
print(torch.cuda.memory._snapshot()["allocator_settings"]["PYTORCH_ALLOC_CONF"])
"""


def test_settings_of_the_allocator_count_before_and_after_the_first_allocation():
    done = of_cuda(SETTINGS, PYTORCH_ALLOC_CONF="max_split_size_mb:128")
    wrong, size, later, late, allocated, rules = done.stdout.splitlines()
    assert wrong.startswith("set_allocator_settings: ")
    assert "no_such_key" in wrong
    assert size == str(64 << 20)
    assert later == str(32 << 20)
    assert "in use already" in late
    assert allocated == "512"
    assert rules.startswith("cuda-2.13,")
    assert rules.endswith(",expandable_segments:True")
    assert "max_split" not in rules
