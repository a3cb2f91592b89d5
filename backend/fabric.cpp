// SPDX-License-Identifier: BSD-3-Clause
// Latencies are in us and those that NCCL's tuner has measured; bandwidths are in bytes per us.
#include "backend/fabric.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <set>
#include <tuple>

#include "backend/error.h"

namespace npusim {

namespace {

// By protocol: ll, ll128, simple.
using ByProtocol = std::array<double, 3>;
constexpr ByProtocol kRingBaseUs = {6.6, 14.0, 8.4};
constexpr ByProtocol kTreeBaseUs = {6.8, 14.0, 8.4};
struct Hops {
  ByProtocol tree, ring;
};
constexpr Hops kNvlinkUs = {{0.6, 1.25, 4.0}, {0.6, 1.9, 3.4}};
constexpr Hops kPcieUs = {{1.0, 1.9, 4.0}, {1.0, 2.5, 5.7}};
constexpr Hops kNetworkUs = {{5.0, 8.5, 14.0}, {2.7, 4.0, 14.0}};
constexpr double kNvlsUs = 25;
constexpr double kNvlsNetworkUs = 18;
constexpr double kPlateau = 1.4;  // of the ring's latency across nodes, once its chunks are full
constexpr double kTransferUs = 6.6;

// What trees lose at sizes from 64 bytes on, by powers of two.
constexpr std::array<std::array<double, 23>, 3> kTreeCorrection = {{
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9},
}};

constexpr double bytes_per_us(double gigabytes_per_s) { return gigabytes_per_s * 1e3; }

class Case {
 public:
  Case(const Fabric& fabric, Collective operation, const std::vector<int>& ranks, double bytes,
       double sharing)
      : fabric_(fabric),
        operation_(operation),
        n_(static_cast<double>(ranks.size())),
        bytes_(bytes),
        hop_(fabric.nvlink ? kNvlinkUs : kPcieUs) {
    std::set<int> nodes;
    for (const int rank : ranks) nodes.insert(rank / std::max(1, fabric.ranks_per_node));
    nodes_ = static_cast<double>(nodes.size());
    // A group that has one rank on each node has one card per node.
    const double per_node = n_ / nodes_;
    cards_ = std::min<double>(fabric.nics, std::max(1.0, std::floor(per_node)));
    network_ = cards_ * fabric.nic / std::max(1.0, fabric.oversubscription) / sharing;
    link_ = fabric.link / sharing;
    nvls_ = fabric.nvls / sharing;
  }

  std::vector<Route> routes() const {
    std::vector<Route> all;
    if (n_ < 2) {
      all.push_back(
          {Algorithm::direct, Protocol::simple, 1e3 * (fabric_.base_us + kRingBaseUs[0])});
      return all;
    }
    if (operation_ == Collective::transfer || !is_pipelined()) {
      all.push_back({Algorithm::direct, Protocol::simple, 1e3 * direct_us()});
      return all;
    }
    for (const auto protocol : {Protocol::ll, Protocol::ll128, Protocol::simple}) {
      if (protocol == Protocol::ll128 && !fabric_.nvlink) continue;
      all.push_back({Algorithm::ring, protocol, 1e3 * ring_us(protocol)});
      if (operation_ == Collective::all_reduce) {
        all.push_back({Algorithm::tree, protocol, 1e3 * tree_us(protocol)});
      }
    }
    const bool full_nodes = n_ / nodes_ >= 2;
    if (nvls_ > 0 && full_nodes && operation_ == Collective::all_reduce) {
      all.push_back({Algorithm::nvls, Protocol::simple, 1e3 * nvls_us()});
    }
    std::sort(all.begin(), all.end(), [](const Route& a, const Route& b) {
      return std::tie(a.ns, a.algorithm, a.protocol) < std::tie(b.ns, b.algorithm, b.protocol);
    });
    return all;
  }

 private:
  bool is_pipelined() const {
    return operation_ != Collective::all_to_all && operation_ != Collective::gather &&
           operation_ != Collective::scatter;
  }
  bool across() const { return nodes_ > 1; }
  // The bus bandwidth of a ring through all ranks.
  double bus() const { return across() ? std::min(link_, network_) : link_; }
  double ll_most() const { return across() ? fabric_.ll_across : fabric_.ll; }

  double ring_us(Protocol protocol) const {
    const auto p = static_cast<std::size_t>(protocol);
    double bandwidth = bus();
    if (protocol == Protocol::ll) bandwidth = std::min(bandwidth * 0.5, ll_most());
    if (protocol == Protocol::ll128) bandwidth *= 0.92;
    const bool all_reduce = operation_ == Collective::all_reduce;
    const bool one_way = operation_ == Collective::broadcast || operation_ == Collective::reduce;
    const double steps = all_reduce ? 2 * (n_ - 1) : one_way ? n_ : n_ - 1;
    const double far_steps = !across() ? 0 : all_reduce ? 2 * (nodes_ - 1) : nodes_ - 1;
    const double far_us = kNetworkUs.ring[p] * fabric_.step_us;
    double latency_us = one_way ? (across() ? far_us : hop_.ring[p])
                                : (steps - far_steps) * hop_.ring[p] + far_steps * far_us;
    if (all_reduce && across() && protocol == Protocol::simple && bytes_ >= n_ / 16 * 65536) {
      latency_us *= kPlateau;
    }
    return fabric_.base_us + kRingBaseUs[p] + latency_us +
           bytes_ / bytes_per_us(bandwidth * n_ / steps);
  }

  double tree_us(Protocol protocol) const {
    const auto p = static_cast<std::size_t>(protocol);
    double bandwidth = bus() * 0.92;
    if (protocol == Protocol::ll) bandwidth = std::min(bus() / 3.8, ll_most());
    if (protocol == Protocol::ll128) bandwidth *= across() ? 120.0 / 128 : 7.0 / 9;
    // What goes up a tree and what comes down share the links of the ranks in its middle; two ranks
    // have no middle.
    if (n_ > 2) {
      bandwidth *= 0.5;
      const double size_log = bytes_ < 64 ? 0 : std::floor(std::log2(bytes_ / 64));
      if (size_log < 23) bandwidth *= kTreeCorrection[p][static_cast<std::size_t>(size_log)];
    }
    const double latency_us =
        2 * ((n_ / nodes_ - 1) * hop_.tree[p] +
             std::floor(std::log2(nodes_)) * kNetworkUs.tree[p] * fabric_.step_us);
    return fabric_.base_us + kTreeBaseUs[p] + latency_us + bytes_ / bytes_per_us(bandwidth);
  }

  // The switch of a node adds or copies; across nodes a tree joins the nodes, whose cards each
  // carry every byte once.
  double nvls_us() const {
    double bandwidth = nvls_ / bus_factor(operation_, static_cast<int>(n_));
    if (across()) bandwidth = std::min(bandwidth, network_);
    const double far_us = kNvlsNetworkUs * std::ceil(std::log2(nodes_));
    return fabric_.base_us + kNvlsUs + far_us + bytes_ / bytes_per_us(bandwidth);
  }

  // Every rank sends straight to every other; a transfer is one of these.
  double direct_us() const {
    const double hop_us = across() ? kNetworkUs.ring[2] * fabric_.step_us : hop_.ring[2];
    if (operation_ == Collective::transfer) {
      const double bandwidth = across() ? std::min(network_ / cards_, link_) : link_;
      return fabric_.base_us + kTransferUs + hop_us + bytes_ / bytes_per_us(bandwidth);
    }
    const double each = bytes_ / n_;
    const double per_node = n_ / nodes_;
    const double near_us = each * (per_node - 1) / bytes_per_us(link_);
    const double senders = operation_ == Collective::all_to_all ? per_node : 1;
    const double far_us =
        across() ? senders * each * (n_ - per_node) / bytes_per_us(network_) : 0.0;
    return fabric_.base_us + kTransferUs + hop_us + std::max(near_us, far_us);
  }

  const Fabric& fabric_;
  const Collective operation_;
  const double n_, bytes_;
  const Hops& hop_;
  double nodes_ = 1, cards_ = 1, network_ = 0, link_ = 0, nvls_ = 0;
};

std::atomic<const Fabric*> g_fabric{nullptr};

}  // namespace

const Fabric& fabric() {
  static const auto* const kPlain = new Fabric;
  const Fabric* chosen = g_fabric.load(std::memory_order_acquire);
  return chosen == nullptr ? *kPlain : *chosen;
}

void set_fabric(const Fabric& fabric) {
  NPUSIM_CHECK(fabric.ranks_per_node > 0 && fabric.link > 0 && fabric.nic > 0 && fabric.nics > 0,
               "the fabric `", fabric.name,
               "` needs ranks_per_node, link, nic and nics that are more than 0");
  g_fabric.store(new Fabric(fabric), std::memory_order_release);  // readers may have the last one
}

std::vector<Route> routes(const Fabric& fabric, Collective operation, const std::vector<int>& ranks,
                          double bytes, double sharing) {
  return Case(fabric, operation, ranks, std::max(0.0, bytes), std::max(1.0, sharing)).routes();
}

std::int64_t communication_ns(Collective operation, const std::vector<int>& ranks, double bytes,
                              double sharing) {
  return std::llround(routes(fabric(), operation, ranks, bytes, sharing).front().ns);
}

double bus_factor(Collective operation, int ranks) {
  const auto n = static_cast<double>(ranks);
  switch (operation) {
    case Collective::all_reduce:
      return 2 * (n - 1) / n;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::gather:
    case Collective::scatter:
      return (n - 1) / n;
    default:
      return 1;
  }
}

}  // namespace npusim
