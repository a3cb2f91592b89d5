// SPDX-License-Identifier: BSD-3-Clause
// How long communication takes: the cheapest of the algorithms and protocols that a communication
// library could choose, each with its latency and bandwidth on the links that the ranks have (rule
// D2). The structure is that of NCCL's own tuner (src/graph/tuning.cc, 2.19 to 2.27).
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

// Nodes that are alike, joined by network cards. Bandwidths are GB/s (1e9 bytes) in each direction.
struct Fabric {
  std::string name = "npusim";
  int ranks_per_node = 8;
  bool nvlink = true;           // or ranks of a node are joined by PCIe
  double link = 100;            // bus bandwidth of a ring within a node
  double nvls = 0;              // likewise, where the switch itself adds; 0: it does not
  double ll = 141;              // the most that protocol LL reaches within a node,
  double ll_across = 45;        // and across nodes
  double nic = 25;              // of one network card
  int nics = 8;                 // per node
  double oversubscription = 1;  // of the network: its bandwidth is divided by this
  double base_us = 0;           // added to every operation
  double step_us = 1;           // factor of the time of a step between nodes
};

// The fabric of this process; a plain one until it is set.
const Fabric& fabric();
void set_fabric(const Fabric& fabric);

// One way of doing an operation.
struct Route {
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
  double ns = 0;
};

// routes() lists the ways that are open to the ranks, cheapest first. `ranks` are numbers in the
// whole job, which fill one node after the other; `bytes` is what nccl-tests calls the size: the
// larger of one rank's input and output. `sharing`: so many groups use the links at a time, or, as
// links may be degraded, so much less bandwidth do they have.
std::vector<Route> routes(const Fabric& fabric, Collective operation, const std::vector<int>& ranks,
                          double bytes, double sharing = 1);

// communication_ns() is the cheapest on fabric(), from when the last rank is ready until all are
// done.
std::int64_t communication_ns(Collective operation, const std::vector<int>& ranks, double bytes,
                              double sharing = 1);

// bus_factor() is what nccl-tests multiplies size / time with to get the bus bandwidth.
double bus_factor(Collective operation, int ranks);

}  // namespace npusim
