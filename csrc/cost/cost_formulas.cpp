// SPDX-License-Identifier: BSD-3-Clause
// Operators whose account is not the default one. A rule gets the cost that the default made and
// changes what is different: the number of operations, or bytes of which not all, or some more than
// once, are moved. One table, by name without overload.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "csrc/cost/account.h"
#include "csrc/operands/sparse_members.h"

namespace torch_npusim {

namespace {

using Call = CostedCall;
using npusim::Cost;

// What one multiprocessor keeps on chip: rows up to this are read once, longer ones as often as the
// algorithm passes over them.
constexpr double kOnChipBytes = 64.0 * 1024;

double elements(const at::TensorBase& tensor) { return static_cast<double>(tensor.numel()); }
double log2_of(double n) { return n > 1 ? std::log2(n) : 1.0; }
double item_bytes(const at::TensorBase& tensor) { return static_cast<double>(tensor.itemsize()); }

bool is_read(const Call& call, std::size_t i) {
  return call.roles.empty() || call.roles[i] == OperandRole::read;
}

// The operands that are read, in order; undefined ones are left out.
c10::SmallVector<const at::TensorBase*, 8> inputs(const Call& call) {
  c10::SmallVector<const at::TensorBase*, 8> read;
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    if (is_read(call, i) && call.operands[i]->defined()) read.push_back(call.operands[i]);
  }
  return read;
}

// What the call is about: a new result, or the first argument that it writes to.
const at::TensorBase* output(const Call& call) {
  if (!call.results.empty()) return call.results[0];
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    if (!call.roles.empty() && call.roles[i] == OperandRole::written) return call.operands[i];
  }
  return call.operands.empty() ? nullptr : call.operands[0];
}

// --- Products ----------------------------------------------------------------------------------

// Elements that are stored.
double stored(const at::TensorBase& tensor) {
  if (tensor.layout() == at::kStrided) return elements(tensor);
  const at::Tensor whole(tensor);
  auto& impl = *tensor.unsafeGetTensorImpl();
  return whole.is_sparse() ? elements(static_cast<at::SparseTensorImpl&>(impl).values())
                           : elements(static_cast<at::SparseCsrTensorImpl&>(impl).values());
}

// What the rows of the factors and of the result let one load move, in elements; 0: all of
// kLoadBytes, or the product of a vector. The library copies a matrix that has no stride of 1.
double aligned_elements(const at::TensorBase& left, const at::TensorBase& right) {
  const int64_t whole = npusim::kLoadBytes / static_cast<int64_t>(left.itemsize());
  if (left.size(-2) == 1 || right.size(-1) == 1) return 0;
  int64_t least = std::gcd(whole, right.size(-1));
  for (const at::TensorBase* factor : {&left, &right}) {
    const int64_t along = factor->stride(-1);
    const int64_t across = factor->stride(-2);
    least = std::gcd(least, along == 1 ? across : across == 1 ? along : factor->size(-1));
  }
  return least < whole ? static_cast<double>(least) : 0;
}

// Without matrix units a tile is half as wide and half as high. A long sum is split where there are
// fewer tiles than multiprocessors.
double product_tiles(double batch, const at::TensorBase& left, double columns, bool on_units) {
  const double halves = on_units ? 1 : 2;
  const double tiles =
      npusim::tiles_of(batch, halves * static_cast<double>(left.size(-2)), halves * columns);
  if (!left.is_privateuseone() || tiles <= 0) return tiles;
  const auto units = npusim::device_spec(left.device().index()).multiprocessor_count;
  constexpr double kLong = 256;
  const double most = std::floor(static_cast<double>(left.size(-1)) / kLong);
  return tiles * std::max(1.0, std::min(most, std::floor(static_cast<double>(units) / tiles)));
}

// The factors are the last two inputs: (.., m, k) and (.., k, n).
void product(const Call& call, Cost& cost) {
  const auto read = inputs(call);
  if (read.size() < 2) return;
  const at::TensorBase& left = *read[read.size() - 2];
  const bool batched = left.layout() == at::kStrided && left.dim() > 2 && left.size(0) > 1;
  do_on_matrix_units(cost, batched ? npusim::Work::batched_matmul : npusim::Work::matmul, left);
  // A product with beta=0 does not read its addend.
  if (call.zero && call.operands.size() > 2) cost.bytes -= touched_bytes(*call.operands[0]);
  const at::TensorBase& right = *read.back();
  if (left.layout() == at::kStrided && right.layout() != at::kStrided) {
    cost.flops = 2.0 * stored(right) * static_cast<double>(left.size(-2));
    return;
  }
  const double columns = right.dim() < 2 ? 1.0 : static_cast<double>(right.size(-1));
  cost.flops = 2.0 * stored(left) * columns;
  if (left.dim() < 2) return;
  const double batch = left.dim() > 2 ? static_cast<double>(left.size(0)) : 1.0;
  const bool on_units = npusim::on_matrix_units(cost.precision);
  cost.tiles = product_tiles(batch, left, columns, on_units);
  const bool matrices = left.layout() == at::kStrided && right.dim() > 1;
  if (matrices && on_units) cost.aligned = aligned_elements(left, right);
}

// (.., m, k) and a second operand of any layout for (.., k, n); scales and biases follow.
void scaled_product(const Call& call, Cost& cost) {
  const at::TensorBase& out = *output(call);
  if (call.operands.size() < 2 || out.dim() < 1) return;
  do_on_matrix_units(cost, npusim::Work::matmul, *call.operands[0]);
  cost.flops = 2.0 * elements(*call.operands[0]) * static_cast<double>(out.size(-1));
}

// Groups of rows, of columns or of both: each element of the result is a sum over k, which two
// matrices share out among the groups.
void grouped_product(const Call& call, Cost& cost) {
  const at::TensorBase& out = *output(call);
  if (call.operands.size() < 2 || call.operands[0]->dim() < 2) return;
  const at::TensorBase& left = *call.operands[0];
  do_on_matrix_units(cost, npusim::Work::matmul, left);
  const bool shared = left.dim() == 2 && call.operands[1]->dim() == 2 && out.dim() == 3;
  const double groups = shared ? std::max<double>(1, static_cast<double>(out.size(0))) : 1;
  cost.flops = 2.0 * elements(out) * static_cast<double>(left.size(-1)) / groups;
}

// Convolutions that are called by the name of their algorithm: a product of the weight's size for
// each position, and pass, of the result, the input or the gradient.
enum class Positions : std::uint8_t { result, input, gradient };
template <Positions at>
void window_product(const Call& call, Cost& cost) {
  constexpr std::size_t second = at == Positions::gradient ? 2 : 1;
  if (call.operands.size() <= second) return;
  const at::TensorBase& weight = *call.operands[second];
  if (weight.dim() == 0 || weight.size(0) == 0) return;
  do_on_matrix_units(cost, npusim::Work::convolution, weight);
  const at::TensorBase& walked = at == Positions::result ? *output(call) : *call.operands[0];
  double passes = 1;
  if (at == Positions::gradient) {  // of the input, of the weight
    passes = 0;
    for (const at::TensorBase* made : call.results) passes += made->dim() > 1 ? 1 : 0;
  }
  cost.flops =
      2.0 * passes * elements(walked) * elements(weight) / static_cast<double>(weight.size(0));
}

// Self-attention of (batch, time, width) whose matrices are the operands `matrices`, each applied
// to every row, in one command.
template <std::size_t... matrices>
void attention_layer(const Call& call, Cost& cost) {
  const at::TensorBase& in = *call.operands[0];
  if (call.operands.size() <= std::max({matrices...}) || in.dim() != 3 || in.numel() == 0) return;
  do_on_matrix_units(cost, npusim::Work::matmul, in);
  const double rows = static_cast<double>(in.size(0) * in.size(1));
  cost.flops = 2.0 * rows * (elements(*call.operands[matrices]) + ...);
  cost.flops += 4.0 * elements(in) * static_cast<double>(in.size(1));
}

void outer_product(const Call& call, Cost& cost) { cost.flops = 2.0 * elements(*output(call)); }

// Three operations per difference of two coordinates.
template <int passes>
void distances(const Call& call, Cost& cost) {
  const auto read = inputs(call);
  const at::TensorBase& points = *read[passes == 1 ? 0 : 1];
  const double pairs = elements(passes == 1 ? *output(call) : *read[0]);
  if (points.dim() > 0) cost.flops = 3.0 * passes * pairs * static_cast<double>(points.size(-1));
}

// A layer of oneDNN's: input (time, batch, features), weights (gates * hidden, features or hidden).
template <int passes>
void recurrent_layer(const Call& call, Cost& cost) {
  const auto read = inputs(call);
  if (read.size() < 3 || read[0]->dim() != 3) return;
  const double rows = static_cast<double>(read[0]->size(0) * read[0]->size(1));
  cost.flops = 2.0 * passes * rows * (elements(*read[1]) + elements(*read[2]));
  do_on_matrix_units(cost, npusim::Work::matmul, *read[0]);
}

// --- Linear algebra: operations of the usual dense algorithms -----------------------------------

struct Matrix {
  double batch, m, n, k;  // (.., m, n), and k columns of the right-hand side
};
template <auto operations>
void matrices(const Call& call, Cost& cost) {
  const auto read = inputs(call);
  if (read.empty() || read[0]->dim() < 2) return;
  const at::TensorBase& a = *read[0];
  const double m = static_cast<double>(a.size(-2));
  const double n = static_cast<double>(a.size(-1));
  if (m * n == 0) return;
  double columns = 1;
  if (read.size() > 1 && read[1]->dim() == a.dim()) {
    columns = static_cast<double>(read[1]->size(-1));
  }
  cost.flops = operations(Matrix{elements(a) / (m * n), m, n, columns});
}
double lu(const Matrix& a) {
  const double s = std::min(a.m, a.n);
  return a.batch * (2 * a.m * a.n * s - (a.m + a.n) * s * s + 2 * s * s * s / 3);
}
double cholesky(const Matrix& a) { return a.batch * a.n * a.n * a.n / 3; }
double cholesky_inverse(const Matrix& a) { return a.batch * 2 * a.n * a.n * a.n / 3; }
double inverse(const Matrix& a) { return a.batch * 2 * a.n * a.n * a.n; }
double lu_and_solve(const Matrix& a) { return lu(a) + a.batch * 2 * a.n * a.n * a.k; }
double two_triangles(const Matrix& a) { return a.batch * 2 * a.m * a.m * a.k; }
double householder(const Matrix& a) {
  const double s = std::min(a.m, a.n);
  return a.batch * (2 * std::max(a.m, a.n) * s * s - 2 * s * s * s / 3);
}
double qr(const Matrix& a) { return 2 * householder(a); }  // the factorization, and Q
double eigh(const Matrix& a) { return a.batch * 9 * a.n * a.n * a.n; }
double eig(const Matrix& a) { return a.batch * 25 * a.n * a.n * a.n; }
double svd(const Matrix& a) {
  const double s = std::min(a.m, a.n);
  return a.batch * (14 * std::max(a.m, a.n) * s * s + 8 * s * s * s);
}
double matrix_exp(const Matrix& a) { return a.batch * 14 * a.n * a.n * a.n; }
// One triangle; the right-hand side is the second operand of this, the first of the older one.
void triangle(const Call& call, Cost& cost) {
  const auto read = inputs(call);
  if (read.size() < 2 || read[1]->dim() < 1) return;
  cost.flops = elements(*output(call)) * static_cast<double>(read[0]->size(-1));
}
// The factors are the last matrix, the right-hand side the first.
void solve_with_factors(const Call& call, Cost& cost) {
  const at::TensorBase& out = *output(call);
  if (out.dim() > 1) cost.flops = 2.0 * elements(out) * static_cast<double>(out.size(-2));
}

// --- Transforms and orders ----------------------------------------------------------------------

// 5 N log2 N for N complex numbers, half for real ones; one pass over memory per dimension. The
// dimensions are the first numbers of the call, `others` numbers follow.
template <int others, bool real>
void fourier(const Call& call, Cost& cost) {
  const at::TensorBase& in = *call.operands[0];
  const at::TensorBase& out = *output(call);
  const at::TensorBase& whole = in.numel() > out.numel() ? in : out;
  if (call.numbers.size() < static_cast<std::size_t>(others)) return;
  const std::size_t dims = call.numbers.size() - static_cast<std::size_t>(others);
  double length = 1;
  for (std::size_t d = 0; d < dims; ++d) {
    length *= static_cast<double>(whole.size(call.numbers[d]));
  }
  cost.flops = (real ? 2.5 : 5.0) * elements(whole) * log2_of(length);
  if (dims > 1) {
    cost.bytes += static_cast<double>(dims - 1) * 2.0 * elements(out) * item_bytes(out);
  }
}

// n log2 n comparisons per row. Rows that stay on chip are moved once; of longer ones each of the
// keys' bytes takes a pass over keys and indices.
void sorted(const Call& call, Cost& cost) {
  const at::TensorBase& in = *call.operands[0];
  const bool whole = call.numbers.empty() || in.dim() == 0;
  const double n = whole ? elements(in) : static_cast<double>(in.size(call.numbers[0]));
  cost.flops = elements(in) * log2_of(n);
  const double pair = item_bytes(in) + 8;
  if (n * pair > kOnChipBytes) cost.bytes = item_bytes(in) * 2 * elements(in) * pair;
}
// All elements as one row.
void sorted_flat(const Call& call, Cost& cost) {
  sorted({call.operands, call.roles, {}, call.results}, cost);
}

void selected(const Call& call, Cost& cost) {
  const at::TensorBase& in = *call.operands[0];
  const double k = call.numbers.empty() ? 2.0 : static_cast<double>(call.numbers[0]);
  cost.flops = elements(in) * log2_of(k);
}

// --- Several passes over long rows --------------------------------------------------------------

// Normalised over dimension `dim`, the first number of the call: `more` further passes over each
// input whose row does not stay on chip.
template <int more, int flops>
void row_passes(const Call& call, Cost& cost) {
  const at::TensorBase& in = *call.operands[0];
  cost.work = npusim::Work::normalization;
  cost.flops = flops * elements(in);
  if (in.dim() == 0 || call.numbers.empty()) return;
  const double row = static_cast<double>(in.size(call.numbers[0])) * item_bytes(in);
  if (row <= kOnChipBytes) return;
  for (const at::TensorBase* operand : inputs(call)) cost.bytes += more * touched_bytes(*operand);
}

// Normalised over everything but channels: statistics first, then the values, so that each large
// input is read twice. In evaluation the statistics are known.
template <int training, int evaluation = 0>
void batch_passes(const Call& call, Cost& cost) {
  const double all = elements(*call.operands[0]);
  cost.work = npusim::Work::normalization;
  if (evaluation != 0 && !call.flag) {
    cost.flops = evaluation * all;
    return;
  }
  cost.flops = training * all;
  for (const at::TensorBase* operand : inputs(call)) {
    if (elements(*operand) == all) cost.bytes += touched_bytes(*operand);
  }
}
// Layers and groups: a row is the product of the normalised dimensions.
template <int flops>
void per_element(const Call& call, Cost& cost) {
  cost.work = npusim::Work::normalization;
  cost.flops = flops * elements(*call.operands[0]);
}

// --- Rows by index ------------------------------------------------------------------------------

// Bytes of `count` elements that come in runs of `run` of them.
double in_runs(double count, double run, double item) {
  return count / run * std::ceil(run * item / kSectorBytes) * kSectorBytes;
}

double inner_elements(const at::TensorBase& tensor, int64_t dim) {
  if (tensor.dim() == 0) return 1;
  const int64_t wrapped = dim < 0 ? dim + tensor.dim() : dim;
  double run = 1;
  for (int64_t d = wrapped + 1; d < tensor.dim(); ++d) run *= static_cast<double>(tensor.size(d));
  return run;
}

// Replaces what the default charged for operand `i` by `bytes`.
void instead_of(const Call& call, std::size_t i, double bytes, Cost& cost) {
  cost.bytes += bytes - touched_bytes(*call.operands[i]);
}

// embedding(weight, indices): rows of the last dimension.
void embedding(const Call& call, Cost& cost) {
  const at::TensorBase& weight = *call.operands[0];
  const double rows = elements(*call.operands[1]);
  const double width = static_cast<double>(weight.size(-1));
  instead_of(call, 0, in_runs(rows * width, width, item_bytes(weight)), cost);
  cost.flops = rows * width;
}
// Adds the rows of the gradient to those of the result, which is filled before.
void embedding_backward(const Call& call, Cost& cost) {
  const at::TensorBase& grad = *call.operands[0];
  const double width = static_cast<double>(grad.size(-1));
  cost.bytes += 2 * in_runs(elements(grad), width, item_bytes(grad));
  cost.flops = elements(grad);
}
void index_select(const Call& call, Cost& cost) {
  const at::TensorBase& out = *output(call);
  const double run = call.numbers.empty() ? 1 : inner_elements(*call.operands[0], call.numbers[0]);
  instead_of(call, 0, in_runs(elements(out), run, item_bytes(out)), cost);
  cost.flops = elements(out);
}
// gather() and take(): each element lies somewhere else.
void gather(const Call& call, Cost& cost) {
  const at::TensorBase& out = *output(call);
  instead_of(call, 0, in_runs(elements(out), 1, item_bytes(out)), cost);
  cost.flops = elements(out);
}
// The elements that one set of indices chooses lie together from the last indexed dimension on; its
// number is that of the call.
double chosen_run(const Call& call) {
  const at::TensorBase& self = *call.operands[0];
  int64_t covered = call.numbers.empty() ? 0 : call.numbers[0];
  for (std::size_t i = 0; i < call.roles.size(); ++i) {
    const bool mask =
        call.roles[i] == OperandRole::index && call.operands[i]->scalar_type() == at::kBool;
    if (mask) covered += call.operands[i]->dim() - 1;
  }
  double run = 1;
  for (int64_t d = covered; d < self.dim(); ++d) run *= static_cast<double>(self.size(d));
  return run;
}
void index(const Call& call, Cost& cost) {
  const at::TensorBase& out = *output(call);
  const double run = std::max(1.0, chosen_run(call));
  instead_of(call, 0, in_runs(elements(out), run, item_bytes(out)), cost);
  cost.flops = elements(out);
}
// `count` elements of the first operand in runs: read, if they are added to, and written. Not in
// place the whole is copied first, which the default has charged.
void changed(const Call& call, double count, double run, bool adds, Cost& cost) {
  const at::TensorBase& self = *call.operands[0];
  if (call.results.empty()) cost.bytes -= 2 * touched_bytes(self);
  cost.bytes += in_runs(count, std::max(run, 1.0), item_bytes(self)) * (adds ? 2 : 1);
  cost.flops = count;
}
template <bool adds>
void scatter(const Call& call, Cost& cost) {
  changed(call, elements(*call.operands[1]), 1, adds, cost);
}
// index_add(self, dim, index, ..) and its like: whole rows.
template <bool adds>
void scatter_rows(const Call& call, Cost& cost) {
  const at::TensorBase& self = *call.operands[0];
  if (call.numbers.empty() || self.dim() == 0 || self.numel() == 0) return;
  const double rows = elements(*call.operands[1]) / static_cast<double>(self.size(call.numbers[0]));
  changed(call, rows * elements(self), inner_elements(self, call.numbers[0]), adds, cost);
}
void index_put(const Call& call, Cost& cost) {
  double places = 0;
  for (std::size_t i = 1; i < call.operands.size(); ++i) {
    if (call.roles[i] == OperandRole::index) {
      places = std::max(places, elements(*call.operands[i]));
    }
  }
  const double run = chosen_run(call);
  changed(call, places * run, run, /*adds=*/false, cost);
}
// Losses of classes: of each row one element.
void chosen_class(const Call& call, Cost& cost) {
  const at::TensorBase& self = *call.operands[0];
  const double rows = elements(*call.operands[1]);
  instead_of(call, 0, in_runs(rows, 1, item_bytes(self)), cost);
  cost.flops = rows;
}
// Its gradient: filled with zeros, then one element of each row.
void chosen_class_backward(const Call& call, Cost& cost) {
  if (call.operands.size() < 3) return;
  const at::TensorBase& self = *call.operands[1];
  const double rows = elements(*call.operands[2]);
  instead_of(call, 1, in_runs(rows, 1, item_bytes(self)), cost);
  cost.flops = rows;
}

const std::unordered_map<std::string, CostFormula>& rules() {
  static const auto* table = new std::unordered_map<std::string, CostFormula>{
      {"mm", product},
      {"bmm", product},
      {"addmm", product},
      {"addmm_", product},
      {"_addmm_activation", product},
      {"addbmm", product},
      {"addbmm_", product},
      {"baddbmm", product},
      {"baddbmm_", product},
      {"addmv", product},
      {"addmv_", product},
      {"mv", product},
      {"dot", product},
      {"vdot", product},
      {"_int_mm", product},
      {"_sparse_mm", product},
      {"_sparse_addmm", product},
      {"sspaddmm", product},
      {"_grouped_mm", grouped_product},
      {"_scaled_mm", scaled_product},
      {"_scaled_mm_v2", scaled_product},
      {"_weight_int8pack_mm", scaled_product},
      {"_weight_int4pack_mm_for_cpu", scaled_product},
      {"_slow_conv2d_forward", window_product<Positions::result>},
      {"slow_conv3d_forward", window_product<Positions::result>},
      {"slow_conv_dilated2d", window_product<Positions::result>},
      {"slow_conv_dilated3d", window_product<Positions::result>},
      {"slow_conv_transpose2d", window_product<Positions::input>},
      {"slow_conv_transpose3d", window_product<Positions::input>},
      {"_slow_conv2d_backward", window_product<Positions::gradient>},
      {"_native_multi_head_attention", attention_layer<3, 5>},
      {"_transformer_encoder_layer_fwd", attention_layer<1, 3, 9, 11>},
      {"addr", outer_product},
      {"addr_", outer_product},
      {"_cdist_forward", distances<1>},
      {"_euclidean_dist", distances<1>},
      {"_pdist_forward", distances<1>},
      {"_cdist_backward", distances<2>},
      {"mkldnn_rnn_layer", recurrent_layer<1>},
      {"mkldnn_rnn_layer_backward", recurrent_layer<2>},

      {"linalg_cholesky_ex", matrices<cholesky>},
      {"cholesky", matrices<cholesky>},
      {"linalg_ldl_factor_ex", matrices<cholesky>},
      {"cholesky_inverse", matrices<cholesky_inverse>},
      {"linalg_lu_factor_ex", matrices<lu>},
      {"linalg_lu", matrices<lu>},
      {"_linalg_det", matrices<lu>},
      {"_linalg_slogdet", matrices<lu>},
      {"linalg_inv_ex", matrices<inverse>},
      {"_linalg_solve_ex", matrices<lu_and_solve>},
      {"linalg_qr", matrices<qr>},
      {"geqrf", matrices<householder>},
      {"linalg_householder_product", matrices<householder>},
      {"linalg_lstsq", matrices<qr>},
      {"_linalg_eigh", matrices<eigh>},
      {"linalg_eig", matrices<eig>},
      {"_linalg_svd", matrices<svd>},
      {"linalg_matrix_exp", matrices<matrix_exp>},
      {"linalg_ldl_solve", matrices<two_triangles>},
      {"linalg_solve_triangular", triangle},
      {"triangular_solve", triangle},
      {"linalg_lu_solve", solve_with_factors},
      {"cholesky_solve", solve_with_factors},
      {"_cholesky_solve_helper", solve_with_factors},

      {"_fft_c2c", fourier<1, false>},
      {"_fft_r2c", fourier<1, true>},
      {"_fft_c2r", fourier<2, true>},
      {"sort", sorted},
      {"argsort", sorted},
      {"mode", sorted},
      {"_unique", sorted_flat},
      {"_unique2", sorted_flat},
      {"topk", selected},
      {"kthvalue", selected},

      {"_softmax", row_passes<1, 3>},
      {"_log_softmax", row_passes<1, 3>},
      {"_softmax_backward_data", row_passes<1, 3>},
      {"_log_softmax_backward_data", row_passes<1, 3>},
      {"native_batch_norm", batch_passes<5, 2>},
      {"_native_batch_norm_legit", batch_passes<5, 2>},
      {"_batch_norm_with_update", batch_passes<5>},
      {"native_batch_norm_backward", batch_passes<8, 5>},
      {"native_layer_norm", per_element<5>},
      {"native_group_norm", per_element<5>},
      {"native_layer_norm_backward", per_element<8>},
      {"native_group_norm_backward", per_element<8>},

      {"embedding", embedding},
      {"embedding_dense_backward", embedding_backward},
      {"_embedding_bag", embedding},
      {"_embedding_bag_forward_only", embedding},
      {"index_select", index_select},
      {"gather", gather},
      {"take", gather},
      {"index", index},
      {"_index_put_impl_", index_put},
      {"index_copy", scatter_rows<false>},
      {"index_copy_", scatter_rows<false>},
      {"index_fill", scatter_rows<false>},
      {"index_fill_", scatter_rows<false>},
      {"index_add", scatter_rows<true>},
      {"index_add_", scatter_rows<true>},
      {"scatter", scatter<false>},
      {"scatter_", scatter<false>},
      {"scatter_add", scatter<true>},
      {"scatter_add_", scatter<true>},
      {"scatter_reduce", scatter<true>},
      {"scatter_reduce_", scatter<true>},
      {"nll_loss_forward", chosen_class},
      {"nll_loss_backward", chosen_class_backward},
  };
  return *table;
}

}  // namespace

CostFormula cost_formula(const std::string& name) {
  constexpr std::string_view space = "aten::";
  if (name.rfind(space, 0) != 0) return nullptr;
  const auto found = rules().find(name.substr(space.size()));
  return found == rules().end() ? nullptr : found->second;
}

}  // namespace torch_npusim
