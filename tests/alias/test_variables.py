# SPDX-License-Identifier: BSD-3-Clause
"""Variables of CUDA and of torch for CUDA count, whichever way switches the alias on."""

import pytest

WAYS = {
    "variable": ("import torch", {"NPUSIM_AS_CUDA": "1"}),
    "import": ("import torch, torch_npusim.as_cuda", {}),
}


@pytest.fixture(params=WAYS)
def run(request, run_script):
    """Runs lines under the alias, with variables."""
    first, alias = WAYS[request.param]

    def run(lines, **variables):
        script = f"import os\n{first}\n{lines}"
        return run_script(script, environment={"NPUSIM_DEVICE_COUNT": "3"} | alias | variables)

    return run


COUNT = """
print(torch.cuda.device_count())
first = torch.ones(1, device="cuda:0")
print(len(torch.npusim.memory_snapshot()), torch.cuda.device_count())
"""


@pytest.mark.parametrize(
    ("visible", "count"), [("1", 1), ("2,0", 2), ("0,5,1", 1), ("0,1,2", 3), ("", 3), ("-1", 3)]
)
def test_cuda_visible_devices_says_how_many_there_are(run, visible, count):
    assert run(COUNT, CUDA_VISIBLE_DEVICES=visible).stdout == f"{count}\n1 {count}\n"


def test_cuda_visible_devices_counts_until_the_first_use(run):
    script = """
for visible in ("1", "2,0"):
    os.environ["CUDA_VISIBLE_DEVICES"] = visible
    print(torch.cuda.device_count())
torch.cuda.init()
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
print(torch.cuda.device_count())
"""
    assert run(script).stdout == "1\n2\n2\n"


def test_a_device_that_is_not_there_is_said_with_the_variable(run):
    done = run("torch.cuda.init()", CUDA_VISIBLE_DEVICES="7")
    assert done.returncode != 0
    assert "CUDA_VISIBLE_DEVICES is `7`" in done.stderr


def test_the_variable_of_npusim_goes_before_that_of_cuda(run):
    variables = {"CUDA_VISIBLE_DEVICES": "1", "NPUSIM_VISIBLE_DEVICES": "0,2"}
    assert run("print(torch.cuda.device_count())", **variables).stdout == "2\n"


def test_without_the_alias_the_variable_of_cuda_counts_for_nothing(run_script):
    script = "import torch, torch_npusim; print(torch.npusim.device_count())"
    variables = {"NPUSIM_DEVICE_COUNT": "3", "CUDA_VISIBLE_DEVICES": "1"}
    assert run_script(script, environment=variables).stdout == "3\n"


def test_the_sanitizer_of_cuda_is_the_race_detector(run):
    script = """
x = torch.zeros(3, device="cuda")
try:
    with torch.cuda.stream(torch.cuda.Stream()):
        x + 1
except torch.npusim.RaceError:
    print("found")
"""
    done = run(script, TORCH_CUDA_SANITIZER="1")
    assert done.stdout == "found\n", done.stderr


def test_a_context_belongs_to_a_device_that_was_used(run):
    script = """
def contexts():
    print(*map(torch._C._cuda_hasPrimaryContext, range(3)))

contexts()
torch.ones(1, device="cuda:1")
contexts()
"""
    assert run(script).stdout == "False False False\nFalse True False\n"


def test_a_forked_child_is_refused_in_the_words_of_cuda(run):
    script = """
torch.ones(1, device="cuda")
if not os.fork():
    try:
        torch.ones(1, device="cuda")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    assert run(script).stdout.startswith(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
        "must use the 'spawn' start method"
    )


@pytest.mark.parametrize(
    ("before", "variable", "expected"),
    [("", None, 512), ("", "npusim", 32), ("torch.empty(1, device='npusim')", None, 32)],
    ids=["alias", "a choice", "memory before the alias"],
)
def test_memory_comes_in_blocks_of_cuda_unless_the_user_chose(
    run_python, before, variable, expected
):
    script = f"""
import torch, torch_npusim
kept = {before or None}
import torch_npusim.as_cuda
before = torch.cuda.memory_allocated()
x = torch.empty(1, device="cuda")
print(torch.cuda.memory_allocated() - before)
"""
    chosen = {} if variable is None else {"NPUSIM_ALLOCATOR": variable}
    assert run_python(script, environment=chosen) == f"{expected}\n"
