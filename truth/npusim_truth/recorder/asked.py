# SPDX-License-Identifier: BSD-3-Clause
"""Calls whose answers are asked, and programs of streams and events."""

from __future__ import annotations

MODULES = (
    "torch.cuda torch.cuda.memory torch.cuda.random torch.cuda.amp torch.cuda.graphs "
    "torch.cuda.nvtx torch.cuda.profiler torch.cuda.comm torch.cuda.nccl torch.cuda.tunable "
    "torch.backends.cuda torch.backends.cudnn torch.accelerator torch.accelerator.memory"
).split()
ASKED = """\
torch.cuda.is_available()
torch.cuda.is_initialized()
torch.cuda.current_device()
torch.cuda.get_sync_debug_mode()
torch.cuda.is_bf16_supported()
torch.cuda.is_current_stream_capturing()
torch.cuda.get_allocator_backend()
torch.cuda.initial_seed()
torch.cuda.can_device_access_peer(0, 0)
torch.cuda.default_stream()
torch.cuda.current_stream().query()
torch.cuda.Stream.priority_range()
torch.cuda.Event().query()
torch.cuda.memory_allocated()
torch.cuda.get_rng_state().shape
torch.cuda.get_rng_state().dtype
torch.cuda.default_generators[0].device
torch.cuda.get_stream_from_external
torch.backends.cuda.is_built()
torch.backends.cuda.matmul.allow_tf32
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
torch.backends.cuda.flash_sdp_enabled()
torch.backends.cuda.mem_efficient_sdp_enabled()
torch.backends.cuda.math_sdp_enabled()
torch.backends.cuda.cudnn_sdp_enabled()
torch.backends.cuda.preferred_linalg_library()
torch.backends.cuda.preferred_blas_library()
torch.backends.cudnn.enabled
torch.backends.cudnn.benchmark
torch.backends.cudnn.deterministic
torch.backends.cudnn.allow_tf32
torch.backends.cudnn.is_available()
torch.get_float32_matmul_precision()
torch.accelerator.is_available()
torch.accelerator.current_accelerator()
torch.accelerator.current_device_index()
torch.accelerator.device_count()
torch.ones(2, device='cuda').device
torch.ones(2, device='cuda').is_cuda
torch.ones(2, device='cuda').type()
torch.ones(2, device='cuda').data_ptr() % 512
torch.ones(2, device='cuda')
torch.ones(2, device='cuda').numpy()
torch.ones(2, device='cuda').storage().device
torch.device('cuda')
torch.device('cuda', 1)
torch.tensor(1.5, device='cuda').item()
torch.randn(8, generator=torch.Generator('cuda').manual_seed(1), device='cuda').shape
torch.get_autocast_dtype('cuda')
torch.is_autocast_enabled('cuda')
torch.ones(0, device='cuda').data_ptr()
torch.cuda.memory_stats()['allocation.all.current']
sorted(torch.cuda.memory_stats())
torch.cuda.get_device_properties(0).name == torch.cuda.get_device_name(0)
torch.cuda.get_device_properties(0).major
torch.cuda.get_device_properties(0).warp_size
torch.cuda.get_device_properties(0).max_threads_per_multi_processor
torch.cuda.get_device_properties(0).max_threads_per_block
torch.cuda.get_device_properties(0).regs_per_multiprocessor
torch.cuda.get_device_properties(0).shared_memory_per_block
torch.cuda.get_device_properties(0).shared_memory_per_block_optin
torch.cuda.get_device_properties(0).shared_memory_per_multiprocessor
torch.cuda.get_device_properties(0).L2_cache_size
torch.cuda.get_device_properties(0).is_integrated
torch.cuda.get_device_properties(0).is_multi_gpu_board
torch.cuda.nvtx.range_push('a')
torch.ones(2, device='cuda') + torch.ones(2)
torch.ones(2, device='cuda') @ torch.ones(3, device='cuda')
torch.ones(2, device='cuda:99')
torch.ones(2, 3, device='cuda') @ torch.ones(2, 3, device='cuda')
torch.ones(2, device='cuda')[5]
torch.ones(2, device='cuda').view(3)
torch.ones(2, device='cuda').to('cuda:99')
torch.empty(-1, device='cuda')
torch.empty(1 << 50, device='cuda')
torch.empty(1 << 62, device='cuda')
torch.cuda.set_device(99)
torch.cuda.get_device_properties(99)
torch.cuda.get_device_name(99)
torch.cuda.synchronize(99)
torch.cuda.set_per_process_memory_fraction(2.0)
torch.cuda.set_per_process_memory_fraction('x')
torch.cuda.set_sync_debug_mode('loud')
torch.cuda.memory.list_gpu_processes
torch.cuda.memory_stats(99)
torch.cuda.Stream(priority='x')
torch.cuda.Stream(device='cpu')
torch.cuda.stream('x')
torch.cuda.Event().elapsed_time(torch.cuda.Event())
torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True))
torch.cuda.CUDAGraph().replay()
torch.cuda.CUDAGraph().capture_end()
torch.cuda.current_stream('cpu')
torch.cuda.manual_seed('x')
torch.cuda.set_rng_state(torch.zeros(3, dtype=torch.uint8))
torch.cuda.memory._record_memory_history('loud')
torch.cuda.comm.broadcast(torch.ones(2), [0])
torch.nn.Linear(2, 2).cuda()(torch.ones(2))
torch.nn.functional.embedding(torch.tensor([0.5], device='cuda'), torch.ones(2, 2, device='cuda'))
torch.nn.functional.conv2d(torch.ones(1, 2, 4, 4, device='cuda'), torch.ones(1, 3, 2, 2, device='cuda'))
torch.nn.functional.cross_entropy(torch.ones(2, 3, device='cuda'), torch.ones(3, dtype=torch.long, device='cuda'))
torch.ones(2, 2, device='cuda', dtype=torch.half).cholesky_inverse()
torch.linalg.inv(torch.zeros(2, 2, device='cuda'))
torch.linalg.cholesky(-torch.eye(2, device='cuda'))
torch.ones(2, device='cuda').sparse_mask(torch.ones(2, device='cuda'))
torch.from_dlpack(torch.ones(2, device='cuda')).device
torch.ones(2, device='cuda').pin_memory()
torch.ones(2, device='cuda').share_memory_().device
torch.ones(2).pin_memory().is_pinned()
torch.ones(2, device='cuda', names=('a',)).names
torch.cat([torch.ones(2, device='cuda'), torch.ones(2)])
torch.where(torch.ones(2, device='cuda').bool(), 1.0, torch.zeros(2))
torch.ones(4, device='cuda').add_(torch.ones(3, device='cuda'))
torch.stack([torch.ones(2, device='cuda'), torch.ones(3, device='cuda')])
torch.bmm(torch.ones(2, 2, device='cuda'), torch.ones(2, 2, device='cuda'))
torch.ones(2, device='cuda').random_(5, 1)
torch.normal(0.0, -1.0, (2,), device='cuda')
torch.randperm(-1, device='cuda')
torch.multinomial(torch.zeros(2, device='cuda'), 1)
torch.bernoulli(torch.full((2,), 0.5, device='cuda'), 3.0)
""".splitlines()

#: The order in which work is done, as queries see it: statements, then what is asked.
ORDERS = {
    "stream is busy": "torch.cuda._sleep(200_000_000); s.query()",
    "stream is done": "torch.cuda._sleep(1000); torch.cuda.synchronize(); s.query()",
    "event behind work": "torch.cuda._sleep(200_000_000); e.record(); e.query()",
    "event before work": "e.record(); torch.cuda.synchronize(); torch.cuda._sleep(200_000_000); e.query()",
    "event never recorded": "e.query()",
    "event waited for": "torch.cuda._sleep(1000); e.record(); e.synchronize(); (e.query(), s.query())",
    "other stream is idle": "torch.cuda._sleep(200_000_000); o.query()",
    "other stream waits": "torch.cuda._sleep(200_000_000); e.record(); e.wait(o); o.query()",
    "other stream waits for an event": "torch.cuda._sleep(200_000_000); e.record(); o.wait_event(e); f.record(o); f.query()",
    "event recorded again": "e.record(); torch.cuda.synchronize(); torch.cuda._sleep(200_000_000); e.record(); e.query()",
    "device waited for": "torch.cuda._sleep(1000); e.record(); o.wait_event(e); torch.cuda.synchronize(); (s.query(), o.query())",
    "item waits": "torch.cuda._sleep(1000); x.item(); s.query()",
    "copy to pinned memory does not wait": "torch.cuda._sleep(200_000_000); p.copy_(x, non_blocking=True); s.query()",
    "copy to pageable memory waits": "torch.cuda._sleep(1000); x.cpu(); s.query()",
    "streams have turns": "len({torch.cuda.Stream().stream_id for _ in range(64)})",
    "time of nothing": "t.record(); u.record(); torch.cuda.synchronize(); t.elapsed_time(u) >= 0",
    "time in the wrong order": "t.record(); torch.cuda._sleep(9_000_000); u.record(); torch.cuda.synchronize(); u.elapsed_time(t) < 0",
    "time not reached": "t.record(); torch.cuda._sleep(200_000_000); u.record(); t.elapsed_time(u)",
    "block freed early": "del x; torch.empty(1, device='cuda').data_ptr() == a",
    "block freed early on another stream": "del x; torch.cuda.stream(o).__enter__(); torch.empty(1, device='cuda').data_ptr() == a",
}
