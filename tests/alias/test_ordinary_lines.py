# SPDX-License-Identifier: BSD-3-Clause
"""Lines as they stand in the tests of libraries for CUDA: each is true, as it is on a GPU."""

import copy
import pickle
import warnings

import pytest
import torch

LINES = [
    'torch.ones(1, device="cuda").device.type == "cuda"',
    'str(torch.ones(1, device="cuda").device) == "cuda:0"',
    'str(torch.device("cuda")) == "cuda"',
    '"cuda:0" in repr(torch.ones(1, device="cuda"))',
    '"cuda:1" in repr(torch.ones(1, device="cuda:1"))',
    "torch.ones(1).cuda().is_cuda",
    'torch.ones(1, device="cuda").device == torch.device("cuda", 0)',
    'torch.ones(1, device="cuda").type() == "torch.cuda.FloatTensor"',
    'torch.ones(1).type("torch.cuda.HalfTensor").dtype == torch.float16',
    'isinstance(torch.ones(1, device="cuda"), torch.cuda.FloatTensor)',
    "torch.cuda.is_available() and torch.backends.cuda.is_built()",
    'torch.version.cuda is not None and int(torch.version.cuda.split(".")[0]) >= 11',
    "torch.cuda.get_device_capability() >= (7, 0)",
    "torch.cuda.get_device_capability(0)[0] == torch.cuda.get_device_properties(0).major",
    "torch.cuda.is_bf16_supported()",
    'torch.cuda.current_stream().device.type == "cuda"',
    'torch.Generator(device="cuda").device.type == "cuda"',
    'torch.nn.Linear(2, 2).cuda().weight.device.type == "cuda"',
    'torch.ones(1, device="cuda").untyped_storage().device.type == "cuda"',
    'torch.accelerator.current_accelerator().type == "cuda"',
    'torch._C._get_privateuse1_backend_name() == "cuda"',
    'torch._C._get_accelerator().type == "cuda"',
    'torch.get_device_module("cuda") is torch.cuda',
    'torch.empty(1, device="cuda").new_zeros(1).device.type == "cuda"',
    '{torch.device("cuda:0"): 1}[torch.ones(1, device="cuda").device] == 1',
    'pickle.loads(pickle.dumps(torch.device("cuda", 1))) == torch.device("cuda:1")',
    'copy.deepcopy(torch.nn.Linear(1, 1).cuda()).weight.device.type == "cuda"',
    'torch.tensor([1.0]).to(torch.device("cuda")).device.type == "cuda"',
    'torch.utils.data.default_collate([torch.ones(1).cuda()]).device.type == "cuda"',
    'torch.autocast("cuda").device == "cuda"',
    'torch.amp.GradScaler("cuda")._device == "cuda"',
    'next(torch.nn.Linear(1, 1, device="cuda").parameters()).device.type == "cuda"',
]


@pytest.mark.parametrize("line", LINES)
def test_it_is_true(line):
    scope = {"torch": torch, "pickle": pickle, "copy": copy}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert eval(line, scope) is True


def test_out_of_memory_says_cuda():
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to"):
        torch.empty(1 << 50, device="cuda")


def test_mixed_devices_name_cuda():
    with pytest.raises(RuntimeError, match=r"at least two devices, cuda:0 and cpu!"):
        torch.ones(2, device="cuda") + torch.ones(2)


def test_generated_kernels_name_the_argument_on_another_device():
    layer, other = torch.nn.Linear(2, 2, device="cuda"), torch.ones(2)
    text = r"but got {} is on cpu, different from other tensors on cuda:0 \(when checking argument "
    text += r"in method wrapper_CUDA_{}\)"
    with pytest.raises(RuntimeError, match=text.format("mat1", "addmm")):
        layer(other)
    with pytest.raises(RuntimeError, match=text.format("tensors", "cat")):
        torch.cat([other.cuda(), other])
    with pytest.raises(RuntimeError, match=text.format("index", "gather")):
        other.cuda().gather(0, torch.tensor([0]))


def test_the_accelerator_has_no_capability_to_tell():
    with pytest.raises(RuntimeError, match="doesn't support getting device capabilities"):
        torch.accelerator.get_device_capability()


def test_graphs_are_refused_in_cudas_words():
    with pytest.raises(torch.AcceleratorError, match="cannot be performed in the present state"):
        torch.cuda.CUDAGraph().capture_end()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        torch.cuda.CUDAGraph().replay()


def test_a_function_of_torch_that_the_alias_replaces_is_still_known_to_torchscript():
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x if torch.is_autocast_enabled() else x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled = torch.jit.script(scaled)
    assert compiled(torch.ones(1, device="cuda")).item() == 2
