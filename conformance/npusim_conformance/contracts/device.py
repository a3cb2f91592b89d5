# SPDX-License-Identifier: BSD-3-Clause
"""Devices: which one is current, what their names mean, what they say about themselves."""

from collections.abc import Callable
from contextlib import suppress

import torch

from npusim_conformance.contracts import contract, in_thread, on, other_device, refuses, same
from npusim_conformance.contracts.memory import WRONG
from npusim_conformance.properties.base import Run, require
from npusim_conformance.verdict import Mismatch, NotApplicable

_NO_CPU = "the CPU has no current device"
_NO_SUCH_DEVICE = (RuntimeError, ValueError, IndexError, AssertionError)
# Names that torch looks up in a backend's module, and the consequence of their absence.
_LOOKED_UP = {
    "is_available": "torch.accelerator.is_available()",
    "device_count": "torch.load, DataLoader",
    "current_device": "FakeTensor, torch.random.fork_rng",
    "set_device": "DeviceMesh, torch.distributed",
    "device": "torch.load",
    "manual_seed_all": "torch.manual_seed",
    "_is_in_bad_fork": "torch.manual_seed",
    "get_rng_state": "torch.random.fork_rng, checkpoint",
    "set_rng_state": "torch.random.fork_rng, checkpoint",
    "get_amp_supported_dtype": "torch.autocast",
}


def _index(device: torch.device) -> int:
    return device.index or 0


@contract()
def is_available(run: Run) -> None:
    """is_available() is True."""
    same("is_available()", run.under_test.module.is_available(), True)


@contract(no_cpu=_NO_CPU)
def offers_what_torch_looks_up(run: Run) -> None:
    """The device's module has every attribute that torch itself looks up."""
    if run.device.type != torch._C._get_privateuse1_backend_name():
        raise NotApplicable(f"torch knows {run.device.type} itself")
    missing = {name: who for name, who in _LOOKED_UP.items() if not run.under_test.has(name)}
    if missing:
        listed = ", ".join(f"{name} (for {who})" for name, who in missing.items())
        raise Mismatch(f"torch.{run.device.type} lacks {listed}")


@contract(no_cpu=_NO_CPU, needs=("torch.accelerator.device_count",))
def counts_agree(run: Run) -> None:
    """device_count() is a positive int, and torch.accelerator counts the same."""
    count = run.under_test.module.device_count()
    require(type(count) is int and count > 0, f"device_count() is {count!r}")
    current = torch.accelerator.current_accelerator()
    if current is not None and current.type == run.device.type:  # else torch would ask the module
        same("deviceCount() of its hooks", torch._C._accelerator_hooks_device_count(), count)
    same("torch.accelerator.device_count()", torch.accelerator.device_count(), count)


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("set_device", "current_device"))
def set_device_changes_current(run: Run) -> None:
    """set_device(index) changes current_device()."""
    module = run.under_test.module
    for given in (_index(other_device(run)), run.device.index):
        module.set_device(given)
        same(f"current_device() after set_device({given!r})", module.current_device(), given)


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("set_device", "current_device"))
def set_device_takes_devices(run: Run) -> None:
    """set_device() takes a torch.device and its name."""
    module, second = run.under_test.module, other_device(run)
    for given in (second, str(run.device)):
        module.set_device(given)
        expected = torch.device(given).index
        same(f"current_device() after set_device({given!r})", module.current_device(), expected)


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("device", "current_device"))
def context_manager_restores(run: Run) -> None:
    """`with device(d)` makes d current, also nested, and restores what was before."""
    module, second = run.under_test.module, other_device(run)
    before = module.current_device()
    with module.device(second):
        same("current_device() inside", module.current_device(), second.index)
        with module.device(run.device):
            same("current_device() inside two", module.current_device(), run.device.index)
        same("current_device() after the inner one", module.current_device(), second.index)
    same("current_device() after", module.current_device(), before)


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("device", "current_device"))
def context_manager_restores_after_exceptions(run: Run) -> None:
    """`with device(d)` restores the current device when its body raises, and lets it through."""
    module, second = run.under_test.module, other_device(run)
    before = module.current_device()

    for error in (KeyError, StopIteration, RuntimeError, GeneratorExit, KeyboardInterrupt):

        def body(error: type[BaseException] = error) -> None:
            with module.device(second):
                raise error("from the body")

        refuses(f"a body that raises {error.__name__}", body, error)
        same(f"current_device() after a {error.__name__}", module.current_device(), before)


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("device", "current_device"))
def context_manager_takes_devices_by_any_name(run: Run) -> None:
    """`with device(d)` takes an index, a torch.device and a name; -1 and None change nothing."""
    module, second = run.under_test.module, other_device(run)
    for current in (run.device, second):
        for given in (second.index, second, str(second), run.device.index, str(run.device)):
            run.under_test.make_current(current)
            expected = given if isinstance(given, int) else torch.device(given).index
            with module.device(given):
                same(f"current_device() in device({given!r})", module.current_device(), expected)
            same(
                f"current_device() after device({given!r})", module.current_device(), current.index
            )
        with module.device(None):
            same("current_device() in device(None)", module.current_device(), current.index)
        same("current_device() after device(None)", module.current_device(), current.index)


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("current_device",))
def operators_leave_current_device(run: Run) -> None:
    """Operators compute where their operands lie and leave the current device as it was."""
    module, second = run.under_test.module, other_device(run)
    before = module.current_device()
    values = on(second, 1, 2, 3)
    result = values + values
    same("device of the sum", result.device, second)
    same("the sum", result.cpu(), torch.tensor([2.0, 4.0, 6.0]))
    same("current_device() after it", module.current_device(), before)


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("current_device",))
def errors_leave_current_device(run: Run) -> None:
    """An operator that raises on another device leaves the current device as it was."""
    module, second = run.under_test.module, other_device(run)
    before = module.current_device()
    one, other = torch.ones(2, 3).to(second), torch.ones(4, 5).to(second)
    there = torch.ones(256, 256).to(second)
    calls = {
        "a sum of shapes that do not fit": lambda: one + other,
        "a copy of a shape that does not fit": lambda: one.copy_(other),
        "a view of another size": lambda: one.view(7),
        "an allocation of 1 PiB": lambda: torch.empty(1 << 50, dtype=torch.uint8, device=second),
        "zeros of 1 PiB": lambda: torch.zeros(1 << 50, dtype=torch.uint8, device=second),
        "a copy of 1 PiB": lambda: one[0, 0].expand(1 << 48).clone(),
    }
    try:
        for what, call in calls.items():
            refuses(what, call)
            same(f"current_device() after {what}", module.current_device(), before)
        for what, wrong in WRONG.items():
            with suppress(RuntimeError, IndexError, TypeError, ValueError):
                wrong(there.clone())
            same(f"current_device() after a refused {what}", module.current_device(), before)
    finally:
        torch.accelerator.set_device_index(before)


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("device",))
def name_without_index_is_current(run: Run) -> None:
    """A device without an index means the current one."""
    module, second = run.under_test.module, other_device(run)
    for device in (second, run.device):
        with module.device(device):
            same("torch.empty()", torch.empty(1, device=run.device.type).device, device)
            same("Tensor.to()", torch.ones(1).to(run.device.type).device, device)


@contract(no_cpu=_NO_CPU, needs=("set_device", "current_device"))
def no_such_index(run: Run) -> None:
    """set_device() refuses an index that no device has, and nothing changes by it."""
    module = run.under_test.module
    _no_such(run, "set_device()", lambda missing: module.set_device(missing.index))


def _no_such(run: Run, what: str, ask: Callable[[torch.device], object]) -> None:
    """A question about a device with the first index that there is not must be refused."""
    module = run.under_test.module
    before = module.current_device()
    missing = torch.device(run.device.type, module.device_count())
    refuses(f"{what} of {missing}", lambda: ask(missing), _NO_SUCH_DEVICE)
    same("current_device() after it", module.current_device(), before)
    same("a copy after it", on(run.device, 1, 2).cpu(), torch.tensor([1.0, 2.0]))


@contract(no_cpu=_NO_CPU, needs=("current_device",))
def no_such_device_for_new_tensors(run: Run) -> None:
    """No tensor is made on a device that there is not."""
    _no_such(run, "torch.empty()", lambda missing: torch.empty(1, device=missing))


@contract(no_cpu=_NO_CPU, needs=("current_device",))
def no_such_device_for_copies(run: Run) -> None:
    """No tensor is copied to a device that there is not."""
    _no_such(run, "Tensor.to()", torch.ones(1).to)


@contract(no_cpu=_NO_CPU, needs=("current_device", "get_rng_state"))
def no_such_device_for_states(run: Run) -> None:
    """A device that there is not has no state of a generator."""
    module = run.under_test.module
    _no_such(run, "get_rng_state()", lambda missing: module.get_rng_state(missing.index))


@contract(no_cpu=_NO_CPU, needs=("current_device",))
def no_such_device_for_streams(run: Run) -> None:
    """A device that there is not has no stream and no event."""
    _no_such(run, "torch.Stream()", torch.Stream)
    _no_such(run, "current_stream()", torch.accelerator.current_stream)


@contract()
def name_is_kept(run: Run) -> None:
    """A tensor's device has the name that users write, as type, as string and in repr."""
    device = torch.ones(1).to(run.device).device
    same("device", device, run.device)
    same("type", device.type, torch.device(run.under_test.name).type)
    same("str()", str(device), str(run.device))
    require(repr(str(device.type)) in repr(device), f"repr() is {device!r}")
    same("torch.device(str())", torch.device(str(device)), device)
    same("hash()", hash(device), hash(torch.device(str(device))))


@contract(no_cpu=_NO_CPU)
def get_device_is_index(run: Run) -> None:
    """Tensor.get_device() is the index."""
    same("get_device()", torch.ones(1).to(run.device).get_device(), run.device.index)


@contract()
def device_as_context(run: Run) -> None:
    """Inside `with torch.device(d)` factory functions make tensors on d, and only inside."""
    with run.device:
        same("inside", torch.empty(2).device, run.device)
        with torch.device("cpu"):
            same("in an inner context of the CPU", torch.empty(2).device.type, "cpu")
        same("torch.tensor()", torch.tensor([1.0]).device, run.device)
    same("after", torch.empty(2).device.type, "cpu")


@contract()
def default_device(run: Run) -> None:
    """torch.set_default_device(d) moves factory functions to d; None takes it back."""
    torch.set_default_device(run.device)
    try:
        same("torch.empty()", torch.empty(2).device, run.device)
        same("torch.arange()", torch.arange(3).device, run.device)
        same("get_default_device()", torch.get_default_device(), run.device)
        if run.under_test.second is not None:
            torch.set_default_device(run.under_test.second)
            same("torch.empty() of the second", torch.empty(2).device, run.under_test.second)
        same("with device='cpu'", torch.empty(2, device="cpu").device.type, "cpu")
    finally:
        torch.set_default_device(None)
    same("after", torch.empty(2).device.type, "cpu")


@contract(no_cpu="an index alone never means the CPU")
def index_alone_is_accelerator(run: Run) -> None:
    """torch.device(n) and device=n mean the accelerator with this index."""
    current = torch.accelerator.current_accelerator()
    if current is None or current.type != run.device.type:
        raise NotApplicable(f"torch's accelerator is {current}")
    index = _index(run.device)
    same(f"torch.device({index})", torch.device(index), run.device)
    same(f"device={index}", torch.empty(1, device=index).device, run.device)


@contract(no_cpu=_NO_CPU, needs=("get_device_properties",))
def properties_are_plausible(run: Run) -> None:
    """get_device_properties() has a name and memory, the same for index and torch.device."""
    module = run.under_test.module
    found = module.get_device_properties(run.device)
    require(bool(getattr(found, "name", "")), f"{found!r} has no name")
    memory = getattr(found, "total_memory", None)
    require(isinstance(memory, int) and memory > 0, f"total_memory is {memory!r}")
    again = module.get_device_properties(run.device.index)
    same("total_memory by index", again.total_memory, memory)
    count = module.device_count()
    refuses(
        f"get_device_properties({count})",
        lambda: module.get_device_properties(count),
        _NO_SUCH_DEVICE,
    )


@contract(no_cpu=_NO_CPU, needs=("get_device_name",))
def has_a_name(run: Run) -> None:
    """get_device_name() is a text."""
    name = run.under_test.module.get_device_name(run.device)
    require(isinstance(name, str) and bool(name), f"get_device_name() is {name!r}")


@contract(no_cpu=_NO_CPU)
def methods_of_tensors_and_modules(run: Run) -> None:
    """Tensor.<name>(), Tensor.is_<name> and Module.<name>() exist and mean this device."""
    kind = run.device.type
    missing = [
        f"{owner.__name__}.{name}"
        for owner, name in (
            (torch.Tensor, kind),
            (torch.Tensor, f"is_{kind}"),
            (torch.nn.Module, kind),
        )
        if not hasattr(owner, name)
    ]
    if missing:
        raise NotApplicable(f"there is no {missing[0]}")
    there = getattr(torch.ones(2), kind)()
    same(f"device of Tensor.{kind}()", there.device.type, kind)
    same(f"is_{kind} there", getattr(there, f"is_{kind}"), True)
    same(f"is_{kind} of the CPU", getattr(torch.ones(2), f"is_{kind}"), False)
    module = getattr(torch.nn.Linear(2, 2), kind)()
    same(f"device after Module.{kind}()", module.weight.device.type, kind)
    if run.under_test.second is not None:
        module = getattr(torch.nn.Linear(2, 2), kind)(run.under_test.second.index)
        same(f"device after Module.{kind}(index)", module.weight.device, run.under_test.second)
        second = getattr(torch.ones(2), kind)(run.under_test.second.index)
        same(f"device of Tensor.{kind}(index)", second.device, run.under_test.second)


@contract(no_cpu=_NO_CPU)
def methods_of_storages_and_sequences(run: Run) -> None:
    """Storages and packed sequences have <name>() and is_<name>, and they mean this device."""
    kind = run.device.type
    storage = torch.ones(2).untyped_storage()
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    asked = [one for one in (storage, packed) if hasattr(one, f"is_{kind}") and hasattr(one, kind)]
    if not asked:
        raise NotApplicable(f"there is no is_{kind}")
    for one in asked:
        name = type(one).__name__
        there = getattr(one, kind)()
        same(f"is_{kind} of a {name} there", getattr(there, f"is_{kind}"), True)
        same(f"is_{kind} of a {name} of the CPU", getattr(one, f"is_{kind}"), False)


@contract(needs=("synchronize",))
def synchronize_takes_devices(run: Run) -> None:
    """synchronize() takes nothing, a torch.device and an index, and returns None."""
    module = run.under_test.module
    for given in ((), (run.device,)):
        same(f"synchronize{given}", module.synchronize(*given), None)
    if not run.under_test.is_cpu:
        same("synchronize(index)", module.synchronize(run.device.index), None)
    second = run.under_test.second
    if second is not None and run.under_test.has("current_stream"):
        work = torch.ones(256, 256).to(second)
        for _ in range(20):
            work = work @ work
        module.synchronize(second)
        idle = module.current_stream(second).query()
        same(f"query() of the stream of {second} after synchronize({str(second)!r})", idle, True)


@contract(no_cpu="all are on the CPU")
def mixed_devices_are_refused(run: Run) -> None:
    """An operator on the CPU's and the device's tensors raises and says that devices differ."""
    there, here = on(run.device, 1, 2), torch.ones(2)
    refuses("device + CPU", lambda: there + here, RuntimeError, ("device",))
    refuses("CPU + device", lambda: here + there, RuntimeError, ("device",))
    refuses("device.add_(CPU)", lambda: there.add_(here), RuntimeError, ("device",))
    same("the operand after it", there.cpu(), torch.tensor([1.0, 2.0]))


@contract(no_cpu=_NO_CPU, two_devices=True)
def two_devices_are_not_mixed(run: Run) -> None:
    """An operator on tensors of two devices of this kind raises."""
    one, other = on(run.device, 1, 2), on(other_device(run), 1, 2)
    refuses("a sum over two devices", lambda: one + other, RuntimeError, ("device",))


@contract(no_cpu=_NO_CPU, two_devices=True, needs=("set_device", "current_device"))
def current_device_is_per_thread(run: Run) -> None:
    """set_device() in a thread leaves the current device of other threads as it was."""
    module, second = run.under_test.module, other_device(run)
    before = module.current_device()

    def work() -> int:
        run.under_test.make_current(second)
        return int(module.current_device())

    same("current_device() in the thread", in_thread(work), second.index)
    same("current_device() here", module.current_device(), before)
    same("device of a new tensor here", torch.empty(1, device=run.device.type).device, run.device)


@contract(no_cpu="it is torch's own")
def import_changes_no_setting(run: Run) -> None:
    """Importing the backend leaves generators, defaults, signals, warnings and hooks alone."""
    changed = run.under_test.changed_by_import
    require(not changed, f"the import changed {', '.join(changed)}")
