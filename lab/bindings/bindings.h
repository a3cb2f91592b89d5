// SPDX-License-Identifier: BSD-3-Clause
// The parts of npusim_lab._lab: each adds its names to the module.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/snapshot_fields.h"
#include "lab/engine/names.h"

namespace npusim::lab {

// DictPut puts the fields of for_each_field() into a dictionary.
struct DictPut {
  pybind11::dict& out;
  template <class Name, class Value>
  void operator()(const Name& name, const Value& value) const {
    out[pybind11::str(name)] = value;
  }
  template <class Name>
  void operator()(const Name& name, const alloc::PoolId& pool) const {
    out[pybind11::str(name)] = pybind11::make_tuple(pool.first, pool.second);
  }
};

template <class Thing>
pybind11::dict fields_dict(const Thing& thing) {
  pybind11::dict out;
  alloc::for_each_field(thing, DictPut{out});
  return out;
}

void bind_trace(pybind11::module_& m);     // trace_bindings.cpp
void bind_replay(pybind11::module_& m);    // replay_bindings.cpp
void bind_plan(pybind11::module_& m);      // plan_bindings.cpp
void bind_snapshot(pybind11::module_& m);  // snapshot_bindings.cpp

// as_array() hands a vector over to numpy without a copy.
template <class To, class From>
pybind11::array as_array(std::vector<From>&& values) {
  static_assert(sizeof(To) == sizeof(From));
  auto owned = std::make_unique<std::vector<From>>(std::move(values));
  const auto length = static_cast<pybind11::ssize_t>(owned->size());
  const From* data = owned->data();
  const pybind11::capsule owner(
      owned.release(), [](void* vector) { delete static_cast<std::vector<From>*>(vector); });
  return pybind11::array(pybind11::dtype::of<To>(), {length}, {sizeof(To)}, data, owner);
}

template <class T>
pybind11::array as_array(std::vector<T>&& values) {
  return as_array<T, T>(std::move(values));
}

}  // namespace npusim::lab
