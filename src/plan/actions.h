// Which actions the planner may use, and what it may do with each value of a block.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "schedule/plan.h"

namespace haversack {

struct ActionSet {
  bool recompute = true;
  std::vector<std::string> codecs = {"bf16", "int8", "int4"};  // names of formats

  bool lossy() const { return !codecs.empty(); }
  static ActionSet Exact() { return {.recompute = true, .codecs = {}}; }
  bool operator==(const ActionSet&) const = default;
};

// "keep,recompute,bf16,int8": keep is always there. Throws UserError (exit 2) naming `where` and
// what is known.
ActionSet ParseActions(std::string_view text, const std::string& where);

// A value of a block whose action is open.
struct OpenValue {
  ValueId value = -1;
  std::vector<Action> actions;  // keep first
  // By piece: whether a coarse form of it makes an op run again (queries and keys).
  std::vector<bool> sensitive;
};

// The open values of the only block of `one_block`, its input first. Cheap values and row
// statistics are not open, nor is the block's output, which is the next block's input.
//
// Codecs: one for the whole value, or bf16 for the sensitive pieces and another for the rest. The
// residual stream (block inputs and what a residual connection adds to) has a few massive columns
// (Sun et al., arXiv 2402.17762): 1% of its columns stay in bf16, and so they do under 4 bits.
std::vector<OpenValue> OpenValues(const Graph& one_block, const ActionSet& allowed);

// The value that the nodes of `layer` read but do not make.
ValueId BlockInput(const Graph& graph, int layer);

}  // namespace haversack
