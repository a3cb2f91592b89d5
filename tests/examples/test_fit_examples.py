# SPDX-License-Identifier: BSD-3-Clause
"""The programs of examples/fit, run dry as docs/use/will_it_fit.md does; all in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "fit"
GIB = 1 << 30


def fit(*words):
    chosen = {"NPUSIM_ALLOCATOR": "cuda-2.13", "NPUSIM_DEVICE_COUNT": "1"}
    environment = {**os.environ, "NPUSIM_AS_CUDA": "1", **chosen}
    done = subprocess.run(
        [sys.executable, "-m", "torch_npusim", "fit", "--json", "--remedies", "never", *words],
        env=environment, capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_fine_tuning_of_8b_takes_four_copies_of_the_parameters_and_a_fifth():
    found = fit("--spec", "a100-80-sxm", str(EXAMPLES / "finetune.py"))
    parts = found["devices"]["0"]["at_peak"]
    parameters = 8_030_261_248 * 2  # as the model's card counts them, in bfloat16
    assert found["fits"]
    assert parts["parameters"] == parameters
    assert parts["gradients"] == parameters
    assert parts["optimizer state"] == pytest.approx(2 * parameters, rel=1e-4)
    assert parts["temporaries of the optimizer"] == pytest.approx(parameters, rel=1e-3)
    assert found["step"]["inputs"] == [1, 2048]


@pytest.mark.parametrize(
    ("name", "batch", "chip"), [("resnet", 64, "t4"), ("diffusion", 8, "rtx-4090")]
)
def test_networks_of_images_fit_as_the_page_says(name, batch, chip):
    found = fit("--spec", chip, str(EXAMPLES / f"{name}.py"), "--batch", str(batch))
    page = (EXAMPLES.parents[1] / "docs" / "use" / "will_it_fit.md").read_text()
    assert found["fits"]
    assert f"{found['devices']['0']['peak_reserved'] / GIB:.2f} GiB" in page
