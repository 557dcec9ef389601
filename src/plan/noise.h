// The accuracy budget, in units of gradient noise. A micro-batch's gradient is a sample: V is its
// variance between micro-batches, E|g - E g|^2. Encoding adds an error of its own, |g' - g|^2; the
// two average out alike over micro-batches, so their ratio, the plan's share of V, holds for any
// batch size. It is what --noise-share bounds.
//
// A plan's share is taken to be a sum over its encoded pieces: the relative squared error of what
// was decoded, which is measured by layer, times a gain, which is measured by kind of piece over
// all layers at once, alone and with everything that a plan can compute again from it.
#pragma once

#include <map>
#include <string>

#include "plan/actions.h"

namespace haversack {

struct NoiseTable {
  // Share of V for each unit of relative squared error, summed over a source's pieces. By source
  // (NoiseSource), with ".again" where the block computes something from it a second time.
  std::map<std::string, double> gain;
  // Relative squared error, by "VALUE/PIECE CODEC" of the whole model.
  std::map<std::string, double> error;
};

// Pieces whose errors count together, named as gains are: "x_mid", "gate_up", "qkv" (v alone) and
// "qkv.sensitive" (q and k). The block's input is "input", whatever made it.
std::string NoiseSource(const Graph& graph, ValueId value, bool sensitive);
std::string ErrorKey(const Value& value, const Piece& piece, const CodecSpec& codec);

// For predictions before a model's own noise is measured: from gradient errors on SmolLM2-135M and
// English text where there are any (docs/benchmarks.md), and a high guess elsewhere.
NoiseTable TypicalNoise(const Graph& whole, const Graph& one_block, const ActionSet& allowed);

// The share of V of one action of one value of `layer`; `again`: something is computed again from
// it. Infinite where the table lacks it.
double NoiseShare(const NoiseTable& table, const Graph& whole, const Graph& one_block, int layer,
                  const OpenValue& open, const Action& action, bool again);

// The value of `whole` that stands where `value` of `one_block` stands in `layer`.
ValueId ValueInLayer(const Graph& whole, const Graph& one_block, ValueId value, int layer);

}  // namespace haversack
