// SPDX-License-Identifier: BSD-3-Clause
// plan() and max_live(): bounds of offline placement, on columns.
#include <optional>
#include <string>
#include <tuple>

#include "lab/bindings/bindings.h"
#include "lab/engine/plan.h"

namespace py = pybind11;

namespace npusim::lab {
namespace {

template <class T>
using Numbers = py::array_t<T, py::array::c_style | py::array::forcecast>;

std::vector<Buffer> buffers_of(const Numbers<std::int64_t>& lower,
                               const Numbers<std::int64_t>& upper,
                               const Numbers<std::uint64_t>& bytes) {
  if (lower.ndim() != 1 || upper.ndim() != 1 || bytes.ndim() != 1 || lower.size() != upper.size() ||
      lower.size() != bytes.size()) {
    throw py::value_error("lower, upper and bytes are not of one length and one dimension");
  }
  std::vector<Buffer> buffers(static_cast<std::size_t>(lower.size()));
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    buffers[i] = {lower.data()[i], upper.data()[i], bytes.data()[i]};
  }
  return buffers;
}

PlanMethod method_of(const std::string& name) {
  if (name == "birth") return PlanMethod::birth;
  if (name == "size") return PlanMethod::size;
  if (name == "lifetime") return PlanMethod::lifetime;
  if (name == "area") return PlanMethod::area;
  if (name == "skyline") return PlanMethod::skyline;
  if (name == "best") return PlanMethod::best;
  throw py::value_error("method is '" + name +
                        "'; expected 'birth', 'size', 'lifetime', 'area', 'skyline' or 'best'");
}

using Gap = std::tuple<std::size_t, std::int64_t, std::int64_t>;  // buffer, lower, upper

py::tuple plan_columns(const Numbers<std::int64_t>& lower, const Numbers<std::int64_t>& upper,
                       const Numbers<std::uint64_t>& bytes, const std::string& method,
                       std::uint64_t alignment,
                       const std::optional<Numbers<std::uint64_t>>& alignments,
                       const std::vector<Gap>& gaps, std::optional<std::uint64_t> capacity,
                       std::uint64_t steps, double seconds) {
  std::vector<Buffer> buffers = buffers_of(lower, upper, bytes);
  if (alignments) {
    if (alignments->ndim() != 1 || alignments->size() != lower.size()) {
      throw py::value_error("alignments are not as many as buffers");
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].alignment = alignments->data()[i];
  }
  for (const auto& [buffer, begin, end] : gaps) {
    if (buffer >= buffers.size()) throw py::value_error("a gap is of a buffer that is not there");
    buffers[buffer].gaps.push_back({begin, end});
  }
  const PlanRequest request{method_of(method), alignment, capacity, {steps, seconds}};
  Plan found;
  {
    const py::gil_scoped_release released;
    found = plan(buffers, request);
  }
  return py::make_tuple(as_array(std::move(found.offsets)), found.height, found.at_least,
                        found.steps);
}

}  // namespace

void bind_plan(py::module_& m) {
  m.def("plan", &plan_columns, py::arg("lower"), py::arg("upper"), py::arg("bytes"),
        py::arg("method") = "best", py::arg("alignment") = 1, py::kw_only(),
        py::arg("alignments") = py::none(), py::arg("gaps") = py::tuple(),
        py::arg("capacity") = py::none(), py::arg("steps") = 0, py::arg("seconds") = 0.0);
  m.def(
      "max_live",
      [](const Numbers<std::int64_t>& lower, const Numbers<std::int64_t>& upper,
         const Numbers<std::uint64_t>& bytes) {
        return max_live_bytes(buffers_of(lower, upper, bytes));
      },
      py::arg("lower"), py::arg("upper"), py::arg("bytes"));
}

}  // namespace npusim::lab
