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
