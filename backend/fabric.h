// SPDX-License-Identifier: BSD-3-Clause
// The modelled duration of communication: the cheapest pair of algorithm and protocol, each with
// its latency and bandwidth on the ranks' links (rule D2). The structure is that of NCCL's tuner
// (src/graph/tuning.cc, 2.30).
// Invariant: a pure function of the fabric, the ranks, the operation and its size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace npusim {

enum class Collective : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  transfer,  // from one rank to another
};

enum class Algorithm : std::uint8_t { ring, tree, nvls, direct };
enum class Protocol : std::uint8_t { ll, ll128, simple };

// Equal nodes, joined by network cards. Bandwidths are GB/s (1e9 bytes) in each direction. What
// follows `base_us` stands for all fabrics: values of specs/collectives.toml, which
// claims/evidence/fabrics/fit.py --fit writes here too.
struct Fabric {
  std::string name = "npusim";
  int ranks_per_node = 8;
  bool nvlink = true;               // or ranks of a node are joined by PCIe
  double link = 100;                // bus bandwidth of a ring within a node
  double nvls = 0;                  // of a tensor that the switch itself adds; 0: it does not
  double ll = 141;                  // the most that protocol LL reaches within a node,
  double ll_across = 45;            // on two nodes,
  double ll_far = 35;               // and on more
  double nic = 25;                  // of one network card
  int nics = 8;                     // per node
  double oversubscription = 1;      // of the network: its bandwidth is divided by this
  double net_us = 5;                // latency of the network
  double post_us = 1;               // of the host, to post a message: 1 on Intel's, 2 on AMD's
  double base_us = 0;               // added to every operation
  double chunk = 727000;            // bytes that a rank receives before it sends them on,
  double nvls_chunk = 25900000;     // and a switch before it sends the sum
  double ll128 = 1.16;              // factor of NCCL's latencies of LL128
  double network_simple_us = 8.97;  // of a step between nodes by protocol Simple, without net_us
  double peer_us = 3.99;            // for each rank on another node to which all_to_all sends
};

// The fabric of this process; Fabric{} until set_fabric(), which must not run beside collectives.
const Fabric& fabric();
void set_fabric(const Fabric& fabric);

// One way of doing an operation.
struct Route {
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
  double ns = 0;
};

// routes() lists the ways that the ranks can take, cheapest first. `ranks` are numbers in the whole
// job, which fill one node after the other. `bytes` is the size of nccl-tests: the larger of one
// rank's input and output. `sharing` divides the bandwidth: the number of groups on the links, or
// the slowdown of degraded links. `group` has all ranks of the communicator of a transfer, which
// decide over its channels; if empty, they are `ranks`.
std::vector<Route> routes(const Fabric& fabric, Collective operation, const std::vector<int>& ranks,
                          double bytes, double sharing = 1, const std::vector<int>& group = {});

// communication_ns() is the duration of the cheapest route on fabric(), from the time at which the
// last rank is ready until all are done.
std::int64_t communication_ns(Collective operation, const std::vector<int>& ranks, double bytes,
                              double sharing = 1, const std::vector<int>& group = {});

// bus_factor() times size / time is the bus bandwidth of nccl-tests.
double bus_factor(Collective operation, int ranks);

}  // namespace npusim
