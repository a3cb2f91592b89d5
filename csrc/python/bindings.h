// SPDX-License-Identifier: BSD-3-Clause
// The parts of torch_npusim._C, one function per file. No logic here: conversion of arguments,
// and the GIL released around whatever may block. torch_npusim/_C.pyi is the same list with types.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_npusim {

void bind_call_log(pybind11::module& m);
void bind_commands(pybind11::module& m);
void bind_compiled(pybind11::module& m);
void bind_cuda_names(pybind11::module& m);
void bind_device(pybind11::module& m);
void bind_dry_runs(pybind11::module& m);
void bind_distributed(pybind11::module& m);
void bind_event_log(pybind11::module& m);
void bind_graphs(pybind11::module& m);
void bind_memory(pybind11::module& m);
void bind_races(pybind11::module& m);
void bind_random(pybind11::module& m);
void bind_sharing(pybind11::module& m);
void bind_sim(pybind11::module& m);
void bind_timeline(pybind11::module& m);

}  // namespace torch_npusim
