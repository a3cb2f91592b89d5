# SPDX-License-Identifier: BSD-3-Clause
"""Questions of libraries below torch: the runtime, handles of streams, DLPack, identities."""

import ctypes
import uuid

import numpy as np
import pytest
import torch
from torch.utils.dlpack import DLDeviceType

from torch_npusim.patches import is_version


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


def test_memory_of_the_program_is_registered_as_pinned():
    runtime = torch.cuda.cudart()
    x = torch.ones(20)
    address, size = x.data_ptr(), x.nbytes
    assert runtime.cudaHostRegister(address, size, 0) == 0
    assert x.is_pinned()
    assert x[10:].is_pinned()
    assert x.to("cuda", non_blocking=True).sum().item() == 20
    assert runtime.cudaHostRegister(address + 4, 4, 0) == 712
    assert runtime.cudaHostUnregister(address) == 0
    assert not x.is_pinned()
    assert runtime.cudaHostUnregister(address) == 713
    assert runtime.cudaHostRegister(0, size, 0) == 1
    own = torch.ones(4).pin_memory()
    assert runtime.cudaHostUnregister(own.data_ptr()) == 713
    assert own.is_pinned()


def test_the_runtime_makes_streams():
    handle = ctypes.c_uint64(0)
    assert torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle)) == 0
    stream = torch.cuda.ExternalStream(handle.value)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream().cuda_stream == handle.value
    assert torch.cuda.cudart().cudaStreamDestroy(handle.value) == 0


def test_an_event_for_other_processes_records_and_has_a_handle():
    event = torch.cuda.Event(interprocess=True)
    event.record()
    event.synchronize()
    assert event.query()
    others = torch.cuda.Event(interprocess=True), torch.cuda.Event(interprocess=True)
    handles = {one.ipc_handle() for one in (event, *others)}  # two are not recorded yet
    assert len(handles) == 3
    assert {len(handle) for handle in handles} == {64}
    with pytest.raises(NotImplementedError, match="from_ipc_handle"):
        torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), event.ipc_handle())


def test_nvml_counts_and_names_devices():
    assert torch.cuda._device_count_nvml() == torch.cuda.device_count() == 2
    ids = [f"GPU-{torch.cuda.get_device_properties(index).uuid}" for index in range(2)]
    assert torch.cuda._raw_device_uuid_nvml() == ids


@pytest.mark.parametrize(("listed", "count"), [("1, 0", 2), ("1, 5, 0", 1), ("", 2), ("-1", 2)])
def test_nvml_counts_what_the_variable_lists(monkeypatch, listed, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert torch.cuda._device_count_nvml() == count


@pytest.fixture
def no_waits():
    """Neither a wait of the host nor a read of it that has not waited is let through."""
    before = torch.npusim.get_race_detection()
    torch.npusim.set_race_detection("error")
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")
    torch.npusim.set_race_detection(before)


@pytest.mark.parametrize("reduce", [torch.max, torch.min, torch.median, torch.nanmedian])
def test_gradients_of_extremes_do_not_wait(reduce, no_waits):
    x = torch.tensor([1.0, 2.0, 3.0]).to("cuda", non_blocking=True).requires_grad_()
    reduce(x).backward()
    torch.cuda.set_sync_debug_mode("default")
    assert x.grad.sum().item() == 1


# An H100 waits in these: docs/reference/truth.md.
WAITS = {
    "matrix_exp": lambda x: torch.matrix_exp(x),
    "ctc_loss": lambda x: torch.nn.functional.ctc_loss(
        x[:, None].log_softmax(2), torch.tensor([[1, 2]]), (3,), (2,)
    ),
}
if is_version("<2.14"):  # removed later
    WAITS["cholesky"] = lambda x: torch.cholesky(x)


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.parametrize("name", WAITS)
def test_the_host_waits_where_cuda_reads_a_value(name, no_waits):
    x = torch.eye(3, device="cuda")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        WAITS[name](x)


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
