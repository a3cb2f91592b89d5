# SPDX-License-Identifier: BSD-3-Clause
"""torch._C._cuda_*, and torch.testing, which stands on it."""

import json
import re
from pathlib import Path

import pytest
import torch
from processes import python

from torch_npusim import cuda_alias
from torch_npusim.cuda_alias._torch_c import REFUSED, WORKS

# Names that torch itself defines in a build for the CPU, as classes of which nothing can be made.
DUMMIES = {"CUDAAllocator"}


def called_by_torch():
    """Returns the names below torch._C._cuda_ in torch's Python."""
    found = set()
    for file in Path(torch.__file__).parent.rglob("*.py"):
        text = file.read_text(errors="ignore")
        found |= set(re.findall(r"_C\._cuda_(\w+)", text))
        for names in re.findall(r"from torch\._C import ([^(\n]+|\([^)]*\))", text):
            found |= set(re.findall(r"\b_cuda_(\w+)", names))
    return found


def test_each_name_that_torch_calls_works_or_is_refused():
    assert called_by_torch() == (WORKS.keys() | REFUSED.keys() | DUMMIES)
    assert not WORKS.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refusal_has_the_name_and_a_way_out(name):
    with pytest.raises(NotImplementedError, match=rf"^torch\._C\._cuda_{name} on npusim: \w"):
        getattr(torch._C, f"_cuda_{name}")()


ARGUMENTS = {
    "canDeviceAccessPeer": (0, 1),
    "annotateMemory": (0, ""),
    "attach_out_of_memory_observer": (lambda *numbers: None,),
    "cudaCachingAllocator_raw_alloc": (512, 0),
    "exchangeDevice": (0,),
    "getCurrentRawStream": (0,),
    "getCurrentStream": (0,),
    "getDefaultStream": (0,),
    "getMemoryFraction": (0,),
    "getStreamFromExternal": (0, 0),
    "hasPrimaryContext": (0,),
    "maybeExchangeDevice": (0,),
    "memorySnapshot": (None,),
    "memoryStats": (0,),
    "record_memory_history": (None,),
    "resetAccumulatedMemoryStats": (0,),
    "resetPeakMemoryStats": (0,),
    "setDevice": (0,),
    "setMemoryFraction": (1.0, 0),
    "setCublasWorkspaceSize": (8 << 20,),
    "setCublasLtWorkspaceSize": (1 << 20,),
    "set_cudnn_benchmark_limit": (10,),
    "set_sync_debug_mode": (0,),
    "sleep": (10,),
}


def needs_a_pool(name):
    """Tells those that tests/alias/test_pools.py asks together."""
    return "Pool" in name or name in ("CUDAAllocator_AllocatorState", "getCheckpointState")


@pytest.mark.parametrize("name", sorted(name for name in WORKS if not needs_a_pool(name)))
def test_the_others_can_be_called(name):
    if name == "cudaCachingAllocator_raw_delete":
        arguments = (torch._C._cuda_cudaCachingAllocator_raw_alloc(512, 0),)
    elif name == "setStream":
        arguments = torch._C._cuda_getDefaultStream(0)
    else:
        arguments = ARGUMENTS.get(name, ())
    result = getattr(torch._C, f"_cuda_{name}")(*arguments)
    if name == "cudaCachingAllocator_raw_alloc":
        torch.cuda.caching_allocator_delete(result)
    torch._C._cuda_resetCublasWorkspaceSize()


def test_devices_and_streams_are_those_of_torch_cuda():
    side = torch.cuda.Stream("cuda:1")
    before = torch.cuda.current_stream(1)
    torch._C._cuda_setStream(
        stream_id=side.stream_id, device_index=side.device_index, device_type=side.device_type
    )
    assert torch.cuda.current_stream(1) == side
    assert torch._C._cuda_getCurrentStream(1) == (side.stream_id, 1, side.device_type)
    assert torch._C._cuda_getDevice() == 1
    torch.cuda.set_stream(before)
    torch._C._cuda_setDevice(0)
    assert torch.cuda.current_device() == 0
    assert torch._C._cuda_getDeviceCount() == 2
    version = torch._C._cuda_getCompiledVersion()
    assert f"{version // 1000}.{version % 1000 // 10}" == torch.version.cuda


def test_without_the_alias_none_is_there():
    cuda_alias.disable()
    try:
        assert not getattr(torch._C, "_cuda_setStream", None) or torch._C._has_cuda
        assert torch.cuda._is_compiled() == torch._C._has_cuda
    finally:
        cuda_alias.enable()


IMPORTS = """
import importlib, json, pkgutil, torch, torch.testing._internal as internal
wrong, count = {}, 0
for module in pkgutil.walk_packages(internal.__path__, internal.__name__ + "."):
    count += 1
    try:
        importlib.import_module(module.name)
    except BaseException as error:
        wrong[module.name] = f"{type(error).__name__}: {error}"
print(json.dumps([count, wrong]))
"""
WITHOUT = {
    "torch.testing._internal.py312_intrinsics",  # needs a newer Python
    "torch.testing._internal.distributed.distributed_test",  # reads its launcher's environment
}


def run(program, **variables):
    done = python("-c", program, variables={"NPUSIM_AS_CUDA": "1", **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_every_module_of_torch_testing_can_be_imported():
    out, _ = run(IMPORTS)
    count, wrong = json.loads(out.splitlines()[-1])
    assert count > 80
    assert not {name: text for name, text in wrong.items() if name not in WITHOUT}


GENERIC = """
import torch
from torch.testing._internal.common_device_type import (
    instantiate_device_type_tests, onlyCUDA, dtypes
)
from torch.testing._internal.common_utils import TestCase, run_tests

class TestIt(TestCase):
    @dtypes(torch.float32)
    def test_sum(self, device, dtype):
        self.assertEqual(torch.ones(3, device=device, dtype=dtype).sum().item(), 3)

    @onlyCUDA
    def test_stream(self, device):
        self.assertNotEqual(torch.cuda.current_stream(), torch.cuda.default_stream())
        self.assertTrue(torch.ones(1, device=device).is_cuda)

instantiate_device_type_tests(TestIt, globals())
print(sorted(name for name in globals() if name.startswith("TestIt")))
if __name__ == "__main__":
    run_tests(argv=["it", "-v"])
"""


def test_a_generic_test_runs_on_a_stream_of_its_own():
    out, log = run(GENERIC, PYTORCH_TEST_CUDA_MEM_LEAK_CHECK="1")
    assert out.strip() == "['TestItCPU', 'TestItCUDA']"
    for name in ("test_stream_cuda", "test_sum_cuda_float32", "test_sum_cpu_float32"):
        assert name in log
    assert re.search(r"^Ran 4 tests [\s\S]*^OK \(skipped=1\)$", log, re.M), log
