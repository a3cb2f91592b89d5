// SPDX-License-Identifier: BSD-3-Clause
// Bindings of storages in several processes, for torch_npusim/_sharing.py.
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Storage.h>

#include <array>
#include <cstdint>

#include "csrc/errors.h"
#include "csrc/python/bindings.h"
#include "csrc/runtime/sharing.h"

namespace py = pybind11;

namespace torch_npusim {

namespace {

// The members of npusim::SharedBlock.
using Message = std::tuple<std::int64_t, std::int64_t, std::uint64_t, std::uint64_t, std::int64_t,
                           std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

npusim::SharedBlock block_of_message(const Message& message) {
  return std::make_from_tuple<npusim::SharedBlock>(message);
}

Message send(py::handle storage) {
  TORCH_CHECK_TYPE(THPStorage_Check(storage.ptr()), "expected a torch.UntypedStorage");
  const c10::Storage sent = THPStorage_Unpack(storage.ptr());
  const py::gil_scoped_release without_gil;
  const npusim::SharedBlock block = send_storage(*sent.unsafeGetStorageImpl());
  return {block.process, block.file,  block.file_device, block.file_id, block.device,
          block.offset,  block.bytes, block.receipt_at,  block.receipt};
}

py::object receive(const Message& message, std::size_t bytes) {
  c10::intrusive_ptr<c10::StorageImpl> storage;
  {
    const py::gil_scoped_release without_gil;
    storage = receive_storage(block_of_message(message), bytes);
  }
  return py::reinterpret_steal<py::object>(THPStorage_Wrap(c10::Storage(std::move(storage))));
}

}  // namespace

void bind_sharing(py::module& m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  m.def("send_storage", &send);
  m.def("receive_storage", &receive);
  m.def(
      "acknowledge_storage",
      [](const Message& message) {
        translated([&] { npusim::acknowledge_block(block_of_message(message)); });
      },
      without_gil);
  m.def("collect_sent", [] { npusim::collect_sent(); }, without_gil);
  m.def("held_by_others", &npusim::held_by_others, without_gil);
}

}  // namespace torch_npusim
