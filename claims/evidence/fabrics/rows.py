# SPDX-License-Identifier: BSD-3-Clause
"""Published times of collectives on real machines: claims/evidence/fabrics/rows.csv.

    python -m claims.evidence.fabrics.rows CLONES

CLONES is a folder with git directories of the repositories in SOURCES, named owner+name/repo. The
filter and the split were fixed before any parameter was fitted to these rows:

- Sizes are powers of four from 1 KiB on; threads and notes with few rows (THREADS) are taken whole.
- Where the host is in the time, rows count from 16 MiB on: one thread launches a node's GPUs
  (`-g 8`), or each call is awaited. (That Azure's and stas00's runs are such was seen in their
  scripts after a first comparison, before a fit.)
- A figure whose rounding is more than 2.5 % of it is left out.
- A run is disturbed, and left out, if its in-place and out-of-place times differ twofold anywhere.
- Each machine is left out of a fit once (fit.py); a fabric with rows of one machine leaves each
  number of ranks out.
"""

import csv
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from torch_npusim import _C

FILE = Path(__file__).with_name("rows.csv")
#: Rows that no fit has seen, and nobody who shaped the model.
BLIND_FILE = Path(__file__).with_name("blind.csv")
DROPPED = Path(__file__).with_name("dropped.csv")
FIELDS = (
    "fabric", "machine", "operation", "ranks", "per_node", "size", "us", "algorithm", "source",
)  # fmt: skip

#: repository -> the commit that was read
SOURCES = {
    "Azure/AI-benchmarking-guide": "8fd0c6e1bd0f853ef8f0500a3640a7d80a2a92ef",
    "argonne-lcf/alcf-nccl-tests": "385be33604ccebd32691c0805b5803eba7109b5d",
    "mit-orcd/orcd-benchmarks": "bca7147f4f8d1335d373a29bd20c439af7316ced",
    "stas00/ml-engineering": "744d01e18b79512572f64a6bbd8b5f4a725203a7",
    "xxrjun/nccl-tests-cluster": "455de4f8dee2fa94cd4044a7109fd8c576f9e6c1",
    "oracle-quickstart/oci-hpc-oke": "1402938d8c77b586e20ec9d40849e2177feef411",
}
AZURE, ARGONNE, MIT, STAS, XXRJUN, ORACLE = SOURCES

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = {4**power for power in range(5, 18)}
HOST_HIDDEN = 16 * MIB
ROUNDING, DISTURBED = 0.025, 2.0
NAMES = {
    "alltoall": "all_to_all", "sendrecv": "transfer", "SendRecv": "transfer",
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
    "Reduce": "reduce", "Broadcast": "broadcast", "AllToAll": "all_to_all", "Gather": "gather",
    "Scatter": "scatter",
}  # fmt: skip

# (fabric, machine, operation, ranks, per node, size, measured, unit, forced algorithm, thread)
_H20 = ("dgx-h100", "deepep-h20", "all_reduce", 8, 8)
_H20_2 = ("dgx-h100", "nccl-h20", "all_reduce", 16, 8)
_TWO = ("dgx-h100", "nccl-tests-232", "all_reduce", 2, 1)
_RS = ("dgx-h100", "nccl-1047", "reduce_scatter", 8, 8)
_LI = ("dgx-a100", "li-plus-a100", "transfer", 8, 8)
_SKY = ("dgx-h100", "skypilot-h200", "all_gather", 16, 8)
_SPARK = ("ethernet-cluster", "spark-103", "all_reduce", 2, 1)
THREADS = [
    *((*_H20, size, us, "us", "", "deepseek-ai/DeepEP/issues/303")
      for size, us in ((64, 14.50), (KIB, 16.38), (4 * KIB, 16.69))),
    *((*_H20_2, size, us, "us", "nvls", "NVIDIA/nccl/issues/1244")
      for size, us in ((64, 46.30), (512, 46.58))),
    *((*_TWO, size * MIB, us, "us", "tree", "NVIDIA/nccl-tests/issues/232")
      for size, us in ((2, 113.2), (4, 154.4), (8, 231.4), (16, 420.5), (32, 812.3))),
    *((*_RS, size * MIB, us, "us", "ring", "NVIDIA/nccl/issues/1047")
      for size, us in ((128, 377.2), (256, 709.7), (512, 1377.8), (1024, 2689.3), (2048, 5295.9),
                       (4096, 10505), (8192, 20754))),
    *((*_SKY, 4**power, us, "us", "",
       "skypilot-org/skypilot/examples/gcp_gpu_direct_tcpx/README.md")
      for power, us in enumerate((28.39, 28.85, 33.28, 40.62, 41.81, 58.46, 76.56, 116.2, 278.1,
                                  885.5, 3123.9, 12416), 5)),
    *((*_LI, size * MIB, us, "us", "", "li-plus/playground/cuda/nccl.md")
      for size, us in ((128, 1211.2), (256, 1423.3), (512, 2785.4), (1024, 5503.4))),
    ("dgx-h100", "nccl-tests-290", "all_reduce", 8, 8, 8 * GIB, 476, "GB/s", "",
     "NVIDIA/nccl-tests/issues/290"),
    ("dgx-h100", "nccl-tests-212", "all_reduce", 8, 8, 8 * GIB, 480, "GB/s", "",
     "NVIDIA/nccl-tests/issues/212"),
    ("dgx-h100", "nccl-tests-212", "reduce_scatter", 8, 8, 8 * GIB, 370, "GB/s", "",
     "NVIDIA/nccl-tests/issues/212"),
    ("dgx-h100", "nccl-tests-272", "all_reduce", 8, 8, 4 * GIB, 475, "GB/s", "",
     "NVIDIA/nccl-tests/issues/272"),
    ("dgx-h100", "nccl-tests-326", "all_reduce", 8, 8, 16 * GIB, 360, "GB/s", "ring",
     "NVIDIA/nccl-tests/issues/326"),
    ("dgx-h100", "nccl-tests-326", "all_gather", 8, 8, 16 * GIB, 360, "GB/s", "",
     "NVIDIA/nccl-tests/issues/326"),
    ("dgx-a100", "nccl-tests-149", "all_reduce", 8, 8, 8 * GIB, 200, "GB/s", "",
     "NVIDIA/nccl-tests/issues/149"),
    ("dgx-a100", "nccl-tests-175", "all_reduce", 8, 8, 4 * GIB, 232.5, "GB/s", "",
     "NVIDIA/nccl-tests/issues/175"),
    ("pcie-box", "nccl-1639", "all_reduce", 8, 8, GIB, 28, "GB/s", "",
     "NVIDIA/nccl/issues/1639"),
    ("pcie-box", "nccl-1639", "all_reduce", 4, 8, GIB, 35, "GB/s", "",
     "NVIDIA/nccl/issues/1639"),
    *((*_SPARK, size * KIB, us, "us", "", "NVIDIA/dgx-spark-playbooks/pull/103")
      for size, us in ((8, 35.15), (16, 31.67), (32, 39.56), (64, 67.93))),
    ("ethernet-cluster", "spark-25", "all_gather", 2, 1, 16 * GIB, 18.94, "GB/s", "",
     "NVIDIA/dgx-spark-playbooks/issues/25"),
]  # fmt: skip
# The unit "tensor GB/s" is size by time.
_NEBIUS = ("dgx-h100", "nebius-h100", "all_reduce", 16, 8)
_OCI = ("dgx-a100", "oracle-a100-2023", "all_reduce", 16, 8)
_XLA = "openxla/xla/xla/service/gpu/model/collective_interpolator_data.h"
#: Likewise, but looked up after the fit, and of none.
BLIND = [
    *(
        (*_NEBIUS, size * MIB, us, "us", "", "drmysore/nebius-h100-16gpu-benchmark/README.md")
        for size, us in ((1, 88), (10, 157), (100, 647), (1000, 4520))
    ),
    *(
        (
            *_OCI,
            size * GIB,
            us,
            "us",
            "",
            "oracle-quickstart/oci-hpc-oke/docs/running-rdma-workloads-on-oke-a100.md",
        )
        for size, us in ((1, 11774), (10, 111812))
    ),
    *(
        ("dgx-h100", "openxla-h100", operation, 8, 8, size * MIB, measured, "tensor GB/s", "", _XLA)
        for operation, size, measured in (
            ("all_gather", 256, 368.0),
            ("reduce_scatter", 256, 347.9),
            ("all_reduce", 512, 218.06),
            ("all_gather", 512, 384.03),
            ("reduce_scatter", 512, 359.21),
            ("all_reduce", 1024, 222.03),
            ("all_gather", 1024, 391.04),
            ("reduce_scatter", 1024, 364.92),
            ("all_reduce", 2048, 224.42),
            ("all_gather", 2048, 400.12),
            ("reduce_scatter", 2048, 373.84),
        )
    ),
]
#: Whole sources that are not rows, and why.
REASONS = {
    "NVIDIA/nccl/issues/1218, 256 H100": "one iteration (-n 1), 16 channels forced",
    "NVIDIA/nccl-tests/issues/178, A100": "pairs of GPUs without NVSwitch: no fabric of ours",
    "KeitaW/p5-nccl-test-2024-07-19": "network of another kind (EFA)",
    "argonne-lcf/alcf-nccl-tests, results_polaris": "network of another kind (Slingshot)",
    "xxrjun/nccl-tests-cluster, example-cluster00": "a card reaches 13 of 50 GB/s: no GPUDirect",
    "mit-orcd/orcd-benchmarks, lambda_8x2_h100": "the network is not named",
}

_LINE = re.compile(r"^ +(\d+) +\d+ +\w+ +\w+ +-?\d+ +([\d.]+) +[\d.]+ +[\d.]+ +\S+ +([\d.]+)")


class Rows:
    """Rows of published files, and why others are none."""

    def __init__(self, clones):
        self.clones, self.rows, self.dropped = clones, [], Counter()

    def text(self, repository, path):
        folder = self.clones / repository.replace("/", "+") / "repo"
        command = ["git", "--git-dir", str(folder), "show", f"{SOURCES[repository]}:{path}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def drop(self, source, reason, rows=1):
        self.dropped[source, reason] += rows

    def add(self, fabric, machine, operation, ranks, per_node, size, us, source, algorithm=""):
        self.rows.append(
            dict(zip(FIELDS, (fabric, machine, operation, ranks, per_node, int(size),
                              f"{us:.5g}", algorithm, source), strict=True))
        )  # fmt: skip

    def take(self, threads):
        for *what, measured, unit, forced, source in threads:
            us = measured
            if unit != "us":
                factor = _C.bus_factor(what[2], what[3]) if unit == "GB/s" else 1
                us = factor * what[5] / measured / 1e3
            self.add(*what, us, source, forced)

    def bus(self, fabric, machine, operation, ranks, per_node, size, bandwidth, step, source,
            algorithm="", host=False):  # fmt: skip
        """A row that was published as bus bandwidth in GB/s, rounded to multiples of `step`."""
        if size not in SIZES:
            return self.drop(source, "not a power of four from 1 KiB on")
        if host and size < HOST_HIDDEN:
            return self.drop(source, "the host is in the time, below 16 MiB")
        if step / 2 / bandwidth > ROUNDING:
            return self.drop(source, "rounded by more than 2.5 %")
        us = _C.bus_factor(operation, ranks) * size / bandwidth / 1e3
        return self.add(fabric, machine, operation, ranks, per_node, size, us, source, algorithm)

    def log(self, repository, path, fabric, machine, nodes, per_node, operation="", host=False):
        """The tables of a log of nccl-tests: its out-of-place times."""
        source = f"{repository}/{path}"
        runs = {operation: []} if operation else {}
        for line in self.text(repository, path).splitlines():
            if begun := re.search(r"Collective test starting: (\w+)_perf", line):
                operation = NAMES.get(begun[1], begun[1])
                runs[operation] = []
            elif (row := _LINE.match(line)) and int(row[1]):
                runs[operation].append((int(row[1]), float(row[2]), float(row[3])))
        ranks = nodes * per_node
        for name, rows in runs.items():
            if any(not 1 / DISTURBED < a / b < DISTURBED for _, a, b in rows):
                self.drop(source, "a disturbed run", len(rows))
                continue
            for size, us, _ in rows:
                # A size that the ranks do not divide is rounded down by nccl-tests.
                near = next((s for s in SIZES if s - 16 * ranks < size <= s), None)
                if near is None:
                    self.drop(source, "not a power of four from 1 KiB on")
                elif host and size < HOST_HIDDEN:
                    self.drop(source, "the host is in the time, below 16 MiB")
                else:
                    self.add(fabric, machine, name, ranks, per_node, near, us, source)


def number(text):
    return int(float(text[:-1]) * {"K": KIB, "M": MIB, "G": GIB}[text[-1]])


def collect(clones):
    rows = Rows(clones)
    for chip, fabric in (("A100_v4", "dgx-a100"), ("H100_v5", "dgx-h100"), ("H200_v5", "dgx-h100")):
        path = f"Azure_Results/ND_{chip}_results.md"
        table = rows.text(AZURE, path).split("## NCCL Bandwidth")[1].split("\n## ")[0]
        found = re.findall(r"^\| (\d+[KMG]) +\| ([\d.]+) +\|", table, re.MULTILINE)
        assert len(found) == 24  # 1 KiB to 8 GiB by powers of two, labelled loosely
        for power, (_, bandwidth) in enumerate(found, 10):
            machine = f"azure-{chip[:4].lower()}"
            forced = "" if chip.startswith("A100") else "nvls"
            rows.bus(fabric, machine, "all_reduce", 8, 8, 1 << power, float(bandwidth), 0.01,
                     f"{AZURE}/{path}", forced, host=True)  # fmt: skip

    text = rows.text(STAS, "network/README.md")
    source = f"{STAS}/network/README.md"
    table = text.split("all_reduce_perf -b 32k -e 16G -f 2 -g 8 -n 50")[1].split("```")[0]
    for size, us in re.findall(r"^ *([\d_]+) +([\d.]+) +[\d.]+ +[\d.]+$", table, re.MULTILINE):
        if (value := int(size)) not in SIZES:
            rows.drop(source, "not a power of four from 1 KiB on")
        elif value < HOST_HIDDEN:
            rows.drop(source, "the host is in the time, below 16 MiB")
        else:
            rows.add("dgx-a100", "stas-a100", "all_reduce", 8, 8, value, float(us), source)
    table = text.split("same sweep on an 8x H200 node")[1].split("The curve has")[0]
    for size, bandwidth in re.findall(r"^\| +(\d+[KMG])iB \| +([\d.]+)GBps", table, re.MULTILINE):
        rows.bus("dgx-h100", "stas-h200", "all_reduce", 8, 8, number(size), float(bandwidth), 0.01,
                 source, host=True)  # fmt: skip
    for operation, label, forced in (
        ("all_reduce", "all-reduce, `NCCL_NVLS_ENABLE=0`", "ring"),
        ("all_gather", "all-gather", ""),
        ("reduce_scatter", "reduce-scatter", ""),
    ):
        found = re.search(rf"^\| {re.escape(label)} +\| Ring \| ([\d.]+)GBps", text, re.MULTILINE)
        rows.bus("dgx-h100", "stas-h200", operation, 8, 8, 16 * GIB, float(found[1]), 0.1, source,
                 forced, host=True)  # fmt: skip

    path = "dgx-nodes/summary.md"
    for part in rows.text(MIT, path).split("\n### ")[1:]:
        title, _, table = part.partition("\n")
        nodes = int(title[0])
        ranks, per_node = (8, 8) if nodes == 1 else (2, 1)
        common = ("dgx-h100", "mit-dgx-h100")
        host = nodes == 1
        if "peak" in title:
            for name, mean in re.findall(r"^\| (\w+) \|.*\*\*([\d.]+)\*\* \|", table, re.MULTILINE):
                if name == "Hypercube":
                    rows.drop(f"{MIT}/{path}", "no collective of torch's (hypercube)")
                elif name not in ("SendRecv", "AllReduce"):  # those have a sweep
                    rows.bus(*common, NAMES[name], ranks, per_node, 16 * GIB, float(mean), 0.1,
                             f"{MIT}/{path}", host=host)  # fmt: skip
        elif "sweep" in title:
            found = re.findall(r"^\| (\d+[MG]) \| [\d.]+ \| ([\d.]+) ", table, re.MULTILINE)
            for size, mean in found:
                rows.bus(*common, NAMES[title.split()[1]], ranks, per_node, number(size),
                         float(mean), 0.1, f"{MIT}/{path}", host=host)  # fmt: skip
    path = "chris-nccl-notes/mghpcc_dgx_song/two-node-eight-gpu-eight-gpu_latency.md"
    rows.log(MIT, path, "dgx-h100", "mit-song", 2, 8, "all_reduce", host=True)

    top = "benchmarks/example-cluster01/nccl-benchmark-results"
    cluster = ("dgx-h100", "xxrjun-h100")
    for each in (4, 8):
        path = f"{top}/single-node/runs/20260128-145017/without-debug/logs"
        rows.log(XXRJUN, f"{path}/nccl_N1_G{each}_cnode3-002.log", *cluster, 1, each)
    for each in (1, 2, 4, 8):
        path = f"{top}/pairwise/runs/20260128-010702/without-debug/logs"
        rows.log(XXRJUN, f"{path}/nccl_N2_G{each}_cnode3-002_cnode3-003.log", *cluster, 2, each)
        path = f"{top}/multi-node/runs/20260129-180219/without-debug/logs"
        rows.log(XXRJUN, f"{path}/nccl_N10_G{each}.log", *cluster, 10, each)

    path = "results_sophia/n2.g8/2024-10-15-11-21-15"
    for name in ("all_reduce", "all_gather", "alltoall"):
        rows.log(ARGONNE, f"{path}/{name}_output.dat.2", "dgx-a100", "argonne-sophia", 2, 8,
                 NAMES.get(name, name))  # fmt: skip

    rows.log(ORACLE, "README.md", "dgx-a100", "oracle-a100", 2, 8, "all_reduce")

    rows.take(THREADS)
    return rows


def write(file, rows):
    with file.open("w", newline="") as text:
        writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(clones):
    found, blind = collect(Path(clones)), Rows(Path(clones))
    blind.take(BLIND)
    write(FILE, found.rows)
    write(BLIND_FILE, blind.rows)
    with DROPPED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "rows", "reason"))
        writer.writerows(
            (source, rows, reason) for (source, reason), rows in sorted(found.dropped.items())
        )
        writer.writerows((source, "all", reason) for source, reason in REASONS.items())
    print(len(found.rows), "rows,", len(blind.rows), "blind")


if __name__ == "__main__":
    main(sys.argv[1])
