// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace haversack {

struct SamplingOptions {
  double temperature = 0;  // 0: the most probable token
  double top_p = 1;  // sample among the most probable tokens that together have this probability
  uint64_t seed = 0;
};

// The id of the next token, `position` being its place in the sequence. Same arguments, same
// answer. A logit of minus infinity is never chosen; one that is NaN or plus infinity, or no other
// at all, is a UserError (exit 2): the weights are broken. Holtzman et al., "The curious case of
// neural text degeneration" (arXiv 1904.09751), for top-p.
int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options,
                    uint64_t position);

}  // namespace haversack
