# SPDX-License-Identifier: BSD-3-Clause
"""Installs the wheels in a new environment, outside the checkout, and tries what people do first.

Nothing of the checkout is on the path there: what a wheel lacks is missed. The environment is set
up as README's example for CI says, by the script of the GitHub Action, and the commands are those
of the documentation.

    try_wheels.py dist [--torch-from VENV]   --torch-from links that environment's torch
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
TORCH_VERSION = version("torch").partition("+")[0]  # the wheels are for the torch of this run
ACTION = ROOT / ".github" / "actions" / "setup-npusim"
TORCH_PARTS = ["torch", "torchgen", "functorch", "torch-*.dist-info"]
# Beside a build for CUDA: the libraries that it loads, and its compiler.
TORCH_PARTS += ["nvidia", "nvidia_*", "cuda", "cuda_*", "triton", "triton-*"]


class Environment:
    """A virtual environment, and the folder and the variables with which its commands run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        venv.create(folder / "venv", with_pip=True)
        self.variables = {name: value for name, value in os.environ.items() if not mine(name)}
        path = [part for part in os.environ["PATH"].split(os.pathsep) if str(ROOT) not in part]
        self.variables["PATH"] = os.pathsep.join([str(self.bin), *path])

    @property
    def packages(self) -> Path:
        """The folder that packages are installed into."""
        (found,) = self.folder.glob("venv/lib/python*/site-packages")
        return found

    def run(self, *command: str | Path, status: int = 0) -> str:
        """Returns all that a command of the environment prints; ends the program if it fails."""
        program = shutil.which(command[0], path=self.variables["PATH"])
        done = subprocess.run(
            [program or command[0], *command[1:]],
            cwd=self.work,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != status:
            shown = " ".join(map(str, command))
            sys.exit(f"{done.stdout}\nerror: `{shown}` ended with status {done.returncode}.")
        return done.stdout


def mine(name: str) -> bool:
    """Says whether an environment variable could change what is tried."""
    return name.startswith(("NPUSIM_", "PYTHON", "VIRTUAL_ENV"))


def install(environment: Environment, dist: Path, torch_from: Path | None) -> None:
    """Installs torch, the wheels of `dist` and what they depend on, as the action does it."""
    if torch_from is not None:
        (packages,) = torch_from.absolute().glob("lib/python*/site-packages")
        for pattern in TORCH_PARTS:
            for part in packages.glob(pattern):
                (environment.packages / part.name).symlink_to(part)
    inputs = {
        name: entry["default"] for name, entry in load(ACTION / "action.yml")["inputs"].items()
    }
    inputs |= ci_example()[0]
    inputs |= {"torch": TORCH_VERSION, "npusim": dist.absolute()}
    inputs |= {"extras": "pytest,lab,conformance,truth,course"}
    for name, value in inputs.items():
        environment.variables[f"SETUP_{name.upper().replace('-', '_')}"] = str(value)
    for name in ("GITHUB_ENV", "GITHUB_OUTPUT"):
        environment.variables[name] = str(environment.folder / name)
    environment.run("bash", ACTION / "setup.sh")
    for line in (environment.folder / "GITHUB_ENV").read_text().splitlines():
        name, _, value = line.partition("=")
        environment.variables[name] = value
    environment.run("pip", "check")


def code_blocks(page: str, language: str) -> list[str]:
    """Returns the blocks of a language in a page of the documentation."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.S)


def load(path: Path) -> dict[str, Any]:
    """Returns what a YAML file says."""
    content: dict[str, Any] = YAML(typ="safe").load(path.read_text())
    return content


def ci_example() -> tuple[dict[str, Any], str, str]:
    """Returns what README's example for CI gives to the action, then runs, and the test it runs."""
    (text,) = code_blocks("README.md", "yaml")
    (test,) = (block for block in code_blocks("README.md", "python") if block.startswith("# test_"))
    steps = YAML(typ="safe").load(text)["steps"]
    (action,) = (step for step in steps if step.get("uses", "").endswith("setup-npusim"))
    (command,) = (step["run"] for step in steps if step.get("run", "").startswith("pytest"))
    return action["with"], command, test


def try_modules(environment: Environment) -> str:
    """Every package comes from the new environment."""
    names = ["torch_npusim", "npusim_lab", "npusim_conformance", "npusim_truth", "npusim_course"]
    code = f"for name in {names}: print(__import__(name).__file__)"
    places = environment.run("python", "-c", code).split()
    assert all(Path(place).is_relative_to(environment.packages) for place in places), places
    return f"in {environment.packages}"


def try_doctor(environment: Environment) -> str:
    """`npusim doctor` finds nothing broken, and the devices that the action was asked for."""
    found = environment.run("npusim", "doctor")
    assert "devices         4 x " in found, found
    assert "devices 2.00 GiB" in found, found
    return found.splitlines()[0]


def try_readme(environment: Environment) -> str:
    """README's example runs to its last line, which is the error that it announces."""
    (example,) = (block for block in code_blocks("README.md", "python") if "# TypeError" in block)
    assert "# TypeError" in example.splitlines()[-1]
    (environment.work / "readme.py").write_text(example)
    printed = environment.run("python", "readme.py", status=1)
    assert printed.startswith("npusim:0 "), printed
    assert "bytes live" in printed, printed
    assert printed.splitlines()[-1].startswith("TypeError: "), printed
    return printed.splitlines()[0]


def try_custom_op(environment: Environment) -> str:
    """The extension of docs/use/custom_op.md builds with the installed header and runs."""
    source = environment.work / "custom_op"
    shutil.copytree(
        ROOT / "examples" / "custom_op",
        source,
        ignore=shutil.ignore_patterns("build", "*.so", "*.egg-info", "__pycache__"),
    )
    environment.run("pip", "install", "--quiet", "--no-build-isolation", source)
    code = "import torch, npusim_custom_op as mine; x = torch.randn(4, 8, device='npusim'); "
    code += "print(mine.layer_norm(x, x[0], x[1]).shape)"
    return environment.run("python", "-c", code).strip()


def try_ci(environment: Environment) -> str:
    """README's example for CI passes, under the plugin and on the devices that it asks for."""
    _, command, test = ci_example()
    (environment.work / command.split()[-1]).write_text(test)
    printed = environment.run(*command.split())
    assert "1 of 1 tests used a device, and 0 left memory on it" in printed, printed
    return printed.splitlines()[-1].strip(" =")


def try_lab(environment: Environment) -> str:
    """The laboratory makes a trace and replays it."""
    environment.run("npusim-lab", "--help")
    environment.run("npusim-lab", "generate", "lora", "--out", "lora.npt")
    return environment.run("npusim-lab", "replay", "lora.npt").splitlines()[0]


def try_conformance(environment: Environment) -> str:
    """The conformance kit tests one family of operators of npusim."""
    environment.run("npusim-conformance", "--help")
    device = ["--device", "npusim", "--import", "torch_npusim"]
    selection = ["--profile", "smoke", "--family", "reduction"]
    printed = environment.run("npusim-conformance", "run", *device, *selection, "--quiet")
    return printed.splitlines()[0]


TRIALS: list[Callable[[Environment], str]] = [
    try_modules,
    try_doctor,
    try_readme,
    try_ci,
    try_lab,
    try_conformance,
    try_custom_op,
]


def main() -> int:
    """Installs and tries; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dist", type=Path, help="the folder that `make wheels` filled")
    parser.add_argument("--torch-from", type=Path, metavar="VENV")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="npusim-try-") as folder:
        environment = Environment(Path(folder).resolve())
        install(environment, arguments.dist, arguments.torch_from)
        for trial in TRIALS:
            name = trial.__name__.removeprefix("try_").replace("_", " ")
            print(f"{name:<12} {trial(environment)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
