// SPDX-License-Identifier: BSD-3-Clause
// LU factors without pivoting, which CUDA has and the CPU has not: Gaussian elimination, column by
// column. Bits: element (i, j) has the products of columns 0, 1, ... subtracted in this order, each
// product rounded and then the difference, before a division by the pivot. A zero pivot leaves its
// column undivided and is named in `info`; `pivots` says that no rows were exchanged.
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_lu_factor_ex.h>
#include <ATen/ops/linalg_lu_factor_ex_ops.h>
#include <ATen/ops/linalg_lu_ops.h>
#include <ATen/ops/lu_unpack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "csrc/routes/cpu_kernel.h"

namespace torch_npusim {

namespace {

using at::Tensor;
using Factors = std::tuple<Tensor, Tensor, Tensor>;

// Of one matrix of `rows` by `columns`, a column after the other in memory; returns `info`.
template <class Scalar>
int eliminate(Scalar* matrix, int64_t rows, int64_t columns) {
  int info = 0;
  for (int64_t j = 0; j < std::min(rows, columns); ++j) {
    Scalar* below = matrix + j * rows;
    const Scalar pivot = below[j];
    if (pivot == Scalar(0)) {
      if (info == 0) info = static_cast<int>(j) + 1;
    } else {
      for (int64_t i = j + 1; i < rows; ++i) below[i] /= pivot;
    }
    for (int64_t c = j + 1; c < columns; ++c) {
      Scalar* column = matrix + c * rows;
      const Scalar factor = column[j];
      for (int64_t i = j + 1; i < rows; ++i) {
        const Scalar product = below[i] * factor;
        column[i] -= product;
      }
    }
  }
  return info;
}

// `a` is on the CPU, and so are the results.
Factors factors_of(const Tensor& a) {
  const int64_t rows = a.size(-2), columns = a.size(-1), rank = std::min(rows, columns);
  const c10::IntArrayRef batch = a.sizes().slice(0, static_cast<std::size_t>(a.dim() - 2));
  const at::TensorOptions whole = a.options().dtype(at::kInt);
  Tensor by_column = a.mT().clone(at::MemoryFormat::Contiguous);
  Tensor info = at::zeros(batch, whole);
  const int64_t count = info.numel();
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES(a.scalar_type(), "lu_factor_cusolver", [&] {
    auto* matrices = by_column.mutable_data_ptr<scalar_t>();
    auto* infos = info.mutable_data_ptr<int>();
    for (int64_t n = 0; n < count; ++n) {
      infos[n] = eliminate(matrices + n * rows * columns, rows, columns);
    }
  });
  std::vector<int64_t> sizes = batch.vec();
  sizes.push_back(rank);
  Tensor pivots = at::arange(1, rank + 1, whole).expand(sizes).contiguous();
  return {by_column.mT(), pivots, info};
}

Factors lu_factor_ex(const Tensor& a, bool pivot, bool check_errors) {
  using Kernel = CpuKernel<at::_ops::linalg_lu_factor_ex>;
  if (pivot || a.dim() < 2) return Kernel::call(a, pivot, check_errors);
  const auto body = [](c10::DeviceIndex, CpuCall& call, const Tensor& matrices, bool, bool) {
    auto [lu, pivots, info] = factors_of(call.view(matrices, /*written=*/false));
    call.finish();
    return Factors{call.result(lu), call.result(pivots), call.result(info)};
  };
  Factors factors = Kernel::command(body, a, pivot, check_errors);
  if (check_errors) {
    at::_linalg_check_errors(std::get<2>(factors), "torch.linalg.lu_factor_ex", a.dim() == 2);
  }
  return factors;
}

Factors lu(const Tensor& a, bool pivot) {
  if (pivot || a.dim() < 2) return CpuKernel<at::_ops::linalg_lu>::call(a, pivot);
  const Factors factors = at::linalg_lu_factor_ex(a, /*pivot=*/false, /*check_errors=*/false);
  auto [unused, lower, upper] = at::lu_unpack(std::get<0>(factors), std::get<1>(factors),
                                              /*unpack_data=*/true, /*unpack_pivots=*/false);
  return {at::empty({0}, a.options()), lower, upper};
}

void put_into(Tensor& out, const Tensor& result) {
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
}

using Outs = std::tuple<Tensor&, Tensor&, Tensor&>;

Outs lu_factor_ex_out(const Tensor& a, bool pivot, bool check_errors, Tensor& lu, Tensor& pivots,
                      Tensor& info) {
  using Kernel = CpuKernel<at::_ops::linalg_lu_factor_ex_out>;
  if (pivot || a.dim() < 2) return Kernel::call(a, pivot, check_errors, lu, pivots, info);
  const Factors factors = lu_factor_ex(a, pivot, check_errors);
  put_into(lu, std::get<0>(factors));
  put_into(pivots, std::get<1>(factors));
  put_into(info, std::get<2>(factors));
  return {lu, pivots, info};
}

Outs lu_out(const Tensor& a, bool pivot, Tensor& p, Tensor& lower, Tensor& upper) {
  if (pivot || a.dim() < 2) {
    return CpuKernel<at::_ops::linalg_lu_out>::call(a, pivot, p, lower, upper);
  }
  const Factors factors = lu(a, pivot);
  put_into(p, std::get<0>(factors));
  put_into(lower, std::get<1>(factors));
  put_into(upper, std::get<2>(factors));
  return {p, lower, upper};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linalg_lu_factor_ex", &lu_factor_ex);
  m.impl("linalg_lu_factor_ex.out", &lu_factor_ex_out);
  m.impl("linalg_lu", &lu);
  m.impl("linalg_lu.out", &lu_out);
}

}  // namespace torch_npusim
