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
constexpr double kNvlsNetworkUs = 20.9;
constexpr int kNvlsLeast = 5;  // so many ranks of a node: with fewer NCCL takes the ring
constexpr double kTransferUs = 6.6;

// Channels of transfers, as NCCL's src/enqueue.cc and src/graph/paths.cc choose them.
constexpr int kChannels = 32;
constexpr int kNetworkChannels = 16;    // of a node with four cards or more
constexpr double kNetworkChannel = 14;  // GB/s
constexpr int kPeersAtATime = 8;
constexpr double kLinkShare = 18;             // a channel has this part of a rank's link
constexpr double kLeastPart = 64.0 * 1024;    // bytes that a channel carries, at least
constexpr double kPart = 16.0 * 1024 * 1024;  // and before there are twice as many

// What trees lose at sizes from 64 bytes on, by powers of two.
constexpr std::array<std::array<double, 23>, 3> kTreeCorrection = {{
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9},
}};

constexpr double bytes_per_us(double gigabytes_per_s) { return gigabytes_per_s * 1e3; }

int power_of_two(double at_least) {
  int power = 1;
  while (power < at_least) power *= 2;
  return power;
}

int nodes_of(const Fabric& fabric, const std::vector<int>& ranks) {
  std::set<int> nodes;
  for (const int rank : ranks) nodes.insert(rank / std::max(1, fabric.ranks_per_node));
  return static_cast<int>(nodes.size());
}

class Case {
 public:
  Case(const Fabric& fabric, Collective operation, const std::vector<int>& ranks, double bytes,
       double sharing, const std::vector<int>& group)
      : fabric_(fabric),
        operation_(operation),
        n_(static_cast<double>(ranks.size())),
        bytes_(bytes),
        hop_(fabric.nvlink ? kNvlinkUs : kPcieUs),
        nodes_(nodes_of(fabric, ranks)),
        group_(static_cast<int>(group.size())) {
    cards_ = cards_of(n_ / nodes_);
    group_cards_ = cards_of(static_cast<double>(group.size()) / nodes_of(fabric, group));
    nic_ = fabric.nic / std::max(1.0, fabric.oversubscription) / sharing;
    network_ = cards_ * nic_;
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
    if (nvls_ > 0 && n_ / nodes_ >= kNvlsLeast && operation_ == Collective::all_reduce) {
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
  // A group that has one rank on each node has one card per node.
  double cards_of(double per_node) const {
    return std::min<double>(fabric_.nics, std::max(1.0, std::floor(per_node)));
  }
  // The bus bandwidth of a ring through all ranks.
  double bus() const { return across() ? std::min(link_, network_) : link_; }
  double ll_most() const {
    return !across() ? fabric_.ll : nodes_ == 2 ? fabric_.ll_across : fabric_.ll_far;
  }
  // A step to another node. That of Simple waits for the network twice: for data and for its flush.
  double far_us(const ByProtocol& of_nccl, std::size_t p) const {
    return p == 2 ? fabric_.network_simple_us + 2 * fabric_.net_us : of_nccl[p] + fabric_.net_us;
  }
  // The time of a step that is not hidden: until a chunk has arrived it cannot be sent on.
  static double fill_us(double bytes, double chunk, double bandwidth) {
    return bytes <= 0 ? 0 : chunk * bytes / (bytes + chunk) / bytes_per_us(bandwidth);
  }

  double ring_us(Protocol protocol) const {
    const auto p = static_cast<std::size_t>(protocol);
    const double slower = p == 1 ? fabric_.ll128 : 1;
    double bandwidth = bus();
    if (protocol == Protocol::ll) bandwidth = std::min(bandwidth * 0.5, ll_most());
    if (protocol == Protocol::ll128) bandwidth *= 0.92;
    const bool all_reduce = operation_ == Collective::all_reduce;
    const bool one_way = operation_ == Collective::broadcast || operation_ == Collective::reduce;
    const double steps = all_reduce ? 2 * (n_ - 1) : one_way ? n_ : n_ - 1;
    const double far_steps = !across() ? 0 : all_reduce ? 2 * (nodes_ - 1) : nodes_ - 1;
    // With one rank per node nothing hides the network, as in a tree.
    const double far = far_us(n_ == nodes_ ? kNetworkUs.tree : kNetworkUs.ring, p);
    double hop = hop_.ring[p] * slower;
    if (across()) hop = std::max(hop, fabric_.post_us * (p == 2 ? 3 : 1));
    double latency_us =
        one_way ? (across() ? far : hop) : (steps - far_steps) * hop + far_steps * far;
    if (p != 0) latency_us += steps * fill_us(bytes_ / n_, fabric_.chunk, bus());
    return fabric_.base_us + kRingBaseUs[p] * slower + latency_us +
           bytes_ / bytes_per_us(bandwidth * n_ / steps);
  }

  double tree_us(Protocol protocol) const {
    const auto p = static_cast<std::size_t>(protocol);
    const double slower = p == 1 ? fabric_.ll128 : 1;
    // What goes up a tree and what comes down share the links of the ranks in its middle; two ranks
    // have no middle, and the cards of two nodes none either.
    const double middle = n_ > 2 ? 0.5 : 1;
    const double network = network_ * (nodes_ == 2 ? 1 : middle);
    double bandwidth = (across() ? std::min(link_ * middle, network) : link_ * middle) * 0.92;
    if (protocol == Protocol::ll) bandwidth = std::min(bandwidth / 3.8, ll_most() * middle);
    if (protocol == Protocol::ll128) bandwidth *= across() ? 120.0 / 128 : 7.0 / 9;
    if (n_ > 2) {
      const double size_log = bytes_ < 64 ? 0 : std::floor(std::log2(bytes_ / 64));
      if (size_log < 23) bandwidth *= kTreeCorrection[p][static_cast<std::size_t>(size_log)];
    }
    const double latency_us = 2 * ((n_ / nodes_ - 1) * hop_.tree[p] * slower +
                                   std::floor(std::log2(nodes_)) * far_us(kNetworkUs.tree, p));
    return fabric_.base_us + kTreeBaseUs[p] * slower + latency_us +
           bytes_ / bytes_per_us(bandwidth);
  }

  // The switch of a node adds; across nodes a tree joins the nodes, whose cards each carry every
  // byte once if there are two nodes, and twice in the middle of a larger tree.
  double nvls_us() const {
    double bandwidth = nvls_;
    if (across()) bandwidth = std::min(bandwidth, nodes_ == 2 ? network_ : network_ / 2);
    const double far = kNvlsNetworkUs * std::floor(std::log2(nodes_));
    return fabric_.base_us + kNvlsUs + far + fill_us(bytes_, fabric_.nvls_chunk, nvls_) +
           bytes_ / bytes_per_us(bandwidth);
  }

  // From one rank to another, by as many channels as NCCL takes.
  double transfer_us() const {
    const double hop_us = across() ? far_us(kNetworkUs.ring, 2) : hop_.ring[2];
    double bandwidth = 0;
    if (across()) {
      const int all = power_of_two(std::min<double>(kNetworkChannels, 4 * group_cards_));
      int channels = std::min(all, power_of_two(std::ceil(fabric_.nic / kNetworkChannel)));
      const int rounds = (group_ + kPeersAtATime - 1) / kPeersAtATime;
      while (channels > 1 && channels * rounds > all) channels /= 2;
      bandwidth = std::min({nic_, link_, channels * kNetworkChannel * nic_ / fabric_.nic});
    } else {
      int channels = std::max(1, kChannels / power_of_two(group_));
      channels = std::min(channels, static_cast<int>(std::ceil(bytes_ / kLeastPart)));
      channels = std::max(channels, 1);
      while (channels < kChannels && bytes_ / channels > kPart) channels *= 2;
      bandwidth = std::min(link_, channels * link_ / kLinkShare);
    }
    return fabric_.base_us + kTransferUs + hop_us + bytes_ / bytes_per_us(bandwidth);
  }

  // Every rank sends straight to every other.
  double direct_us() const {
    if (operation_ == Collective::transfer) return transfer_us();
    const double each = bytes_ / n_;
    const double per_node = n_ / nodes_;
    const double near_us =
        (per_node - 1) * (each / bytes_per_us(link_) + fill_us(each, fabric_.chunk, link_));
    if (!across()) return fabric_.base_us + kTransferUs + hop_.ring[2] + near_us;
    const double senders = operation_ == Collective::all_to_all ? per_node : 1;
    const double network_us = senders * each * (n_ - per_node) / bytes_per_us(network_);
    return fabric_.base_us + kTransferUs + far_us(kNetworkUs.ring, 2) +
           fabric_.peer_us * (n_ - per_node) + std::max(near_us, network_us);
  }

  const Fabric& fabric_;
  const Collective operation_;
  const double n_, bytes_;
  const Hops& hop_;
  const double nodes_;
  const int group_;
  double cards_ = 1, group_cards_ = 1, nic_ = 0, network_ = 0, link_ = 0, nvls_ = 0;
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
                          double bytes, double sharing, const std::vector<int>& group) {
  return Case(fabric, operation, ranks, std::max(0.0, bytes), std::max(1.0, sharing),
              group.empty() ? ranks : group)
      .routes();
}

std::int64_t communication_ns(Collective operation, const std::vector<int>& ranks, double bytes,
                              double sharing, const std::vector<int>& group) {
  return std::llround(routes(fabric(), operation, ranks, bytes, sharing, group).front().ns);
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
