# SPDX-License-Identifier: BSD-3-Clause
"""Files that run, gates that a real GPU closes too, and causes of failures."""

import re

PROCESSOR_SECONDS = 20  # a test that takes more of the processor is ended
TEST_SECONDS = 300  # and one that lasts longer, on a machine that others use too
RANKS_SECONDS = 60  # the ranks of a test of torch.distributed; then their errors are read
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

#: File of PyTorch's tests of torch.distributed -> number of devices. NCCL's have no twin.
DISTRIBUTED = {
    "distributed/test_c10d_nccl.py": 8,
    "distributed/test_distributed_spawn.py": 2,  # whose tests are in torch's wheel
    "distributed/test_c10d_common.py": 2,
    "distributed/test_c10d_object_collectives.py": 2,
    "distributed/test_c10d_pypg.py": 2,
    "distributed/test_c10d_logger.py": 2,
    "distributed/test_c10d_spawn_nccl.py": 2,
    "distributed/test_functional_api.py": 4,
    "distributed/test_c10d_functional_native.py": 2,  # which imports a file of test/inductor
    "distributed/test_device_mesh.py": 8,
    "distributed/test_data_parallel.py": 2,
    "distributed/_tensor/test_api.py": 4,
    "distributed/_tensor/test_dtensor.py": 4,
    "distributed/_tensor/test_math_ops.py": 4,
    "distributed/_tensor/test_matrix_ops.py": 4,
    "distributed/_tensor/test_pointwise_ops.py": 4,
    "distributed/_tensor/test_random_ops.py": 4,
    "distributed/_tensor/test_redistribute.py": 4,
    "distributed/_tensor/test_tensor_ops.py": 4,
    "distributed/_tensor/test_view_ops.py": 6,
    "distributed/tensor/parallel/test_tp_style.py": 4,
    "distributed/tensor/parallel/test_tp_random_state.py": 4,
    "distributed/tensor/parallel/test_parallelize_api.py": 4,
    "distributed/_composable/test_replicate.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_init.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_comm.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_autograd.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_clip_grad_norm_.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_frozen.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_grad_scaler.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_mixed_precision.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_state.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_state_dict.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_training.py": 2,
    "distributed/pipelining/test_schedule.py": 2,
    "distributed/checkpoint/test_state_dict.py": 2,
    "distributed/checkpoint/test_dtensor_checkpoint.py": 4,
    "distributed/checkpoint/test_file_system_checkpoint.py": 2,
    "distributed/checkpoint/test_tp_checkpoint.py": 2,
    "distributed/checkpoint/e2e/test_e2e_save_and_load.py": 4,
    "distributed/algorithms/ddp_comm_hooks/test_ddp_hooks.py": 2,
    "distributed/algorithms/test_join.py": 2,
    "distributed/optim/test_zero_redundancy_optimizer.py": 2,
}

#: Files of 2.6 that this torch cannot import -> why.
UNLOADABLE = {
    "distributed/_tensor/test_attention.py": "`_AttentionContextParallel` is gone",
    "distributed/_tensor/test_dtensor_ops.py": "a variant of an operator that it lists is gone",
    "distributed/pipelining/test_stage.py": "`PipeliningShapeError` is gone",
    "distributed/pipelining/test_schedule_multiproc.py": "its base class in torch's wheel is "
    "another since 2.6",
}

#: Words of a skip -> why a machine with one GPU of capability 8.0 skips the test too.
GATES = {
    r"only one GPU|fewer than 2|at least 2 GPU|[Mm]ulti-?GPU|needs multiple": "more than one GPU",
    r"requires multiple devices": "more than one GPU",
    r"Need at least \d+ (CUDA|accelerator)|Need \d+ or more": "more devices than are given",
    r"test is slow": "slow",
    r"[Ii]nsufficient \S* ?memory|[Nn]ot enough memory": "memory",
    r"small world size|exact world size|world size of 4": "more devices than are given",
    r"[Nn]ccl does not support|Only (MPI|[Gg]loo)|one of \{'gloo'\}": "not for NCCL",
    r"GLOO Batch|Gloo-only|tested by test_send_recv_nccl": "not for NCCL",
    r"ROCm|ROCM|HIP|hipblaslt|amdsmi specific|not relevant for CUDA testing": "ROCm",
    r"Only runs on (cpu|xla|mps|meta|hpu|privateuse1|xpu)|specific for CPU": "another device",
    r"GPUs are available, skipping": "another device",
    r"Only runs on \['cpu|MPS|requires mps|XLA|XPU": "another device",
    r"CUDA is built|cuda-enabled build|CUDA asserts|on the CUDA stack|pull/32720": "not for CUDA",
    r"check on CUDA for perf|CUDA implementation is not yet|Excluded from CUDA": "not for CUDA",
    r"USE_CUFILE|github\.com/\S+/issues|always? fail|^Skipped!$|Failing on some": "switched off",
    r"Test is failing|flakiness": "switched off",
    r"does not have antialiasing|does not pass when run locally": "switched off",
    r"SM ?(89|90|100)|requires H100|CDNA3|multicast support": "a newer chip",
    r"[Ww]indows|Jetson|[Mm]acOS|flush_denormal": "another system",
    # The words of a GPU are those of a test that asks for triton.
    r"[Nn]o (numba|cupy|torchvision)|needs triton|This is a GPU test!": "a package",
}

CHANGED = "torch changed since 2.6: what the test says or expects is older"
_TIME = "too long on the machine that ran it"
TOO_LONG = r"longer than|of the processor|timed out after 60"

#: Words of a failure -> cause, the first that fits.
CAUSES = {
    r"getCheckpointState|checkPoolLive|AllocateToPool|AllocateCurrent": "pools have no checkpoints",
    r"_as_parameter_|'mock' to (be|have been) called": "no callbacks of `torch.cuda._gpu_trace`; "
    "events have no handle",
    r"[bB]lasWorkspace|no cuBLAS": "no workspace of cuBLAS to set",
    r"could not download|Name or service": "no network",
    r"CUDNN|cuDNN|cudnn": "no cuDNN",
    r"cudaHostRegister": "registered host memory is refused",
    TOO_LONG: _TIME,
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

_MEET = "ranks meet where a result is needed, not at the call"
_PRIVATE = "private names of ProcessGroupNCCL"

#: Pattern of a whole test's name -> cause, where the words of its failure could be of another one.
TESTS = {
    r"NCCLTraceTest\.test_dump_pipe": "records are not asked for through a pipe",
    r"CommTest\..*_float8_errors": CHANGED,
    r"CommTest\.test_pass_nccl_options_config": "NCCL's log is not written",
    r"CommTest\.test_intra_node_comm_all_reduce": _PRIVATE,
    r"ProcessGroupNCCLGroupTest\.test_extend_nccl_pg_timeout_.*": _PRIVATE,
    r"ProcessGroupNCCLGroupTest\.test_nccl_dist_backend_error": _MEET,
    r"DistributedDataParallelTest\.test_param_layout_mismatch_error": _MEET,
    r"SparseCollective\.test_ddp_set_sparse_metadata": "sparse gradients are not reduced",
    r"PythonProcessGroupExtensionTest\.test_backend_config": "the configuration of gloo names the "
    "host alone",
    r"TestDistBackendWithSpawn\.test_ddp_profiling_torch_profiler": "profiles lack what NCCL was "
    "called with",
}

EXPLAINED = {*CAUSES.values(), *TESTS.values()}


def gate_of(why: str) -> str | None:
    """Returns why a real GPU skips the test too, or None if it would run there."""
    return next((gate for words, gate in GATES.items() if re.search(words, why)), None)


def cause_of(test: str, outcome: str, why: str) -> str:
    """Returns the cause of a test that does not pass."""
    if not re.search(TOO_LONG, why):
        for pattern, cause in TESTS.items():
            if re.fullmatch(pattern, test):
                return cause
    unknown = f"{'skips itself: ' if outcome == 'skipped' else ''}{why[:80]}"
    return next((cause for words, cause in CAUSES.items() if re.search(words, why)), unknown)
