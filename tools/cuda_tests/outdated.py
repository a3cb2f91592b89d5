# SPDX-License-Identifier: BSD-3-Clause
"""Tests of 2.6 that do not apply to the installed torch, each with the line that shows it."""

import re
from pathlib import Path
from typing import NamedTuple

import torch

TORCH = Path(torch.__file__).parent


class Change(NamedTuple):
    """A change of torch since 2.6: its tests, in words, and a text that a source has or lacks."""

    tests: str  # a pattern of whole names
    words: str
    source: str  # below torch/ in the wheel
    text: str
    gone: bool = False
    since: str = "2.13"

    def is_shown(self, torch: Path) -> bool:
        """Returns whether the sources of torch are as the row says."""
        return (self.text in (torch / self.source).read_text()) != self.gone


MESH, RANDOM = "distributed/device_mesh.py", "distributed/tensor/_random.py"
DISPATCH = "distributed/tensor/_dispatch.py"
FSDP = "distributed/fsdp/_fully_shard/"
ROOT = "an explicit `reshard_after_forward=True` reshards the root too: one more all-gather"
VERSION = "the flight recorder's format is 2.10, and the test wants 2.4"
HEADER = "include/torch/csrc/distributed/c10d/FlightRecorder.hpp"
SEEDED = "DTensors draw from the device's generator, which the test seeds by rank"

CHANGES = [
    Change(r"NCCLTraceTest\.test_short_(json|pickle)_.*", VERSION, HEADER, '"2.10"'),
    Change(
        r"CommTest\.test_nccl_barrier_device_ids_function_argument",
        "`barrier(device_ids=1)` is not a TypeError",
        "distributed/distributed_c10d.py", "Invalid function argument: device_ids", True,
    ),
    Change(
        r"DeviceMeshTest\.test_assert_invalid_mesh_tensor",
        "a mesh given on a device is moved to the CPU", MESH, 'mesh = mesh.to("cpu")',
    ),
    Change(
        r"DeviceMeshTest\.test_2d_mesh_non_eager_init_subgroup|ProcessGroupNCCLGroupTest\."
        r"test_(abort_in_destroy_m(ixed_empty|ulti)_pgs|non_blocking_init)",
        "a group of NCCL is bound to its device when it is made, and later ones are split from it",
        "distributed/distributed_c10d.py", "process_group.bound_device_id = device",
        since="2.15",
    ),
    Change(
        r"LargeCommTest\.test_new_group_local_sync",
        "`new_group()` is not None where the rank is in none of its groups",
        "distributed/distributed_c10d.py", "get_rank() not in ranks:\n            return None",
        True, "2.14",
    ),
    Change(
        r"ProcessGroupNCCLLargerScaleTest\.test_comm_split_group_larger_scale",
        "`split_group()` is not None where the rank is in none of its groups",
        "distributed/distributed_c10d.py", "# and None will be returned.", True, "2.14",
    ),
    Change(
        r"WorkHookTest\.test_on_completion_hook_all_gather_object",
        "`all_gather_object()` gathers into one tensor, which is another kind of work",
        "distributed/distributed_c10d.py",
        "all_gather_single(object_sizes_tensor, local_size, group=group)", since="2.15",
    ),
    Change(
        r"TestFullyShardProcessGroupInit\.test_[12]d_process_group_init",
        "`DeviceMesh._dim_group_infos` is gone", MESH, "_dim_group_infos", True,
    ),
    Change(
        r"DistTensorRandomOpTest\.test_(pipeline_parallel_manual_seed|manual_seed"
        r"|rng_tracker_init)",
        "`get_seed()` of DTensor's random numbers is gone", RANDOM, "get_seed", True,
    ),
    Change(
        r"DistTensorRandomOpTest\.test_deterministic_rand_1d", SEEDED, RANDOM,
        "DTensor no longer maintains a copy of rng state",
    ),
    Change(
        r"DistTensorRandomOpTest\.test_(deterministic_uniform_2d|meta_tensor_init)"
        r"|TensorParallelRandomStateTests\.test_model_init"
        r"|TensorParallelStyleTest\.test_sequence_parallel_style",
        "DTensor makes its tracker at the first random operator, not in `distribute_tensor()`",
        DISPATCH, "if not random._rng_tracker and is_rng_supported_mesh",
    ),
    Change(
        r"DistElementwiseOpsTest\.test_dropout_errors",
        "a partial DTensor is redistributed before its dropout",
        "distributed/tensor/_ops/_random_ops.py",
        "register_single_dim_strategy(_op, allow_uneven_sharding=True)",
    ),
    Change(
        r"DistMathOpsTest\.test_nll_loss_and_cross_entropy",
        "DTensor gathers the input of `nll_loss()` for a mean",
        "distributed/tensor/_ops/_math_ops.py", "def nll_loss_forward_single_dim_strategy(",
        since="2.14",
    ),
    Change(
        r"DTensorLogTest\.test_dtensor_log", "DTensor's log has other words", DISPATCH,
        '"sharding_prop MISS (C++ fast path): %s -> %s"',
    ),
    Change(
        r"TestDataParallel\.test_data_parallel_complex",
        "replicas have complex parameters again", "nn/parallel/_functions.py",
        "device_outputs[i] = torch.view_as_complex(device_outputs[i])",
    ),
    Change(
        r"TestFullyShardMixedPrecisionTraining\.test_compute_dtype",
        "the private `_get_gradient_divide_factors()` returns four values",
        FSDP + "_fsdp_collectives.py",
        "    force_sum_reduction_for_comms: bool = False,\n) -> tuple[",
    ),
    Change(
        r"TestScheduleLowering\.test_grad_with_(split_b_w|v_schedule)",
        "schedules no longer take `stage_index_to_group_rank`",
        "distributed/pipelining/schedules.py", "    stage_index_to_group_rank: ", True,
    ),
    Change(
        r"TestFullyShardCollectiveOps\.test_all_gather_fp32",
        "the private `foreach_all_gather()` wants an `all_gather_comm`",
        FSDP + "_fsdp_collectives.py", "    all_gather_comm: AllGather,\n",
    ),
    Change(
        r"TestFullyShardCollectiveOps\.test_reduce_scatter_fp(16|32)",
        "the private `foreach_reduce()` has no `reduce_scatter_reduce_op`",
        FSDP + "_fsdp_collectives.py", "reduce_scatter_reduce_op", True,
    ),
    Change(
        r"TestFullyShardPrefetch\.test_fully_shard_multi_module_backward_prefetch",
        "`fully_shard()` refuses a parameter that two of its groups share",
        FSDP + "_fsdp_state.py", "parameter already managed by another FSDP group",
    ),
    Change(
        r"TestFullyShardCommunication\.test_fully_shard_communication_count"
        r"|TestFullyShardPrefetch\.test_(fully_shard_backward_prefetch"
        r"|set_modules_to_(back|for)ward_prefetch)"
        r"|TestFullyShardRegisteredParams\.test_param_registration_after_forward"
        r"|TestFullyShardGradientAccumulation\.test_gradient_accumulation",
        ROOT, FSDP + "_fsdp_state.py",
        "        if self._auto_reshard_after_forward:\n"
        "            for fsdp_param_group in self._fsdp_param_groups:\n"
        "                fsdp_param_group.post_forward_mesh_info = None\n",
    ),
]  # fmt: skip


def change_of(test: str) -> str | None:
    """Returns why a test of 2.6 does not apply to the installed torch, or None if it does."""
    rows = (row for row in CHANGES if re.fullmatch(row.tests, test))
    return next((row.words for row in rows if row.is_shown(TORCH)), None)
