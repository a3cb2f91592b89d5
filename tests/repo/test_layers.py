# SPDX-License-Identifier: BSD-3-Clause
"""The layer rule of docs/understand/architecture.md. Includes are paths from the root."""

import re
from collections.abc import Iterator
from pathlib import Path

from repo.sources import DEVICE, ROOT, shown, sources

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')
CPP_STANDARD = re.compile(r"[a-z_]+")  # <vector>, <cstdint>: no dot, no slash
POSIX = re.compile(r"((sys|linux|netinet)/[a-z]+|[a-z]+)\.h")  # <sys/mman.h>, <unistd.h>
CPP = (".h", ".cpp")
ALLOCATOR_ALSO = {  # the files in which a policy from elsewhere is spoken to
    "allocator/placement/policy_abi.h": {"stddef.h", "stdint.h"},  # read by C
    "allocator/placement/loaded_policy.cpp": {"dlfcn.h"},
}


def includes(*folders: str) -> Iterator[tuple[Path, str, str, str]]:
    """Yields (file, its place for a message, the opening quote or bracket, the included path)."""
    for path in sources(*folders, suffixes=CPP):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := INCLUDE.match(line):
                yield path, f"{shown(path, number)}: {line.strip()}", match[1], match[2]


def test_backend_includes_only_itself_std_and_posix():
    wrong = [
        place
        for _, place, kind, name in includes("backend")
        if not (name.startswith("backend/") if kind == '"' else allowed_in_backend(name))
    ]
    assert wrong == []


def allowed_in_backend(name: str) -> bool:
    return bool(CPP_STANDARD.fullmatch(name) or POSIX.fullmatch(name)) and name != "Python.h"


def test_allocator_includes_only_itself_and_std():
    wrong = [
        place
        for path, place, kind, name in includes("allocator")
        if not (name.startswith("allocator/") if kind == '"' else CPP_STANDARD.fullmatch(name))
        and name not in ALLOCATOR_ALSO.get(shown(path), ())
    ]
    assert wrong == []


PLACEMENT_ALSO = {
    "allocator/bytes.h",
    "allocator/error.h",
    "allocator/config.h",
    "allocator/provider.h",
}


def test_placement_does_not_know_the_live_allocators():
    wrong = [
        place
        for _, place, kind, name in includes("allocator/placement")
        if kind == '"'
        and not name.startswith("allocator/placement/")
        and name not in PLACEMENT_ALSO
    ]
    assert wrong == []


def test_the_lab_stands_on_the_allocator_and_its_bindings_add_only_pybind11():
    wrong = [
        place
        for path, place, kind, name in includes("lab")
        if not (
            name.startswith(("allocator/", "lab/engine/", "lab/bindings/"))
            if kind == '"'
            else CPP_STANDARD.fullmatch(name) or name.startswith("pybind11/")
        )
        or ("lab/engine/" in shown(path) and name.startswith(("lab/bindings/", "pybind11/")))
    ]
    assert wrong == []


def test_csrc_enters_the_lower_layers_by_their_umbrella_header():
    umbrellas = {"backend/backend.h", "allocator/allocator.h"}
    # Whoever makes records, or reads them, says so.
    umbrellas |= {"backend/observer.h", "backend/races.h", "backend/timeline.h"}
    umbrellas |= {"backend/device_loss.h"}  # for the one file that loses a device
    umbrellas |= {"backend/fabric.h", "backend/promised_end.h", "backend/collective_board.h"}
    umbrellas |= {"backend/sharing.h"}  # for what several processes map
    umbrellas |= {"backend/stream_waits.h"}  # for the one listener
    umbrellas |= {"backend/host_layer.h"}  # for the one layer
    umbrellas |= {"backend/registered_memory.h"}  # for the one binding
    umbrellas |= {"backend/visible_devices.h"}  # for the one file that names configured devices
    wrong = [
        place
        for _, place, _, name in includes("csrc")
        if name.startswith(("backend/", "allocator/", "lab/")) and name not in umbrellas
    ]
    assert wrong == []


def test_one_file_joins_the_allocator_to_the_machine():
    joins: dict[Path, set[str]] = {}
    for path, _, _, name in includes("csrc"):
        if name in ("backend/backend.h", "allocator/allocator.h") and path.suffix == ".h":
            joins.setdefault(path, set()).add(name)
    # A header with both would make every file that includes it a second place of the join.
    both = [shown(path) for path, names in joins.items() if len(names) == 2]
    assert set(both) <= {"csrc/runtime/device_allocator.h"}


def test_csrc_uses_per_operator_headers():
    heavy = ("ATen/ATen.h", "torch/extension.h", "torch/all.h", "torch/torch.h", "ATen/Functions.h")
    wrong = [
        place
        for path, place, _, name in includes("csrc")
        if name in heavy and "python" not in path.relative_to(ROOT).parts
    ]
    assert wrong == []


CSRC_ROOMS = re.findall(r"^\| `(\w+)/?` \|", (ROOT / "csrc/README.md").read_text(), re.MULTILINE)


def csrc_room(name: str) -> str:
    """The room of csrc/ROOM/file or csrc/ROOM.h; the README states the order of rooms."""
    return name.removeprefix("csrc/").split("/")[0].split(".")[0]


def test_rooms_of_csrc_include_only_the_rooms_above_them():
    rooms = {csrc_room(shown(path)) for path in sources("csrc", suffixes=CPP)}
    assert rooms == set(CSRC_ROOMS), "csrc/README.md has a row per room"
    wrong = [
        place
        for path, place, _, name in includes("csrc")
        if name.startswith("csrc/")
        and CSRC_ROOMS.index(csrc_room(name)) > CSRC_ROOMS.index(csrc_room(shown(path)))
    ]
    assert wrong == []


def test_distributed_knows_no_operator_and_no_route():
    wrong = [
        place
        for _, place, _, name in includes("csrc/distributed")
        if name.startswith(("csrc/aten/", "csrc/routes/", "csrc/autocast/"))
    ]
    assert wrong == []


def test_environment_is_read_in_one_place():
    """Knobs are rows of one table, read once; a getenv elsewhere would be a knob without a row."""
    # The second reads CUBLAS_WORKSPACE_CONFIG, a variable of cuBLAS that programs set late.
    allowed = {"backend/config.cpp", "csrc/runtime/cublas_workspaces.cpp"}
    readers = {
        shown(path)
        for path in sources("backend", "allocator", "csrc", suffixes=CPP)
        if re.search(r"\bgetenv\s*\(", path.read_text())
    }
    assert readers <= allowed


def test_nothing_compares_names_of_devices():
    """Under the CUDA alias npusim is called "cuda": torch_npusim/_names.py has the one question."""
    compared = re.compile(r"""[!=]=\s*\[?["']npusim["']|["']npusim["']\s*[!=]=""")
    wrong = [
        f"{shown(path, number)}: {line.strip()}"
        for path in sources(*DEVICE, suffixes=(".py",))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if compared.search(line) and "device" in line and "device_type ==" not in line
    ]
    assert wrong == []
