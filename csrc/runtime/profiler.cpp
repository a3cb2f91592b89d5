// SPDX-License-Identifier: BSD-3-Clause
// The plugin of Kineto, torch's profiler. A session keeps a timeline; when the trace is made, each
// command becomes a row of its stream and a row of the virtual host that launched it. Virtual times
// are written as nanoseconds after the wall time at which the session began.
#include "csrc/runtime/profiler.h"

#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/timeline.h"
#include "csrc/runtime/init.h"

namespace torch_npusim {

namespace {

using libkineto::ActivityType;
using npusim::CommandKind;
using npusim::TimelineRow;

constexpr std::size_t kMostRows = std::size_t{1} << 20;
constexpr int kVirtualHostThread = 1'000'000'000;  // no thread of the kernel has this number

std::atomic<TraceNames> g_names{TraceNames::npusim};
std::atomic<bool> g_paused{false};

// The profiler's numbers of the operators that this thread is in. They fit into 32 bits: Kineto
// looks them up as such.
thread_local std::vector<std::uint64_t> t_operators;

void publish_operator() noexcept {
  npusim::set_correlation(t_operators.empty() ? 0 : t_operators.back() & 0xFFFF'FFFFU);
}

// The numbers of the user's ranges in this session, of all threads.
std::mutex g_ranges_mutex;
std::set<std::uint64_t> g_ranges;

void remember_range(std::uint64_t id) {
  const std::scoped_lock lock(g_ranges_mutex);
  g_ranges.insert(id);
}

// What a range of the user's has on the devices: the commands that its thread launched within, and
// those of threads without ranges, such as autograd's. Nested ranges have them all.
class DeviceRanges {
 public:
  struct Span {
    std::int64_t begin_ns, end_ns;
  };
  struct Range {
    const libkineto::ITraceActivity* of;
    std::map<std::pair<int, int>, Span> spans;  // by device and stream
    std::int64_t latest_end = 0;                // of this one and of those that began before
    std::int64_t end() const { return of->timestamp() + of->duration(); }
  };

  explicit DeviceRanges(const libkineto::getLinkedActivityCallback& linked) {
    const std::scoped_lock lock(g_ranges_mutex);
    for (const std::uint64_t id : g_ranges) {
      const auto* of = linked ? linked(static_cast<std::int32_t>(id)) : nullptr;
      if (of != nullptr) ranges_.push_back({of, {}});
    }
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.of->timestamp() < b.of->timestamp(); });
    std::int64_t latest = 0;
    for (Range& range : ranges_) {
      latest = std::max(latest, range.end());
      range.latest_end = latest;
      threads_.insert(range.of->resourceId());
    }
  }

  void add(const libkineto::ITraceActivity& op, const TimelineRow& row) {
    const std::int64_t at = op.timestamp();
    const auto after =
        std::upper_bound(ranges_.begin(), ranges_.end(), at,
                         [](std::int64_t t, const Range& r) { return t < r.of->timestamp(); });
    for (auto range = after; range != ranges_.begin();) {
      if ((--range)->latest_end < at) break;
      const bool own = range->of->resourceId() == op.resourceId();
      if (range->end() < at || (!own && threads_.contains(op.resourceId()))) continue;
      const auto [span, fresh] =
          range->spans.try_emplace({row.device, row.stream}, Span{row.start_ns, row.end_ns});
      span->second.begin_ns = std::min(span->second.begin_ns, row.start_ns);
      span->second.end_ns = std::max(span->second.end_ns, row.end_ns);
    }
  }

  const std::vector<Range>& all() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
  std::set<std::int64_t> threads_;
};

std::atomic<bool> g_profiled_as_cuda{false};

// CUDA launches nothing for operands without elements.
bool does_nothing(const npusim::CommandRecord& record) {
  return record.info.kind == CommandKind::kernel && record.cost.bytes == 0 &&
         record.cost.flops == 0;
}

class ProfiledTimeline final : public npusim::Timeline {
 public:
  // A command of several kernels is a row per kernel, of equal length.
  void on_command(const npusim::CommandRecord& record,
                  std::span<const npusim::Operand> operands) noexcept override {
    if (g_paused.load(std::memory_order_relaxed)) return;
    const bool none = g_profiled_as_cuda && does_nothing(record);
    const int count = none ? 0 : static_cast<int>(record.cost.kernels);
    if (count == 1) return Timeline::on_command(record, operands);
    npusim::CommandRecord kernel = record;
    kernel.cost.flops /= count;
    kernel.cost.bytes /= count;
    kernel.cost.kernels = 1;
    for (int i = 0; i < count; ++i) {
      const std::int64_t length = record.end_ns - record.start_ns;
      kernel.start_ns = record.start_ns + length * i / count;
      kernel.end_ns = record.start_ns + length * (i + 1) / count;
      Timeline::on_command(kernel, i == 0 ? operands : std::span<const npusim::Operand>());
    }
  }
};

// Observers live as long as the process, so one serves all sessions.
npusim::Timeline& timeline() {
  static auto* made = new ProfiledTimeline;
  return *made;
}

ActivityType type_of(CommandKind kind) {
  const bool kernel = kind == CommandKind::kernel || kind == CommandKind::collective;
  return kernel ? ActivityType::CONCURRENT_KERNEL : ActivityType::GPU_MEMCPY;
}

// What the row of a command is called. Tools for CUDA tell copies and communication from other
// work by the begin of the name.
std::string name_of(const TimelineRow& row) {
  if (trace_names() == TraceNames::npusim) return row.name;
  switch (row.command) {
    case CommandKind::copy_h2d:
    case CommandKind::copy_h2d_pageable:
      return "Memcpy HtoD";
    case CommandKind::copy_d2h:
    case CommandKind::copy_d2h_pageable:
      return "Memcpy DtoH";
    case CommandKind::copy_d2d:
      return "Memcpy DtoD";
    case CommandKind::copy_peer:
      return "Memcpy PtoP";
    case CommandKind::collective:
      return std::string("nccl:") + row.name;
    default:
      return row.name;
  }
}

// What the virtual host does, by name. torch adds up rows of a runtime as time of the CPU, which is
// wall time, so these are annotations unless a tool for CUDA shall read them.
struct HostNames {
  ActivityType type;
  const char *launch, *copy, *wait_stream, *wait_event, *wait_device;
};
const HostNames& host_names() {
  static const HostNames kOwn{
      ActivityType::GPU_USER_ANNOTATION, "npusimLaunchKernel",     "npusimMemcpyAsync",
      "npusimStreamSynchronize",         "npusimEventSynchronize", "npusimDeviceSynchronize"};
  static const HostNames kCuda{ActivityType::CUDA_RUNTIME, "cudaLaunchKernel",
                               "cudaMemcpyAsync",          "cudaStreamSynchronize",
                               "cudaEventSynchronize",     "cudaDeviceSynchronize"};
  return trace_names() == TraceNames::cuda ? kCuda : kOwn;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(bool with_host) : with_host_(with_host) {}
  ~Session() override { timeline().end(); }

  void start() override {
    {
      const std::scoped_lock lock(g_ranges_mutex);
      g_ranges.clear();
    }
    g_paused = false;  // a pause is a part of one session: an earlier one's leaves nothing out here
    wall_begin_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
    try {
      timeline().begin(kMostRows);
      status_ = libkineto::TraceStatus::RECORDING;
    } catch (const std::exception& error) {  // Kineto's caller cannot take it
      errors_.emplace_back(error.what());
      status_ = libkineto::TraceStatus::ERROR;
    }
  }

  void stop() override {
    timeline().end();
    if (timeline().dropped() != 0) {
      errors_.push_back("npusim: the profile holds " + std::to_string(kMostRows) +
                        " rows of the devices; " + std::to_string(timeline().dropped()) +
                        " later ones are missing. Profile fewer steps, with a schedule.");
    }
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override { write(logger, {}); }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    std::int64_t, std::int64_t) override {
    write(logger, linked);
  }

  // Kineto has one device per plugin: the first.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{0, libkineto::kExceedMaxPid, "npusim (virtual time)", "npusim:0"});
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> all;
    std::set<std::pair<int, int>> seen;
    for (const TimelineRow& row : timeline().rows()) {
      if (!row.is_command || !seen.insert({row.device, row.stream}).second) continue;
      all.emplace_back(row.stream, row.stream, row.device,
                       "stream " + std::to_string(row.stream) + " (virtual time)");
    }
    if (with_host_) {
      all.emplace_back(kVirtualHostThread, kVirtualHostThread, getpid(),
                       "launches (virtual time of the host)");
    }
    return all;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return nullptr; }

  void pushCorrelationId(std::uint64_t id) override {
    t_operators.push_back(id);
    publish_operator();
  }
  void popCorrelationId() override {
    if (!t_operators.empty()) t_operators.pop_back();
    publish_operator();
  }
  void pushUserCorrelationId(std::uint64_t id) override { remember_range(id); }
  void popUserCorrelationId() override {}

  std::string getDeviceProperties() override {
    std::string all;
    for (int device = 0; device < npusim::device_count(); ++device) {
      const npusim::DeviceSpec& spec = npusim::device_spec(device);
      all += std::string(all.empty() ? "" : ", ") + "{\"id\": " + std::to_string(device) +
             ", \"name\": \"" + spec.name +
             "\", \"totalGlobalMem\": " + std::to_string(spec.memory_bytes) +
             ", \"computeMajor\": " + std::to_string(spec.capability_major) +
             ", \"computeMinor\": " + std::to_string(spec.capability_minor) +
             ", \"numSms\": " + std::to_string(spec.multiprocessor_count) + "}";
    }
    return all;
  }

  std::unordered_map<std::string, std::string> getMetadata() override {
    return {{"npusim_time",
             "\"rows of npusim streams and of its launches are virtual time, in ns after the wall "
             "time at which the profile began; all other rows are wall time\""},
            {"npusim_dropped_rows", std::to_string(timeline().dropped())}};
  }

 private:
  std::int64_t wall(std::int64_t virtual_ns) const {
    return wall_begin_ns_ + (virtual_ns - timeline().host_begin_ns());
  }

  void write(libkineto::ActivityLogger& logger,
             const libkineto::getLinkedActivityCallback& linked) {
    DeviceRanges ranges(linked);
    std::int32_t id = kFirstId;
    for (const TimelineRow& row : timeline().rows()) {
      ++id;
      if (row.is_command) {
        write_command(logger, linked, row, id);
        const auto op = static_cast<std::int32_t>(row.correlation);
        const auto* of = linked && op != 0 ? linked(op) : nullptr;
        if (of != nullptr) ranges.add(*of, row);
      } else {
        write_wait(logger, row, id);
      }
    }
    for (const DeviceRanges::Range& range : ranges.all()) {
      for (const auto& [place, span] : range.spans) {
        libkineto::GenericTraceActivity row(span_, ActivityType::GPU_USER_ANNOTATION,
                                            range.of->name());
        row.startTime = wall(span.begin_ns);
        row.endTime = wall(span.end_ns);
        row.id = ++id;
        row.device = place.first;
        row.resource = place.second;
        // Tools for CUDA take every row with a stream for a kernel, as CUDA's own traces let them.
        if (trace_names() == TraceNames::npusim) row.addMetadata("stream", row.resource);
        row.log(logger);
      }
    }
  }

  void write_command(libkineto::ActivityLogger& logger,
                     const libkineto::getLinkedActivityCallback& linked, const TimelineRow& row,
                     std::int32_t id) {
    const auto op = static_cast<std::int32_t>(row.correlation & 0xFFFF'FFFFU);
    const libkineto::ITraceActivity* const of = linked && op != 0 ? linked(op) : nullptr;
    const ActivityType type = type_of(row.command);
    if (with_host_) {
      const HostNames& names = host_names();
      const char* const name = type == ActivityType::GPU_MEMCPY ? names.copy : names.launch;
      const std::int64_t latency_ns = npusim::device_spec(row.device).launch_latency_ns;
      libkineto::GenericTraceActivity launch =
          host_row(names.type, name, row.host_ns - latency_ns, row.host_ns, id);
      launch.addMetadata("External id", op);
      launch.flow.id = static_cast<std::uint32_t>(id);
      launch.flow.type = libkineto::kLinkAsyncCpuGpu;
      launch.flow.start = 1;
      launch.log(logger);
    }
    libkineto::GenericTraceActivity kernel(span_, type, name_of(row));
    kernel.startTime = wall(row.start_ns);
    kernel.endTime = wall(row.end_ns);
    kernel.id = id;
    kernel.device = row.device;
    kernel.resource = row.stream;
    kernel.linked = of;
    kernel.addMetadata("device", row.device);
    kernel.addMetadata("stream", row.stream);
    kernel.addMetadata("correlation", id);
    kernel.addMetadata("External id", op);
    kernel.addMetadata("flops", row.flops);
    kernel.addMetadata("bytes", row.bytes);
    kernel.addMetadata("queued", row.start_ns - row.host_ns);
    if (type == ActivityType::GPU_MEMCPY && row.end_ns > row.start_ns) {
      kernel.addMetadata("memory bandwidth (GB/s)",
                         row.bytes / static_cast<double>(row.end_ns - row.start_ns));
    }
    kernel.flow.id = static_cast<std::uint32_t>(id);
    kernel.flow.type = libkineto::kLinkAsyncCpuGpu;
    kernel.flow.start = 0;
    kernel.log(logger);
  }

  void write_wait(libkineto::ActivityLogger& logger, const TimelineRow& row, std::int32_t id) {
    const HostNames& names = host_names();
    const char* name = nullptr;
    switch (row.order) {
      case npusim::OrderKind::stream_wait:
        name = names.wait_stream;
        break;
      case npusim::OrderKind::event_wait:
        name = names.wait_event;
        break;
      case npusim::OrderKind::device_wait:
        name = names.wait_device;
        break;
      default:
        break;
    }
    const std::int64_t since_ns = std::exchange(host_ns_, row.host_ns);
    if (name == nullptr || !with_host_) return;
    host_row(names.type, name, since_ns, row.host_ns, id).log(logger);
  }

  // A row of the virtual host.
  libkineto::GenericTraceActivity host_row(ActivityType type, const char* name,
                                           std::int64_t begin_ns, std::int64_t end_ns,
                                           std::int32_t id) {
    libkineto::GenericTraceActivity row(span_, type, name);
    host_ns_ = end_ns;
    row.startTime = wall(begin_ns);
    row.endTime = wall(end_ns);
    row.id = id;
    row.device = getpid();
    row.resource = kVirtualHostThread;
    row.threadId = kVirtualHostThread;
    row.addMetadata("correlation", id);
    return row;
  }

  static constexpr std::int32_t kFirstId = 1
                                           << 24;  // behind the numbers of the profiler's own rows

  const bool with_host_;
  libkineto::TraceSpan span_{0, 0, "npusim"};
  std::int64_t wall_begin_ns_ = 0;
  std::int64_t host_ns_ = 0;  // of the row of the host that was written last
  std::vector<std::string> errors_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    if (types.count(ActivityType::CONCURRENT_KERNEL) == 0) return nullptr;
    return std::make_unique<Session>(true);
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      std::int64_t, std::int64_t, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  std::string name_{"npusim"};
  std::set<ActivityType> types_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                ActivityType::GPU_MEMSET, ActivityType::GPU_USER_ANNOTATION,
                                ActivityType::PRIVATEUSE1_RUNTIME};
};

}  // namespace

void set_trace_names(TraceNames names) noexcept { g_names = names; }
TraceNames trace_names() noexcept { return g_names; }

void set_profiling_as_cuda(bool on) noexcept { g_profiled_as_cuda = on; }

void set_profiling_paused(bool paused) noexcept { g_paused = paused; }

void register_profiler() {
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<Profiler>(); });
}

}  // namespace torch_npusim
