# SPDX-License-Identifier: BSD-3-Clause
"""Libraries behind torch.cuda: cuDNN with its version and flags, NVML with its sensors."""

import pytest
import torch
from torch import nn


def test_cudnn_is_there_with_a_version():
    cudnn = torch.backends.cudnn
    assert cudnn.is_available()
    assert cudnn.version() >= 90000
    assert cudnn.is_acceptable(torch.ones(1, device="cuda"))
    assert not cudnn.is_acceptable(torch.ones(1))
    assert not cudnn.is_acceptable(torch.ones(1, dtype=torch.int64, device="cuda"))


def test_the_flags_of_cudnn_are_kept_and_come_back():
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark_limit
    with cudnn.flags(enabled=False, benchmark_limit=before + 1):
        assert not cudnn.is_acceptable(torch.ones(1, device="cuda"))
        assert cudnn.benchmark_limit == before + 1
    assert cudnn.enabled
    assert cudnn.benchmark_limit == before


@pytest.mark.filterwarnings("error")
def test_an_rnn_moves_without_a_warning():
    rnn = nn.LSTM(3, 4).cuda()
    assert rnn(torch.ones(2, 1, 3, device="cuda"))[0].is_cuda


def test_the_clock_gives_the_peak_rate():
    properties = torch.cuda.get_device_properties(0)
    cores = 64 if (properties.major, properties.minor) in ((7, 0), (7, 5), (8, 0)) else 128
    rate = 2 * cores * properties.multi_processor_count * torch.cuda.clock_rate() * 1e6
    assert rate == pytest.approx(
        torch.npusim.get_device_properties(0).peak_flops["float32"], rel=0.01
    )


def test_a_device_is_used_while_its_work_is_unfinished():
    torch.cuda.synchronize()
    assert torch.cuda.utilization() == 0
    torch.cuda._sleep(1_000_000_000)
    assert torch.cuda.utilization() == 100
    torch.cuda.synchronize()
    assert torch.cuda.utilization() == 0


def test_memory_in_use_is_that_of_the_device():
    torch.cuda.empty_cache()  # blocks of other tests would serve
    before = torch.cuda.device_memory_used()
    block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.device_memory_used() >= before + block.nbytes


def test_other_storages_are_refused_in_the_words_of_cuda():
    with pytest.raises(RuntimeError, match=r"^_share_cuda_: only available on CUDA$"):
        torch.empty(3, device="meta").untyped_storage()._share_cuda_()
    with pytest.raises(NotImplementedError, match=r"UntypedStorage\._share_cuda_\(\) on npusim"):
        torch.empty(3, device="cuda").untyped_storage()._share_cuda_()


def test_the_older_types_warn_as_those_of_cuda():
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match=r"^The torch\.cuda\.\*DtypeTensor constructors"):
            assert torch.cuda.FloatTensor([1.0]).is_cuda
    finally:
        torch.set_warn_always(False)


def test_workspaces_of_cublas_have_a_size_to_set():
    default = torch.backends.cuda.cublas_workspace_size()
    assert torch.backends.cuda.cublas_workspace_size(1 << 20) == 1 << 20
    torch._C._cuda_resetCublasWorkspaceSize()
    assert torch.backends.cuda.cublas_workspace_size() == default > 0


def test_a_generator_may_name_a_device_that_is_not_there():
    away = torch.Generator(device="cuda:7")
    assert torch.randperm(3, device="cuda:0", generator=away).sort().values.tolist() == [0, 1, 2]


def test_an_event_says_that_it_is_one_of_cuda():
    event = torch.cuda.Event()
    assert repr(event) == "<torch.cuda.Event uninitialized>"
    event.record()
    assert repr(event) == f"<torch.cuda.Event {event.cuda_event:#x}>" == str(event)


def test_indices_on_another_device_are_refused_in_the_words_of_cuda():
    words = r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)"
    with pytest.raises(RuntimeError, match=words):
        torch.ones(3)[torch.tensor([0], device="cuda")]


@pytest.mark.parametrize("where", ["cpu", "cuda:1"])
@pytest.mark.parametrize("index", [[0, 2], [True, False, True]], ids=["numbers", "mask"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_an_assignment_brings_its_indices_from_another_device(where, index, accumulate):
    x = torch.ones(3, device=where)
    index = torch.tensor(index, device="cuda:0")
    assert x.index_put_((index,), torch.tensor(5.0), accumulate).tolist() == [
        (6 if accumulate else 5), 1, (6 if accumulate else 5)
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x[index] = torch.ones(2, device="cuda:0")


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_sums_of_sparse_tensors_of_half_precision_have_the_entries_of_both(dtype):
    indices = torch.tensor([[0, 1], [2, 0]])
    values = torch.tensor([3.0, 4.0], dtype=dtype)
    x = torch.sparse_coo_tensor(indices, values, (2, 3)).cuda()
    in_place = x.clone().add_(x)
    for total, factor in ((x + x, 2), (torch.add(x, x, alpha=2), 3), (x - x, 0), (in_place, 2)):
        assert total._nnz() == 4
        assert total.to_dense().tolist() == [[0, 0, 3 * factor], [4 * factor, 0, 0]]
    embedding = nn.Embedding(10, 3, sparse=True).to(dtype).cuda()
    for _ in range(2):
        embedding(torch.tensor([7, 1], device="cuda")).sum().backward()
    assert embedding.weight.grad._indices().tolist() == [[7, 1, 7, 1]]


def test_convolutions_of_cudnn_are_convolutions():
    x, weight = torch.randn(2, 4, 8, 8, device="cuda"), torch.randn(6, 4, 3, 3, device="cuda")
    direct = torch.cudnn_convolution(x, weight, (1, 1), (2, 2), (1, 1), 1, False, True, True)
    assert torch.equal(direct, nn.functional.conv2d(x, weight, stride=2, padding=1))


@pytest.mark.parametrize(
    ("context", "freed", "allocated"),
    [("state", False, False), ("alloc", False, True), ("all", True, True)],
)
def test_stacks_of_a_history_are_those_asked_for(context, freed, allocated):
    def the_allocation():
        return torch.ones(3, device="cuda")

    def the_free():
        held.clear()

    torch.cuda.empty_cache()
    held = [torch.ones(3, device="cuda")]  # so that no segment is taken
    segment = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")  # of nobody else
    torch.cuda.memory._record_memory_history(context=context, clear_history=True)
    try:
        held.append(the_allocation())
        held.pop(0)
        the_free()
        del segment
        torch.cuda.empty_cache()
        trace = str(torch.cuda.memory._snapshot()["device_traces"][0])
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert ("the_free" in trace) is freed
    assert ("the_allocation" in trace) is allocated
    assert ("empty_cache" in trace) is freed


@pytest.mark.parametrize("width", [16, 12])
def test_which_kernels_of_attention_take_the_operands(width):
    cuda = torch.backends.cuda
    q = torch.ones(1, 1, 4, width, dtype=torch.half, device="cuda")

    def answers(q):
        params = cuda.SDPAParams(q, q, q, None, 0.0, False, False)
        asked = cuda.can_use_flash_attention, cuda.can_use_efficient_attention
        return [can_use(params) for can_use in (*asked, cuda.can_use_cudnn_attention)]

    assert cuda.is_flash_attention_available()
    assert answers(q) == [True, width == 16, width == 16]
    assert answers(q.float()) == [False, True, False]
    assert answers(q.cpu()) == [False, False, False]


def test_a_storage_has_the_type_of_cuda():
    storage = torch.cuda.FloatStorage(3)
    assert storage.type() == "torch.cuda.FloatStorage"
    assert storage.cpu().type() == "torch.FloatStorage"
    assert isinstance(storage, torch.cuda.FloatStorage)


def test_the_graph_of_the_accelerator_is_that_of_cuda():
    x = torch.ones(4, device="cuda")
    graph, stream = torch.accelerator.Graph(), torch.Stream("cuda")
    with stream, graph:
        y = x * 3
    graph.replay()
    torch.accelerator.synchronize()
    assert y.tolist() == [3] * 4
