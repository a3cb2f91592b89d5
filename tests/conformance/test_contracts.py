# SPDX-License-Identifier: BSD-3-Clause
"""Contracts hold on npusim and on the CPU, and each of these plants breaks the one meant for it."""

import gc
import itertools
import re
import textwrap

import pytest
import torch
from conformance.contract_plants import PLANTS, around, method
from conformance.contract_plants_more import MORE
from conformance.contract_plants_parts import PARTS
from conformance.contract_plants_sieves import SIEVES, only_in_the_first_thread, spoils
from repo.sources import ROOT

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.cases import catalog
from npusim_conformance.cases.selection import Selection
from npusim_conformance.contracts import conditions, contracts, same
from npusim_conformance.contracts import event as event_contracts
from npusim_conformance.properties.base import Run
from npusim_conformance.run.worker import Worker, WorkerConfig
from npusim_conformance.verdict import Mismatch, NotApplicable, Status


@pytest.fixture(scope="module")
def worker():
    """Executes cases on npusim in this process."""
    threads = torch.get_num_threads()
    catalog.all_names()  # loads torch's databases
    gc.collect()
    gc.freeze()  # as a worker does: contracts on memory collect what is left
    yield Worker(WorkerConfig("npusim", "torch_npusim", Expectations()))
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture
def check(worker):
    """Executes a contract, as "stream/with_makes_current"."""
    return lambda name: worker.execute(f"contract:{name}")


def quick():
    return [str(case) for case in catalog.cases(Selection("smoke", subjects="contract:*"))]


def test_names_and_facts():
    for contract in contracts().values():
        assert contract.fact.endswith("."), contract
        assert not contract.fact.startswith("Test"), contract
    assert len(contracts()) > 200


def test_npusim_keeps_the_quick_ones(worker):
    outcomes = [worker.execute(name) for name in quick()]
    wrong = {o.case for o in outcomes if o.status not in (Status.PASS, Status.NA)}
    assert not wrong
    left_out = {o.case for o in outcomes if o.status is Status.NA}
    clocks = {  # that stand still while the host pauses
        "contract:event/elapsed_time_is_in_milliseconds",
        "contract:profiler/times_of_ranges_are_plausible",
    }
    assert left_out <= {"contract:profiler/records_the_device", *clocks}


def test_the_unit_of_events_is_told_from_a_clock_that_stands_still():
    event_contracts.compare_clocks(5.0, 20.0, 0.02, 0.021)
    for found in (0.02, 20_000.0, 20_000_000.0, -20.0):  # seconds, microseconds, nanoseconds
        with pytest.raises(Mismatch, match=r"the host measures 20\.0 ms"):
            event_contracts.compare_clocks(found / 4, found, 0.02, 0.021)
    for found in (0.0, 0.004):
        with pytest.raises(NotApplicable):
            event_contracts.compare_clocks(found, found, 0.02, 0.021)


def test_a_profile_in_another_unit_is_found(check, monkeypatch):
    times = itertools.count(1)
    wrong = property(lambda event: 1e9 * next(times))
    monkeypatch.setattr(torch.autograd.profiler_util.FunctionEvent, "device_time_total", wrong)
    outcome = check("profiler/times_of_ranges_are_plausible")
    assert outcome.status is Status.FAIL
    assert "a range around a pause of 20000 us takes" in outcome.message


def test_the_cpu_keeps_those_that_concern_it(worker):
    cpu = Worker(WorkerConfig("cpu", "", Expectations()))
    outcomes = [cpu.execute(name) for name in quick()]
    assert [o for o in outcomes if o.status not in (Status.PASS, Status.NA)] == []
    assert sum(o.status is Status.PASS for o in outcomes) > 80
    assert all(o.message for o in outcomes if o.status is Status.NA)


# --- what is not there


def test_an_optional_piece_that_is_missing_is_named(check, monkeypatch):
    monkeypatch.delattr(torch.npusim, "default_stream")
    outcome = check("stream/module_agrees")
    assert outcome.status is Status.NA
    assert outcome.message == "there is no torch.npusim.default_stream"


def test_a_part_that_the_backend_leaves_out_is_no_failure(check, monkeypatch):
    def stream(*args, **kwargs):
        raise RuntimeError("Backend doesn't support create a new Stream.\nframe #0")

    monkeypatch.setattr(torch, "Stream", stream)
    outcome = check("stream/belongs_to_device")
    assert outcome.status is Status.NA
    assert outcome.message == "Backend doesn't support create a new Stream."


def test_what_torch_needs_is_not_optional(check, monkeypatch):
    monkeypatch.delattr(torch.npusim, "_is_in_bad_fork")
    outcome = check("device/offers_what_torch_looks_up")
    assert outcome.status is Status.FAIL
    assert "_is_in_bad_fork (for torch.manual_seed)" in outcome.message


def test_what_the_cpu_breaks_too_is_upstream(check, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: [])
    assert check("indexing/scalars_come_back").status is Status.UPSTREAM


# --- what a sentence shows


def test_values_are_shown_from_where_they_differ():
    same("ones", torch.ones(20), torch.ones(20))
    got = torch.arange(20.0).index_fill(0, torch.tensor([12]), 0)
    with pytest.raises(Mismatch, match=r"x from element 12: \[0\.0, .*expected \[12\.0, 13\.0, "):
        same("x", got, torch.arange(20.0))
    with pytest.raises(Mismatch, match=r"x: \[0\.0, 1\.0\], expected \[0\.0, 2\.0\]"):
        same("x", torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))


def test_other_bytes_are_shown_with_their_numbers(check, monkeypatch):
    method("to", lambda right, self, *to: right(self, *to) + 0)(monkeypatch)  # -0.0 + 0 is 0.0
    message = check("copy/conversions_keep_to_the_nearest").message
    assert "element 1 of float32 to float32" in message
    assert "0.0 (bytes 00000000), expected -0.0 (bytes 00000080)" in message


def test_memory_that_was_filled_wrongly_is_not_said_to_be_changed_by_a_copy(check, monkeypatch):
    def unfilled(right, self, *to, **more):
        result = right(self, *to, **more)
        if "copy" in more:
            result[-1] = 0
        return result

    around(torch.Tensor, "to", unfilled)(monkeypatch)
    message = check("copy/kinds_are_converted_on_the_way").message
    assert "memory around it was wrong before, when it was filled" in message


def test_a_copy_is_not_blamed_for_what_the_one_before_did_to_its_source(check, monkeypatch):
    around(torch.Tensor, "copy_", spoils)(monkeypatch)
    message = check("copy/kinds_are_converted_on_the_way").message
    assert message.endswith("on cpu, 2x3x4x5: a copy changes its source")


def test_contracts_that_conditions_leave_out_are_there():
    names = {one.name for one in contracts().values()}
    assert conditions._ONCE | conditions._OF_THE_CURRENT <= names


def test_no_operator_is_blamed_for_what_fails_under_a_condition(check, monkeypatch):
    method("cpu", only_in_the_first_thread)(monkeypatch)
    outcome = check("conditions/contracts_hold_in_another_thread")
    assert (outcome.culprit, outcome.cause) == ("", outcome.message)
    assert "in a thread of its own, " in outcome.message


# --- plants

JUDGED = "npusim_conformance.verdict.Mismatch: "


def planted(name, plant, check, monkeypatch):
    """The outcome of a contract under a plant, which the CPU's run does not meet; no culprit."""
    right = Run._fails_on_cpu
    with monkeypatch.context() as patch:

        def without(*given):
            patch.undo()
            return right(*given)

        patch.setattr(Run, "_fails_on_cpu", without)
        patch.setattr(Worker, "_attribute", lambda *given: None)  # which takes longer than the rest
        plant(patch)
        return check(name)


ABORTS_AT_EXIT = "import atexit, os; atexit.register(os.abort)"
ABORTS_IN_CHILDREN = "import os; os.register_at_fork(after_in_child=os.abort)"
# (line of a module that loads the device, contract, words of its failure)
OF_PROCESSES = (
    (ABORTS_AT_EXIT, "exit/ends_with_live_tensors", "by SIGABRT"),
    (ABORTS_AT_EXIT, "exit/ends_with_a_thread", "by SIGABRT"),
    (ABORTS_AT_EXIT, "exit/ends_after_backward", "by SIGABRT"),
    (ABORTS_AT_EXIT, "exit/ends_with_live_streams", "by SIGABRT"),
    (ABORTS_AT_EXIT, "exit/keeps_the_exit_status", "it ended by SIGABRT, expected status 7"),
    (
        """
        import atexit, os, torch
        right = torch.Tensor.pin_memory
        torch.Tensor.pin_memory = lambda self: atexit.register(os.abort) and right(self)
        """,
        "exit/ends_with_live_pinned_memory",
        "by SIGABRT",
    ),
    (
        """
        import os, torch
        def lie(): torch.npusim.is_available = lambda: False
        os.register_at_fork(after_in_child=lie)
        """,
        "fork/child_may_count_devices",
        "is_available() is False",
    ),
    ("print('hello')", "exit/import_says_nothing", "hello"),
    ("import warnings; warnings.warn('beta')", "exit/import_says_nothing", "stderr"),
    (ABORTS_IN_CHILDREN, "fork/child_is_refused_or_works", "died by SIGABRT"),
    (ABORTS_IN_CHILDREN, "fork/child_may_not_read_the_parents_tensors_wrongly", "died by SIGABRT"),
    (ABORTS_IN_CHILDREN, "fork/child_may_use_the_cpu", "died by SIGABRT"),
    (ABORTS_IN_CHILDREN, "fork/fork_before_first_use", "died by SIGABRT"),
    (
        """
        import os, torch
        def refuse(seed): raise RuntimeError("no seeds here")
        def spoil():
            torch.npusim._is_in_bad_fork = lambda: False
            torch.npusim.manual_seed_all = refuse
        os.register_at_fork(after_in_child=spoil)
        """,
        "fork/child_may_seed",
        "no seeds here",
    ),
    (
        """
        import os
        from multiprocessing.reduction import ForkingPickler
        ForkingPickler.dumps = lambda *given: os.abort()
        """,
        "sharing/queues_do_not_hang",
        "the process ended with -6",
    ),
    (
        """
        import torch
        right = torch.nn.functional.gelu
        torch.nn.functional.gelu = lambda x: right(x) * (1 + torch.compiler.is_compiling())
        """,
        "compile/compiled_without_code_gives_the_same",
        "values, 4 rows",
    ),
    (
        """
        import torch
        right = torch.nn.functional.gelu
        def gelu(x):
            return right(x) * (2 if torch.compiler.is_compiling() and len(x) == 1 else 1)
        torch.nn.functional.gelu = gelu
        """,
        "compile/sizes_of_none_and_one_are_right",
        "values, 1 rows",
    ),
    (
        """
        import torch
        right = torch.npusim.manual_seed_all
        def seeds(seed):
            if torch.npusim.is_initialized():
                right(seed)
        torch.npusim.manual_seed_all = seeds
        """,
        "rng/a_seed_before_the_first_use_counts",
        "other states after torch.manual_seed(5)",
    ),
)
ALL_PLANTS = [*PLANTS.items(), *PARTS.items(), *MORE, *SIEVES]
# Planted in tests of their own: of this file, of test_parts_of_a_backend.py and of test_foreign.py.
ALONE = {
    "copy/conversions_keep_to_the_nearest",
    "device/import_changes_no_setting",
    "device/offers_what_torch_looks_up",
    "distributed/collectives_have_the_right_values",
    "distributed/collectives_may_be_waited_for",
    "distributed/collectives_refuse_mistakes",
    "distributed/collectives_take_the_usual_dtypes",
    "event/elapsed_time_is_in_milliseconds",
    "profiler/links_work_to_operators",
    "profiler/times_of_ranges_are_plausible",
}


def test_every_contract_has_a_plant():
    page = (ROOT / "docs" / "reference" / "conformance_mutations.md").read_text()
    planted = {name for name, _ in ALL_PLANTS} | {name for _, name, _ in OF_PROCESSES} | ALONE
    planted.update(re.findall(r"`contract:([\w/]+)`", page))  # defects of the whole device
    without = {f"{one.group}/{one.name}" for one in contracts().values()} - planted
    assert without == set()


@pytest.mark.parametrize(("name", "plant"), ALL_PLANTS)
@pytest.mark.usefixtures("races_off")
def test_a_planted_defect_is_found(name, plant, check, monkeypatch):
    outcome = planted(name, plant, check, monkeypatch)
    assert outcome.status is Status.FAIL, outcome
    # The contract has judged: neither the plant nor torch raised for it.
    assert outcome.detail.rstrip().rpartition("\n")[2].startswith(JUDGED), outcome
    assert "raised TypeError" not in outcome.message, outcome
    assert check(name).status is Status.PASS


def test_a_plant_that_crashes_is_not_found(check, monkeypatch):
    outcome = planted("numpy/values_go_round", method("cpu", lambda: None), check, monkeypatch)
    assert outcome.status is Status.FAIL
    assert JUDGED not in outcome.detail


# --- processes


@pytest.fixture
def broken_import(tmp_path, monkeypatch):
    """Executes a contract with a module that loads npusim and then runs a line of its own."""

    def check(line, name):
        module = "npusim_with_a_defect"
        source = f"import torch_npusim\n{textwrap.dedent(line)}\n"
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        monkeypatch.setattr(Worker, "_attribute", lambda *given: None)
        worker = Worker(WorkerConfig("npusim", "torch_npusim", Expectations()))
        worker.under_test.import_name = module
        return worker.execute(f"contract:{name}")

    return check


@pytest.mark.parametrize(("line", "name", "message"), OF_PROCESSES)
def test_what_processes_do_wrong_is_found(broken_import, line, name, message):
    outcome = broken_import(line, name)
    assert outcome.status is Status.FAIL
    assert message in outcome.message
