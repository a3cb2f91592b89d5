# SPDX-License-Identifier: BSD-3-Clause
"""Expressions on operators, and the tensors that they name, for the contracts of operators.py."""

import torch

INF, NAN = float("inf"), float("nan")
FUNCTIONAL = "torch.nn.functional."

REDUCTIONS = """
most.sum(); most.sum(-1); most.prod(-1); most.cumsum(0); most.cumprod(-1); most.sum((0, 1))
torch.equal(b, ~b); torch.equal(x, y); torch.equal(i32, i32 + 1); torch.equal(empty, empty)
x.sum(-1, keepdim=True); x.sum((0, -1)); x.sum(-2); x.mean(-1, keepdim=True); x.mean((0, 1))
i32.sum(); i32.sum(-1, keepdim=True); i32.prod(-1); i8.sum(-1); i8.prod(0); b.sum(); b.sum(-1)
b.prod(0); u8.sum(0); u8.cumsum(-1); b.cumsum(0); i8.cumprod(-1); x.cumsum(-2); x.cumprod(-1)
wide.sum(-1); wide.cumsum(-1); wide.cumsum(0); wide.amax(-1); wide.argmax(-1); wide.mean(-1)
long.sum(); long.cumsum(0); long.max(); long.argmin(); long.sort().values; long.std(); long.prod()
ties.argmax(0); ties.argmax(-1); ties.argmin(0, keepdim=True); ties.argmax(); ties.max(-1).indices
ties.amax((0, 1), keepdim=True); ties.amin(-1, keepdim=True); x.amax((-1, -2)); x.aminmax(dim=-1)
odd.max(-1).values; odd.min(0).values; odd.amax(0); odd.argmax(-1); odd.argmin(0); odd.median()
odd.nanmedian(); odd.nansum(-1); odd.nanmean(0); odd.median(-1).values; odd.isnan().sum(-1)
x.median(); x.median(-1, keepdim=True).values; x.kthvalue(2, -1, keepdim=True).values
x.mode(-1).values; ties.mode(0).values; x.var(-1, correction=0); x.std(0, correction=2)
x.var((0, 1), keepdim=True); x.var(-1, unbiased=False); torch.var_mean(x, -1, correction=0)
torch.std_mean(x, 0, keepdim=True); x.logsumexp(-1); x.logsumexp((0, 1), keepdim=True)
odd.logsumexp(-1); (x * 1000).logsumexp(-1); low.logsumexp(0); x.logcumsumexp(-1); x.norm()
x.norm(0); x.norm(_INF); x.norm(-_INF); x.norm(1, -1); x.norm(3, 0, keepdim=True)
torch.linalg.vector_norm(x, 0.5, -1); torch.linalg.matrix_norm(x, 'fro'); torch.dist(x, y, 1)
empty.sum(); empty.sum(0); empty.prod(); empty.sum(-1); empty.all(); empty.any(); empty.mean()
b[:0].all(); b[:0].any(); b[:0].all(-1); b.all(-1); b.any(0, keepdim=True); x.all(); i8.any(-1)
odd.all(-1); zeros.any(); zeros.count_nonzero(0); odd.count_nonzero(); x.count_nonzero(-1)
x.sum(dtype=torch.float64); i8.sum(dtype=torch.int8); x.mean(dtype=torch.float64); h.sum(-1)
h.mean(); wide.half().sum(-1); wide.half().mean(0); x.cummax(-1).values; ties.cummin(0).values
odd.cummax(-1).values; x.trace(); square.trace(); x.diff(dim=-1); x.diff(n=2, dim=-1); i32.diff()
x.quantile(0.3, dim=-1); x.quantile(q, 0, interpolation='lower'); x.histc(4, -2, 2)
u8.long().flatten().bincount(minlength=300); u8.long().flatten().bincount(y.flatten())
torch.equal(long, long.clone().index_fill_(0, at + 1400, 7)); torch.equal(odd, odd)
torch.equal(wide, wide + 0); torch.allclose(x, x + 1e-3); torch.allclose(odd, odd, equal_nan=True)
"""

ARITHMETIC = """
x.round(); halves.round(); halves.round(decimals=1); x.floor(); halves.trunc(); halves.frac()
x.remainder(1.5); x.remainder(-1.5); i32.remainder(3); i32.remainder(-3); i32.fmod(3)
x.fmod(-1.5); i32.remainder(three); i32.fmod(three); i32 // 3; i32 // -3
i32.div(three, rounding_mode='floor'); i32.div(three, rounding_mode='trunc')
x.div(y, rounding_mode='floor'); i32 / 2; i8.true_divide(2); x.div(y, rounding_mode='trunc')
x.floor_divide(0.7); 2.5 // y; 1 / x; 3 - i32; i8.pow(3); 2 ** i8; (-2.0) ** i8; p ** y; odd ** 2
x.sub(y, alpha=3); i32.sub(i32, alpha=3); x.add(y, alpha=-2); i32.add(7, alpha=2)
h.add(h, alpha=3); bf.add(bf, alpha=3); b.add(b); b * b; b | b.roll(1); b ^ b.roll(1); ~b; ~i8
i8 & 12; i32 | 1; i8 << 2; i32 >> 1; i8.bitwise_xor(5); u8 + 200; u8 * 3; u8 - 1; -u8; i8 + 100
i8 * 5; i8.neg(); torch.rsub(i32, 7, alpha=2); torch.rsub(x, y, alpha=2); lowest.neg()
lowest + lowest; x.addcmul(x, y, value=3); x.addcdiv(x, y, value=-2)
x.clone().addcmul_(x, y, value=3); x.clone().addcdiv_(x, y, value=0.5); x.clone().sub_(y, alpha=2)
i32.clone().add_(2, alpha=3); x.clone().mul_(0.5); i32.clone().floor_divide_(2)
x.clone().remainder_(0.7); x.lerp(y, 0.25); x.lerp(y, 0.75); x.lerp(y, 1.5); x.lerp(y, y)
low.logaddexp(low); low.logaddexp2(low); big.logaddexp(big); i8.sin(); u8.log(); i32.gcd(three)
i32.lcm(three)
"""

COMPARISONS = """
7 % i8.clamp(1); x.clamp(-1); x.clamp(max=0.5); x.clamp(-1, 1); x.clamp(1, -1); odd.clamp(-1, 1)
odd.clamp(min=0); x.clamp(y.neg(), y); odd.clip(0); i32.clamp(-2, 5); i32.clamp(min=0.5)
x.clamp_min(0); odd.clamp_max(2); i8.clamp(max=3); odd.maximum(odd.flip(0))
odd.minimum(odd.flip(0)); odd.fmax(odd.flip(0)); odd.fmin(odd.flip(-1)); i32.maximum(three)
b.maximum(b.roll(1)); odd.nan_to_num(); odd.nan_to_num(1.0, 2.0, -3.0); odd == odd; odd != odd
odd.eq(_NAN); odd < 1; odd >= odd.flip(0); odd.isinf(); odd.isfinite(); odd.isposinf()
odd.isneginf(); odd.signbit(); odd.isclose(odd, equal_nan=True); x.gt(y); i32.lt(2.5); i32 == 2.5
b < True; u8 > -1; i8 >= -200; zeros == -zeros; odd.sign(); odd.logical_not()
odd.logical_and(zeros); x.logical_xor(zeros); x.heaviside(half); zeros.heaviside(half)
x.nextafter(y); x.copysign(-1); x.copysign(-zeros); odd.copysign(zeros)
"""

FUNCTIONS = """
x.pow(2); x.pow(-1); p.pow(0.5); x.pow(0); i32.pow(2); i32.pow(three); torch.pow(2, y)
torch.pow(0, zeros); odd.pow(0); x.clone().pow_(2); big.hypot(big); tiny.log1p(); tiny.expm1()
tiny.sin(); low.exp(); big.exp(); big.sigmoid(); (-big).sigmoid(); big.tanh(); (-big).exp()
big.softmax(-1); (-big).log_softmax(0); low.softmax(-1); odd[:1].softmax(-1); tiny.asinh()
(-big).asinh(); big.asinh(); unit.acosh(); halves.atanh(); x.rsqrt(); zeros.rsqrt(); zeros.log()
zeros.reciprocal(); (-zeros).reciprocal(); x.sqrt(); unit.acos(); unit.asin(); x.lgamma()
y.digamma(); zeros.digamma(); y.polygamma(1); unit.erfinv(); x.erf(); x.erfc(); zeros.xlogy(zeros)
zeros.xlogy(odd); torch.special.xlog1py(zeros, odd); unit.logit(); unit.logit(0.1); x.sinc()
zeros.sinc(); x.i0(); x.deg2rad(); halves.exp2(); y.log2(); y.log10(); i32.exp(); i32.sqrt()
b.float().exp(); three.rsqrt(); three.reciprocal(); x.square(); x.atan2(y); y.atan2(-zeros)
zeros.atan2(-y); x.ldexp(three[:4]); x.frexp().mantissa; odd.frexp().mantissa; y.float_power(3)
x.angle()
"""

ABSOLUTES = """
lowest.abs(); i8.abs(); x.abs(); (-0.0 * x.abs()).abs(); torch.nn.functional.softsign(x)
odd.abs(); x.abs(); i32.abs(); h.abs(); x.clone().abs_()
"""

COMPLEX = """
c == c.flip(0); c != c.real; odd.sgn(); c.sgn(); c.abs(); c.angle(); c.conj() * c; c * 1j
c / (1 + 2j); c.exp(); c.sqrt(); c ** 2; c.reciprocal(); c.real; c.imag; c.conj().imag; c.sum(-1)
c.mean(); c.prod(0); c.log(); c.tanh(); c.isfinite(); c.cumsum(-1); torch.complex(x, y)
torch.polar(y, x); torch.view_as_real(c) * 2; c @ c.mH; torch.fft.fft(x, 5, -1)
torch.fft.rfft(x, dim=0, norm='ortho'); torch.fft.irfft(c, 5); torch.fft.fftshift(x, -1)
torch.fft.ifft2(c); torch.fft.hfft(c, 4); torch.fft.fftn(x, (2, 2))
"""

MOVES = """
x.tril(-1); x.triu(1); x.tril(1); x.triu(-1); square.tril(-2); square.triu(-3); cube.tril(-1)
cube.triu(2); b.tril(-1); i32.triu(1); x.diag(); x.diag(1); cube.diagonal(-1, 0, 2); x.flip(0)
x.flip(-1); x.flip((0, 1)); cube.flip((0, -1)); x.fliplr(); x.roll(1); x.roll(-1); x.roll(-3, 1)
x.roll((1, -2), (0, 1)); x.roll(9, 0); cube.roll(-2, (-1,)); x.rot90(); x.rot90(-1)
x.rot90(3, (1, 0)); x.repeat(2, 1, 3); x.repeat_interleave(2, -1); x.repeat_interleave(at3, 0)
x.tile(2, 2); torch.cat((x, x.flip(0)), -1); torch.cat((x, x), -2); torch.cat((x, none, y))
torch.cat((x.t(), y.t()), -1); torch.cat((x, i32[:, :4]), 0); torch.cat((x, y[:, :0]), 1)
torch.stack((x, y), -1); torch.stack((x, y), -2); torch.hstack((x, y))
torch.cat((wide, wide * 2), 0); torch.cat((wide.t(), wide.t()), 1); torch.cat([x] * 40, -1)
x.unfold(-1, 2, 1); x.split(3, -1)[1]; x.chunk(3, -1)[1]; x.tensor_split(3, -1)[0]
x.movedim(0, -1); cube.permute(2, 0, 1).reshape(-1); cube.transpose(0, -1).contiguous()
cube.mT.reshape(4, -1); x.t().flatten(); x.expand(2, 3, 4).sum(0); x.scatter(-1, at2, 7)
x.scatter(-1, at2, y); x.scatter_add(-1, at2, y); x.scatter_add(-2, at2, y)
x.scatter_reduce(-1, at2, y, 'amax'); x.scatter_reduce(-1, at2, y, 'prod', include_self=False)
x.scatter_reduce(0, at2, y, 'mean', include_self=False); x.scatter_reduce(0, at2, y, 'sum')
x.scatter_reduce(0, at2, y, 'amin', include_self=False); x.scatter(0, at2, 2, reduce='multiply')
x.masked_scatter(b, y); x.t().clone().masked_scatter_(b.t(), y); x.select_scatter(y[0], 0, -1)
x.slice_scatter(y[:, :2], -1, 0, 4, 2); x.diagonal_scatter(y[0, :3]); torch.combinations(edges)
torch.cartesian_prod(edges, edges); torch.vander(edges, increasing=True); three.new_full((2,), 3)
torch.nn.functional.pad(x, (1, -1, 0, 2), value=3)
torch.nn.functional.pad(cube, (1, 2), 'reflect')
torch.nn.functional.pad(cube, (2, 1), 'circular')
torch.nn.functional.pad(image, (1, 1, 2, 0), 'replicate'); x.as_strided((2, 2), (1, 3)).shape
"""

INDEXES = """
x[2, 3]; h[1, 2]; bf[2, 1]; i8[1, 1]; b[0, 1]; u8[2, 0]; i32[1, 7]; x.double()[1, 1]
h[1:2, 2]; bf[2]
x[0].diag(-1); x[0].diag_embed(1); x[:, :1].expand(3, 5) * 2; x.t()[1:, ::2].clone()
cube[:, 1:, ::2].sum(-1); x[::2].contiguous(); x[:, -1]; x[..., None, 1]; x.gather(-1, at2)
x.t().gather(0, at2.t()); x.gather(-2, at2); x.index_select(-1, at); x.index_select(0, at)
x.take(at * 3); x.take_along_dim(at2, -1); x[at]; x[:, at]; x[at, at]; x[-at]
x[at.view(1, -1), at.view(-1, 1)]; x[x > 0]; x.masked_select(b); x[b[:, 0]]; cube[:, at2]
x.t().masked_select(b.t()); x.masked_fill(b, -_INF); x.masked_fill(b[:1], 3); x.where(b, y)
torch.where(b, x, 0.0); torch.where(b[:1], x, y[:, :1]); torch.where(b, i32[:, :4], 2.5)
b.nonzero(); x.t().nonzero(); zeros.nonzero(); long.remainder(3).nonzero(); b.argwhere()
cube.nonzero(); x.clone().index_fill_(-1, at, 5); x.index_add(-1, at, x[:, :3], alpha=2)
x.index_copy(-1, at, y[:, :3]); x.index_add(0, at, x, alpha=-1)
x.clone().index_add_(-1, at, x[:, :3], alpha=0.5)
x.index_reduce(0, at, y, 'prod', include_self=False); x.index_reduce(0, at, y, 'amax')
x.index_put((same,), half[0, 0], accumulate=True); x.index_put((same,), y, accumulate=True)
x.index_put((at, at), x[0, :3]); x.clone().index_put_((b,), half[0, 0]); x.put(at, x[0, :3], True)
torch.meshgrid(edges, edges, indexing='xy')[0]; torch.nn.functional.one_hot(u8.long() % 4, 6)
"""

ORDERS = """
x.sort(-1).values; x.sort(0, descending=True).values; odd.sort(-1).values
odd.sort(0, descending=True).values; ties.sort(dim=-1, stable=True).indices
ties.sort(dim=0, descending=True, stable=True).indices; b.sort(-1, descending=True).values
i8.sort(0).values; h.sort(-1).values; wide.sort(-1).values; ties.argsort(dim=-1, stable=True)
x.topk(2, -1).values; x.topk(2, 0, largest=False).values; x.topk(3, -1, largest=False).indices
odd.topk(2, -1).values; cube.topk(1, 1, largest=False).values; wide.topk(5, -1).values
wide.topk(600, -1).values.sum(); x.unique(); ties.unique(return_counts=True)
ties.unique(return_inverse=True)[1]; i8.unique(dim=0); ties.unique_consecutive(return_counts=True)
b.unique(); u8.unique(return_counts=True)[1]; torch.searchsorted(edges, x); i32.unique()
torch.searchsorted(edges, edges, right=True); torch.searchsorted(edges, edges, side='left')
torch.searchsorted(edges, edges, side='right')
torch.bucketize(x, edges); torch.bucketize(edges, edges, right=True); torch.isin(i32, three)
torch.isin(i32, three, invert=True)
"""

MADE = """
torch.tril_indices(3, 4, -1, device=x.device); torch.triu_indices(3, 4, 1, device=x.device)
torch.arange(5, -3, -2, device=x.device); torch.arange(0, 1, 0.3, device=x.device)
torch.arange(-3, 4, device=x.device, dtype=torch.int8); torch.linspace(3, 7, 1, device=x.device)
torch.linspace(2, -2, 5, device=x.device)
torch.linspace(0, 10, 4, device=x.device, dtype=torch.int32)
torch.logspace(0, 2, 3, device=x.device); torch.logspace(0, 3, 4, base=2, device=x.device)
torch.eye(3, 2, device=x.device); torch.eye(2, 4, device=x.device)
torch.full((2,), -0.0, device=x.device).signbit(); torch.full((2, 0), 3, device=x.device)
torch.hann_window(5, device=x.device); torch.hamming_window(6, False, device=x.device)
torch.bartlett_window(4, device=x.device); torch.kaiser_window(5, False, 3.0, device=x.device)
"""

PRODUCTS = """
square @ square; square.t() @ square; square @ square.t(); x @ x.t(); x.t() @ x; x @ y.t()
cube @ cube.mT; cube.mT @ cube; cube @ square; square @ cubes; cube @ x[0]; x[0] @ x.t(); x @ x[0]
torch.bmm(cubes, cubes.mT); torch.bmm(cubes.mT, cubes); torch.bmm(cubes.mT, cubes.mT)
x[:, :0] @ x.t()[:0]; torch.bmm(cubes[:, :, :0], cubes[:, :0]); x[:0] @ x.t(); x[:, :0] @ none2
torch.addmm(y[:, :3], x, x.t(), beta=0.5, alpha=2); torch.addmm(x[0, :3], x, x.t(), alpha=-1)
torch.addmm(y[:1, :1], x, x.t()); torch.addmm(odd[:3, :3], x, x.t(), beta=0); x[0].dot(y[0])
torch.addmv(x[0, :3], x, y[0], beta=2, alpha=3); torch.addr(y, x[:, 0], y[0], beta=0.5, alpha=2)
torch.baddbmm(cubes, cubes, cubes, beta=0.5, alpha=2); torch.addbmm(square, cubes, cubes, alpha=2)
torch.addmm(y[:, :3], x, x.t(), alpha=2, out=torch.empty(3, 3, device=x.device))
torch.add(x, y, alpha=3, out=torch.empty_like(x)); x.t()[1].dot(y.t()[2]); x.t().mv(y.t()[0])
torch.mm(x, x.t(), out=torch.empty(3, 3, device=x.device).t()); x[0].outer(y[:, 1])
x[:, 1].inner(y[:, 2]); x.kron(square); torch.tensordot(cube, cube, ([1, 2], [1, 2]))
torch.einsum('ij,kj->ik', x, y); torch.einsum('bij,bjk->ik', cubes, cubes); torch.cross(x, y, 0)
torch.linalg.cross(x.t(), y.t()); i32 @ i32.t(); i8 @ i8.t(); h @ h.t(); bf @ bf.t()
x.double() @ x.t().double(); torch.trapezoid(x, dx=0.5); torch.cumulative_trapezoid(x, dim=0)
torch.nn.functional.linear(x, y, y[0, :3]); torch.nn.functional.bilinear(x, y, cubes)
torch.nn.functional.cosine_similarity(x, y, 0); torch.nn.functional.normalize(x, 1, -1)
torch.nn.functional.pairwise_distance(x, y, 1, keepdim=True); torch.renorm(x, 2, 0, 1.0)
"""

DECOMPOSITIONS = """
torch.linalg.multi_dot((x, x.t(), x)); square.matrix_power(3); square.matrix_power(0)
spd.cholesky(); torch.linalg.cholesky(spd, upper=True); spd.inverse(); square.det()
square.slogdet().logabsdet; torch.linalg.solve(spd, square); spd.logdet()
torch.linalg.solve(spd, square, left=False); torch.linalg.eigvalsh(spd.tril(), 'L')
torch.linalg.eigvalsh(spd.triu(), 'U'); torch.linalg.solve_triangular(spd, square, upper=True)
torch.linalg.solve_triangular(spd, square, upper=False); torch.linalg.svdvals(x)
torch.linalg.solve_triangular(spd, square, upper=True, unitriangular=True); x.pinverse()
torch.linalg.solve_triangular(spd, square, upper=True, left=False); torch.linalg.matrix_rank(x)
torch.linalg.qr(x.t(), 'r').R.square(); torch.cholesky_solve(square, spd.cholesky())
torch.linalg.lstsq(spd, square).solution; torch.lu_solve(square, *torch.linalg.lu_factor(spd))
torch.matrix_exp(square * 0.1); torch.linalg.cond(spd); torch.cdist(x, y); torch.cdist(x, y, 1)
torch.cdist(x, y, _INF); torch.cdist(x, y, 0); torch.nn.functional.pdist(x); x.cov(); x.corrcoef()
torch.nn.functional.pdist(x, 1)
"""

LOSSES = """
embedding(at, x); embedding(at2, x); embedding_bag(at2, x, mode='sum'); embedding_bag(at2, x)
embedding_bag(at2, x, mode='max'); embedding(at2, x, padding_idx=1); nll_loss(x, at3)
nll_loss(x, at3, p[0]); nll_loss(x, at3, ignore_index=1); nll_loss(x, at3, reduction='sum')
nll_loss(x, at3, reduction='none'); cross_entropy(x, at3); cross_entropy(x, at3, p[0])
cross_entropy(x, at3, label_smoothing=0.3)
cross_entropy(x, at3, p[0], ignore_index=1, reduction='none'); cross_entropy(x, y.softmax(-1))
cross_entropy(x, at3, p[0], label_smoothing=0.2); cross_entropy(cube, at2[:2] % 3); mse_loss(x, y)
mse_loss(x, y, reduction='sum'); l1_loss(x, y, reduction='none'); huber_loss(x, y)
huber_loss(x, y, delta=0.3); smooth_l1_loss(x, y, beta=0.3); smooth_l1_loss(x, y, beta=0.0)
kl_div(x, y); kl_div(x, y, reduction='batchmean'); kl_div(x, x, log_target=True)
binary_cross_entropy(unit, unit.flip(0)); soft_margin_loss(x, y.sign())
binary_cross_entropy_with_logits(x, y, pos_weight=p[0]); poisson_nll_loss(x, y, full=True)
binary_cross_entropy_with_logits(big, big.sign()); gaussian_nll_loss(x, y, y, eps=0.1)
margin_ranking_loss(x, y, y.sign(), 0.3); hinge_embedding_loss(x, y.sign(), 0.5)
multi_margin_loss(x, at3, p=2, margin=0.5); multilabel_soft_margin_loss(x, b.float())
triplet_margin_loss(x, y, x * 0.5, 0.7, 1, swap=True); cosine_embedding_loss(x, y, y.sign()[:, 0])
dropout(x, 1.0); dropout(x, 0.5, False); alpha_dropout(x, 0.0)
scaled_dot_product_attention(heads, heads, heads)
scaled_dot_product_attention(heads, heads, heads, is_causal=True)
scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
scaled_dot_product_attention(heads, heads, heads, scale=0.3)
"""

POOLINGS = """
max_pool2d(negative, 2, padding=1); max_pool2d(image, 2, 1, dilation=2); max_pool1d(image[0], 2)
max_pool2d(image, 3, 2, 1, ceil_mode=True); max_pool2d(image, (2, 1), (1, 2)); max_pool2d(odd6, 2)
max_pool2d(image, 2, return_indices=True)[1]; max_pool3d(volume, 2, 1)
adaptive_max_pool2d(image, 3); avg_pool2d(image, 3, 2, 1)
avg_pool2d(image, 3, 2, 1, count_include_pad=False); avg_pool1d(x, 2)
avg_pool2d(image, 3, 2, 1, ceil_mode=True); avg_pool2d(image, 2, divisor_override=3)
avg_pool2d(image, 3, 2, 1, True, False); avg_pool3d(volume, 2, 1, 1, count_include_pad=False)
adaptive_avg_pool2d(image, (4, 1)); adaptive_avg_pool2d(image, (None, 3)); lp_pool2d(image, 2, 2)
adaptive_avg_pool1d(x, 3); unfold(image, 2, dilation=2, padding=1, stride=2)
fold(unfold(image, 2), (6, 6), 2); pixel_shuffle(image4, 2); pixel_unshuffle(image, 2)
channel_shuffle(image4, 2); interpolate(image, scale_factor=2.0)
interpolate(image, 4, mode='bilinear'); interpolate(image, 9, mode='bilinear', align_corners=True)
interpolate(image, 9, mode='bicubic'); interpolate(image, 9, mode='bicubic', align_corners=True)
interpolate(image, 4, mode='area'); interpolate(image, 7, mode='nearest-exact')
interpolate(image, 4, mode='bilinear', antialias=True); interpolate(image, scale_factor=1.7)
interpolate(cube, 7, mode='linear', align_corners=True); interpolate(volume, 5, mode='trilinear')
interpolate(image, scale_factor=0.6, mode='bilinear', recompute_scale_factor=True)
grid_sample(image, grid); grid_sample(image, grid, 'nearest'); grid_sample(image, grid, 'bicubic')
grid_sample(image, grid * 2, padding_mode='border'); grid_sample(image, grid, align_corners=True)
grid_sample(image, grid * 2, padding_mode='reflection'); affine_grid(theta, (1, 1, 3, 4))
affine_grid(theta, (1, 1, 3, 4), align_corners=True)
"""

ACTIVATIONS = """
gelu(x); gelu(x, approximate='tanh'); softplus(x, 2, 1); softplus(big); leaky_relu(x, 0.3)
silu(x); leaky_relu(x, -0.5); elu(x, 0.5); celu(x, 0.5); selu(x); relu6(x * 5)
hardtanh(x, -0.5, 0.25); hardswish(x * 3); hardsigmoid(x * 3); hardshrink(x, 0.3)
hardshrink(halves, 0.5); softshrink(halves, 0.5); threshold(halves, 0.5, 7)
softshrink(x, 0.3); tanhshrink(x); mish(x); threshold(x, 0.1, 7); relu(odd); glu(x, -1)
glu(cube, 0); logsigmoid(-big); logsigmoid(x); rrelu(x); prelu(image, weight3); softmin(x, 0)
softmax(x, -2); log_softmax(x, 0); relu(i32); softmax(h, -1, dtype=torch.float32)
normalize(x, dim=0); layer_norm(x, (4,), eps=0.5); layer_norm(x, (4,), y[0], x[0], 1e-3)
layer_norm(cube, (3, 4)); group_norm(image4, 2, eps=0.5); group_norm(image4, 4, weight4, weight4)
rms_norm(x, (4,), eps=0.5); local_response_norm(image, 2); batch_norm(image, weight3, spread3)
batch_norm(image, None, None, weight3, weight3, True)
batch_norm(image, weight3, spread3, eps=0.5); instance_norm(image, eps=0.5)
batch_norm(x, None, None, training=True, eps=0.5)
"""

CONVOLUTIONS = """
conv2d(image, kernel); conv2d(image, kernel, kernel[:, 0, 0, 0]); conv2d(image, kernel, stride=2)
conv2d(image, kernel, padding=1); conv2d(image, kernel, dilation=2)
conv2d(image, kernel[:, :1], groups=3); conv2d(image, kernel, padding='same')
conv2d(image, kernel, stride=(2, 1), padding=(0, 2)); conv1d(image[:, :, 0], kernel[:, :, 0])
conv1d(image[:, :, 0], kernel[:, :, 0], stride=2, padding=1); conv_transpose2d(image, kernel)
conv_transpose2d(image, kernel, stride=2, output_padding=1)
conv_transpose1d(image[:, :, 0], kernel[:, :, 0], padding=1); conv3d(volume, kernel[None, :1, :1])
conv2d(image, kernel[:, :, :1, :1]); conv2d(image[:0], kernel)
"""


# Expressions whose result is what a call writes beside its own: running statistics, out=, masks.
WRITTEN = """
written(lambda m: norm(image, m, spread3.clone(), training=True, momentum=0.7), weight3)
written(lambda v: norm(image, weight3.clone(), v, training=True, momentum=0.7), spread3)
written(lambda v: norm(image, weight3.clone(), v, training=True, momentum=0.0), spread3)
written(lambda v: norm(image, weight3.clone(), v, training=False, momentum=0.7), spread3)
written(lambda t: t.t().add_(1), x); written(lambda t: t[1:].mul_(2), x)
written(lambda t: t[:, ::2].fill_(7), x); written(lambda t: t.diagonal().zero_(), square)
written(lambda t: t[0].copy_(y[1]), x); written(lambda t: t.t()[1].copy_(y[:, 0]), x)
written(lambda t: t.t().masked_fill_(b.t(), 3), x); written(lambda t: t[at].add_(1), x)
written(lambda t: t.t().index_fill_(0, at, 3), x); written(lambda t: t[:, 1:].clamp_(0, 1), x)
written(lambda t: t.t().index_add_(0, at, y.t()[:3]), x); written(lambda t: t[1].exp_(), x)
written(lambda t: t.t().scatter_(0, at2.t(), 5), x); written(lambda t: t[:, 2].neg_(), i8)
written(lambda t: t.tril_(-1), x); written(lambda t: t[:, ::2].sigmoid_(), x)
written(lambda t: t.t().cumsum_(0), x); written(lambda t: t[1:, 1:].lerp_(y[1:, 1:], 0.3), x)
written(lambda t: t.t().copy_(b.t()), x); written(lambda t: t[:, 1].logical_not_(), b)
written(lambda t: t[::2].floor_divide_(2), i32)
written(lambda t: torch.add(x, y, alpha=3, out=t), x)
written(lambda t: torch.mul(x, y, out=t), h)
written(lambda t: torch.add(x.t(), y.t(), out=t.t()), x)
written(lambda t: torch.sum(x, 0, out=t[1]), x)
written(lambda t: torch.mm(x, x.t(), out=t[1:, :3]), square)
written(lambda t: torch.eq(x, x, out=t), b)
written(lambda t: torch.sort(x, 0, out=(t, at2.clone())), y)
written(lambda t: torch.cat((x[:1], y[:2]), out=t), x)
written(lambda t: torch.max(x, -1, out=(t, at3.clone())), x[:, 0])
written(lambda t: torch.exp(p, out=t), x)
written(lambda t: torch.index_select(x, 0, at, out=t), y)
written(lambda t: torch.where(b, x, y, out=t), x)
written(lambda t: torch._foreach_add_([t[0], t[1], t[:, 2]], 1), x)
written(lambda t: torch._foreach_mul_([t[0], t[2]], [2.0, 3.0]), x)
written(lambda t: torch._foreach_addcmul_([t[0]], [y[0]], [y[1]], 2), x)
written(lambda t: torch._foreach_lerp_([t[1]], [y[0]], 0.3), x)
written(lambda t: torch._foreach_div_([t, t[0]], 2), x)
written(lambda t: torch._foreach_zero_([t[1]]), x)
written(lambda t: torch.nn.functional.relu(t, inplace=True), x)
written(lambda t: torch.nn.functional.leaky_relu_(t[:, 1:], 0.3), x)
written(lambda t: torch.nn.functional.hardtanh_(t[::2], -0.5, 0.5), x)
written(lambda t: torch.nn.functional.embedding(at, t, max_norm=0.5), x)
"""


def values() -> dict[str, torch.Tensor]:
    """Tensors by the names of the expressions, on the CPU."""
    step = torch.arange(12.0).view(3, 4)
    x, y = (step * 7 % 12 - 5.3) / 4, (step * 5 % 12 + 1.1) / 6
    whole = torch.arange(24).view(3, 8)
    odd = torch.tensor([[1.0, NAN, -0.0, 3.0], [INF, 2.0, 0.0, -INF], [-2.0, NAN, INF, 0.5]])
    signs = (torch.arange(216.0) * 37 % 101 - 50) / 20
    spd = torch.eye(4) * 5 + (step.new_tensor(range(16)).view(4, 4) % 5) / 4
    return {
        "x": x,
        "y": y,
        "most": torch.full((3, 4), 2**31 - 1, dtype=torch.int32),
        "p": x.abs() + 0.1,
        "negative": -signs.abs().view(2, 3, 6, 6) - 0.1,
        "spread3": torch.tensor([1.5, 2.0, 3.0]),
        "odd": odd,
        "b": whole[:, :4] * 5 % 3 == 0,
        "zeros": torch.zeros(3, 4),
        "i32": (whole * 7 % 24 - 11).int(),
        "i8": (whole[:, :4] * 11 % 23 - 11).to(torch.int8),
        "u8": (whole[:, :4] * 23 % 256).to(torch.uint8),
        "three": torch.tensor([3, 1, 2, 5, 3, 1, 7, 2]),
        "wide": (torch.arange(2100.0).view(3, 700) * 37 % 101 - 50) / 8,
        "long": (torch.arange(1500.0) * 37 % 101 - 50) / 50,
        "ties": torch.ones(3, 4).index_fill(1, torch.tensor([1]), 2),
        "empty": torch.zeros(0, 3),
        "none": torch.zeros(0),
        "none2": torch.zeros(0, 2),
        "h": x.half(),
        "bf": x.bfloat16(),
        "c": torch.complex(x, y),
        "q": torch.tensor([0.2, 0.9]),
        "halves": torch.tensor([[0.5, 1.5, 2.5, -0.5], [-1.5, 0.25, -2.5, 0.0]]),
        "low": torch.full((2, 3), -INF),
        "big": torch.tensor([[10000.0, 90.0, 1e30], [2e20, 100000.0, 0.0]]),
        "tiny": torch.tensor([1e-06, -1e-06, 1e-09, 0.0]),
        "unit": torch.tensor([[1.0, 0.5], [0.25, 0.999]]),
        "lowest": torch.tensor([-128, 127, 0, -1], dtype=torch.int8),
        "half": torch.full((1, 1), 0.5),
        "at": torch.tensor([2, 0, 1]),
        "at2": whole[:, :4] * 5 % 3,
        "at3": torch.tensor([1, 3, 0]),
        "same": torch.tensor([1, 1, 1]),
        "edges": torch.tensor([-1.0, 0.0, 0.5, 1.0]),
        "square": (torch.arange(16.0).view(4, 4) * 7 % 16 - 6) / 5,
        "spd": spd @ spd.t(),
        "cube": (torch.arange(24.0).view(2, 3, 4) * 7 % 24 - 11) / 8,
        "cubes": signs[:32].view(2, 4, 4),
        "image": signs.view(2, 3, 6, 6),
        "odd6": odd[:, :3].repeat(2, 2)[None, None].clone(),
        "image4": signs[:128].view(2, 4, 4, 4),
        "volume": signs[:64].view(1, 1, 4, 4, 4),
        "kernel": signs[40:148].view(4, 3, 3, 3)[:3],
        "weight3": torch.tensor([0.5, -1.0, 2.0]),
        "weight4": torch.tensor([0.5, -1.0, 2.0, 3.0]),
        "heads": signs[:48].view(1, 2, 4, 6),
        "grid": signs[:36].view(2, 3, 3, 2) / 3,
        "theta": x[:1, :3].repeat(2, 1)[None, :2],
        "mask": torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1) == 1, -INF),
    }
