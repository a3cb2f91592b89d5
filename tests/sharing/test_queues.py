# SPDX-License-Identifier: BSD-3-Clause
"""Queues, pipes, DataLoader workers and start methods, in programs as users write them."""

import textwrap

import pytest
from processes import python, without_npusim

HEAD = """\
import sys, time
import torch, torch_npusim
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

LIMIT = 240
"""


@pytest.fixture
def run_program(tmp_path):
    """Runs a file (a spawned child needs one) and returns the finished process."""

    def run(text, *, environment=None, timeout=600):
        file = tmp_path / "program.py"
        file.write_text(HEAD + textwrap.dedent(text))
        variables = without_npusim(OMP_NUM_THREADS="1", **(environment or {}))
        return python(file, env=variables, timeout=timeout)

    return run


ALL_WAYS = """
    def work(x, inbox, outbox, pipe):
        x.mul_(2)
        y = inbox.get()
        outbox.put((y.device, (y + 1).tolist()))
        z = torch.full((3,), 7.0, device=DEVICE)
        outbox.put(z)
        pipe.send(z[1:])
        pipe.recv()  # the sender keeps its memory until the receiver says so

    DEVICE = "{device}"
    if __name__ == "__main__":
        context = mp.get_context("{method}")
        x = torch.ones(3, device=DEVICE)
        inbox, outbox = context.Queue(), context.Queue()
        pipe, theirs = context.Pipe()
        child = context.Process(target=work, args=(x, inbox, outbox, theirs))
        child.start()
        inbox.put(torch.zeros(2, device=DEVICE))
        print(*outbox.get(timeout=LIMIT))
        z = outbox.get(timeout=LIMIT)
        assert pipe.poll(LIMIT)
        part = pipe.recv()
        print(x.tolist(), z.tolist(), part.tolist())
        part.fill_(0)
        print(z.tolist(), z.device)
        del z, part
        pipe.send("done")
        child.join(LIMIT)
        print("exit", child.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_queue_pipe_and_arguments(run_program, method):
    done = run_program(ALL_WAYS.format(method=method, device="npusim"))
    assert done.stdout.splitlines() == [
        "npusim:0 [1.0, 1.0]",
        "[2.0, 2.0, 2.0] [7.0, 7.0, 7.0] [7.0, 7.0]",
        "[7.0, 0.0, 0.0] npusim:0",
        "exit 0",
    ], done.stderr
    assert done.stderr == ""


def test_under_the_alias(run_program):
    done = run_program(
        ALL_WAYS.format(method="spawn", device="cuda"), environment={"NPUSIM_AS_CUDA": "1"}
    )
    assert done.stdout.splitlines() == [
        "cuda:0 [1.0, 1.0]",
        "[2.0, 2.0, 2.0] [7.0, 7.0, 7.0] [7.0, 7.0]",
        "[7.0, 0.0, 0.0] cuda:0",
        "exit 0",
    ], done.stderr


LOADER = """
    class Squares(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return torch.tensor(float(index), device="npusim") ** 2

    if __name__ == "__main__":
        {before}
        loader = DataLoader(
            Squares(), batch_size=3, num_workers=2, multiprocessing_context="{method}",
            timeout=LIMIT, {options}
        )
        try:
            total = 0.0
            for batch in loader:
                total += batch.sum().item()
                print(batch.device, batch.tolist())
            print(total)
        except RuntimeError as error:
            print("refused", "'spawn' start method" in str(error))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_a_data_loader(run_program, method):
    done = run_program(LOADER.format(method=method, before="", options="persistent_workers=True"))
    assert done.stdout.splitlines() == [
        "npusim:0 [0.0, 1.0, 4.0]",
        "npusim:0 [9.0, 16.0, 25.0]",
        "55.0",
    ], done.stderr


def test_forked_workers_are_refused_in_the_parent(run_program):
    done = run_program(
        LOADER.format(method="fork", before="torch.ones(1, device='npusim')", options="")
    )
    assert done.stdout == "refused True\n", done.stderr


def test_workers_forked_before_the_first_use_share(run_program):
    done = run_program(LOADER.format(method="fork", before="", options=""))
    assert done.stdout.splitlines()[-1] == "55.0", done.stderr


def test_a_forked_child_is_told_and_its_parent_too(run_program):
    """A failure to send in a queue's thread reaches whoever waits at the other end."""
    done = run_program(
        """
        def give(x, queue):
            queue.put(x)

        def take(queue, x):
            queue.get(timeout=LIMIT)

        if __name__ == "__main__":
            x = torch.ones(3, device="npusim")
            context = mp.get_context("fork")
            queue = context.Queue()
            child = context.Process(target=give, args=(x, queue))
            child.start()
            try:
                queue.get(timeout=LIMIT)
            except RuntimeError as error:
                print("get", "'spawn' start method" in str(error))
            child.join(LIMIT)
            try:
                mp.start_processes(lambda _, x: x.sum(), args=(x,), start_method="fork")
            except mp.ProcessRaisedException as error:
                print("start", "'spawn' start method" in str(error))
            queue.put(x)
            child = context.Process(target=take, args=(queue, None))
            child.start()
            child.join(LIMIT)
            print("exit", child.exitcode)
        """
    )
    assert done.stdout.splitlines() == ["get True", "start True", "exit 1"], done.stderr
    assert "'spawn' start method" in done.stderr


def test_a_full_queue_does_not_keep_its_process(run_program):
    done = run_program(
        """
        if __name__ == "__main__":
            queue = mp.get_context("spawn").Queue(maxsize=3)
            for i in range(3):
                queue.put(torch.full((1000,), float(i), device="npusim"))
            assert queue.full()
            print("leaves", flush=True)
        """,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "leaves\n")
    assert "keep the producer until all consumers are done" in done.stderr


def test_an_exporter_that_leaves_early_says_so(run_program):
    """torch.cuda warns of it too: there the receivers lose their tensors."""
    done = run_program(
        """
        def give(pipe):
            pipe.send(torch.ones(3, device="npusim"))
            pipe.recv()

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            pipe, theirs = context.Pipe()
            child = context.Process(target=give, args=(theirs,))
            child.start()
            assert pipe.poll(LIMIT)
            x = pipe.recv()
            pipe.send("go")
            child.join(LIMIT)
            print(x.add_(1).tolist())
        """
    )
    assert done.stdout == "[2.0, 2.0, 2.0]\n"
    assert "1 block(s) of its device memory" in done.stderr


CAPACITY = """
    def work(pipe):
        x = pipe.recv()
        x[:100].fill_(3)
        pipe.send((x.sum().item(), torch.npusim.memory_allocated()))
        del x
        pipe.send(torch.ones(5, device="npusim"))
        pipe.recv()

    if __name__ == "__main__":
        context = mp.get_context("spawn")
        pipe, theirs = context.Pipe()
        child = context.Process(target=work, args=(theirs,))
        child.start()
        many = [torch.zeros(1000, device="npusim") for _ in range(50)]
        x = torch.ones(1 << 20, device="npusim")
        pipe.send(x)
        assert pipe.poll(LIMIT)
        print(*pipe.recv(), x[:101].sum().item())
        assert pipe.poll(LIMIT)
        del x
        print(pipe.recv().sum().item())
        pipe.send("done")
        child.join(LIMIT)
        torch.npusim.empty_cache()
        print(torch.npusim.memory_allocated() == sum(4000 for _ in many))
        del many
        torch.npusim.empty_cache()
        print(torch.npusim.memory_reserved())
"""


@pytest.mark.parametrize(
    "environment",
    [{"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, {"NPUSIM_ISOLATION": "0"}],
    ids=["expandable segments", "one view"],
)
def test_other_kinds_of_memory(run_program, environment):
    done = run_program(CAPACITY, environment=environment)
    assert done.stdout.splitlines() == [
        f"{(1 << 20) + 200}.0 0 301.0",
        "5.0",
        "True",
        "0",
    ], done.stderr
