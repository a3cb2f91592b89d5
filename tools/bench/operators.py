# SPDX-License-Identifier: BSD-3-Clause
"""The operators that are compared: statements over named operands, the same on both devices.

Adding a row is one line. Names:

x, y, z   positive floats; z is written by in-place statements
b, v, s   two rows of them, and a 0-dim tensor
t, q, p   the transpose of y, made contiguous; a well-conditioned square matrix; a batch of two
h, m, n   bfloat16; bool; bool
i, j, r   integers: valid as indices of either dimension; 0 and 1; one per row
f, g      torch.nn.functional, torch
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as functional

SMALL = ((2, 2), (16, 64))
MIDDLE = (256, 1024)
LARGE = (4096, 4096)
MODULES = {"f": functional, "g": torch}

ELEMENTWISE = {
    "add": "x + y",
    "add, scalar": "x + 1.5",
    "add, integer scalar": "x + 1",
    "add, alpha": "g.add(x, y, alpha=0.5)",
    "add, one row": "x + b",
    "add, 0-dim tensor": "x + s",
    "add, bfloat16": "h + h",
    "add, int64 scalar": "i + 1",
    "add_": "z.add_(y)",
    "mul_, scalar": "z.mul_(1.0)",
    "sub": "x - y",
    "rsub, scalar": "1.0 - x",
    "mul": "x * y",
    "mul, scalar": "x * 2.0",
    "mul, int64 and float": "i * x",
    "div": "x / y",
    "div, scalar": "x / 3.0",
    "neg": "-x",
    "abs": "x.abs()",
    "exp": "x.exp()",
    "log": "x.log()",
    "sqrt": "x.sqrt()",
    "rsqrt": "x.rsqrt()",
    "reciprocal": "x.reciprocal()",
    "sin": "x.sin()",
    "tanh": "x.tanh()",
    "sigmoid": "x.sigmoid()",
    "relu": "f.relu(x)",
    "gelu": "f.gelu(x)",
    "silu": "f.silu(x)",
    "pow, scalar": "x ** 3.0",
    "pow": "x ** y",
    "clamp": "x.clamp(0.2, 0.8)",
    "maximum": "g.maximum(x, y)",
    "where": "g.where(m, x, y)",
    "eq, scalar": "x == 0.5",
    "gt": "x > y",
    "and": "m & n",
    "addcmul": "g.addcmul(x, y, z)",
    "lerp": "g.lerp(x, y, 0.5)",
}

# What the CPU backend computes with MKL's vector functions.
VECTOR_FUNCTIONS = ("exp", "log", "sqrt", "sin", "tanh")

REDUCTIONS = {
    "sum": "x.sum()",
    "sum, rows": "x.sum(1)",
    "sum, columns": "x.sum(0)",
    "mean, rows": "x.mean(1)",
    "amax, rows": "x.amax(1)",
    "max with indices, rows": "x.max(1)",
    "argmax, rows": "x.argmax(1)",
    "var, rows": "x.var(1)",
    "norm": "g.linalg.vector_norm(x)",
    "prod, rows": "x.prod(1)",
    "any": "m.any()",
    "logsumexp, rows": "x.logsumexp(1)",
    "cumsum, rows": "x.cumsum(1)",
    "cumprod, rows": "x.cumprod(1)",
    "softmax, rows": "x.softmax(1)",
    "log_softmax, rows": "x.log_softmax(1)",
    "matmul": "x @ t",
    "matrix times vector": "x @ b",
    "sort, rows": "x.sort(1)",
    "topk, rows": "x.topk(2, 1)",
}

# Statement and its twin with a result that is already there.
OUT_OF_PLACE = {
    "add": ("x + y", "g.add(x, y, out=o)"),
    "add, scalar": ("x + 1.5", "g.add(x, 1.5, out=o)"),
    "sub": ("x - y", "g.sub(x, y, out=o)"),
    "mul": ("x * y", "g.mul(x, y, out=o)"),
    "mul, scalar": ("x * 2.0", "g.mul(x, 2.0, out=o)"),
    "div": ("x / y", "g.div(x, y, out=o)"),
    "neg": ("-x", "g.neg(x, out=o)"),
    "abs": ("x.abs()", "g.abs(x, out=o)"),
    "sqrt": ("x.sqrt()", "g.sqrt(x, out=o)"),
    "clamp": ("x.clamp(0.2, 0.8)", "g.clamp(x, 0.2, 0.8, out=o)"),
    "maximum": ("g.maximum(x, y)", "g.maximum(x, y, out=o)"),
    "addcmul": ("g.addcmul(x, y, x)", "g.addcmul(x, y, x, out=o)"),
}

# Operators that have taken route iii; the first ROUTE_III_ROWS that still do are measured.
ROUTE_III_ROWS = 40
ROUTE_III = {
    "index": "x[r]",
    "index, mask": "x[m]",
    "index_put": "z.index_put((r,), v)",
    "index_select": "x.index_select(0, r)",
    "index_add": "x.index_add(0, r, x)",
    "index_copy": "x.index_copy(0, r, x)",
    "index_fill": "x.index_fill(0, r, 0.5)",
    "take": "x.take(i)",
    "gather": "x.gather(0, i)",
    "scatter": "x.scatter(0, i, y)",
    "scatter_add": "x.scatter_add(0, i, y)",
    "embedding": "f.embedding(i, x)",
    "embedding_bag": "f.embedding_bag(i, x)",
    "one_hot": "f.one_hot(j, 2)",
    "masked_select": "x.masked_select(m)",
    "nonzero": "m.nonzero()",
    "unique": "i.unique()",
    "bincount": "r.bincount()",
    "histc": "x.histc(8)",
    "searchsorted": "g.searchsorted(x, y)",
    "bucketize": "g.bucketize(x, b)",
    "flip": "x.flip(0)",
    "roll": "x.roll(1, 0)",
    "tril": "x.tril()",
    "triu": "x.triu()",
    "trace": "q.trace()",
    "diag_embed": "b.diag_embed()",
    "median": "x.median()",
    "kthvalue": "x.kthvalue(1, 1)",
    "mode": "x.mode(1)",
    "cummax": "x.cummax(1)",
    "cummin": "x.cummin(1)",
    "logcumsumexp": "x.logcumsumexp(1)",
    "cdist": "g.cdist(x, y)",
    "pdist": "f.pdist(x)",
    "cross": "g.linalg.cross(x[:, :1].expand(-1, 3), y[:, :1].expand(-1, 3))",
    "renorm": "x.renorm(2, 0, 1.0)",
    "var_mean": "g.var_mean(x, 1)",
    "std_mean": "g.std_mean(x, 1)",
    "aminmax": "x.aminmax()",
    "layer_norm": "f.layer_norm(x, x.shape[1:])",
    "group_norm": "f.group_norm(p, 1)",
    "batch_norm": "f.batch_norm(x, b, b, training=False)",
    "cross_entropy": "f.cross_entropy(x, r)",
    "nll_loss": "f.nll_loss(x, r)",
    "multi_margin_loss": "f.multi_margin_loss(x, r)",
    "max_pool2d": "f.max_pool2d(p, 2)",
    "avg_pool2d": "f.avg_pool2d(p, 2)",
    "adaptive_avg_pool2d": "f.adaptive_avg_pool2d(p, 2)",
    "upsample_nearest2d": "f.interpolate(p[None], scale_factor=2)",
    "upsample_bilinear2d": "f.interpolate(p[None], scale_factor=2, mode='bilinear')",
    "reflection_pad1d": "f.pad(x, (1, 1), mode='reflect')",
    "replication_pad1d": "f.pad(x, (1, 1), mode='replicate')",
    "unfold": "f.unfold(p[None], 2)",
    "fft": "g.fft.fft(x)",
    "rfft": "g.fft.rfft(x)",
    "cholesky": "g.linalg.cholesky(q)",
    "inv": "g.linalg.inv(q)",
    "solve": "g.linalg.solve(q, x)",
    "qr": "g.linalg.qr(x)",
    "svdvals": "g.linalg.svdvals(x)",
    "det": "g.linalg.det(q)",
    "lu_factor": "g.linalg.lu_factor(q)",
    "glu": "f.glu(x)",
    "prelu": "f.prelu(x, b)",
    "rrelu, evaluating": "f.rrelu(x)",
    "bitwise shift": "i << 1",
    "gcd": "i.gcd(j)",
    "special.i0e": "g.special.i0e(x)",
    "polygamma": "g.polygamma(1, x)",
    "isin": "g.isin(i, j)",
    "logaddexp": "g.logaddexp(x, y)",
    "hypot": "g.hypot(x, y)",
    "nextafter": "g.nextafter(x, y)",
    "copysign": "x.copysign(y)",
    "heaviside": "g.heaviside(x, y)",
    "frexp": "x.frexp()",
}


def operands(shape: Sequence[int], device: str) -> dict[str, Any]:
    """Returns the operands of all statements for matrices of `shape`, equal on every device."""
    rows, columns = shape
    generator = torch.Generator().manual_seed(0)

    def uniform(*size: int) -> torch.Tensor:
        return torch.rand(*size, generator=generator) + 0.1

    def below(limit: int, *size: int) -> torch.Tensor:
        return torch.randint(limit, size, generator=generator)

    x, y, z = uniform(rows, columns), uniform(rows, columns), uniform(rows, columns)
    square = uniform(rows, rows)
    named = {
        "x": x,
        "y": y,
        "z": z,
        "b": uniform(columns),
        "s": torch.tensor(1.5),
        "t": y.T.contiguous(),
        "q": square @ square.T + rows * torch.eye(rows),
        "p": uniform(2, rows, columns),
        "h": x.bfloat16(),
        "m": x > 0.6,
        "n": y > 0.6,
        "i": below(min(shape), rows, columns),
        "j": below(2, rows, columns),
        "r": torch.randperm(rows, generator=generator) % min(shape),
        "v": uniform(columns),
    }
    return {**{name: tensor.to(device) for name, tensor in named.items()}, **MODULES}


def large_operands(device: str) -> dict[str, Any]:
    """Returns what the statements of OUT_OF_PLACE need; o is a result that is already there."""
    x = torch.rand(LARGE, generator=torch.Generator().manual_seed(0)) + 0.1
    named = {"x": x.to(device), "y": x.flip(0).to(device), "o": torch.empty_like(x).to(device)}
    return {**named, **MODULES}
