// SPDX-License-Identifier: BSD-3-Clause
// Trace, and the codes of its events.
#include <optional>

#include "lab/bindings/bindings.h"
#include "lab/engine/trace.h"

namespace py = pybind11;

namespace npusim::lab {
namespace {

// A column as given, converted if need be; None is an empty one.
template <class T>
class Column {
 public:
  Column(const char* name, const py::object& values) {
    if (values.is_none()) return;
    Array array = Array::ensure(values);
    if (array && array.ndim() == 1) {
      array.attr("setflags")(py::arg("write") = false);  // a trace does not change
      array_ = std::move(array);
    } else {
      PyErr_Clear();
      throw py::value_error(std::string("trace: column ") + name +
                            " is no array of integers in one dimension");
    }
  }
  std::span<const T> span() const {
    return {array_.data(), static_cast<std::size_t>(array_.size())};
  }

 private:
  using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;
  Array array_;  // empty where no values were given
};

// What the columns of a trace lie in.
struct Columns {
  Column<std::uint8_t> op;
  Column<std::uint64_t> id, bytes, time_ns;
  Column<std::uint32_t> stream, pool, stack;
};

std::shared_ptr<Trace> make_trace(const py::object& op, const py::object& id,
                                  const py::object& bytes, const py::object& stream,
                                  const py::object& pool, const py::object& stack,
                                  const py::object& time_ns) {
  const std::shared_ptr<Columns> in(new Columns{{"op", op},
                                                {"id", id},
                                                {"bytes", bytes},
                                                {"time_ns", time_ns},
                                                {"stream", stream},
                                                {"pool", pool},
                                                {"stack", stack}},
                                    [](const Columns* columns) {
                                      const py::gil_scoped_acquire acquired;
                                      delete columns;
                                    });
  const EventColumns columns{in->op.span(),     in->id.span(),   in->bytes.span(),
                             in->stream.span(), in->pool.span(), in->stack.span(),
                             in->time_ns.span()};
  const py::gil_scoped_release released;
  return std::make_shared<Trace>(columns, in);
}

// A view of a vector that lives as long as the trace.
template <class T>
auto view_of(const std::vector<T>& (Trace::*member)() const noexcept) {
  return [member](const std::shared_ptr<Trace>& self) {
    const std::vector<T>& values = ((*self).*member)();
    py::array_t<T> view({static_cast<py::ssize_t>(values.size())}, {sizeof(T)}, values.data(),
                        py::cast(self));
    view.attr("setflags")(py::arg("write") = false);
    return view;
  };
}

}  // namespace

void bind_trace(py::module_& m) {
  py::class_<Op> op(m, "Op");
  const std::pair<const char*, Op> codes[] = {{"MALLOC", Op::malloc},
                                              {"FREE", Op::free},
                                              {"FREE_REQUESTED", Op::free_requested},
                                              {"FREE_COMPLETED", Op::free_completed},
                                              {"RECORD_STREAM", Op::record_stream},
                                              {"EMPTY_CACHE", Op::empty_cache},
                                              {"CREATE_POOL", Op::create_pool},
                                              {"RELEASE_POOL", Op::release_pool},
                                              {"MEMORY_FRACTION", Op::memory_fraction},
                                              {"SYNCHRONIZE", Op::synchronize},
                                              {"RESET_PEAKS", Op::reset_peaks},
                                              {"MARK", Op::mark},
                                              {"SEGMENT_ALLOC", Op::segment_alloc},
                                              {"SEGMENT_FREE", Op::segment_free},
                                              {"SEGMENT_MAP", Op::segment_map},
                                              {"SEGMENT_UNMAP", Op::segment_unmap},
                                              {"OOM", Op::oom},
                                              {"SNAPSHOT", Op::snapshot},
                                              {"SEGMENT_RESERVE", Op::segment_reserve},
                                              {"RETRY", Op::retry}};
  for (const auto& [name, code] : codes) op.attr(name) = static_cast<int>(code);

  py::class_<Trace, std::shared_ptr<Trace>>(m, "Trace")
      .def(py::init(&make_trace), py::arg("op"), py::arg("id"), py::arg("bytes") = py::none(),
           py::arg("stream") = py::none(), py::arg("pool") = py::none(),
           py::arg("stack") = py::none(), py::arg("time_ns") = py::none())
      .def("__len__", [](const Trace& self) { return self.size(); })
      .def_property_readonly("mallocs", &Trace::mallocs)
      .def_property_readonly("malloc_event", view_of(&Trace::malloc_event))
      .def_property_readonly("free_event", view_of(&Trace::free_event))
      .def_property_readonly("completed_event", view_of(&Trace::completed_event))
      .def_property_readonly("malloc_bytes", view_of(&Trace::malloc_bytes))
      .def_property_readonly("malloc_stack", view_of(&Trace::malloc_stack))
      .def_property_readonly("max_live_bytes", &Trace::max_live_bytes)
      .def_property_readonly("max_live_event", &Trace::max_live_event);
}

}  // namespace npusim::lab
