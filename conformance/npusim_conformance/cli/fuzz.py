# SPDX-License-Identifier: BSD-3-Clause
"""`fuzz`: calls every overload of torch.ops.aten with tensors of unusual kinds.

Empty and zero-size, expanded, overlapping, of a wrong dtype or rank, on another device, conj, neg,
sparse, quantized; numbers out of range, lists too short. Nothing may end the process, unless the
same call on the CPU ends it as well.
"""

import argparse
import os
from typing import Any

from npusim_conformance.cli import options as shared
from npusim_conformance.cli.execution import add_execution, config_of, execute_on


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds this subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "fuzz", help="call every overload of aten with unusual arguments", description=__doc__
    )
    shared.add_device(parser)
    group = parser.add_argument_group("what to call")
    group.add_argument("--overloads", default="", metavar="GLOBS", help="as add.Tensor, _foreach_*")
    group.add_argument("--calls", type=shared.positive, default=30, metavar="N", help="of each")
    add_execution(parser)
    parser.set_defaults(timeout=10.0, memory=1.0)  # of one call, of one child
    return parser


def run(options: argparse.Namespace) -> int:
    """Loads the backend, which is used by forked children only; executes, reports."""
    import torch

    from npusim_conformance.backend import expectations
    from npusim_conformance.backend.device import load
    from npusim_conformance.case import matches
    from npusim_conformance.fuzz import fuzzer
    from npusim_conformance.fuzz.arguments import overloads
    from npusim_conformance.fuzz.children import Limits
    from npusim_conformance.fuzz.seeds import Corpus

    if options.isolation != "fork":
        raise expectations.ExpectationsError("--isolation: fuzz forks a child for each overload")
    config = config_of(options, shared.expectations_of(options))
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)  # no pool of threads that a fork would lose
    seeds = fuzzer.seeds_of(
        shared.directory_of(options) / f"seeds-{options.seed}.pickle", options.seed, options.jobs
    )
    load(config.import_name)
    corpus = Corpus(seeds, options.seed)
    limits = Limits(options.timeout, int(options.memory * 2**30))
    executor = fuzzer.Fuzzer(
        options.device, config.import_name, corpus, options.calls, options.jobs, limits
    )
    names = [fuzzer.case_name(name) for name in overloads() if matches(name, options.overloads)]
    selection = {"overloads": options.overloads, "calls": options.calls}
    return execute_on(executor, options, config, names, selection)
