# SPDX-License-Identifier: BSD-3-Clause
"""Runs torch's own samples under the rules for CUDA, in a process of its own.

    python tests/rules/op_db_run.py [--part 0/20]

Every dtype that op_db declares for CUDA must run, and every dtype that it declares for the CPU only
must be refused, but for what NO_REFUSAL and FAILS_ANYWAY name with a reason. Prints a
report as JSON; the exit status is 1 if something is wrong.
"""

import argparse
import json
import sys
import warnings

#: Operators of op_db that do not run on npusim for another reason than a dtype.
FAILS_ANYWAY = (
    "torch.ops.aten._flash_attention_forward",  # samples with dropout, which the kernel lacks
    "torch.ops.aten._efficient_attention_forward",
    "jiterator_",  # compiles code of CUDA
    "sparse.mm.reduce",  # one list of dtypes for all devices; native_functions.yaml: CPU only
    "torch._scaled_mm",  # op_db declares it for chips that may be older than it
)

#: Declarations of op_db for the CPU only that are no refusal, and why.
NO_REFUSAL = {
    "norm": "linalg.vector_norm, which it calls, declares complex32 for CUDA",
    "norm.inf": "linalg.vector_norm, which it calls, declares complex32 for CUDA",
    "torch._scaled_mm": "a private operator; the dtypes are other vendors' formats of 8 bits",
    "torch._scaled_mm_v2": "a private operator; the dtypes are other vendors' formats of 8 bits",
}

#: Arguments that op_db gives devices other than CUDA: a sample with one says nothing about CUDA.
NOT_FOR_CUDA = {"driver": ("gelsy", "gelsd", "gelss")}


def for_cuda():
    """Returns op_db, which nobody has imported yet, as it is for a chip of the alias's capability.

    It asks what the CUDA device can do when it is imported, so it is told.
    """
    import torch
    import torch.utils._triton as triton

    from torch_npusim.sim.specs import DEFAULT_CAPABILITY

    triton.has_triton = lambda: False  # asks the driver, where triton is installed
    before = torch.cuda.is_available, torch.cuda.get_device_capability, torch.version.cuda
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda device=None: DEFAULT_CAPABILITY
    torch.version.cuda = "13.0"
    from torch.testing._internal.common_methods_invocations import op_db

    torch.cuda.is_available, torch.cuda.get_device_capability, torch.version.cuda = before
    return op_db


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    op_db = for_cuda()
    import torch

    warnings.simplefilter("ignore")
    torch.npusim.set_rules("cuda")
    report = {"ran": 0, "refused": 0, "false refusals": [], "not refused": []}
    pairs = [
        (info, dtype)
        for info in op_db
        for dtype in sorted(info.dtypes | info.dtypesIfCUDA, key=str)
        if arguments.only in info.full_name
    ]
    for number, (info, dtype) in enumerate(pairs):
        if number % parts != part or info.full_name.startswith(FAILS_ANYWAY):
            continue
        torch.manual_seed(0)
        name = f"{info.full_name} {str(dtype)[6:]}"
        try:
            samples = list(info.sample_inputs("npusim", dtype, requires_grad=False))
        except Exception as error:
            report["false refusals"].append(f"{name}: samples: {str(error)[:200]}")
            continue
        if dtype in info.dtypesIfCUDA:
            run_declared(info, name, samples, report)
        elif info.full_name not in NO_REFUSAL:
            run_refused(info, name, samples, report)
    print(json.dumps(report))
    return 1 if report["false refusals"] or report["not refused"] else 0


def run_declared(info, name, samples, report):
    import torch

    for sample in samples:
        if any(sample.kwargs.get(key) in values for key, values in NOT_FOR_CUDA.items()):
            continue
        report["ran"] += 1
        try:
            info(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:
            torch.npusim.set_rules("off")
            try:
                info(sample.input, *sample.args, **sample.kwargs)
                without = "runs without the rules"
            except Exception:
                without = "fails without too"
            torch.npusim.set_rules("cuda")
            report["false refusals"].append(f"{name}: ({without}) {str(error)[:200]}")
            return


def run_refused(info, name, samples, report):
    for sample in samples:
        try:
            info(sample.input, *sample.args, **sample.kwargs)
        except (NotImplementedError, RuntimeError):
            report["refused"] += 1
            return
    report["not refused"].append(name)


if __name__ == "__main__":
    sys.exit(main())
