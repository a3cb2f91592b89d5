// SPDX-License-Identifier: BSD-3-Clause
// A graph in the language of Graphviz: a node for each operator and kernel, an edge to the next one
// of its stream, a dashed one where a stream waits for another.
#include <sstream>
#include <unordered_map>

#include "csrc/runtime/graph.h"

namespace torch_npusim {

std::string Graph::as_dot() const {
  std::ostringstream dot;
  dot << "digraph npusim_graph {\n  node [shape=box, fontname=monospace];\n";
  std::unordered_map<const npusim::Stream*, std::size_t> last;
  std::unordered_map<std::size_t, std::size_t> marked;
  std::unordered_map<const npusim::Stream*, std::vector<std::size_t>> waits;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const auto before = last.find(node.stream);
    if (node.kind == Kind::record) {
      if (before != last.end()) marked[node.mark] = before->second;
      continue;
    }
    if (node.kind == Kind::block) {
      if (marked.count(node.mark) != 0) waits[node.stream].push_back(marked[node.mark]);
      continue;
    }
    const std::string name = node.kind == Kind::kernel ? std::string(node.kernel.name)
                                                       : c10::toString(node.op->operator_name());
    dot << "  n" << i << " [label=\"" << i << ": " << name << "\\nstream " << node.stream->id()
        << "\"];\n";
    if (before != last.end()) dot << "  n" << before->second << " -> n" << i << ";\n";
    for (const std::size_t from : waits[node.stream]) {
      dot << "  n" << from << " -> n" << i << " [style=dashed];\n";
    }
    waits[node.stream].clear();
    last[node.stream] = i;
  }
  dot << "}\n";
  return dot.str();
}

}  // namespace torch_npusim
