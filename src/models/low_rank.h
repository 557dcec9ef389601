// The pass that makes linear layers keep a projection of their input for their weights' gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/graph.h"
#include "kernels/matmul.h"

namespace haversack {

enum class LowRankMethod {
  kNone,
  kCompact,      // random P; gradients and moments in its space (arXiv 2410.15352)
  kPrac,         // principal and random directions; full moments (arXiv 2602.23111)
  kPracLowRank,  // the same with moments in the space of P (own)
};

// Throws UserError (exit 2) naming the known methods.
LowRankMethod ParseLowRankMethod(const std::string& text);
std::string ToText(LowRankMethod method);

struct LowRankOptions {
  LowRankMethod method = LowRankMethod::kNone;
  std::optional<int64_t> rank = {};  // the same for every projected value
  std::optional<double> rank_ratio =
      {};                    // else this share of its columns; default: 0.25, of PRAC 0.6
  bool orthonormal = false;  // of kCompact: columns of P orthogonal to each other
  uint64_t seed = 0;

  double ratio() const {
    return rank_ratio.value_or(method == LowRankMethod::kCompact ? 0.25 : 0.6);
  }
};

// The graph with a Projection beside each value that every backward reads for a linear layer's
// weight gradient only (norm and activation outputs; not what attention reads again), and with the
// weights' gradients in its space; parameters stay the same. A linear layer whose rank * (in + out)
// is not below in * out is left as it is unless `rank` asks for it. Throws UserError (exit 2): a
// rank above the columns of a value, no layer left to project.
Graph ApplyLowRank(const Graph& graph, const LowRankOptions& options, ComputeType compute);

}  // namespace haversack
