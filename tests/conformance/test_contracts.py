# SPDX-License-Identifier: BSD-3-Clause
"""Contracts hold on npusim and on the CPU, and each of these plants breaks the one meant for it."""

import contextlib
import gc
import itertools
import pickle
import textwrap
from types import SimpleNamespace

import pytest
import torch

from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.cases import catalog
from npusim_conformance.cases.selection import Selection
from npusim_conformance.contracts import contracts
from npusim_conformance.contracts import event as event_contracts
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
    clock = "contract:event/elapsed_time_is_in_milliseconds"  # stands still while the host pauses
    assert left_out <= {"contract:profiler/records_the_device", clock}


def test_the_unit_of_events_is_told_from_a_clock_that_stands_still():
    event_contracts.compare_clocks(5.0, 20.0, 0.02, 0.021)
    for found in (0.02, 20_000.0, 20_000_000.0, -20.0):  # seconds, microseconds, nanoseconds
        with pytest.raises(Mismatch, match=r"the host measures 20\.0 ms"):
            event_contracts.compare_clocks(found / 4, found, 0.02, 0.021)
    for found in (0.0, 0.004):
        with pytest.raises(NotApplicable):
            event_contracts.compare_clocks(found, found, 0.02, 0.021)


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


# --- plants: names of contracts -> what breaks them


def instead(owner, name, wrong):
    """`owner.<name>` is `wrong`."""
    return lambda patch: patch.setattr(owner, name, wrong)


def around(owner, name, wrong):
    """`owner.<name>(...)` is `wrong(right, ...)`."""
    right = getattr(owner, name)
    return instead(owner, name, lambda *args, **options: wrong(right, *args, **options))


def method(name, wrong):
    """Tensor.<name> is `wrong(right, tensor, ...)` on npusim, and as it was on the CPU."""

    def either(right, self, *args, **options):
        if self.device.type == "npusim":
            return wrong(right, self, *args, **options)
        return right(self, *args, **options)

    return around(torch.Tensor, name, either)


def refuse(error):
    raise error


def remembers(products):
    """A product that is computed once."""
    return lambda right, self, other: products.setdefault("first", right(self, other))


def in_rows(right, tensor, *args):
    """A result of npusim without the memory format of its operand."""
    result = right(tensor, *args)
    return result.contiguous() if result.device.type == "npusim" else result


class StaysCurrent(torch.npusim.device):
    def __exit__(self, *raised):
        return False


class SwallowsErrors(torch.npusim.device):
    def __exit__(self, *raised):
        super().__exit__(*raised)
        return True


def one_stream_for_all(patch):
    stream = torch.accelerator.current_stream()
    patch.setattr(torch.accelerator, "current_stream", lambda device=None: stream)


def events_never_complete(patch):
    class Event:
        def __init__(self, *args, **kwargs):
            self.event = torch_event(*args, **kwargs)

        def __getattr__(self, name):
            return getattr(self.event, name)

        def query(self):
            return False

    class Side:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            self.stream.__enter__()

        def __exit__(self, *failure):
            self.stream.__exit__(*failure)

        def record_event(self):
            event = Event(self.stream.device)
            event.record(self.stream)
            return event

    def side_stream(run):
        stream, values = right(run)
        return Side(stream), values

    torch_event, right = torch.Event, event_contracts.side_stream
    patch.setattr(torch, "Event", Event)
    patch.setattr(event_contracts, "side_stream", side_stream)


def out_of_memory_has_another_name(right, *args, **kwargs):
    try:
        return right(*args, **kwargs)
    except torch.OutOfMemoryError as error:
        raise RuntimeError(str(error)) from None


KEPT = []  # by a device that loses memory with each refusal


def refusals_keep_memory(right, *args, **kwargs):
    try:
        return right(*args, **kwargs)
    except torch.OutOfMemoryError:
        KEPT.append(right(1 << 10, dtype=torch.uint8, device=kwargs["device"]))
        raise


def adds_elsewhere(right, self, other):
    self.data = self + other
    return self


def sending_fails_without_a_reason(patch):
    method("__reduce_ex__", lambda right, self, protocol: refuse(RuntimeError("no")))(patch)
    patch.setattr("npusim_conformance.contracts.sharing._sent", pickle.dumps)


@contextlib.contextmanager
def index_stays(index):
    if index is not None:
        torch.accelerator.set_device_index(index)
    yield


def autocast_of_others(right, kind, *args, **kwargs):
    return contextlib.nullcontext() if kind == "npusim" else right(kind, *args, **kwargs)


NPU, ACCELERATOR = torch.npusim, torch.accelerator
SIZES = itertools.count()
BROKEN_BY = {
    "device/set_device_changes_current device/current_device_is_per_thread": instead(
        NPU, "set_device", lambda device: None
    ),
    "device/no_such_index": around(
        NPU, "set_device", lambda right, at: right(at % 2 if isinstance(at, int) else at)
    ),
    "device/context_manager_restores": instead(NPU, "device", StaysCurrent),
    "device/context_manager_restores_after_exceptions": instead(NPU, "device", SwallowsErrors),
    "device/synchronize_takes_devices": instead(NPU, "synchronize", lambda: None),
    "stream/with_makes_current stream/set_stream_makes_current": one_stream_for_all,
    "stream/module_agrees": instead(NPU, "stream", lambda stream: contextlib.nullcontext()),
    "event/new_event_is_complete event/synchronized_event_is_complete": events_never_complete,
    "memory/allocated_counts_live_tensors memory/statistics_agree": instead(
        NPU, "memory_allocated", lambda device=None: 0
    ),
    "memory/peak_is_the_highest": instead(NPU, "reset_peak_memory_stats", lambda device=None: None),
    "memory/empty_cache_gives_back": instead(NPU, "empty_cache", lambda: None),
    "memory/statistics_are_per_device": around(
        NPU, "memory_allocated", lambda right, device=None: right(0) + right(1)
    ),
    "memory/freed_memory_is_used_again": instead(
        NPU, "memory_reserved", lambda device=None: next(SIZES)
    ),
    "memory/too_much_is_out_of_memory": around(torch, "empty", out_of_memory_has_another_name),
    "memory/works_after_out_of_memory": around(torch, "empty", refusals_keep_memory),
    "rng/manual_seed_repeats rng/devices_have_their_own rng/dropout_follows_the_seed": instead(
        NPU, "manual_seed_all", lambda seed: None
    ),
    "rng/state_can_be_restored rng/fork_rng_restores rng/bad_states_are_refused": instead(
        NPU, "set_rng_state", lambda state, device=None: None
    ),
    "rng/generators_are_independent": instead(
        torch, "Generator", lambda device="cpu": NPU._get_generator(device)
    ),
    "serialization/load_restores_the_device serialization/every_dtype_survives": around(
        torch, "load", lambda right, *args, **more: right(*args, **{**more, "map_location": "cpu"})
    ),
    "serialization/deepcopy_shares_nothing serialization/sharing_survives": method(
        "__deepcopy__", lambda right, self, memo: self
    ),
    "pinned/pin_memory_pins dataloader/pins_batches": instead(
        torch.Tensor, "pin_memory", torch.Tensor.clone
    ),
    "dlpack/names_its_device": instead(torch.Tensor, "__dlpack_device__", lambda self: (1, 0)),
    "numpy/numpy_needs_the_cpu": method("numpy", lambda right, self: right(self.cpu())),
    "printing/every_shape_prints printing/gradients_show": method(
        "__repr__", lambda right, self: f"tensor({self.tolist()})"
    ),
    "indexing/ints_out_of_range_are_refused": method(
        "__getitem__",
        lambda right, self, i: right(self, i % len(self) if isinstance(i, int) else i),
    ),
    "indexing/scalars_come_back indexing/reading_follows_writing": method(
        "item", lambda right, self: 0.0
    ),
    "copy/to_copies_only_when_it_must": method(
        "to", lambda right, self, *args, **kwargs: right(self.clone(), *args, **kwargs)
    ),
    "copy/overlapping_targets_are_refused copy/copies_broadcast": method(
        "copy_", lambda right, self, source, **more: self
    ),
    "storage/in_place_keeps_the_address": method("add_", adds_elsewhere),
    "promotion/dtypes_promote_as_on_the_cpu": method(
        "__mul__", lambda right, self, other: right(self.float(), other)
    ),
    "autograd/hooks_run autograd/errors_of_hooks_come_through": method(
        "register_hook", lambda right, self, hook: SimpleNamespace(remove=lambda: None)
    ),
    "amp/autocast_lowers_matrix_products amp/autocast_trains": around(
        torch, "autocast", autocast_of_others
    ),
    "amp/scaler_skips_infinite_gradients": instead(
        torch.amp.GradScaler, "step", lambda self, optimizer: optimizer.step()
    ),
    "amp/scaler_sees_each_gradient": around(
        torch,
        "_amp_foreach_non_finite_check_and_unscale_",
        lambda right, gradients, *others: right(gradients[-1:], *others),
    ),
    "amp/autocast_casts_weights_anew": method("__matmul__", remembers({})),
    "storage/as_strided_begins_where_the_tensor_does": method(
        "as_strided", lambda right, self, *given: right(self, *given[:2], *(given[2:] or (0,)))
    ),
    "storage/what_is_no_view_is_refused": method(
        "view", lambda right, self, *shape: right(self.contiguous(), *shape)
    ),
    "storage/elementwise_results_keep_channels_last": around(torch, "relu", in_rows),
    "storage/poolings_keep_channels_last": around(torch.nn.functional, "max_pool2d", in_rows),
    "sharing/sending_works_or_is_refused": sending_fails_without_a_reason,
    "accelerator/device_index_restores": instead(ACCELERATOR, "device_index", index_stays),
    "profiler/records_operators": instead(
        torch.profiler.profile, "key_averages", lambda self, *args, **kwargs: []
    ),
}
PLANTS = {name: plant for names, plant in BROKEN_BY.items() for name in names.split()}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_defect_is_found(name, check, monkeypatch):
    with monkeypatch.context() as patch:
        PLANTS[name](patch)
        outcome = check(name)
    # Some plants reach what the CPU's own run uses, which then fails as well.
    assert outcome.status in (Status.FAIL, Status.UPSTREAM), outcome
    assert check(name).status is Status.PASS


# --- processes


@pytest.fixture
def broken_import(tmp_path, monkeypatch):
    """Executes a contract with a module that loads npusim and then runs a line of its own."""

    def check(line, name):
        module = "npusim_with_a_defect"
        source = f"import torch_npusim\n{textwrap.dedent(line)}\n"
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        worker = Worker(WorkerConfig("npusim", "torch_npusim", Expectations()))
        worker.under_test.import_name = module
        return worker.execute(f"contract:{name}")

    return check


@pytest.mark.parametrize(
    ("line", "name", "message"),
    [
        (
            "import atexit, os; atexit.register(os.abort)",
            "exit/ends_with_live_tensors",
            "by SIGABRT",
        ),
        (
            "import atexit, os; atexit.register(os.abort)",
            "exit/keeps_the_exit_status",
            "it ended by SIGABRT, expected status 7",
        ),
        ("print('hello')", "exit/import_says_nothing", "hello"),
        ("import warnings; warnings.warn('beta')", "exit/import_says_nothing", "stderr"),
        (
            "import os; os.register_at_fork(after_in_child=os.abort)",
            "fork/child_may_use_the_cpu",
            "died by SIGABRT",
        ),
    ],
)
def test_what_processes_do_wrong_is_found(broken_import, line, name, message):
    outcome = broken_import(line, name)
    assert outcome.status is Status.FAIL
    assert message in outcome.message
