# SPDX-License-Identifier: BSD-3-Clause
"""Contracts hold on npusim and on the CPU, and each of these plants breaks the one meant for it."""

import contextlib
import gc
import pickle
import textwrap

import pytest
import torch

from npusim_conformance import catalog
from npusim_conformance.catalog import Selection
from npusim_conformance.contracts import contracts
from npusim_conformance.expectations import Expectations
from npusim_conformance.verdict import Status
from npusim_conformance.worker import Worker, WorkerConfig


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
    assert [o for o in outcomes if o.status not in (Status.PASS, Status.NA)] == []
    left_out = {o.case for o in outcomes if o.status is Status.NA}
    assert left_out <= {"contract:profiler/records_the_device"}


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


# --- plants: name of the contract -> what breaks it

PLANTS = {}


def plant(*names):
    def register(function):
        PLANTS.update(dict.fromkeys(names, function))
        return function

    return register


def on_device(tensor):
    return tensor.device.type == "npusim"


def replace_method(patch, name, wrong):
    """Tensor.<name> is `wrong(right, tensor, ...)` on npusim, and as it was on the CPU."""
    right = getattr(torch.Tensor, name)

    def method(self, *args, **kwargs):
        if on_device(self):
            return wrong(right, self, *args, **kwargs)
        return right(self, *args, **kwargs)

    patch.setattr(torch.Tensor, name, method)


@plant("device/set_device_changes_current", "device/current_device_is_per_thread")
def set_device_does_nothing(patch):
    patch.setattr(torch.npusim, "set_device", lambda device: None)


@plant("device/no_such_index")
def any_index_will_do(patch):
    right = torch.npusim.set_device
    patch.setattr(
        torch.npusim,
        "set_device",
        lambda device: right(device % 2 if isinstance(device, int) else device),
    )


@plant("device/context_manager_restores")
def context_stays(patch):
    class Device(torch.npusim.device):
        def __exit__(self, *raised):
            return False

    patch.setattr(torch.npusim, "device", Device)


@plant("device/context_manager_restores_after_exceptions")
def context_swallows(patch):
    class Device(torch.npusim.device):
        def __exit__(self, *raised):
            super().__exit__(*raised)
            return True

    patch.setattr(torch.npusim, "device", Device)


@plant("device/synchronize_takes_devices")
def synchronize_takes_nothing(patch):
    patch.setattr(torch.npusim, "synchronize", lambda: None)


@plant("stream/with_makes_current", "stream/set_stream_makes_current")
def one_stream_for_all(patch):
    stream = torch.accelerator.current_stream()
    patch.setattr(torch.accelerator, "current_stream", lambda device=None: stream)


@plant("stream/module_agrees")
def streams_of_the_module_are_its_own(patch):
    patch.setattr(torch.npusim, "stream", lambda stream: contextlib.nullcontext())


@plant("event/new_event_is_complete", "event/synchronized_event_is_complete")
def events_never_complete(patch):
    class Event:
        def __init__(self, *args, **kwargs):
            self.event = torch_event(*args, **kwargs)

        def __getattr__(self, name):
            return getattr(self.event, name)

        def query(self):
            return False

    torch_event = torch.Event
    patch.setattr(torch, "Event", Event)
    patch.setattr("npusim_conformance.contracts.event.current", lambda device: Stream())

    class Stream:
        def __getattr__(self, name):
            return getattr(torch.accelerator.current_stream(), name)


@plant("memory/allocated_counts_live_tensors", "memory/statistics_agree")
def counts_no_bytes(patch):
    patch.setattr(torch.npusim, "memory_allocated", lambda device=None: 0)


@plant("memory/peak_is_the_highest")
def peaks_stay(patch):
    patch.setattr(torch.npusim, "reset_peak_memory_stats", lambda device=None: None)


@plant("memory/empty_cache_gives_back")
def keeps_its_cache(patch):
    patch.setattr(torch.npusim, "empty_cache", lambda: None)


@plant("memory/statistics_are_per_device")
def counts_for_all_devices(patch):
    right = torch.npusim.memory_allocated
    patch.setattr(torch.npusim, "memory_allocated", lambda device=None: right(0) + right(1))


@plant("memory/freed_memory_is_used_again")
def takes_more_each_time(patch):
    sizes = iter(range(10**9))
    patch.setattr(torch.npusim, "memory_reserved", lambda device=None: next(sizes))


@plant("memory/too_much_is_out_of_memory", "memory/works_after_out_of_memory")
def out_of_memory_has_another_name(patch):
    right = torch.empty

    def empty(*args, **kwargs):
        try:
            return right(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            raise RuntimeError(str(error)) from None

    patch.setattr(torch, "empty", empty)


@plant("rng/manual_seed_repeats", "rng/devices_have_their_own", "rng/dropout_follows_the_seed")
def seeds_are_dropped(patch):
    patch.setattr(torch.npusim, "manual_seed_all", lambda seed: None)


@plant("rng/state_can_be_restored", "rng/fork_rng_restores", "rng/bad_states_are_refused")
def states_are_dropped(patch):
    patch.setattr(torch.npusim, "set_rng_state", lambda state, device=None: None)


@plant("rng/generators_are_independent")
def one_generator_for_all(patch):
    patch.setattr(torch, "Generator", lambda device="cpu": torch.npusim._get_generator(device))


@plant("serialization/load_restores_the_device", "serialization/every_dtype_survives")
def loads_on_the_cpu(patch):
    right = torch.load

    def load(*args, **more):
        return right(*args, **{**more, "map_location": "cpu"})

    patch.setattr(torch, "load", load)


@plant("serialization/deepcopy_shares_nothing", "serialization/sharing_survives")
def deepcopy_is_shallow(patch):
    replace_method(patch, "__deepcopy__", lambda right, self, memo: self)


@plant("pinned/pin_memory_pins", "dataloader/pins_batches")
def pins_nothing(patch):
    patch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)


@plant("dlpack/names_its_device")
def says_that_it_is_the_cpu(patch):
    patch.setattr(torch.Tensor, "__dlpack_device__", lambda self: (1, 0))


@plant("numpy/numpy_needs_the_cpu")
def numpy_copies_unasked(patch):
    replace_method(patch, "numpy", lambda right, self: right(self.cpu()))


@plant("printing/every_shape_prints", "printing/gradients_show")
def prints_no_device(patch):
    replace_method(patch, "__repr__", lambda right, self: f"tensor({self.tolist()})")


@plant("indexing/ints_out_of_range_are_refused")
def indexes_wrap_around(patch):
    def wrong(right, self, index):
        return right(self, index % len(self) if isinstance(index, int) else index)

    replace_method(patch, "__getitem__", wrong)


@plant("indexing/scalars_come_back", "indexing/reading_follows_writing")
def items_are_zero(patch):
    replace_method(patch, "item", lambda right, self: 0.0)


@plant("copy/to_copies_only_when_it_must")
def to_always_copies(patch):
    def wrong(right, self, *args, **kwargs):
        return right(self.clone(), *args, **kwargs)

    replace_method(patch, "to", wrong)


@plant("copy/overlapping_targets_are_refused", "copy/copies_broadcast")
def copies_anything(patch):
    replace_method(patch, "copy_", lambda right, self, source, **more: self)


@plant("storage/in_place_keeps_the_address")
def adds_elsewhere(patch):
    def wrong(right, self, other):
        self.data = self + other
        return self

    replace_method(patch, "add_", wrong)


@plant("promotion/dtypes_promote_as_on_the_cpu")
def multiplies_in_float(patch):
    replace_method(patch, "__mul__", lambda right, self, other: right(self.float(), other))


@plant("autograd/hooks_run", "autograd/errors_of_hooks_come_through")
def hooks_are_dropped(patch):
    class Handle:
        def remove(self):
            pass

    replace_method(patch, "register_hook", lambda right, self, hook: Handle())


@plant("amp/autocast_lowers_matrix_products", "amp/autocast_trains")
def autocast_does_nothing(patch):
    right = torch.autocast
    patch.setattr(
        torch,
        "autocast",
        lambda kind, *args, **kwargs: (
            contextlib.nullcontext() if kind == "npusim" else right(kind, *args, **kwargs)
        ),
    )


@plant("amp/scaler_skips_infinite_gradients")
def steps_with_infinities(patch):
    patch.setattr(torch.amp.GradScaler, "step", lambda self, optimizer: optimizer.step())


@plant("sharing/sending_works_or_is_refused")
def sending_fails_without_a_reason(patch):
    def wrong(right, self, protocol):
        raise RuntimeError("no")

    replace_method(patch, "__reduce_ex__", wrong)
    patch.setattr("npusim_conformance.contracts.sharing._sent", pickle.dumps)


@plant("accelerator/device_index_restores")
def index_stays(patch):
    @contextlib.contextmanager
    def device_index(index):
        if index is not None:
            torch.accelerator.set_device_index(index)
        yield

    patch.setattr(torch.accelerator, "device_index", device_index)


@plant("profiler/records_operators")
def records_nothing(patch):
    patch.setattr(torch.profiler.profile, "key_averages", lambda self, *args, **kwargs: [])


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
        ("import atexit, os; atexit.register(os.abort)", "exit/ends_with_live_tensors", "signal 6"),
        ("print('hello')", "exit/import_says_nothing", "hello"),
        ("import warnings; warnings.warn('beta')", "exit/import_says_nothing", "stderr"),
        (
            "import os; os.register_at_fork(after_in_child=os.abort)",
            "fork/child_may_use_the_cpu",
            "died by signal 6",
        ),
    ],
)
def test_what_processes_do_wrong_is_found(broken_import, line, name, message):
    outcome = broken_import(line, name)
    assert outcome.status is Status.FAIL
    assert message in outcome.message
