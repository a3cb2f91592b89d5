// SPDX-License-Identifier: BSD-3-Clause
// The kernel in front of those that have rules, and its registration.
#include "csrc/cuda_rules/cuda_rules.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "backend/backend.h"
#include "csrc/cuda_rules/device_asserts.h"
#include "csrc/cuda_rules/norm_statistics.h"

namespace torch_npusim {

namespace {

using Verdict = CudaRule::Verdict;
using torch::jit::Stack;

// The operators of Fourier transforms are composites above these, which know the sizes.
thread_local bool t_half_fft = false;

// Whether this thread runs the kernel of an operator that has rules: what that calls is its affair.
thread_local bool t_inside = false;

// Sets a flag of this thread, if `on`, for its own length.
class Raised {
 public:
  Raised(bool& flag, bool on) : flag_(flag), before_(flag) { flag_ |= on; }
  ~Raised() { flag_ = before_; }
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;

 private:
  bool& flag_;
  bool before_;
};

at::ScalarType dtype_named(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "float64") return at::kDouble;
  if (name == "complex64") return at::kComplexFloat;
  if (name == "uint8") return at::kByte;
  TORCH_CHECK(name == "int64", "rules: no wider dtype ", name);
  return at::kLong;
}

// The key of the kind of tensors that a row names, or of dense ones.
c10::DispatchKey kind_key(const std::string& when) {
  if (when == "Sparse") return c10::DispatchKey::SparsePrivateUse1;
  if (when == "SparseCsr") return c10::DispatchKey::SparseCsrPrivateUse1;
  return c10::DispatchKey::PrivateUse1;
}

bool is_kind(const std::string& when) { return kind_key(when) != c10::DispatchKey::PrivateUse1; }

// A row, with the argument that it is about.
struct Rule {
  CudaRule row;
  std::size_t argument = 0;  // position, if row.when is not empty
  bool is_not = false;       // != instead of =
  bool resizes = false;      // "output_size resizes": another size than the operand's
  std::vector<std::string> values;
  // "self.size(0)<=16" and "self.size(1)%8": a size that is too small, or no multiple;
  // "self.dim()>24": too many dimensions.
  enum class Size : std::uint8_t { none, at_most, no_multiple, dims } size = Size::none;
  int64_t dim = 0;
  int64_t number = 0;
};

// Reads "self.size(0)<=16" and its like into a rule, if it is such a condition.
void resolve_size(Rule& rule, const std::string& when) {
  char name[32];
  int dim = 0;
  int number = 0;
  if (std::sscanf(when.c_str(), "%31[^.].size(%d)<=%d", name, &dim, &number) == 3) {
    rule.size = Rule::Size::at_most;
  } else if (std::sscanf(when.c_str(), "%31[^.].size(%d)%%%d", name, &dim, &number) == 3) {
    rule.size = Rule::Size::no_multiple;
  } else if (std::sscanf(when.c_str(), "%31[^.].dim()>%d", name, &number) == 2) {
    rule.size = Rule::Size::dims;
  }
  rule.dim = dim;
  rule.number = number;
}

Rule resolve(const CudaRule& row, const c10::FunctionSchema& schema) {
  Rule rule;
  rule.row = row;
  if (row.when.empty() || is_kind(row.when)) return rule;
  std::string name = row.when.substr(0, row.when.find_first_of("=!. "));
  rule.resizes = row.when == name + " resizes";
  rule.is_not = row.when.find("!=") != std::string::npos;
  const std::optional<int> position = schema.argumentIndexWithName(name);
  TORCH_CHECK(position.has_value(), "rules: ", row.op, " has no argument `", name, "`");
  rule.argument = static_cast<std::size_t>(*position);
  resolve_size(rule, row.when);
  if (rule.size != Rule::Size::none) return rule;
  const std::size_t equals = row.when.find('=');
  if (equals == std::string::npos) return rule;
  std::istringstream items(row.when.substr(equals + 1));
  for (std::string item; std::getline(items, item, '|');) rule.values.push_back(item);
  return rule;
}

std::string text_of(const c10::IValue& value) {
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isBool()) return value.toBool() ? "1" : "0";
  if (value.isNone()) return "None";
  return value.isString() ? value.toStringRef() : "";
}

// What the rows ask about one call: its arguments, still on the stack.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack)
      : schema_(op.schema()),
        stack_(stack),
        first_(stack.size() - schema_.arguments().size()),
        is_pointwise_(op.hasTag(at::Tag::pointwise)) {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      look_at(stack[first_ + i], schema_.arguments()[i].is_out());
    }
    if (leading_ != nullptr) return;
    const std::optional<int> asked = schema_.argumentIndexWithName("dtype");  // of a factory
    if (!asked.has_value()) return;
    const c10::IValue& dtype = stack[first_ + static_cast<std::size_t>(*asked)];
    if (dtype.isInt()) dtype_ = dtype.toScalarType();
  }

  bool meets(const Rule& rule) const {
    const at::ScalarType dtype = rule.row.verdict == Verdict::refuse ? computed_dtype() : dtype_;
    if (rule.row.dtypes != 0 && (rule.row.dtypes & dtype_bit(static_cast<int>(dtype))) == 0) {
      return false;
    }
    if (rule.row.when.empty() || is_kind(rule.row.when)) return true;
    const c10::IValue& value = stack_[first_ + rule.argument];
    if (rule.resizes) {
      if (!value.isIntList()) return true;
      const std::vector<int64_t> sizes = value.toIntVector();
      return leading_->sizes().slice(leading_->sizes().size() - sizes.size()) != sizes;
    }
    if (rule.size != Rule::Size::none) {
      const std::optional<int64_t> size = size_of(rule);
      if (!size.has_value()) return false;
      if (rule.size == Rule::Size::dims) return *size > rule.number;
      return rule.size == Rule::Size::at_most ? *size <= rule.number
                                              : *size <= 0 || *size % rule.number != 0;
    }
    if (rule.values.empty()) return !value.isNone();
    const std::string text = text_of(value);
    const bool among = std::find(rule.values.begin(), rule.values.end(), text) != rule.values.end();
    return among != rule.is_not;
  }

  // The size or the number of dimensions that a rule is about, if its argument has it.
  std::optional<int64_t> size_of(const Rule& rule) const {
    const c10::IValue& value = stack_[first_ + rule.argument];
    if (rule.size == Rule::Size::none || !value.isTensor()) return std::nullopt;
    const at::Tensor& tensor = value.toTensor();
    if (rule.size == Rule::Size::dims) return tensor.dim();
    if (rule.dim >= tensor.dim()) return std::nullopt;
    return tensor.size(rule.dim);
  }

  // The dtype that a kernel is chosen by: of pointwise operators, to which their operands promote.
  at::ScalarType computed_dtype() const {
    if (!is_pointwise_ || leading_ == nullptr) return dtype_;
    at::native::ResultTypeState state;
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      const c10::IValue& value = stack_[first_ + i];
      const bool is_operand =
          value.isTensor() && value.toTensor().defined() && !schema_.arguments()[i].is_out() &&
          schema_.arguments()[i].name() != "condition" && schema_.arguments()[i].name() != "mask";
      if (is_operand) state = at::native::update_result_type_state(value.toTensor(), state);
      if (value.isScalar() && schema_.arguments()[i].type()->kind() == c10::TypeKind::NumberType) {
        state = at::native::update_result_type_state(value.toScalar(), state);
      }
    }
    return at::native::result_type(state);
  }

  bool has_dtype() const { return dtype_ != at::ScalarType::Undefined; }
  bool has_empty() const { return has_empty_; }
  bool is_pointwise() const { return is_pointwise_; }
  at::ScalarType dtype() const { return dtype_; }
  std::size_t first() const { return first_; }
  const c10::FunctionSchema& schema() const { return schema_; }
  Stack& stack() const { return stack_; }
  c10::DeviceIndex device() const { return device_; }

 private:
  void look_at(const c10::IValue& value, bool is_out) {
    if (value.isTensor()) {
      look_at(value.toTensor(), is_out);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) look_at(tensor, is_out);
    }
  }
  void look_at(const at::Tensor& tensor, bool is_out) {
    if (!tensor.defined()) return;
    if (leading_ == nullptr) {
      leading_ = tensor.unsafeGetTensorImpl();
      dtype_ = tensor.scalar_type();
    }
    if (device_ < 0 && tensor.is_privateuseone()) device_ = tensor.device().index();
    has_empty_ |= !is_out && tensor.layout() == at::kStrided && tensor.sym_numel() == 0;
    has_empty_ |= !is_out && tensor.layout() == at::kSparse && tensor._nnz() == 0;
  }

  const c10::FunctionSchema& schema_;
  Stack& stack_;
  std::size_t first_;
  bool is_pointwise_;
  const c10::TensorImpl* leading_ = nullptr;
  at::ScalarType dtype_ = at::ScalarType::Undefined;
  c10::DeviceIndex device_ = -1;
  bool has_empty_ = false;
};

void refuse(const Rule& rule, const Call& call) {
  const at::ScalarType dtype = call.computed_dtype();
  std::string text = rule.row.text;
  const bool is_kernel = text.find(' ') == std::string::npos;
  if (is_kernel) {
    text = "\"" + text + "\" not implemented for '" + c10::toString(dtype) + "'";
  } else if (const std::size_t place = text.find("{dtype}"); place != std::string::npos) {
    text.replace(place, 7, c10::toString(dtype));
  }
  const std::optional<int64_t> size = call.size_of(rule);
  if (const std::size_t place = text.find("{size}"); place != std::string::npos) {
    text.replace(place, 6, std::to_string(size.value_or(0)));
  }
  if (rule.row.dtypes == 0) {
    TORCH_CHECK(false, text, "\n", rule.row.op,
                " takes this on the CPU, and not on CUDA. (NPUSIM_RULES=cuda)");
  }
  text += "\n" + rule.row.op + " runs on the CPU, and not on CUDA";
  text += std::string(" for this dtype: convert the operands first, for example with ") +
          (at::isIntegralType(dtype, true) ? ".float()." : ".to(torch.float32).");
  text += " (NPUSIM_RULES=cuda)";
  TORCH_CHECK_NOT_IMPLEMENTED(!is_kernel, text);
  TORCH_CHECK(false, text);
}

// --- Wider dtypes --------------------------------------------------------------------------------

class Widened {
 public:
  Widened(const Call& call, at::ScalarType wide, bool keeps)
      : call_(call), narrow_(call.dtype()), wide_(wide), keeps_(keeps) {
    Stack& stack = call.stack();
    for (std::size_t i = 0; i < call.schema().arguments().size(); ++i) {
      const c10::Argument& argument = call.schema().arguments()[i];
      c10::IValue& value = stack[call.first() + i];
      const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      if (argument.name() == "indices") continue;
      if (value.isTensor()) {
        value = widen(value.toTensor(), written);
      } else if (value.isTensorList()) {
        std::vector<at::Tensor> tensors = value.toTensorVector();
        for (at::Tensor& tensor : tensors) tensor = widen(tensor, written);
        value = tensors;
      } else if (argument.name() == "dtype" && value.isInt()) {
        const bool same = value.toScalarType() == narrow_;
        keeps_ |= !same;
        if (same) value = static_cast<int64_t>(wide_);
      }
    }
  }

  void take_back() {
    Stack& stack = call_.stack();
    for (std::size_t i = stack.size() - call_.schema().returns().size(); i < stack.size(); ++i) {
      if (!stack[i].isTensor()) continue;
      stack[i] = original_or_narrow(stack[i].toTensor());
    }
  }

 private:
  at::Tensor widen(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    const at::ScalarType dtype = tensor.scalar_type();
    const bool half = narrow_ == at::kHalf || narrow_ == at::kComplexHalf;
    at::ScalarType target = dtype == narrow_                    ? wide_
                            : half && dtype == at::kHalf        ? at::kFloat
                            : half && dtype == at::kComplexHalf ? at::kComplexFloat
                                                                : dtype;
    if (target == dtype) return tensor;
    at::Tensor wide = tensor.to(target);
    if (written) written_.emplace_back(wide, tensor);
    return wide;
  }

  at::Tensor original_or_narrow(const at::Tensor& result) {
    for (auto& [wide, original] : written_) {
      if (!wide.is_same(result)) continue;
      if (original.sizes() != wide.sizes()) original.resize_(wide.sizes());
      original.copy_(wide);
      return original;
    }
    if (keeps_ || !result.defined()) return result;
    const at::ScalarType dtype = result.scalar_type();
    const bool half = narrow_ == at::kHalf || narrow_ == at::kComplexHalf;
    if (dtype == wide_) return result.to(narrow_);
    if (half && dtype == at::kFloat) return result.to(at::kHalf);
    return half && dtype == at::kComplexFloat ? result.to(at::kComplexHalf) : result;
  }

  const Call& call_;
  at::ScalarType narrow_;
  at::ScalarType wide_;
  bool keeps_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

// cuFFT's own rule and text.
void check_half_sizes(const Call& call) {
  // The composites ask for other sizes than their operand's; the operators below have these.
  if (call.schema().name().rfind("aten::_fft_", 0) != 0) return;
  const std::optional<int> dim = call.schema().argumentIndexWithName("dim");
  const c10::IValue& dims = call.stack()[call.first() + static_cast<std::size_t>(*dim)];
  const at::Tensor& self = call.stack()[call.first()].toTensor();
  std::vector<int64_t> sizes;
  bool powers = true;
  for (const int64_t d : dims.toIntVector()) sizes.push_back(self.size(d));
  if (const auto last = call.schema().argumentIndexWithName("last_dim_size"); last.has_value()) {
    sizes.back() = call.stack()[call.first() + static_cast<std::size_t>(*last)].toInt();
  }
  for (const int64_t size : sizes) powers &= size > 0 && (size & (size - 1)) == 0;
  TORCH_CHECK(powers,
              "cuFFT only supports dimensions whose sizes are powers of two when computing in half "
              "precision, but got a signal size of",
              c10::IntArrayRef(sizes));
}

// nansum of complex numbers: the CPU's sum, without what is not a number.
void sum_of_numbers(const Call& call) {
  Stack& stack = call.stack();
  const std::size_t first = call.first();
  const at::Tensor self = stack[first].toTensor();
  const at::Tensor numbers = at::where(at::isnan(self), at::zeros_like(self), self);
  const auto dims = stack[first + 1].toOptional<std::vector<int64_t>>();
  const at::OptionalIntArrayRef over =
      dims.has_value() ? at::OptionalIntArrayRef(*dims) : at::OptionalIntArrayRef();
  const bool keepdim = stack[first + 2].toBool();
  const auto dtype = stack[first + 3].toOptional<at::ScalarType>();
  at::Tensor result = at::sum(numbers, over, keepdim, dtype);
  stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  stack.emplace_back(std::move(result));
}

// --- The kernel ----------------------------------------------------------------------------------

class RuledKernel final : public c10::OperatorKernel {
 public:
  RuledKernel(c10::SafeKernelFunction own, std::vector<Rule> rules, bool composite)
      : own_(std::move(own)), rules_(std::move(rules)), composite_(composite) {
    for (const Rule& rule : rules_) {
      alerts_ |= rule.row.verdict == Verdict::nondeterministic;
      if (rule.row.verdict != Verdict::nondeterministic) {
        const bool any = rule.row.dtypes == 0 || rule.row.op.rfind("aten::where", 0) == 0;
        dtypes_ |= any ? ~std::uint64_t{0} : rule.row.dtypes;  // where: its first operand is bool
      }
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (t_inside || npusim::in_command_body()) return own_.callBoxed(op, keys, stack);
    if (C10_LIKELY(is_of_no_rule(op, *stack))) return call_own(op, keys, stack);
    const Call call(op, *stack);
    if (call.has_dtype()) {
      for (const Rule& rule : rules_) {
        if (applies(rule, call) && acts(rule, op, keys, stack, call)) return;
      }
    }
    const bool fft = t_half_fft && rules_.front().row.verdict == Verdict::fft;
    if (C10_UNLIKELY(fft)) check_half_sizes(call);
    call_own(op, keys, stack);
  }

 private:
  // One look at the first operand, which is what most calls need.
  bool is_of_no_rule(const c10::OperatorHandle& op, const Stack& stack) const {
    const c10::IValue& first = stack[stack.size() - op.schema().arguments().size()];
    if (!first.isTensor() || !first.unsafeToTensorImpl()->dtype_initialized()) return false;
    const auto dtype = static_cast<int>(first.toTensor().scalar_type());
    return (dtypes_ & dtype_bit(dtype)) == 0 && !t_half_fft &&
           !(alerts_ && at::globalContext().deterministicAlgorithms());
  }

  static bool applies(const Rule& rule, const Call& call) {
    if (rule.row.verdict == Verdict::nondeterministic) {
      return at::globalContext().deterministicAlgorithms() && call.meets(rule);
    }
    return call.meets(rule);
  }

  // Returns whether the call is over.
  bool acts(const Rule& rule, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
            const Call& call) {
    switch (rule.row.verdict) {
      case Verdict::refuse: {
        // Nothing is launched without elements; pointwise and sparse kernels see the dtype first.
        const bool looks_first = call.is_pointwise() || is_kind(rule.row.when);
        if (looks_first || !call.has_empty()) refuse(rule, call);
        return false;
      }
      case Verdict::nondeterministic:
        at::globalContext().alertNotDeterministic(rule.row.text);
        return false;
      case Verdict::assume:
        (*stack)[call.first() + rule.argument] = c10::IValue(rule.row.text);
        return false;
      case Verdict::by_zero:
        run_by_zero(op, keys, own_, stack);
        return true;
      case Verdict::asserts:
        run_with_asserts(op, keys, own_, rule.row.text, stack, call.device());
        return true;
      case Verdict::sum_of_numbers:
        count_widened(op);
        sum_of_numbers(call);
        return true;
      case Verdict::statistics:
        narrow_statistics(op.schema(), *stack, call.dtype());
        call_own(op, keys, stack);
        widen_statistics(op.schema(), *stack, call.dtype(), dtype_named(rule.row.text));
        return true;
      default:
        run_widened(rule, op, keys, stack, call);
        return true;
    }
  }

  void run_widened(const Rule& rule, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   Stack* stack, const Call& call) {
    const bool fft = rule.row.verdict == Verdict::fft;
    if (fft) check_half_sizes(call);
    const Raised scope(t_half_fft, fft);
    count_widened(op);
    Widened widened(call, dtype_named(rule.row.text), rule.row.verdict == Verdict::keep);
    call_own(op, keys, stack);
    widened.take_back();
  }

  // A composite is not its operators: these have rules of their own.
  void call_own(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) const {
    const Raised scope(t_inside, !composite_);
    own_.callBoxed(op, keys, stack);
  }

  static void count_widened(const c10::OperatorHandle& op);

  c10::SafeKernelFunction own_;
  std::vector<Rule> rules_;
  bool composite_;
  std::uint64_t dtypes_ = 0;  // with a rule that is not about determinism
  bool alerts_ = false;
};

// --- Registration --------------------------------------------------------------------------------

// By operator and key of the kind of tensors.
using RowsByOperator =
    std::map<std::pair<std::string, c10::DispatchKey>, std::vector<const CudaRule*>>;

struct Book {
  std::mutex mutex;
  std::vector<CudaRule> rows;
  std::vector<torch::Library> registered;
  RowsByOperator of_rare_dtypes;  // not in force before the first such tensor
  std::atomic<bool> awaits_rare_dtype{false};
  std::atomic<bool> in_force{false};
  std::map<std::string, std::int64_t> widened;
};

Book& book() {
  static auto* const kBook = new Book;  // never destroyed: kernels may run during shutdown
  return *kBook;
}

void RuledKernel::count_widened(const c10::OperatorHandle& op) {
  std::string name = op.schema().name();
  if (!op.schema().overload_name().empty()) name += "." + op.schema().overload_name();
  const std::lock_guard<std::mutex> lock(book().mutex);
  ++book().widened[name];
}

// torch says once per process that a kernel replaces another; this one calls the other.
class Silent final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

void put_in_front(Book& all, const c10::OperatorHandle& op, c10::DispatchKey kind,
                  const std::vector<Rule>& rules) {
  const c10::FunctionSchema& schema = op.schema();
  const bool composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                         !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
  std::vector<c10::DispatchKey> keys{kind};
  if (composite) keys.push_back(c10::DispatchKey::AutogradPrivateUse1);
  std::vector<c10::SafeKernelFunction> own;
  own.reserve(keys.size());
  for (const c10::DispatchKey key : keys) {
    own.push_back(op.getComputedKernelForDispatchKey(key));
  }
  const std::string name = schema.name().substr(6);  // without "aten::"
  const std::string full =
      schema.overload_name().empty() ? name : name + "." + schema.overload_name();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    torch::Library& library =
        all.registered.emplace_back(torch::Library::IMPL, "aten", keys[i], __FILE__, __LINE__);
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                   std::make_unique<RuledKernel>(own[i], rules, composite)));
  }
}

void put_in_front(Book& all, const RowsByOperator& by_operator) {
  Silent handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  for (const auto& [operator_and_kind, its_rows] : by_operator) {
    const auto& [name, kind] = operator_and_kind;
    const std::size_t dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(
        name.substr(0, dot).c_str(), overload.c_str());
    std::vector<Rule> rules;
    rules.reserve(its_rows.size());
    for (const CudaRule* row : its_rows) rules.push_back(resolve(*row, op.schema()));
    put_in_front(all, op, kind, rules);
  }
}

bool is_of_rare_dtypes(const CudaRule* row) {
  std::uint64_t common = row->dtypes;
  for (const at::ScalarType dtype :
       {at::kComplexHalf, at::kUInt16, at::kUInt32, at::kUInt64, at::kFloat8_e4m3fn}) {
    common &= ~dtype_bit(static_cast<int>(dtype));
  }
  return row->dtypes != 0 && common == 0;
}

}  // namespace

std::uint64_t dtype_bit(int dtype) { return std::uint64_t{1} << dtype; }

void set_cuda_rules(const std::vector<CudaRule>& rows) {
  Book& all = book();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.registered.clear();
  all.of_rare_dtypes.clear();
  all.rows = rows;
  all.in_force = !rows.empty();
  RowsByOperator in_force;
  for (const CudaRule& row : all.rows) in_force[{row.op, kind_key(row.when)}].push_back(&row);
  // Those about rare dtypes only would cost each sum, product and quotient something.
  for (auto entry = in_force.begin(); entry != in_force.end();) {
    const auto& its_rows = entry->second;
    const bool rare = std::all_of(its_rows.begin(), its_rows.end(), is_of_rare_dtypes);
    if (rare) all.of_rare_dtypes.insert(*entry);
    entry = rare ? in_force.erase(entry) : std::next(entry);
  }
  all.awaits_rare_dtype = !all.of_rare_dtypes.empty();
  put_in_front(all, in_force);
}

bool are_cuda_rules_in_force() noexcept { return book().in_force; }

void apply_rare_rules() {
  Book& all = book();
  if (C10_LIKELY(!all.awaits_rare_dtype.load(std::memory_order_acquire))) return;
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.awaits_rare_dtype.exchange(false)) return;
  put_in_front(all, all.of_rare_dtypes);
}

std::vector<std::pair<std::string, std::int64_t>> widened_calls() {
  Book& all = book();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return {all.widened.begin(), all.widened.end()};
}

}  // namespace torch_npusim
