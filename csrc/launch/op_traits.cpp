// SPDX-License-Identifier: BSD-3-Clause
// Traits of operators, and the checks of their operands.
#include "csrc/launch/op_traits.h"

#include <array>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "csrc/operands/alignment.h"
#include "csrc/runtime/cuda_names.h"
#include "csrc/runtime/storage.h"

namespace torch_npusim {

namespace {

// Which host scalars CUDA takes follows from native_functions.yaml (device_check), from the
// operator's iterator (allow_cpu_scalars) and from its loop; pointwise operators mostly take one.
// tests/ops/test_host_scalars.py has the sources and recomputes the first two.
constexpr std::array<std::string_view, 12> kTakesAll = {
    "aten::fill",          "aten::fill_",       "aten::masked_fill",      "aten::masked_fill_",
    "aten::index_fill",    "aten::index_fill_", "aten::_index_put_impl_", "aten::_fused_adam_",
    "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_",  "aten::where"};
// Not tagged as pointwise.
constexpr std::array<std::string_view, 12> kTakesOne = {
    "aten::copysign_", "aten::eq_", "aten::floor_divide", "aten::floor_divide_",
    "aten::ge_",       "aten::gt_", "aten::heaviside_",   "aten::le_",
    "aten::lt_",       "aten::ne_", "aten::rsub",         "aten::__irshift__"};
constexpr std::array<std::string_view, 4> kTakesThird = {"aten::addcmul", "aten::addcmul_",
                                                         "aten::lerp", "aten::lerp_"};
// Tagged as pointwise.
constexpr std::array<std::string_view, 26> kTakesNone = {"aten::addcdiv",
                                                         "aten::addcdiv_",
                                                         "aten::clamp",
                                                         "aten::clamp_",
                                                         "aten::clamp_max",
                                                         "aten::clamp_max_",
                                                         "aten::clamp_min",
                                                         "aten::clamp_min_",
                                                         "aten::equal",
                                                         "aten::gcd",
                                                         "aten::gelu_backward",
                                                         "aten::igamma",
                                                         "aten::igamma_",
                                                         "aten::igammac",
                                                         "aten::igammac_",
                                                         "aten::lcm",
                                                         "aten::logaddexp",
                                                         "aten::logaddexp2",
                                                         "aten::logit_backward",
                                                         "aten::nextafter",
                                                         "aten::nextafter_",
                                                         "aten::sigmoid_backward",
                                                         "aten::silu_backward",
                                                         "aten::tanh_backward",
                                                         "aten::threshold_backward",
                                                         "aten::native_dropout_backward"};

// Operators that document a host tensor among their arguments.
constexpr std::array<std::string_view, 4> kTakesHostTensor = {
    "aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::_ctc_loss_backward",
    "aten::_nested_from_padded"};

// Operators whose CPU kernel walks an operand that is expanded as if it were not, or as if its
// elements were wider, and reads the memory behind it (docs/reference/torch_faults.md).
constexpr std::array<std::string_view, 5> kReadsBehind = {
    "aten::gather", "aten::median", "aten::nanmedian", "aten::native_group_norm",
    "aten::native_group_norm_backward"};

// Operators whose results have a size that no values decide, but on CUDA the host reads a value:
// whether the decomposition has converged, how many elements are not zero, which degree a norm asks
// for; or it copies lists of the host.
constexpr std::array<std::string_view, 14> kReadsValue = {
    "aten::cholesky",
    "aten::_ctc_loss",
    "aten::_ctc_loss_backward",
    "aten::linalg_matrix_exp",
    "aten::_linalg_eigh",
    "aten::_linalg_svd",
    "aten::linalg_eig",
    "aten::_to_sparse",
    "aten::_to_sparse_csr",
    "aten::_to_sparse_csc",
    "aten::_to_sparse_bsr",
    "aten::_to_sparse_bsc",
    "aten::_nested_tensor_from_mask",
    "aten::_nested_tensor_from_mask_left_aligned"};

// In-place operators that do not look at what they replace.
constexpr std::array<std::string_view, 14> kOverwrites = {
    "aten::fill_",          "aten::zero_",         "aten::normal_", "aten::uniform_",
    "aten::exponential_",   "aten::geometric_",    "aten::cauchy_", "aten::log_normal_",
    "aten::random_",        "aten::bernoulli_",    "aten::copy_",   "aten::eye_",
    "aten::_foreach_zero_", "aten::_foreach_copy_"};

template <std::size_t N>
bool listed(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Whether the operator, whose name may have an overload's behind it, takes host scalars in these
// places among its tensors, if it takes any.
bool takes_host_scalars(std::string_view name, c10::ArrayRef<std::size_t> places) {
  name = name.substr(0, name.find('.'));
  if (listed(kTakesAll, name)) return true;
  return places.size() == 1 && (places[0] == 2 || !listed(kTakesThird, name));
}

// The dispatcher tells where a kernel was registered in its table for people only:
//   CPU: registered at /home/me/my_library.py:12 [kernel]
// Python code has other file names than sources of C++: also <stdin>, or a cell of a notebook.
bool made_in_python(const c10::OperatorHandle& op) {
  if (op.schema().name().rfind("aten::", 0) == 0) return false;
  const std::string table = "\n" + op.dumpComputedTable();
  constexpr std::string_view before = "\nCPU: registered at ";
  const std::size_t start = table.find(before);
  if (start == std::string::npos) return false;
  const std::size_t end = table.find(" [", start);
  const std::string place = table.substr(start + before.size(), end - start - before.size());
  const std::string file = place.substr(0, place.rfind(':'));
  const std::size_t dot = file.rfind('.');
  if (dot == std::string::npos) return file.find('<') == 0;
  constexpr std::string_view initials_of_cpp = "cChHm";
  return initials_of_cpp.find(file[dot + 1]) == std::string_view::npos;
}

// Whether the arguments that are written are those of an out= form.
bool only_writes(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (written && !argument.is_out()) return false;
  }
  return true;
}

std::unique_ptr<OpTraits> make_traits(const c10::OperatorHandle& op) {
  auto traits = std::make_unique<OpTraits>();
  const c10::FunctionSchema& schema = op.schema();
  traits->name = schema.name();
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.name() == "generator") traits->generator = traits->written.size();
    if (argument.name() == "output_size") traits->output_size = traits->written.size();
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const bool unsaid = traits->name == "aten::batch_norm_update_stats" &&
                        argument.name().compare(0, 8, "running_") == 0;
    traits->written.push_back(written || unsaid);
    traits->writes |= written;
  }
  traits->cost.formula = cost_formula(traits->name);
  traits->cost.pointwise = op.hasTag(at::Tag::pointwise);
  traits->cost.overwrites =
      listed(kOverwrites, traits->name) || (traits->writes && only_writes(schema));
  const bool pointwise = op.hasTag(at::Tag::pointwise) && !listed(kTakesNone, traits->name);
  if (pointwise || listed(kTakesAll, traits->name) || listed(kTakesOne, traits->name)) {
    traits->host_scalars = HostScalars::accepted;
  }
  traits->any_host_operand = listed(kTakesHostTensor, traits->name);
  traits->reads_values = op.hasTag(at::Tag::dynamic_output_shape) ||
                         op.hasTag(at::Tag::data_dependent_output) ||
                         listed(kReadsValue, traits->name);
  traits->indices = traits->name == "aten::index"              ? Indices::read
                    : traits->name == "aten::_index_put_impl_" ? Indices::written
                                                               : Indices::none;
  traits->reads_behind = listed(kReadsBehind, traits->name);
  traits->runs_python = made_in_python(op);
  traits->has_cpu_kernel = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  traits->return_count = schema.returns().size();
  traits->dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape);
  traits->only_in_place =
      traits->writes &&
      std::all_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& made) {
        return made.alias_info() != nullptr && made.alias_info()->isWrite();
      });
  traits->op = op;
  if (!schema.overload_name().empty()) traits->name += "." + schema.overload_name();
  return traits;
}

// Traits by the address of the schema. Those of a removed operator are retired: their counter
// stays, but a new schema at the same address must not find them.
class OpTable {
 public:
  OpTraits& find(const c10::OperatorHandle& op) {
    const void* key = &op.schema();
    thread_local Recent recent;
    const std::uint64_t now = removals_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(recent.removals != now)) recent = Recent{now, {}};
    auto& slot = recent.slots[(reinterpret_cast<std::uintptr_t>(key) >> 4) % recent.slots.size()];
    if (C10_LIKELY(slot.first == key)) return *slot.second;
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<OpTraits>& traits = traits_[key];
    if (traits == nullptr) traits = make_traits(op);
    slot = {key, traits.get()};
    return *traits;
  }

  void retire(const void* schema) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = traits_.find(schema);
    if (found == traits_.end()) return;
    retired_.push_back(std::move(found->second));
    traits_.erase(found);
    removals_.fetch_add(1, std::memory_order_release);
  }

  void for_each(c10::function_ref<void(OpTraits&)> visit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, traits] : traits_) visit(*traits);
    for (const auto& traits : retired_) visit(*traits);
  }

 private:
  struct Recent {  // the traits that a thread used last, as of so many removals
    std::uint64_t removals = 0;
    std::array<std::pair<const void*, OpTraits*>, 256> slots{};
  };

  std::mutex mutex_;  // guards the containers; the records themselves are never
                      // destroyed
  std::unordered_map<const void*, std::unique_ptr<OpTraits>> traits_;
  std::vector<std::unique_ptr<OpTraits>> retired_;
  std::atomic<std::uint64_t> removals_{0};
};

class RemovalListener final : public c10::OpRegistrationListener {
 public:
  explicit RemovalListener(OpTable& table) : table_(table) {}
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    table_.retire(&op.schema());
  }

 private:
  OpTable& table_;
};

OpTable& op_table() {
  // Never destroyed, nor is its listener: kernels may run during shutdown.
  static auto* table = [] {
    auto* made = new OpTable;
    static auto* listening =
        new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(
            std::make_unique<RemovalListener>(*made)));
    static_cast<void>(listening);
    return made;
  }();
  return *table;
}

}  // namespace

OpTraits& op_traits(const c10::OperatorHandle& op) { return op_table().find(op); }

void for_each_op(c10::function_ref<void(OpTraits&)> visit) { op_table().for_each(visit); }

namespace {

// Operators beside pointwise ones whose generated kernel leaves devices to the iterator
// (native_functions.yaml: device_check: NoCheck), as far as they take several tensors.
constexpr std::array<std::string_view, 15> kIteratorChecks = {"aten::_index_put_impl_",
                                                              "aten::masked_fill",
                                                              "aten::masked_fill_",
                                                              "aten::index_fill",
                                                              "aten::index_fill_",
                                                              "aten::where",
                                                              "aten::mse_loss",
                                                              "aten::smooth_l1_loss",
                                                              "aten::binary_cross_entropy",
                                                              "aten::dist",
                                                              "aten::copy_",
                                                              "aten::bernoulli_",
                                                              "aten::eq_",
                                                              "aten::floor_divide",
                                                              "aten::rsub"};

// Raises what CUDA's generated kernels say of the first tensor on another device than those before
// it, by the name of its argument (torchgen: c10::impl::check_and_update_common_device).
void refuse_in_words_of_cuda(const OpTraits& traits, TensorPointers tensors) {
  if (!is_called_cuda() || !traits.op.has_value() || traits.op->hasTag(at::Tag::pointwise)) return;
  const c10::FunctionSchema& schema = traits.op->schema();
  const bool is_list = schema.name().find("_foreach_") != std::string::npos ||
                       schema.name().find("_fused_") != std::string::npos;
  if (is_list || listed(kIteratorChecks, schema.name())) return;
  c10::SmallVector<const std::string*, 8> names;
  for (const c10::Argument& argument : schema.arguments()) {
    const auto& type = *argument.type();
    const bool list = type.isSubtypeOf(*c10::ListType::ofTensors());
    if (list) names.resize(tensors.size() - names.size(), &argument.name());
    if (type.isSubtypeOf(*c10::OptionalType::ofTensor())) names.push_back(&argument.name());
  }
  const auto other = std::find_if(tensors.begin(), tensors.end(), [&](const auto* tensor) {
    return tensor->device() != tensors[0]->device();
  });
  if (names.size() != tensors.size() || other == tensors.end()) return;
  const c10::Device ours = (tensors[0]->is_cpu() ? *other : tensors[0])->device();
  const std::string& overload = schema.overload_name();
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but got ",
              *names[static_cast<std::size_t>(other - tensors.begin())], " is on ",
              (*other)->device(), ", different from other tensors on ", tensors[0]->device(),
              " (when checking argument in method wrapper_CUDA_",
              overload.empty() ? "" : overload + "_", schema.name().substr(6),
              ")\nMove them with .to(\"", ours, "\").");
}

}  // namespace

c10::DeviceIndex CallOperands::device(const OpTraits& traits) const {
  if (C10_LIKELY(strict_align() == StrictAlign::off && on_one_device())) {
    return tensors_[0]->device().index();
  }
  c10::SmallVector<const at::TensorBase*, 8> checked;
  c10::SmallVector<std::size_t, 4> on_host;
  bool on_device = false;
  HostScalars host_scalars = traits.host_scalars;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const at::TensorBase& tensor = *tensors_[i];
    const bool ours = tensor.is_privateuseone();
    on_device |= ours;
    if (tensor.is_cpu() && roles_[i] == Role::written) host_scalars = HostScalars::refused;
    // CUDA moves host indices to the device, and some operators want a host tensor, never first.
    if (!ours && (roles_[i] == Role::index || (traits.any_host_operand && i > 0))) continue;
    if (!ours) on_host.push_back(i);
    checked.push_back(&tensor);
  }
  if (!on_host.empty() && !takes_host_scalars(traits.name, on_host)) {
    host_scalars = HostScalars::refused;
  }
  const bool drawn = traits.generator.has_value() && !on_host.empty();  // which is refused
  if (on_device && !on_host.empty() && host_scalars == HostScalars::refused) {
    refuse_in_words_of_cuda(traits, tensors_);
  }
  if (on_device || drawn) return common_device(traits.name.c_str(), checked, host_scalars);
  const c10::Device device = device_argument_.value_or(c10::Device(c10::kPrivateUse1));
  return device.has_index() ? device.index()
                            : static_cast<c10::DeviceIndex>(npusim::current_device());
}

bool CallOperands::on_one_device() const {
  if (tensors_.empty()) return false;
  const c10::Device first = tensors_[0]->device();
  if (!first.is_privateuseone()) return false;
  for (const at::TensorBase* tensor : tensors_) {
    if (tensor->device() != first || !within_storage(*tensor)) return false;
  }
  return true;
}

bool CallOperands::waits(const OpTraits& traits) const {
  if (C10_LIKELY(traits.indices == Indices::none)) {
    if (C10_LIKELY(!traits.reads_values) || size_is_known_) return false;
    // Decompositions of nothing return before they look at anything.
    return tensors_.empty() || tensors_[0]->numel() > 0 ||
           traits.name.find("linalg") == std::string::npos;
  }
  // CUDA turns a mask into indices, unless one value is put: that is masked_fill. Indices of the
  // host are copied to the device, those of a host mask without waiting.
  const bool one_value = traits.indices == Indices::written && tensors_.back()->numel() == 1;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (roles_[i] != Role::index) continue;
    const at::ScalarType dtype = tensors_[i]->scalar_type();
    const bool mask = dtype == at::kBool || dtype == at::kByte;
    if (mask ? tensors_[i]->is_privateuseone() && !one_value : tensors_[i]->is_cpu()) return true;
  }
  return false;
}

bool CallOperands::all_dense() const {
  for (const at::TensorBase* tensor : tensors_) {
    if (!tensor->key_set().has_any(c10::DispatchKeySet(c10::DispatchKey::Dense))) return false;
  }
  return !tensors_.empty();
}

}  // namespace torch_npusim
