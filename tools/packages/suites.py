# SPDX-License-Identifier: BSD-3-Clause
"""The packages, the tests of theirs that take a device, and why some fail on npusim."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Suite:
    """Tests of one package.

    Attributes:
        name: Distribution in the registry.
        version: Of the sdist that has the tests.
        sdist: Name of the sdist's folder, without the version.
        tests: Paths in the sdist.
        switch: How the tests come to a device, in words.
        counterpart: Maps a test on CUDA to the same test on CPU, None for any other; without it the
            suite runs twice.
        own: Options of pytest for a suite that runs twice and comes to the device by itself, with
            {} for the device, in `variables` too; without it suite_device.py sets the default.
        needs: Requirements that the tests import, installed without their dependencies.
        options: Of pytest.
        variables: Environment.
        note: Further facts, for the page.
        reasons: Pattern of a test's name -> why it passes on CPU and not on npusim.
    """

    name: str
    version: str
    sdist: str
    tests: tuple[str, ...]
    switch: str
    counterpart: Callable[[str], str | None] | None = None
    own: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    note: str = ""
    reasons: dict[str, str] = field(default_factory=dict)

    def reason(self, name: str) -> str:
        """Returns why a test fails on npusim alone, or that nobody has said why."""
        for pattern, reason in self.reasons.items():
            if re.search(pattern, name):
                return reason
        return "not explained"


DEFAULT_DEVICE = "default device, on both sides"
ASKS = "the tests ask `torch.cuda.is_available()`, on both sides"
OTHER_NUMBERS = (
    "the tolerance fits the random numbers of CPU, and npusim's are others: on CPU, {} of 10 other "
    "seeds fail (SUITE_SEED_SHIFT=1 to 10)"
)


def renamed(on_cuda: str, on_cpu: str) -> Callable[[str], str | None]:
    """Maps the name of a test on CUDA, by a pattern, to that on CPU; None for any other name."""

    def counterpart(name: str) -> str | None:
        found = re.sub(on_cuda, on_cpu, name)
        return found if found != name else None

    return counterpart


by_parameter = renamed(r"(?<=[\[-])cuda(?=[\]-])", "cpu")  # test_x[cuda-3] -> test_x[cpu-3]
# test_x[3-device1] -> test_x[3-device0], where the devices are CPU and CUDA in this order.
by_number = renamed(r"(?<=[\[-])device1(?=[\]-])", "device0")
# TestX_cuda::test_y -> TestX_cpu::test_y
by_class = renamed(r"_cuda(?=::|_jit::)", "_cpu")
by_suffix = renamed(r"_(cuda|gpu)$", "")  # test_x_cuda -> test_x; test_x_to_gpu has no counterpart

GPYTORCH_EXAMPLES = (
    *("kissgp_gp", "kissgp_white_noise", "svgp_gp", "white_noise", "sgpr", "model_list_gp"),
    *("grid_gp", "kronecker_multitask_ski_gp", "simple_gp", "batch_svgp_gp"),
)

OPACUS = (
    *("module_validator", "randomness", "multidevice_optimizer", "mixed_precision", "poisson"),
    *("gradient_accumulation", "grad_sample_hooks", "dpdataloader"),
)
TORCHANI = (
    *("neighbors", "aev", "potentials_acceptance", "infer", "forces", "electro", "embed", "nn"),
    *("energies", "ensemble", "grad_module", "repulsion", "dispersion", "sae", "vibrational"),
)
DEEPINV = ("noise_model",)

SUITES = (
    Suite(
        name="einops",
        version="0.8.2",
        sdist="einops",
        tests=("einops/tests",),
        switch=DEFAULT_DEVICE,
        needs=("einops==0.8.2",),  # a test starts an interpreter that imports it
        variables={"EINOPS_TEST_BACKENDS": "numpy,torch"},
    ),
    Suite(
        name="linear-operator",
        version="0.6.1",
        sdist="linear_operator",
        tests=("test/functions", "test/operators", "test/utils"),
        options=("--ignore=test/operators/test_interpolated_linear_operator.py",),
        note="without `test_interpolated_linear_operator.py`, which makes its inputs with "
        "`torch.LongTensor`: always on CPU.",
        switch=DEFAULT_DEVICE,
        needs=("jaxtyping==0.3.11", "wadler-lindig==0.1.8"),
        reasons={
            "test_precond_inv_quad_logdet_vector": OTHER_NUMBERS.format(5),
            "TestSolveBatch::test_solve_multiple_vecs": OTHER_NUMBERS.format(4),
            "TestMatmulLinearOperatorBatch::test_inv_quad_logdet": OTHER_NUMBERS.format(3),
            "TestRootLinearOperatorBatch::test_root_decomp": OTHER_NUMBERS.format(4),
            "TestKernelLinearOperatorLinOpReturn::test_solve": OTHER_NUMBERS.format(2),
            "TestRootLinearOperatorMultiBatch::test_solve_vector": OTHER_NUMBERS.format(1),
            "test_(cat|identity)_linear_operator": "the operator keeps no device of its own, and "
            "torch's default device does not hold inside `__torch_function__`: as on CUDA, its "
            "tensors are then on CPU",
            "test_lanczos_tridiag_approx": "`torch.FloatTensor` in the test makes an operand on "
            "CPU, whatever the default device",
            "test_to_helper": "the test expects a tensor made without a device to be on CPU",
        },
    ),
    Suite(
        name="gpytorch",
        version="1.15.2",
        sdist="gpytorch",
        tests=(
            *(f"test/examples/test_{name}_regression.py" for name in GPYTORCH_EXAMPLES),
            "test/examples/test_fixed_noise_fanatasy_updates.py",
            "test/kernels/test_rbf_kernel_grad.py",
            "test/kernels/test_rbf_kernel_gradgrad.py",
            "test/kernels/test_matern52_kernel_grad.py",
            "test/distributions",
            "test/utils/test_quadrature.py",
        ),
        switch="`test_x_cuda` beside `test_x`, in one process",
        counterpart=by_suffix,
        needs=("linear-operator==0.6.1", "jaxtyping==0.3.11", "wadler-lindig==0.1.8"),
        note="its 10 tests `test_..._prior_to_gpu` have no counterpart on CPU. On npusim 4 pass, "
        "3 expect a tensor moved that `.cuda()` leaves (as `.double()` does on CPU), 2 read an "
        "absent attribute, and 1 recurses without end, also on CPU.",
    ),
    Suite(
        name="pytorch-ignite",
        version="0.5.5",
        sdist="pytorch_ignite",
        tests=("tests/ignite/metrics",),
        switch="the suite's own parameter `available_device`, in one process",
        counterpart=by_parameter,
        options=(
            "--ignore=tests/ignite/metrics/nlp",
            "-k",
            "(cpu or cuda) and not TestDistributed and not distrib",
        ),
        note="without `nlp/` and tests of distributed processes.",
    ),
    Suite(
        name="torchsde",
        version="0.2.6",
        sdist="torchsde",
        tests=tuple(f"tests/test_brownian_{name}.py" for name in ("path", "tree", "interval")),
        options=("-k", "not interval or shape or determinism_simple"),
        note="two files, and the quick tests of `test_brownian_interval.py`.",
        switch="the suite's own parameter `device`, in one process",
        counterpart=by_number,
        needs=("trampoline==0.1.2",),
    ),
    Suite(
        name="pytorch-optimizer",
        version="4.1.0",
        sdist="pytorch_optimizer",
        tests=("tests",),
        switch="the suite's option `--device`, on both sides",
        own=("--device={}",),
        options=("-o", "addopts=", "--ignore=tests/test_create_optimizer.py"),
        note="without `test_create_optimizer.py`: three quarters of the time, and no device.",
    ),
    Suite(
        name="timm",
        version="1.0.31",
        sdist="timm",
        tests=(
            *(f"tests/test_{name}.py" for name in ("layers", "layers_pool", "layers_pos_embed")),
            *(f"tests/test_{name}.py" for name in ("layers_drop", "utils", "data")),
        ),
        switch="the suite's variable `TORCH_DEVICE`, on both sides",
        own=("-p", "without_vision_ops"),
        variables={"TORCH_DEVICE": "{}"},
        needs=("torchvision==0.28.0",),
        note="tests of layers, utilities and data.",
    ),
    Suite(
        name="skorch",
        version="1.4.0",
        sdist="skorch",
        tests=("skorch/tests/test_net.py", "skorch/tests/test_utils.py"),
        options=("-o", "addopts=", "-k", "test_utils or cuda or device"),
        note="`test_utils.py`, and tests of `test_net.py` with `cuda` or `device` in the name.",
        switch=ASKS,
        own=(),
        needs=("tabulate==0.10.0", "pandas==3.1.1", "flaky==3.8.1"),
        reasons={
            "test_load_cuda_params_to_cuda": "the sdist lacks the files that the test loads, "
            "`net_cuda.pt` and `optimizer_cuda.pt`",
        },
    ),
    Suite(
        name="opacus",
        version="1.6.0",
        sdist="opacus",
        tests=tuple(f"opacus/tests/{name}_test.py" for name in OPACUS),
        note="eight files; without tests on several GPUs, which start processes.",
        switch=ASKS,
        own=("-p", "without_vision_ops", "-o", "python_files=*_test.py"),
        needs=("opt-einsum==3.4.0", "torchvision==0.28.0"),
    ),
    Suite(
        name="torchani",
        version="2.9.0",
        sdist="torchani",
        tests=tuple(f"tests/test_{name}.py" for name in TORCHANI),
        note="files of models and their parts, without datasets and CUDA kernels.",
        switch="`class_cuda` beside `class_cpu`, in one process",
        counterpart=by_class,
        needs=("parameterized==0.9.0", "h5py==3.16.0", "ase==3.29.0", "pandas==3.1.1"),
    ),
    Suite(
        name="deepinv",
        version="0.5.0",
        sdist="deepinv",
        tests=tuple(f"deepinv/tests/test_{name}.py" for name in DEEPINV),
        note="one of 20 files, for time.",
        switch="the suite's own parameter `device`, in one process",
        counterpart=by_number,
        options=("-p", "without_vision_ops"),
        needs=("torchvision==0.28.0", "h5py==3.16.0", "natsort==8.4.0", "torchmetrics==1.9.0"),
    ),
    Suite(
        name="accelerate",
        version="1.15.0",
        sdist="accelerate",
        tests=("tests/test_hooks.py", "tests/test_utils.py", "tests/test_modeling_utils.py"),
        note="three files; most others start programs or load models from the network.",
        switch=ASKS,
        own=(),
        needs=("parameterized==0.9.0",),
    ),
)
