# SPDX-License-Identifier: BSD-3-Clause
"""Makes a property of each contract; the contracts are in the folder `contracts`."""

import dataclasses
import gc
import inspect
from typing import ClassVar

import torch

from npusim_conformance.backend.device import DeviceUnderTest
from npusim_conformance.backend.expectations import Expectations
from npusim_conformance.contracts import LEFT_OUT, Contract, contracts
from npusim_conformance.inputs.subjects import Subject
from npusim_conformance.properties.base import Dtypes, Property, Run, in_profiles
from npusim_conformance.verdict import NotApplicable


class ContractProperty(Property):
    """A contract of some group."""

    kind = "contract"
    contract: ClassVar[Contract]

    def subjects(self) -> dict[str, Subject]:
        """The group."""
        group = self.contract.group
        return {group: Subject("contract", group, "contract")}

    @property
    def summary(self) -> str:
        """The fact."""
        return self.contract.fact

    def check(self, run: Run) -> None:
        """Holds the device to it. A contract that the CPU breaks too counts as upstream."""

        def examine(device: torch.device) -> None:
            self._examine(run if device == run.device else _on_cpu(run))

        reason = self.contract.why_not(run.under_test)
        if reason:
            raise NotApplicable(reason)
        try:
            run.attempt(0, examine)
        finally:
            _restore(run)
        if run.executed == 0:
            self._examine(run)  # n/a: once more for its reason

    def _examine(self, run: Run) -> None:
        reason = self.contract.why_not(run.under_test)
        if reason:
            raise NotApplicable(reason)
        try:
            self.contract.check(run)
        except (RuntimeError, NotImplementedError) as error:
            if LEFT_OUT.search(str(error)):
                raise NotApplicable(str(error).splitlines()[0]) from error
            raise


def _on_cpu(run: Run) -> Run:
    return dataclasses.replace(run, under_test=DeviceUnderTest("cpu", "", Expectations()))


def _restore(run: Run) -> None:
    """Undoes what a contract that failed half-way left behind."""
    torch.set_default_device(None)
    if run.failures:
        gc.collect()  # a traceback may hold a stream or much memory
    run.under_test.make_current(run.under_test.device)


def _property(contract: Contract) -> type[ContractProperty]:
    profiles = in_profiles(standard=Dtypes.NONE, full=Dtypes.NONE)
    if contract.quick:
        profiles = in_profiles(smoke=Dtypes.NONE, standard=Dtypes.NONE, full=Dtypes.NONE)
    members = {
        "__doc__": contract.check.__doc__,
        "name": contract.name,
        "profiles": profiles,
        "contract": contract,
    }
    return type(f"Contract_{contract.name}", (ContractProperty,), members)


def contract_script(prop: Property, device: str, import_name: str) -> str:
    """A contract as a script: its source, called with the kit's view of the device."""
    assert isinstance(prop, ContractProperty)
    name = f"contract:{prop.contract.group}/{prop.name}"
    chosen = f"--device {device}" + (f" --import {import_name}" if import_name else "")
    head = f"# npusim-conformance repro {name} {chosen}\n# runs this, with run.device = {device!r}:"
    return f"{head}\n\n{inspect.getsource(prop.contract.check)}"


def contract_properties() -> list[type[ContractProperty]]:
    """One property per contract, group after group."""
    return [_property(contract) for contract in contracts().values()]
