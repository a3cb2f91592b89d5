# SPDX-License-Identifier: BSD-3-Clause
"""Errors about dtypes name CUDA's kernels under the alias, and the CPU's for tensors of the CPU."""

import pytest
import torch

from torch_npusim import cuda_alias


def heard(call, device):
    with pytest.raises((NotImplementedError, RuntimeError)) as raised:
        call(device)
    return str(raised.value).partition("\n")[0]


def ones(device, dtype, *shape):
    return torch.ones(shape or (4, 4), dtype=dtype, device=device)


#: The CPU's name, CUDA's, and a call: by a suffix, by a row, by a row for one operator only.
KERNELS = {
    "acos": ("acos_vml_cpu", "acos_cuda", lambda d: ones(d, torch.float8_e4m3fn).acos()),
    "not": ("bitwise_not_cpu", "bitwise_not_cuda", lambda d: ones(d, torch.half).bitwise_not()),
    "mm": ("addmm_impl_cpu_", "addmm_cuda", lambda d: ones(d, torch.bool) @ ones(d, torch.bool)),
    "linear": (
        "compute_indices_weights_linear",
        "upsample_linear1d_out_frame",
        lambda d: torch.nn.functional.interpolate(ones(d, torch.int32, 1, 1, 4), 8, mode="linear"),
    ),
    "trilinear": (
        "compute_indices_weights_linear",
        "upsample_trilinear3d_out_frame",
        lambda d: torch.nn.functional.interpolate(
            ones(d, torch.int32, 1, 1, 4, 4, 4), 8, mode="trilinear"
        ),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_the_name_that_cuda_gives_it(name):
    cpu, cuda, call = KERNELS[name]
    assert f'"{cpu}" not implemented for' in heard(call, "cpu")
    with cuda_alias.scope():
        assert f'"{cuda}" not implemented for' in heard(call, "cuda")
        assert f'"{cpu}" not implemented for' in heard(
            call, "cpu"
        )  # the device's words are its own
    assert f'"{cpu}" not implemented for' in heard(call, "cpu")


def test_a_type_has_the_name_that_cuda_gives_it():
    def call(device):
        return torch.nn.functional.embedding(
            ones(device, torch.float, 2), ones(device, torch.float)
        )

    with cuda_alias.scope():
        assert "got torch.cuda.FloatTensor instead" in heard(call, "cuda")
    assert "got torch.FloatTensor instead" in heard(call, "cpu")


#: Calls that an H100 takes and the CPU does not, and the result's dtype.
MOVED = {
    "gather": lambda x: x.gather(0, torch.zeros(2, 2, dtype=torch.long, device=x.device)),
    "flip": lambda x: x.flip(0),
    "index_select": lambda x: x.index_select(0, torch.tensor([1], device=x.device)),
    "pixel_shuffle": lambda x: torch.pixel_shuffle(x[None, None].expand(1, 4, 2, 2), 2),
    "channel_shuffle": lambda x: torch.channel_shuffle(x[None, :, :, None].contiguous(), 2),
}


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn, torch.complex32], ids=str)
@pytest.mark.parametrize("name", MOVED)
def test_what_only_moves_takes_each_dtype(name, dtype):
    numbers = torch.tensor([[1.0, 2.0], [3.0, 0.5 if dtype.is_floating_point else 4.0]])
    wide = torch.complex64 if dtype.is_complex else torch.float32
    expected = MOVED[name](numbers.to(wide))
    with cuda_alias.scope():
        found = MOVED[name](numbers.to(dtype).to("cuda"))
        assert found.dtype == dtype
        torch.testing.assert_close(found.cpu().to(wide), expected, rtol=0, atol=0)


#: Calls that the CPU takes and an H100 refuses, and its words.
REFUSED = {
    "mul": (torch.uint16, lambda x: x * x, "mul_cuda"),
    "and": (torch.uint16, lambda x: x & x, "bitwise_and_cuda"),
    "roll": (torch.float8_e4m3fn, lambda x: x.roll(1, 0), "roll_cuda"),
    "mm": (torch.float8_e4m3fn, lambda x: x @ x, "addmm_cuda"),
    "sort": (torch.uint16, lambda x: x.sort(), "sortKeyValueInplace"),
    "pool": (torch.int32, lambda x: torch.nn.functional.adaptive_avg_pool3d(x[None, None], 2),
             "adaptive_avg_pool3d_cuda"),
    "aminmax": (torch.uint16, lambda x: x.aminmax(), "aminmax_all_cuda"),
    "aminmax of rows": (torch.uint16, lambda x: x.aminmax(dim=0), "aminmax_cuda"),
    "median": (torch.uint16, lambda x: x.median(), "where_cuda"),
    "root mean squares": (torch.int32, lambda x: torch.nn.functional.rms_norm(x, (4,)),
                          "LayerNormKernelImpl"),
    "statistics": (torch.int32, lambda x: torch.native_batch_norm(
        x, None, None, None, None, True, 0.1, 1e-5), "batch_norm_stats_cuda"),
    "no statistics": (torch.int32, lambda x: torch.native_batch_norm(
        x, None, None, x[0], x[0], False, 0.1, 1e-5), "batch_norm_invert_std_cuda"),
    "one system": (torch.half, lambda x: torch.linalg.solve(x, x), "lu_factor_cusolver"),
    "several systems": (torch.half, lambda x: torch.linalg.solve(x[None], x[None]),
                        "lu_factor_magma_batched"),
    "a mask": (torch.uint16, lambda x: torch.ops.aten.native_dropout_backward(
        x, x.bool(), 2.0), "masked_scale"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_that_was_heard(name):
    dtype, call, kernel = REFUSED[name]
    with cuda_alias.scope():
        said = heard(lambda d: call(ones(d, dtype)), "cuda")
    assert said.startswith(f'"{kernel}" not implemented for')


def test_integers_have_no_convolution():
    def call(dtype):
        with cuda_alias.scope():
            return heard(
                lambda d: torch.nn.functional.conv2d(
                    ones(d, dtype, 1, 1, 4, 4), ones(d, dtype, 1, 1, 2, 2)
                ),
                "cuda",
            )

    assert call(torch.int32) == "GET was unable to find an engine to execute this computation"
    assert call(torch.int16) == "getCudnnDataTypeFromScalarType() not supported for Short"


#: Layers of cuDNN, what it says of integers, and of bytes.
CUDNN = "getCudnnDataTypeFromScalarType() not supported for Long"
BYTES = "TensorDescriptor does not support Byte"


@pytest.mark.parametrize(("dtype", "words"), [(torch.int64, CUDNN), (torch.uint8, BYTES)], ids=str)
def test_integers_have_no_batch_norm(dtype, words):
    def call(device):
        x, number = ones(device, dtype, 2, 3, 4), ones(device, dtype, 3)
        torch.nn.functional.batch_norm(x, number, number, number, number, training=True)

    with cuda_alias.scope():
        assert heard(call, "cuda") == words


def test_a_text_has_the_type_of_a_tensor_as_cuda_calls_it():
    with cuda_alias.scope():
        said = heard(lambda d: ones(d, torch.float).pin_memory(), "cuda")
        assert said == "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
        said = heard(lambda d: ones(d, torch.int16, 64).stft(8, return_complex=True), "cuda")
    assert said.startswith("stft(torch.cuda.ShortTensor[")


def test_products_of_sampled_halves_come_back_as_halves():
    with cuda_alias.scope():
        sampled = ones("cuda", torch.half).to_sparse_csr()
        x = ones("cuda", torch.half)
        assert torch.sparse.sampled_addmm(sampled, x, x).dtype == torch.half


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_numbers_of_eight_bits_become_integers(dtype):
    with cuda_alias.scope():
        small = torch.tensor([1.0, -448.0, 3.5]).cuda().to(torch.float8_e4m3fn)
        assert small.to(dtype).cpu().tolist() == [1, -448, 3]


def test_integers_are_unpooled_by_their_indices():
    x = torch.tensor([[[1, 5, 2, 4]]])
    with cuda_alias.scope():
        values, places = torch.max_pool1d_with_indices(x.float().cuda(), 2)
        found = torch.nn.functional.max_unpool1d(values.long(), places, 2)
        assert found.cpu().tolist() == [[[0, 5, 0, 4]]]


def test_a_pointwise_kernel_refuses_a_dtype_before_it_looks_for_elements():
    with cuda_alias.scope():
        empty = torch.empty(0, dtype=torch.float8_e4m3fn, device="cuda")
        with pytest.raises(NotImplementedError, match="abs_cuda"):
            empty.abs()


def test_a_norm_of_one_element_is_its_size():
    with cuda_alias.scope():
        several = torch.ones(3, device="cuda").to(torch.float8_e4m3fn)
        with pytest.raises(NotImplementedError, match="norm_cuda"):
            torch.linalg.vector_norm(several)
        with pytest.raises(NotImplementedError, match="abs_cuda"):
            torch.linalg.vector_norm(several[0])


def test_half_complex_numbers_change_in_place():
    with cuda_alias.scope():
        x = torch.full((3,), 4, dtype=torch.complex32, device="cuda")
        assert x.sqrt_() is x
        assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
@pytest.mark.parametrize("name", ["layer", "batch"])
def test_norms_of_halves_hand_out_statistics_in_float32(name, dtype):
    def norm(x, weight):
        if name == "layer":
            return torch.native_layer_norm(x, [4], weight, weight, 1e-5)
        return torch.native_batch_norm(x, weight, weight, None, None, True, 0.1, 1e-5)

    x = torch.arange(12.0).view(3, 4).to(dtype)
    ours, theirs = [], []
    with cuda_alias.scope():
        for found, device in ((ours, "cuda"), (theirs, "cpu")):
            leaf = x.to(device).requires_grad_()
            weight = torch.ones(4, dtype=dtype, device=device, requires_grad=True)
            made = norm(leaf, weight)
            made[0].square().sum().backward()
            found += [*made, leaf.grad, weight.grad]
    assert [t.dtype for t in ours[:3]] == [dtype, torch.float32, torch.float32]
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.detach().cpu().to(other.dtype), other.detach())


@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_the_operators_behind_it(causal):
    query, key = (torch.randn(2, n, 3, 8, dtype=torch.half) for n in (4, 6))
    mask = torch.ones(4, 6, dtype=torch.bool).tril(6 - 4) if causal else None
    heads_first = (t.transpose(1, 2) for t in (query, key, key))
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=mask)
    with cuda_alias.scope():
        q, k = query.cuda(), key.cuda()
        flash = torch.ops.aten._flash_attention_forward(
            q, k, k, None, None, 4, 6, 0.0, causal, False
        )
        efficient = torch.ops.aten._efficient_attention_forward(
            q, k, k, None, None, None, None, None, 0.0, 2 if causal else 0, True
        )
        for made in (flash[0], efficient[0]):
            torch.testing.assert_close(made.cpu().transpose(1, 2), expected, atol=2e-3, rtol=2e-3)
        assert [t.dtype for t in flash[1:4]] == [torch.float32, torch.uint64, torch.uint64]
        with pytest.raises(NotImplementedError, match="has no window_size_left"):
            torch.ops.aten._flash_attention_forward(
                q, k, k, None, None, 4, 6, 0.0, causal, False, window_size_left=2
            )


def test_nothing_is_refused_where_nothing_is_launched():
    with cuda_alias.scope():
        x = torch.ones(0, 4, 4, 4, dtype=torch.int32, device="cuda")
        assert torch.nn.functional.adaptive_avg_pool3d(x, 2).dtype == torch.int32
