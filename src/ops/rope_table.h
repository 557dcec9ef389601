// Cosines and sines of rotary position embeddings (Su et al., "RoFormer", arXiv 2104.09864), in
// Hugging Face's arrangement: dimension i turns with dimension i + head_dim/2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

namespace haversack {

// Positions divided by a factor.
struct LinearRopeScaling {
  double factor = 1;
  bool operator==(const LinearRopeScaling&) const = default;
};

// Llama 3.1's frequency-dependent scaling (transformers, modeling_rope_utils: "llama3").
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_positions = 8192;
  bool operator==(const Llama3RopeScaling&) const = default;
};

using RopeScaling = std::variant<std::monostate, LinearRopeScaling, Llama3RopeScaling>;

class RopeTable {
 public:
  // Tables [positions, head_dim/2]; the angle of position p and frequency i is p *
  // theta^(-2i/head_dim).
  RopeTable(int64_t positions, int64_t head_dim, double theta, const RopeScaling& scaling);

  const float* cos() const { return cos_.data(); }
  const float* sin() const { return sin_.data(); }
  int64_t positions() const { return positions_; }
  size_t bytes() const { return (cos_.size() + sin_.size()) * sizeof(float); }

 private:
  int64_t positions_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

}  // namespace haversack
