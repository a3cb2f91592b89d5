# SPDX-License-Identifier: BSD-3-Clause
"""Runs in the environment of HolisticTraceAnalysis: prints what it says of a trace, as JSON."""

import contextlib
import json
import sys

from hta.trace_analysis import TraceAnalysis


def rows(frame):
    return json.loads(frame.reset_index().to_json(orient="records"))


def main(path):
    with contextlib.redirect_stdout(sys.stderr):
        made = TraceAnalysis(trace_files={0: path}, trace_dir="")
        kinds, kernels = made.get_gpu_kernel_breakdown(
            visualize=False, include_memory_kernels=True, num_kernels=1000, duration_ratio=1.0
        )
        idle, _ = made.get_idle_time_breakdown(ranks=[0], visualize=False)
        launches = made.get_cuda_kernel_launch_stats(visualize=False)
        found = {
            "temporal": rows(made.get_temporal_breakdown(visualize=False)),
            "idle": rows(idle),
            "kinds": rows(kinds),
            "kernels": rows(kernels),
            "launches": rows(launches[0]),
            "queues": len(made.get_queue_length_summary()),
            "annotations": rows(made.get_gpu_user_annotation_breakdown(visualize=False)),
            "bandwidth": made.get_memory_bw_summary()["memory_bw_gbps"]["mean"].tolist(),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
