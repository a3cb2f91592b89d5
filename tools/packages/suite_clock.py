# SPDX-License-Identifier: BSD-3-Clause
"""pytest plugin (-p suite_clock): notes the processor time of each test in pytest's XML report.

Of all threads of the process; unlike time on the clock it does not grow when others want the
machine.
"""

import time

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """Surrounds the test itself, without its fixtures."""
    start = time.process_time()
    yield
    item.user_properties.append(("processor_seconds", time.process_time() - start))
