# SPDX-License-Identifier: BSD-3-Clause
"""torch_npusim.compile_report(), `npusim compile-report` and pytest --npusim-max-graph-breaks."""

import json
import linecache
import textwrap

import pytest
import torch

import torch_npusim
from torch_npusim import cli
from torch_npusim._blame import short_path


def breaking(x):
    y = x * 2 + 1
    if y.sum().item() > 0:
        y = y.relu() - 1
    return y + 3


def test_a_report_after_many_compilations():
    """Of which the compiler remembers the last 64."""
    from torch._dynamo import utils

    x = torch.ones(8, device="npusim")
    torch_npusim.compile_report(breaking, x)
    known = utils.get_compilation_metrics()[-1]
    for _ in range(utils.DEFAULT_COMPILATION_METRICS_LIMIT):
        utils._compilation_metrics.append(known)
    torch._dynamo.reset()
    assert torch_npusim.compile_report(breaking, x).frames


def test_a_report_explains_a_graph_break():
    x = torch.ones(8, device="npusim")
    report = torch_npusim.compile_report(breaking, x)
    assert torch.equal(report.value, breaking(x))
    assert len(report.uncompiled) == 1
    found = report.uncompiled[0]
    assert (found.kind, found.function) == ("graph break", "breaking")
    assert found.place.startswith(short_path(__file__))
    assert "item()" in found.code
    assert "Tensor.item()" in found.reason
    assert "capture_scalar_outputs" in found.instead
    assert {frame.place.rpartition(":")[0] for frame in report.frames} == {short_path(__file__)}
    assert all(frame.seconds > 0 and frame.guards > 0 for frame in report.frames)
    # mul, add, sum, relu, sub, add; reading one value is no command.
    assert report.eager.launches == 6
    assert report.compiled.launches < report.eager.launches
    assert report.compiled.modelled_us < report.eager.modelled_us
    fused = [kernel for kernel in report.kernels if kernel.operators]
    assert {"aten.mul.Tensor", "aten.relu.default"} <= {o for k in fused for o in k.operators}
    assert all(kernel.bytes > 0 and kernel.calls == 1 for kernel in fused)


def in_a_loop(x):
    for _ in range(2):
        x = x + 1
        if x.sum() > 0:
            x = x - 1
    return x


def in_a_callee(x):
    with torch.no_grad():
        return breaking(x) + 1


def with_a_number(x, n):
    return x + n


def of_a_backend(x):
    return x * 3


def refused(graph, examples):
    raise ZeroDivisionError("this backend can nothing")


@pytest.mark.parametrize(
    ("function", "calls", "backend", "kind", "code", "advice"),
    [
        (in_a_loop, [()], "eager", "skipped function", "if x.sum() > 0:", "torch.where()"),
        (in_a_callee, [()], "eager", "graph break", "if y.sum().item() > 0:", "capture_scalar"),
        (with_a_number, [(0.5,), (1.5,), (2.5,), (3.5,)], "eager", "recompile limit",
         "def with_a_number(x, n):", "as tensors"),
        (of_a_backend, [()], refused, "error", "def of_a_backend(x):", "backend='eager'"),
    ],
)  # fmt: skip
def test_code_that_does_not_run_compiled_is_told_once(function, calls, backend, kind, code, advice):
    from torch_npusim.inductor.uncompiled import Watch

    x = torch.ones(4, device="npusim")
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend)
    settings = {"suppress_errors": True, "recompile_limit": 2, "automatic_dynamic_shapes": False}
    watch = Watch()
    watch.start()
    with torch._dynamo.config.patch(settings):
        for arguments in calls:
            assert torch.equal(compiled(x, *arguments), function(x, *arguments))
    watch.stop()
    (found,) = watch.found
    assert (found.kind, found.code) == (kind, code)
    assert advice in found.instead
    file, _, line = found.place.rpartition(":")
    assert linecache.getline(file, int(line)).strip() == code


def test_a_report_names_the_guard_that_failed():
    def function(x, factor):
        return x * factor

    compiled = torch.compile(function, dynamic=False)
    x = torch.ones(4, device="npusim")

    def sizes():
        return [compiled(x[:n], 2) for n in (2, 3)]

    from torch_npusim.inductor.compile_report import watched_compiler
    from torch_npusim.inductor.report import CompileReport

    made = CompileReport()
    with watched_compiler(made):
        sizes()
    assert len(made.frames) == 2
    assert len(made.recompiles) == 1
    assert "size mismatch" in made.recompiles[0].recompiled


def test_report_as_text_json_and_page():
    report = torch_npusim.compile_report(lambda x: x * 2, torch.ones(4, device="npusim"))
    shown = json.loads(report.to_json())
    assert shown["compiled"]["launches"] == 1
    assert shown["uncompiled"] == []
    assert "Not compiled: 0" in str(report)
    page = report.to_html()
    assert page.startswith("<!doctype html>")
    assert "npusim_fused_mul_0" in page


def test_the_command(tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, torch
            function = torch.compile(lambda x: (x + 1).cos() * int(sys.argv[1]))
            print(function(torch.ones(4, device="npusim")).sum().item())
            """
        )
    )
    html = tmp_path / "report.html"
    status = cli.main(["compile-report", "--json", "--html", str(html), str(script), "2"])
    out = capsys.readouterr().out
    assert status == 0
    shown = json.loads(out[out.index("{") :])
    assert shown["compiled"]["launches"] < shown["eager"]["launches"]
    assert any("aten.cos.default" in kernel["operators"] for kernel in shown["kernels"])
    assert html.read_text().startswith("<!doctype html>")
    assert cli.main(["compile-report", str(tmp_path / "none.py")]) == 2


def test_the_command_counts_the_programs_own_commands_only(tmp_path, run_script):
    """In a process of its own, first with an empty cache and then with that of the first."""
    script = tmp_path / "program.py"
    script.write_text(
        "import torch\n"
        "function = torch.compile(lambda x: (x + 1).cos() * 2)\n"
        "function(torch.ones(4, device='npusim'))\n"
    )
    command = f"""
        import sys
        from torch_npusim import cli
        sys.exit(cli.main(["compile-report", "--json", {str(script)!r}]))
    """
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    for cache in ("miss", "hit"):
        shown = json.loads(run_script(command, environment=environment, timeout=600).stdout)
        assert [frame["cache"] for frame in shown["frames"]] == [cache]
        # fill, add, cos, mul; fill and one kernel.
        assert (shown["eager"]["launches"], shown["compiled"]["launches"]) == (4, 2)
        assert shown["compiled"]["modelled_us"] < shown["eager"]["modelled_us"]


@pytest.mark.parametrize(("limit", "fails"), [(0, True), (1, False)])
def test_pytest_can_limit_graph_breaks(tmp_path, limit, fails, run_script):
    test = tmp_path / "test_program.py"
    test.write_text(
        textwrap.dedent(
            """
            import torch

            def test_it():
                def function(x):
                    return x + 1 if x.sum().item() > 0 else x
                torch.compile(function, backend="eager")(torch.ones(2, device="npusim"))
            """
        )
    )
    command = f"""
        import sys, pytest
        sys.exit(pytest.main(["-p", "no:cacheprovider", "--rootdir", {str(tmp_path)!r},
                              "--npusim-max-graph-breaks={limit}", {str(test)!r}]))
    """
    done = run_script(command)
    assert (done.returncode != 0) is fails, done.stdout
    if fails:
        assert "code that did not run compiled: 1; at most 0 is allowed" in done.stdout
        assert "test_program.py:6: return x + 1 if x.sum().item() > 0 else x" in done.stdout
