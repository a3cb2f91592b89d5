# SPDX-License-Identifier: BSD-3-Clause
"""Settings from command line, ini file and markers of pytest --npusim.

Neither torch nor torch_npusim is imported here. PYTEST_DONT_REWRITE
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import pytest

from torch_npusim_common import byte_sizes

_SYNC = ("count", "warn", "error", "strict")
_CAPABILITIES = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0")


def parse_bytes(text: str | int) -> int:
    """Returns byte_sizes.parse_bytes(); refuses in the words of pytest.

    Raises:
        pytest.UsageError: For a text that is no number of bytes.
    """
    try:
        return byte_sizes.parse_bytes(text)
    except ValueError as error:
        raise pytest.UsageError(f"npusim: {error}") from None


def _one_of(what: str, value: str, accepted: tuple[str, ...]) -> str:
    if value not in accepted:
        raise pytest.UsageError(
            f"npusim: expected {what} to be {' or '.join(accepted)}, got {value!r}"
        )
    return value


def _whole(what: str, value: str | int) -> int:
    try:
        return int(value)
    except ValueError:
        raise pytest.UsageError(f"npusim: expected {what} to be a number, got {value!r}") from None


@dataclass(frozen=True)
class Settings:
    """Settings of the command line and the ini file; a marker replaces some of it for one test."""

    devices: int | None = None
    memory: str | None = None
    as_cuda: bool = False
    dry: bool = False
    cuda_capability: str | None = None
    sync: str | None = None
    require_device: int | None = None
    strict_align: bool = False
    races: str | None = None
    seed: int | None = None
    peak: int | None = None
    max_graph_breaks: int | None = None
    max_launches: int | None = None
    leaks: str = "error"
    baseline: str | None = None
    sync_allow: tuple[str, ...] = ()
    leaks_allow: tuple[str, ...] = ()
    cpu_kernels_allow: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: pytest.Config) -> "Settings":
        """Returns the settings of a run; an option wins over the ini file.

        Raises:
            pytest.UsageError: For a value that is none.
        """

        def asked(name: str) -> Any:
            option = getattr(config.known_args_namespace, name)
            return config.getini(name) if option is None else option

        devices, memory, seed = (asked(f"npusim_{name}") for name in ("devices", "memory", "seed"))
        sync, peak, races = (asked(f"npusim_{name}") for name in ("sync", "peak", "races"))
        required = asked("npusim_require_device")
        breaks = asked("npusim_max_graph_breaks")
        launches = asked("npusim_max_launches")
        if memory:
            parse_bytes(memory)
        return cls(
            devices=_whole("--npusim-devices", devices) if devices else None,
            memory=memory or None,
            as_cuda=bool(asked("npusim_as_cuda")),
            dry=bool(asked("npusim_dry")),
            cuda_capability=(
                _one_of("--npusim-cuda-capability", capability, _CAPABILITIES)
                if (capability := asked("npusim_cuda_capability"))
                else None
            ),
            sync=_one_of("--npusim-sync", sync, _SYNC) if sync else None,
            require_device=_whole("--npusim-require-device", required) if required else None,
            strict_align=bool(asked("npusim_strict_align")),
            races=_one_of("--npusim-races", races, ("error", "report")) if races else None,
            seed=_whole("--npusim-seed", seed) if seed else None,
            peak=parse_bytes(peak) if peak else None,
            max_graph_breaks=(
                _whole("--npusim-max-graph-breaks", breaks) if breaks not in (None, "") else None
            ),
            max_launches=(
                _whole("--npusim-max-launches", launches) if launches not in (None, "") else None
            ),
            leaks=_one_of(
                "--npusim-leaks", asked("npusim_leaks") or "error", ("error", "warn", "off")
            ),
            baseline=asked("npusim_baseline") or None,
            sync_allow=tuple(config.getini("npusim_sync_allow")),
            leaks_allow=tuple(config.getini("npusim_leaks_allow")),
            cpu_kernels_allow=tuple(config.getini("npusim_cpu_kernels_allow")),
        )

    def environment(self) -> dict[str, str]:
        """Returns the variables under which torch is to be loaded."""
        # Asked for by name: more than a wish of the environment that torch load no backend.
        wanted = {"NPUSIM_AUTOLOAD": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
        if self.devices is not None:
            wanted["NPUSIM_DEVICE_COUNT"] = str(self.devices)
        if self.memory is not None:
            wanted["NPUSIM_DEVICE_MEMORY"] = str(parse_bytes(self.memory))
        if self.strict_align:
            wanted["NPUSIM_STRICT_ALIGN"] = "error"
        if self.races is not None:
            wanted["NPUSIM_RACES"] = self.races
        if self.as_cuda:
            wanted["NPUSIM_AS_CUDA"] = "1"
        if self.dry:
            wanted["NPUSIM_DRY_RUN"] = "1"
        if "NPUSIM_DEVICE_ASSERT" not in os.environ:
            wanted["NPUSIM_DEVICE_ASSERT"] = "lasting"
        if self.cuda_capability is not None:
            wanted["NPUSIM_CUDA_CAPABILITY"] = self.cuda_capability
        return wanted

    def for_test(self, item: pytest.Item) -> "Settings":
        """Returns the settings of one test, with what its markers say; the nearest wins."""
        settings = self
        for marker in reversed(list(item.iter_markers("npusim"))):
            settings = settings._with(marker)
        return settings

    def _with(self, marker: pytest.Mark) -> "Settings":
        words = dict(marker.kwargs)
        known = {"memory", "devices", "sync", "allow", "peak", "max_launches", "leaks", "seed"}
        unknown = set(words) - known
        if marker.args or unknown:
            raise pytest.UsageError(
                f"npusim: the marker takes memory, devices, sync, allow, peak, max_launches, leaks "
                f"and seed, by name; got {', '.join(map(repr, [*marker.args, *sorted(unknown)]))}"
            )
        allow = words.pop("allow", ())
        words["sync_allow"] = self.sync_allow + ((allow,) if isinstance(allow, str) else (*allow,))
        if words.get("sync") is not None:
            words["sync"] = _one_of("sync", words["sync"], (*_SYNC, "off"))
        if words.get("peak") is not None:
            words["peak"] = parse_bytes(words["peak"])
        if isinstance(words.get("leaks"), bool):
            words["leaks"] = "error" if words["leaks"] else "off"
        if "leaks" in words:
            _one_of("leaks", words["leaks"], ("error", "warn", "off"))
        return replace(self, **words)
