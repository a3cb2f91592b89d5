# SPDX-License-Identifier: BSD-3-Clause
"""Actions of pytest --npusim before, during and after each test.

The hooks are here, what they ask of the device is in torch_npusim.testing: this module imports
neither torch nor torch_npusim, so that a process in which no test imports torch (a controller of
pytest-xdist is one) stays without. PYTEST_DONT_REWRITE
"""

import os
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from torch_npusim_common.loading import AFTER_LOADING
from torch_npusim_common.pytest_settings import Settings

if TYPE_CHECKING:
    from torch_npusim.testing._session import Session, TestWatch


def set_environment(settings: Settings, add_cleanup: Callable[[Callable[[], None]], Any]) -> None:
    """Sets the environment in which torch will be loaded, until the end of the run.

    Raises:
        pytest.UsageError: If torch_npusim is loaded already, with other devices.
    """
    wanted = settings.environment()
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


class Checks:
    """The hooks of a run with --npusim."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: Session | None = None
        self._watch: TestWatch | None = None
        self._item: pytest.Item | None = None  # the test that runs
        self._calling = False
        self._tests = 0
        self._using = 0
        self._asserting = 0
        self._leaking: list[str] = []
        self._peaks: dict[str, int] = {}
        self._asking: dict[str, list[tuple[int, str, str]]] = {}
        self._syncs: dict[tuple[str, str, int, str], int] = {}
        AFTER_LOADING.append(self._device_was_loaded)

    def pytest_unconfigure(self) -> None:
        """Forgets what was asked of later imports."""
        AFTER_LOADING.remove(self._device_was_loaded)

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
        self._item = item
        self._calling = False
        self._begin()

    def _begin(self) -> None:
        """Watches the test that runs from here on, if the device is loaded."""
        session = self._loaded_session()
        if session is None or self._item is None:
            return
        try:
            self._watch = session.watch(self._settings.for_test(self._item), self._item)
            self._watch.before_setup()
        except pytest.UsageError as wrong:  # pytest expects it before a run only
            pytest.fail(str(wrong), pytrace=False)

    def _device_was_loaded(self) -> None:
        """Begins in the middle of the test that is the first to import torch."""
        if self._item is None or self._watch is not None:
            return
        self._begin()
        if self._calling and self._watch is not None:
            self._watch.before_call()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Watches synchronisations and the peak."""
        self._calling = True
        if self._watch is not None:
            self._watch.before_call()
        try:
            result = yield
        finally:
            self._calling = False
            if self._watch is not None:
                self._watch.after_call()
        if self._watch is not None:
            for problem in self._watch.problems_of_call():
                if problem:
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
        if report.when == "teardown":
            self._item = None
        if self._watch is None:
            return report
        if report.when != "teardown":
            self._watch.after_phase(report.passed)
            self._tell_dry(report, call)
        else:
            report.npusim = self._watch.found()  # type: ignore[attr-defined]
            self._watch = None
        return report

    def _tell_dry(self, report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
        """Makes an assertion on values that a dry run does not have an expected failure."""
        failed = report.failed and call.excinfo is not None
        if not failed or not issubclass(call.excinfo.type, AssertionError):  # type: ignore[union-attr]
            return
        asked = self._watch.asked() if self._watch is not None else []
        if asked:
            _, operator, place = asked[-1]
            report.outcome = "skipped"
            report.wasxfail = (
                f"npusim: a dry run has no values, and the test asserts on one: {operator} at "
                f"{place} was answered"
            )

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

            self._session = Session(self._settings)
        return self._session

    # --- The summary ----------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds one test to the summary."""
        self._tests += report.when == "teardown"
        found = getattr(report, "npusim", None)
        if found is None:
            return
        self._using += found["used"]
        self._asserting += found["asserted"]
        if found["leaked"]:
            self._leaking.append(f"{report.nodeid}: {found['leaked']} bytes")
        self._peaks[report.nodeid] = found["peak"]
        if found["asked"]:
            self._asking[report.nodeid] = found["asked"]
        for what, file, line, function, count in found["syncs"]:
            place = what, file, line, function
            self._syncs[place] = self._syncs.get(place, 0) + count

    def _problem_of_use(self) -> str | None:
        """Returns what is wrong if fewer tests used a device than --npusim-require-device says."""
        wanted = self._settings.require_device
        if wanted is None or self._using >= wanted:
            return None
        return (
            f"FAILED: --npusim-require-device={wanted}, and {self._using} of {self._tests} tests "
            f"used a device; the others ran on the CPU: look for code that asks "
            f"torch.cuda.is_available() (--npusim-as-cuda), or takes no device at all"
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a run that stayed on the CPU, if asked to."""
        of_worker = hasattr(session.config, "workerinput")
        if not of_worker and session.exitstatus == 0 and self._problem_of_use():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write_dry(self, write: Callable[[str], None]) -> None:
        """Writes which tests asked for values."""
        write(
            f"dry run: {len(self._asking)} of {self._tests} tests asked for values of the device, "
            f"which it does not have; what they assert on them says nothing"
        )
        for test, asked in list(self._asking.items())[:20]:
            write(f"  {test}")
            for count, operator, place in asked[:3]:
                write(f"  {count:6}  {operator} at {place}")
        if len(self._asking) > 20:
            write(f"  and {len(self._asking) - 20} tests more")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Writes the section "npusim"."""
        terminalreporter.section("npusim")
        write = terminalreporter.write_line
        if problem := self._problem_of_use():
            write(problem)
        elif self._tests and not self._using and not self._settings.as_cuda:
            write(
                "no test used a device. Code that asks torch.cuda.is_available() stays on the "
                "CPU: run it with --npusim-as-cuda"
            )
        if not self._peaks:
            write("no test ran with torch_npusim loaded")
            return
        largest = max(self._peaks, key=lambda test: self._peaks[test])
        write(
            f"{self._using} of {self._tests} tests used a device, and {len(self._leaking)} left "
            f"memory on it"
        )
        for leaking in self._leaking:
            write(f"  {leaking}")
        if self._asserting:
            write(
                f"{self._asserting} tests met a device-side assert: on a GPU the process could do "
                f"nothing after the first"
            )
        write(f"largest peak: {self._peaks[largest]} bytes more than before, in {largest}")
        if self._settings.dry:
            self._write_dry(write)
        if self._settings.sync is None and not self._syncs:
            return
        total = sum(self._syncs.values())
        write(f"host synchronisations outside of the tests' own files: {total}")
        most = sorted(self._syncs.items(), key=lambda entry: -entry[1])
        for (what, file, line, function), count in most[:20]:
            write(f"  {count:6}  {what:30}  {os.path.relpath(file)}:{line} in {function}")
        if len(most) > 20:
            write(f"  and {len(most) - 20} places more")
