# SPDX-License-Identifier: BSD-3-Clause
"""Code that Inductor generates for the device, where the backend registers a generator."""

from npusim_conformance.contracts import contract
from npusim_conformance.contracts.apart.compiling import compiles
from npusim_conformance.properties.base import Run


def _generates(run: Run, script: str) -> None:
    compiles(run, script, generator=True)


@contract(quick=False)
def generated_code_gives_the_same(run: Run) -> None:
    """torch.compile(): values, indices and gradients are those of eager mode."""
    _generates(run, "holds(torch.compile(program), 37)\n")


@contract(quick=False)
def generated_code_serves_all_sizes(run: Run) -> None:
    """One kernel is right for sizes above and below that it was made for, and is not made again."""
    _generates(run, "serves(torch.compile(program, dynamic=True), (18, 37, 5, 64))\n")


@contract(quick=False)
def generated_code_reads_and_keeps_strides(run: Run) -> None:
    """Transposed, gapped, shifted and expanded inputs; results lie in memory as in eager mode."""
    _generates(
        run,
        """
def function(transposed, gapped, shifted, expanded):
    return transposed * 2, gapped + 1, shifted.exp(), expanded.neg(), transposed.sum(0) + expanded

base = torch.arange(420.0).div(100).view(20, 21).to(device)
arguments = base.T, base[::2, 1::3], base[3:, 2:], base[:1, :20].expand(20, 20)
names = "transposed gapped shifted expanded sum".split()
for name, one, other in zip(names, function(*arguments), torch.compile(function)(*arguments)):
    close(name, one, other)
    assert one.stride() == other.stride(), f"{name}: {other.stride()}, in eager {one.stride()}"
""",
    )


@contract(quick=False)
def generated_code_keeps_dtypes(run: Run) -> None:
    """Arithmetic, comparison and reduction in usual dtypes, with nan, infinity and overflow."""
    _generates(
        run,
        """
def arithmetic(x):
    found = [x + x, x * 3, x > 1, torch.where(x == 2, x, 1), x.sum(0), x.flip(0)]
    return found + ([x // 2, x % 3] if x.dtype != torch.bool else [x.any(), ~x])

def special(x):
    return x.clamp(-1, 2), torch.maximum(x, x.flip(0)), x.isnan(), 1 / x, x.amax(), x.to(torch.bool)

def all_of(integers, floats):
    return [arithmetic(x) for x in integers], [special(x) for x in floats]

def there(dtype):
    try:
        return (torch.zeros(2, dtype=dtype).to(device) + 1).dtype == dtype
    except Exception:
        return False

whole = [dtype for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
         if there(dtype)]
broken = [dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
          if there(dtype)]
values = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.5, 100.0])
integers = [torch.arange(-40, 50, 3).to(dtype).to(device) for dtype in whole]
floats = [values.to(dtype).to(device) for dtype in broken]
eager, compiled = all_of(integers, floats), torch.compile(all_of)(integers, floats)
for dtype, ones, others in zip(whole + broken, sum(eager, []), sum(compiled, [])):
    for number, (one, other) in enumerate(zip(ones, others)):
        close(f"{dtype}, result {number}", one, other)
""",
    )


@contract(quick=False)
def generated_code_writes_to_its_arguments(run: Run) -> None:
    """In-place operators on arguments and on views of them are seen by the caller."""
    _generates(
        run,
        """
def function(x, y, rows):
    x.add_(1).mul_(2)
    y[:, 1:].copy_(x[:, :-1])
    y.index_add_(0, rows, x[:2])
    y[0] = x.sum(0)
    return x.sum() + y.sum()

def arguments():
    x = torch.arange(60.0).view(6, 10).to(device)
    return x, torch.ones(6, 10).to(device), torch.tensor([4, 4]).to(device)

eager, compiled = arguments(), arguments()
close("the sum", function(*eager), torch.compile(function)(*compiled))
for name, one, other in zip(("x", "y", "rows"), eager, compiled):
    close(name, one, other)
""",
    )


@contract(quick=False)
def generated_code_draws_numbers(run: Run) -> None:
    """Dropout follows the seed, is another in each call, and is the same on the way back."""
    _generates(
        run,
        """
def drawn(x):
    return torch.nn.functional.dropout(x, 0.25)

function = torch.compile(drawn)
def draw():
    x = torch.ones(64, 64).to(device).requires_grad_()
    result = function(x)
    result.sum().backward()
    close("what is passed back, and forward", result, x.grad)
    return result.detach().cpu()

torch.manual_seed(7)
first, second = draw(), draw()
torch.manual_seed(7)
assert torch.equal(first, draw()), "the same seed gives other numbers"
assert not torch.equal(first, second), "two calls draw the same numbers"
kept = first[first != 0]
torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.75))
assert 0.70 < kept.numel() / first.numel() < 0.80, f"{kept.numel()} of {first.numel()} are kept"
""",
    )


@contract(quick=False)
def generated_code_trains(run: Run) -> None:
    """Three compiled steps with batch norm and Adam leave the parameters that eager ones leave."""
    _generates(
        run,
        """
def trained(compiled):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16, bias=False), torch.nn.BatchNorm1d(16), torch.nn.Tanh(),
        torch.nn.Linear(16, 3),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x, classes):
        loss = torch.nn.functional.cross_entropy(model(x), classes)
        loss.backward()
        return loss

    if compiled:
        step = torch.compile(step)
    x, classes = inputs(32)[0].detach(), (torch.arange(32) % 3).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        step(x, classes)
        optimizer.step()
    return model.state_dict()

eager, compiled = trained(False), trained(True)
for name, one in eager.items():
    close(name, one, compiled[name])
""",
    )


@contract(quick=False, two_devices=True)
def generated_code_runs_where_its_arguments_lie(run: Run) -> None:
    """With arguments on the second device it computes there, and leaves the current device."""
    second = str(run.under_test.second)
    _generates(
        run,
        f"""
there = torch.device({second!r})
module = torch.get_device_module(device)
before = module.current_device()
holds(torch.compile(program), 9, there)
after = module.current_device()
assert before == after, f"device {{after}} is current, before it was {{before}}"
""",
    )
