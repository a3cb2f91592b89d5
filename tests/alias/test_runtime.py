# SPDX-License-Identifier: BSD-3-Clause
"""Questions of libraries below torch: the runtime, handles of streams, DLPack, identities."""

import uuid

import numpy as np
import pytest
import torch
from torch.utils.dlpack import DLDeviceType

from torch_npusim.cuda_alias._cudart import REFUSED


def test_an_error_of_the_runtime_has_the_words_of_cuda():
    torch.cuda.check_error(0)
    with pytest.raises(torch.cuda.CudaError, match=r"^out of memory \(2\)$"):
        torch.cuda.check_error(2)
    with pytest.raises(torch.cuda.CudaError, match=r"^unrecognized error code \(12345\)$"):
        torch.cuda.check_error(12345)


def test_a_capture_on_the_default_stream_is_refused_in_the_words_of_cuda():
    words = r"^CUDA graphs must be captured on a non-default stream"
    with pytest.raises(RuntimeError, match=words):
        torch.cuda.CUDAGraph().capture_begin()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_call_of_the_runtime_that_has_no_meaning_here_raises_by_its_name(name):
    with pytest.raises(
        NotImplementedError, match=rf"^torch\.cuda\.cudart\(\)\.{name} on npusim: use "
    ):
        getattr(torch.cuda.cudart(), name)(0, 0, 0)


def test_the_memory_that_the_runtime_reports_falls_by_what_is_taken():
    free, total = torch.cuda.cudart().cudaMemGetInfo(1)
    block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:1")
    assert torch.cuda.cudart().cudaMemGetInfo(1) == (free - block.nbytes, total)
    del block
    torch.cuda.empty_cache()


def test_a_stream_is_found_again_by_its_handle():
    side = torch.cuda.Stream("cuda:1", priority=-1)
    for find in (torch.cuda.ExternalStream, torch.cuda.get_stream_from_external):
        assert find(side.cuda_stream, device="cuda:1") == side
        with pytest.raises(NotImplementedError, match="has this handle"):
            find(side.cuda_stream, device="cuda:0")
    with torch.cuda.stream(torch.cuda.ExternalStream(side.cuda_stream, device="cuda:1")):
        assert torch.cuda.current_stream() == side


@pytest.mark.parametrize("handle", [-1, 1 << 40])
def test_a_handle_of_another_library_is_refused(handle):
    with pytest.raises(NotImplementedError, match="has this handle, and no other library makes"):
        torch.cuda.ExternalStream(handle)


def test_dlpack_names_cuda_and_hands_the_memory_to_torch_alone():
    x = torch.arange(3.0, device="cuda:1")
    assert x.__dlpack_device__() == (DLDeviceType.kDLCUDA, 1)
    assert x.cpu().__dlpack_device__() == (DLDeviceType.kDLCPU, 0)
    with pytest.raises(BufferError, match="on a different CUDA device index"):
        torch.from_dlpack(x)
    with torch.cuda.device(1):
        assert torch.from_dlpack(x).data_ptr() == x.data_ptr()
    with pytest.raises(BufferError, match=r"pass tensor\.cpu\(\)"):
        np.from_dlpack(x)


def test_each_device_has_an_identity_of_its_own():
    ids = [torch.cuda.get_device_properties(index).uuid for index in range(2)]
    assert ids[0] != ids[1]
    assert all(uuid.UUID(str(each)).int for each in ids)
    assert ids[0] == torch.cuda.get_device_properties(0).uuid


@pytest.mark.parametrize("name", ["from_buffer", "_new_with_weak_ptr", "_new_shared_filename"])
def test_a_storage_refuses_memory_of_the_host_in_the_words_of_cuda(name):
    with pytest.raises(RuntimeError, match=rf"^{name}: Not available for CUDA storage$"):
        getattr(torch.cuda.FloatStorage, name)()


@pytest.mark.parametrize("driver", ["gesvd", "gesvda", "gesvdj"])
def test_a_decomposition_takes_the_drivers_of_cusolver(driver):
    a = torch.arange(6.0, device="cuda").reshape(2, 3).requires_grad_()
    u, s, v = torch.linalg.svd(a, full_matrices=False, driver=driver)
    torch.testing.assert_close(u * s @ v, a)
    torch.testing.assert_close(torch.linalg.svdvals(a, driver=driver), s)
    s.sum().backward()
    assert a.grad is not None
    with pytest.raises(RuntimeError, match="only supported on CUDA"):
        torch.linalg.svd(a.cpu(), driver=driver)


def test_an_unknown_driver_is_refused_and_torchscript_keeps_the_operator():
    with pytest.raises(RuntimeError, match="unknown svd driver qr in svd_cusolver"):
        torch.linalg.svd(torch.ones(2, 2, device="cuda"), driver="qr")
    scripted = torch.jit.script(_singular_values)
    assert scripted(torch.eye(3, device="cuda")).tolist() == [1.0, 1.0, 1.0]


def _singular_values(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svd(a)[1]
