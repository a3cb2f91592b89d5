// SPDX-License-Identifier: BSD-3-Clause
// Rows are small and kept in the order of the records.
#include "backend/timeline.h"

#include <string_view>

#include "backend/device.h"
#include "backend/event.h"
#include "backend/running_command.h"
#include "backend/stream.h"

namespace npusim {

namespace {

std::uint32_t thread_number() noexcept {
  static std::atomic<std::uint32_t> next{0};
  constinit thread_local std::uint32_t number = ~0U;
  if (number == ~0U) number = next.fetch_add(1);
  return number;
}

// Whether an operator reads what it writes: "aten::add_.Tensor".
bool is_in_place(std::string_view name) noexcept {
  const std::string_view base = name.substr(0, name.find('.'));
  return !base.empty() && base.back() == '_';
}

double bytes_of(std::span<const Operand> operands, bool in_place) noexcept {
  double bytes = 0;
  for (const Operand& operand : operands) {
    double elements = 1;
    for (std::size_t d = 0; d < operand.sizes.size(); ++d) {
      if (operand.strides[d] != 0) elements *= static_cast<double>(operand.sizes[d]);
    }
    bytes += elements * operand.element_bytes * (operand.written && in_place ? 2 : 1);
  }
  return bytes;
}

}  // namespace

void Timeline::begin(std::size_t most_rows) {
  {
    const std::lock_guard lock(mutex_);
    rows_.clear();
    promised_.clear();
    dropped_ = 0;
    most_rows_ = most_rows;
    host_begin_ns_ = host_now_ns();
    on_ = true;
  }
  attach(*this);
}

void Timeline::end() noexcept {
  detach(*this);
  const std::lock_guard lock(mutex_);
  if (on_) host_end_ns_ = host_now_ns();
  on_ = false;
}

void Timeline::keep(const TimelineRow& row, const Promise* promise) noexcept {
  const std::lock_guard lock(mutex_);
  if (!on_) return;
  if (rows_.size() == most_rows_) {
    ++dropped_;
    return;
  }
  try {
    rows_.push_back(row);
    if (promise != nullptr) promised_[promise] = rows_.size() - 1;
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

void Timeline::on_command(const CommandRecord& record, std::span<const Operand> operands) noexcept {
  keep({.is_command = true,
        .in_body = false,
        .paid = record.paid,
        .order = {},
        .command = record.info.kind,
        .precision = record.cost.precision,
        .work = record.cost.work,
        .device = static_cast<std::int16_t>(record.stream.device()),
        .stream = static_cast<std::int16_t>(record.stream.id()),
        .thread = thread_number(),
        .name = record.info.name,
        .host_ns = record.host_ns,
        .start_ns = record.start_ns,
        .end_ns = record.end_ns,
        .extra_ns = record.extra_ns,
        .flops = record.cost.flops,
        .bytes = record.cost.bytes,
        .operand_bytes = bytes_of(operands, is_in_place(record.info.name)),
        .tiles = record.cost.tiles,
        .aligned = record.cost.aligned,
        .done = record.cost.done,
        .cached = record.cost.cached,
        .kernels = record.cost.kernels,
        .correlation = record.correlation,
        .event = 0,
        .version = 0,
        .site = record.site},
       record.promise);
}

void Timeline::on_kept(const Promise* promise, std::int64_t start_ns,
                       std::int64_t end_ns) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = promised_.find(promise);
  if (!on_ || found == promised_.end()) return;
  TimelineRow& row = rows_[found->second];
  row.extra_ns += (end_ns - start_ns) - (row.end_ns - row.start_ns);
  row.start_ns = start_ns;
  row.end_ns = end_ns;
  promised_.erase(found);
}

void Timeline::on_order(const OrderRecord& record) noexcept {
  if (record.kind == OrderKind::event_end) return;
  TimelineRow row{};
  row.order = record.kind;
  // Of a mark that a stream of another device waits for: the stream's.
  const bool has_stream = record.stream != nullptr;
  row.device = static_cast<std::int16_t>(has_stream ? record.stream->device() : record.device);
  row.stream = static_cast<std::int16_t>(has_stream ? record.stream->id() : -1);
  row.thread = thread_number();
  row.paid = record.paid;
  row.host_ns = record.host_ns;
  row.end_ns = record.time_ns;
  row.event = reinterpret_cast<std::uintptr_t>(record.event);
  row.version = record.version;
  row.site = record.site;
  if (record.kind == OrderKind::event_record && record.paid && record.event->timing()) {
    row.extra_ns = record.stream->rates().record_ns;
  }
  const RunningCommand* run = detail::t_state.run;
  const bool by_allocator =
      record.kind == OrderKind::allocator_wait || record.kind == OrderKind::allocator_mark;
  if (run != nullptr && by_allocator) {  // it waits for the running command too
    row.stream = static_cast<std::int16_t>(current_stream(record.device).id());
    row.paid = run->paid();
    row.in_body = true;
    row.extra_ns = run->end_ns() - run->start_ns();
  }
  keep(row);
}

}  // namespace npusim
