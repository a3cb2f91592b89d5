# SPDX-License-Identifier: BSD-3-Clause
"""Files that run, gates that a real GPU closes too, and causes of failures."""

import re

PROCESSOR_SECONDS = 20  # a test that takes more of the processor is ended
TEST_SECONDS = 300  # and one that lasts longer, on a machine that others use too
LARGEST = 4 << 30  # bytes; a test that wants more skips itself

#: File below PyTorch's test/ -> every n-th of its tests, in the order of their names.
FILES = {
    "test_cuda.py": 1,
    "test_torch.py": 4,
    "test_indexing.py": 1,
    "test_sort_and_select.py": 2,
    "test_view_ops.py": 1,
    "test_scatter_gather_ops.py": 1,
    "test_shape_ops.py": 1,
    "test_autocast.py": 1,
    "test_cuda_trace.py": 1,
    "test_cuda_primary_ctx.py": 1,
    "test_cuda_nvml_based_avail.py": 1,
    "test_dlpack.py": 1,
    "test_segment_reductions.py": 1,
    "test_stateless.py": 1,
    "nn/test_pooling.py": 1,
    "nn/test_dropout.py": 1,
    "nn/test_embedding.py": 1,
    "test_type_promotion.py": 1,
    "test_tensor_creation_ops.py": 1,
    "test_autograd.py": 1,
    "test_nn.py": 4,
    "test_reductions.py": 8,
}

#: Words of a skip -> why a machine with one GPU of capability 8.0 skips the test too.
GATES = {
    r"only one GPU|fewer than 2|at least 2 GPU|[Mm]ulti-?GPU|needs multiple": "more than one GPU",
    r"requires multiple devices": "more than one GPU",
    r"test is slow": "slow",
    r"[Ii]nsufficient \S* ?memory|[Nn]ot enough memory": "memory",
    r"ROCm|ROCM|HIP|hipblaslt|amdsmi specific|not relevant for CUDA testing": "ROCm",
    r"Only runs on (cpu|xla|mps|meta|hpu|privateuse1|xpu)|specific for CPU": "another device",
    r"Only runs on \['cpu|MPS|requires mps|XLA|XPU": "another device",
    r"CUDA is built|cuda-enabled build|CUDA asserts|on the CUDA stack|pull/32720": "not for CUDA",
    r"check on CUDA for perf|CUDA implementation is not yet|Excluded from CUDA": "not for CUDA",
    r"USE_CUFILE|github\.com/\S+/issues|always? fail|^Skipped!$|Failing on some": "switched off",
    r"does not have antialiasing": "switched off",
    r"SM ?(89|90|100)|requires H100|CDNA3": "a newer chip",
    r"[Ww]indows|Jetson|[Mm]acOS|flush_denormal": "another system",
    r"[Nn]o (numba|cupy|torchvision)": "a package",
}

CHANGED = "torch changed since 2.6: what the test says or expects is older"
_TIME = "too long on the machine that ran it"

#: Words of a failure -> cause, the first that fits.
CAUSES = {
    r"getCheckpointState|checkPoolLive|AllocateToPool|AllocateCurrent": "pools have no checkpoints",
    r"_as_parameter_|'mock' to (be|have been) called": "no callbacks of `torch.cuda._gpu_trace`; "
    "events have no handle",
    r"[bB]lasWorkspace|no cuBLAS": "no workspace of cuBLAS to set",
    r"could not download|Name or service": "no network",
    r"CUDNN|cuDNN|cudnn": "no cuDNN",
    r"cudaHostRegister": "registered host memory is refused",
    r"longer than|of the processor": _TIME,
    r"\(True, True\) != True|_histc_cuda|takes 1 positional|expected a non-det": CHANGED,
    r'function "mm" with config': CHANGED,
    r"no attribute 'MemPoolContext'|'' != 'LAZY'": CHANGED,
    # A graph's generators have their memory by capture in ATen/cuda/CUDAGeneratorImpl.h.
    r"Pre to post capture delta|Unexpected number of active blocks": CHANGED,
    r"indices should be either|on npusim|Error raise by": "npusim's own words",
    r"must be run in a process|must$": "wants a process of its own; files have one here",
    r"device-side assert": "an index out of range is a device assert; the test expects IndexError",
    r"Nx=0 is not a positive": "SciPy changed since 2.6: it refuses windows without samples",
    r"cadd_sparse": "half precision that only CUDA has",
    r"per-thread default stream": "a stream's handle is its number: 2 is another stream on CUDA",
    r"records no CUDA graphs": "compiled code records no graphs",
}

EXPLAINED = {*CAUSES.values()}


def gate_of(why: str) -> str | None:
    """Returns why a real GPU skips the test too, or None if it would run there."""
    return next((gate for words, gate in GATES.items() if re.search(words, why)), None)


def cause_of(outcome: str, why: str) -> str:
    """Returns the cause of a test that does not pass."""
    unknown = f"{'skips itself: ' if outcome == 'skipped' else ''}{why[:80]}"
    return next((cause for words, cause in CAUSES.items() if re.search(words, why)), unknown)
