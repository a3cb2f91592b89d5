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
from npusim_conformance.cli.run import add_execution, execute_with


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

    from npusim_conformance import expectations, fuzz
    from npusim_conformance.case import matches
    from npusim_conformance.device import load
    from npusim_conformance.fuzz_arguments import overloads
    from npusim_conformance.fuzz_children import Limits
    from npusim_conformance.fuzz_seeds import Corpus
    from npusim_conformance.worker import WorkerConfig

    if options.isolation != "fork":
        raise expectations.ExpectationsError("--isolation: fuzz forks a child for each overload")
    declared = expectations.Expectations()
    if options.expect is not None:
        declared = expectations.load(options.expect)
    config = WorkerConfig(
        device=options.device,
        import_name=options.import_name or declared.import_name,
        expectations=declared,
        seed=options.seed,
        threads=options.threads,
    )
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)  # no pool of threads that a fork would lose
    seeds = fuzz.seeds_of(
        shared.directory_of(options) / f"seeds-{options.seed}.pickle", options.seed, options.jobs
    )
    load(config.import_name)
    corpus = Corpus(seeds, options.seed)
    fuzzer = fuzz.Fuzzer(options.device, config.import_name, corpus, options.calls)
    limits = Limits(options.timeout, int(options.memory * 2**30))
    names = {fuzz.case_name(name): name for name in overloads() if matches(name, options.overloads)}
    return execute_with(
        lambda left, done: fuzzer.run([names[case] for case in left], options.jobs, limits),
        config,
        options,
        list(names),
        {"overloads": options.overloads, "calls": options.calls},
    )
