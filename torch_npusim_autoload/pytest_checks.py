# SPDX-License-Identifier: BSD-3-Clause
"""What pytest --npusim does before, during and after each test.

The hooks are here, what they ask of the device is in torch_npusim.testing: this module imports
neither torch nor torch_npusim, so that a process in which no test imports torch (a controller of
pytest-xdist is one) stays without. PYTEST_DONT_REWRITE
"""

import os
import re
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch_npusim.testing._session import Session, TestWatch

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_bytes(text: str | int) -> int:
    """Returns the number of bytes that "512MiB", "1.5 GiB" or 4096 means."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", str(text))
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or match[1].count(".") > 1 or match[1] == ".":
        raise pytest.UsageError(
            f"npusim: expected a number of bytes such as 512MiB or 4096, got {text!r}"
        )
    return int(float(match[1]) * unit)


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
    """What the command line and the ini file ask for; a marker replaces some of it for one test."""

    devices: int | None = None
    memory: str | None = None
    as_cuda: bool = False
    sync: str | None = None
    strict_align: bool = False
    seed: int | None = None
    peak: int | None = None
    leaks: str = "error"
    sync_allow: tuple[str, ...] = ()
    leaks_allow: tuple[str, ...] = ()

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
        sync, peak = asked("npusim_sync"), asked("npusim_peak")
        if memory:
            parse_bytes(memory)
        return cls(
            devices=_whole("--npusim-devices", devices) if devices else None,
            memory=memory or None,
            as_cuda=bool(asked("npusim_as_cuda")),
            sync=_one_of("--npusim-sync", sync, ("count", "warn", "error")) if sync else None,
            strict_align=bool(asked("npusim_strict_align")),
            seed=_whole("--npusim-seed", seed) if seed else None,
            peak=parse_bytes(peak) if peak else None,
            leaks=_one_of(
                "--npusim-leaks", asked("npusim_leaks") or "error", ("error", "warn", "off")
            ),
            sync_allow=tuple(config.getini("npusim_sync_allow")),
            leaks_allow=tuple(config.getini("npusim_leaks_allow")),
        )

    def apply(self, add_cleanup: Callable[[Callable[[], None]], Any]) -> None:
        """Sets the environment in which torch will be loaded, until the end of the run.

        Raises:
            pytest.UsageError: If torch_npusim is loaded already, with other devices.
        """
        # Asked for by name: more than a wish of the environment that torch load no backend.
        wanted = {"NPUSIM_AUTOLOAD": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
        if self.devices is not None:
            wanted["NPUSIM_DEVICE_COUNT"] = str(self.devices)
        if self.memory is not None:
            wanted["NPUSIM_DEVICE_MEMORY"] = self.memory
        if self.strict_align:
            wanted["NPUSIM_STRICT_ALIGN"] = "error"
        if self.as_cuda:
            wanted["NPUSIM_AS_CUDA"] = "1"
        before = {name: os.environ.get(name) for name in wanted}

        def restore() -> None:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

        if "torch_npusim" in sys.modules:
            from torch_npusim.testing import _session

            if problem := _session.adapt_loaded_device(wanted):
                raise pytest.UsageError(problem)
        os.environ.update(wanted)
        add_cleanup(restore)
        if "torch" in sys.modules and "torch_npusim" not in sys.modules:
            # Autoload has had its turn, and has stepped back.
            import torch_npusim  # noqa: F401

    def for_test(self, item: pytest.Item) -> "Settings":
        """Returns the settings of one test, with what its markers say; the nearest wins."""
        settings = self
        for marker in reversed(list(item.iter_markers("npusim"))):
            settings = settings._with(marker)
        return settings

    def _with(self, marker: pytest.Mark) -> "Settings":
        words = dict(marker.kwargs)
        unknown = set(words) - {"memory", "devices", "sync", "allow", "peak", "leaks", "seed"}
        if marker.args or unknown:
            raise pytest.UsageError(
                f"npusim: the marker takes memory, devices, sync, allow, peak, leaks and seed, "
                f"by name; got {', '.join(map(repr, [*marker.args, *sorted(unknown)]))}"
            )
        allow = words.pop("allow", ())
        words["sync_allow"] = self.sync_allow + ((allow,) if isinstance(allow, str) else (*allow,))
        if words.get("sync") is not None:
            words["sync"] = _one_of("sync", words["sync"], ("count", "warn", "error", "off"))
        if words.get("peak") is not None:
            words["peak"] = parse_bytes(words["peak"])
        if isinstance(words.get("leaks"), bool):
            words["leaks"] = "error" if words["leaks"] else "off"
        if "leaks" in words:
            _one_of("leaks", words["leaks"], ("error", "warn", "off"))
        return replace(self, **words)


class Checks:
    """The hooks of a run with --npusim."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: Session | None = None
        self._watch: TestWatch | None = None
        self._tests = 0
        self._leaking: list[str] = []
        self._peaks: dict[str, int] = {}
        self._syncs: dict[tuple[str, str, int, str], int] = {}

    def pytest_report_header(self, config: pytest.Config) -> str:
        """Says what was asked for."""
        asked = [
            f"{name.replace('_', '-')}={value}"
            for name, value in vars(self._settings).items()
            if value not in (None, False, ())
        ]
        return f"npusim: {', '.join(asked)}"

    # --- One test ---------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Prepares the devices."""
        self._watch = None
        if (session := self._loaded_session()) is not None:
            try:
                self._watch = session.watch(self._settings.for_test(item), item)
                self._watch.before_setup()
            except pytest.UsageError as wrong:  # pytest expects it before a run only
                pytest.fail(str(wrong), pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watches synchronisations and the peak."""
        if self._watch is None:
            return (yield)
        self._watch.before_call()
        try:
            result = yield
        finally:
            self._watch.after_call()
        if problem := self._watch.problem_of_peak():
            pytest.fail(problem, pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Looks for device memory that is left once the fixtures of the test are gone."""
        try:
            result = yield
        except BaseException:
            if self._watch is not None:
                self._watch.abandon()
            raise
        if self._watch is None:
            return result
        # pytest drops the fixtures after this hook, and the instance of the test's class, which it
        # makes anew when asked, not before the end of the run.
        getattr(item, "funcargs", {}).clear()
        for name in ("_instance", "_obj"):
            vars(item).pop(name, None)
        if leak := self._watch.leak():
            if self._watch.settings.leaks == "error":
                pytest.fail(leak, pytrace=False)
            item.warn(UserWarning(leak))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Carries what was found to where the summary is written, from other processes too."""
        report = yield
        if self._watch is None:
            return report
        if report.when != "teardown":
            self._watch.failed |= not report.passed
        else:
            report.npusim = self._watch.found()  # type: ignore[attr-defined]
            self._watch = None
        return report

    # --- Fixtures that outlive a test ---------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: Any
    ) -> Generator[None, Any, Any]:
        """Notes what a fixture allocates that lives longer than the test that asks for it first."""
        session = self._loaded_session()
        if session is None or fixturedef.scope == "function":
            return (yield)
        since = session.mark()
        try:
            return (yield)
        finally:
            session.fixture_was_set_up(fixturedef, since)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """From here on what such a fixture has left is a leak."""
        if self._session is not None:
            self._session.fixture_was_finished(fixturedef)

    def _loaded_session(self) -> "Session | None":
        if self._session is None and "torch_npusim" in sys.modules:
            from torch_npusim.testing._session import Session

            self._session = Session()
        return self._session

    # --- The summary ----------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds one test to the summary."""
        found = getattr(report, "npusim", None)
        if found is None:
            return
        self._tests += 1
        if found["leaked"]:
            self._leaking.append(f"{report.nodeid}: {found['leaked']} bytes")
        self._peaks[report.nodeid] = found["peak"]
        for what, file, line, function, count in found["syncs"]:
            place = what, file, line, function
            self._syncs[place] = self._syncs.get(place, 0) + count

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Writes the section "npusim"."""
        terminalreporter.section("npusim")
        write = terminalreporter.write_line
        if not self._tests:
            write("no test ran with torch_npusim loaded")
            return
        largest = max(self._peaks, key=lambda test: self._peaks[test])
        write(f"{self._tests} tests on npusim, of which {len(self._leaking)} left device memory")
        for leaking in self._leaking:
            write(f"  {leaking}")
        write(f"largest peak: {self._peaks[largest]} bytes more than before, in {largest}")
        if self._settings.sync is None and not self._syncs:
            return
        total = sum(self._syncs.values())
        write(f"host synchronisations outside of the tests' own files: {total}")
        most = sorted(self._syncs.items(), key=lambda entry: -entry[1])
        for (what, file, line, function), count in most[:20]:
            write(f"  {count:6}  {what:30}  {os.path.relpath(file)}:{line} in {function}")
        if len(most) > 20:
            write(f"  and {len(most) - 20} places more")
