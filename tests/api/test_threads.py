# SPDX-License-Identifier: BSD-3-Clause
"""Two host threads and one stream: nothing that Python can want is held while a body runs."""

import pytest

# One thread is inside the body of a command that runs Python and waits; another does `call`
# meanwhile; a third then ends the body. Long switch intervals keep the three in this order, and who
# waits with the GIL held stops them all: faulthandler then ends the process.
SCRIPT = """
import faulthandler, sys, threading
import torch

faulthandler.dump_traceback_later(20, exit=True)
inside, started, may_end = (threading.Event() for _ in range(3))
users_lock = threading.Lock()
x = torch.ones(4, device="npusim")
stream = torch.npusim.current_stream()
event = stream.record_event()
storage = x.untyped_storage()

def kernel(x):
    inside.set()
    assert may_end.wait(15)
    with users_lock:
        return x + 1

library = torch.library.Library("threads", "DEF")
library.define("waits(Tensor x) -> Tensor")
library.impl("waits", kernel, "CPU")
torch.ops.threads.waits
results = []

def in_body():
    results.append(torch.ops.threads.waits(torch.zeros(2, device="npusim")))

def beside_it():
    inside.wait()
    started.set()
    {call}

def ends_it():
    started.wait()
    may_end.set()

sys.setswitchinterval(1000)
threads = [threading.Thread(target=work) for work in (in_body, ends_it, beside_it)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(results[0].tolist(), x.tolist())
"""


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("stream.wait_event(event)", 1.0),
        ("event.wait(stream)", 1.0),
        ("storage.fill_(0)", 0.0),
        ("storage.clone()", 1.0),
        ("x.fill_(3)", 3.0),
        ("x[:] = 5", 5.0),
    ],
)
def test_a_body_that_wants_the_gil_and_a_thread_that_has_it(run_python, call, left):
    """Rules S1 and E3: neither waits for the other for ever."""
    out = run_python(SCRIPT.replace("{call}", call), timeout=60)
    assert out.split("\n")[0] == f"[1.0, 1.0] {[left] * 4}"


def test_a_body_in_python_keeps_no_other_command_waiting(run_python):
    """Rule S1: else a lock of the user's, held around a launch, could not be taken in the body."""
    call = "with users_lock: x.fill_(3); may_end.set(); x.fill_(2)"
    out = run_python(SCRIPT.replace("{call}", call), timeout=60)
    assert out.split("\n")[0] == f"[1.0, 1.0] {[2.0] * 4}"


def test_a_body_that_gathers_stacks_and_a_thread_that_has_the_gil(run_python):
    """Memory history takes the GIL in bodies: many of both, side by side."""
    script = """
        import faulthandler, threading
        import torch

        faulthandler.dump_traceback_later(60, exit=True)
        torch.npusim.memory._record_memory_history(stacks="python")
        x = torch.ones(64, device="npusim")
        storage = torch.zeros(64, device="npusim").untyped_storage()

        def allocates():
            for _ in range(500):
                x.sort()

        def holds_the_gil():
            for _ in range(500):
                storage.fill_(0)

        threads = [threading.Thread(target=work) for work in (allocates, holds_the_gil) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("done")
    """
    assert run_python(script, timeout=120) == "done\n"
