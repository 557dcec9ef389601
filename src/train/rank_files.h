// The parts of a checkpoint that differ by rank: flat f32 vectors in one file each,
// rank-0003.safetensors, beside the shared state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace haversack {

struct NamedVector {
  std::string name;
  std::span<const float> values;
};

std::string RankFileName(int rank);

// Throws FileError (exit 5).
void WriteRankFile(const std::string& folder, int rank, const std::vector<NamedVector>& vectors);

class RankFile {
 public:
  RankFile(const std::string& folder, int rank);

  // Elements of a vector; -1: there is none of that name.
  int64_t Count(const std::string& name) const;
  // Reads all of a vector. Throws UserError (exit 2) where it is missing or of another size.
  void Read(const std::string& name, std::span<float> out) const;
  // Elements [begin, begin + count) of it.
  void ReadRange(const std::string& name, int64_t begin, int64_t count, float* out) const;

 private:
  SafetensorsFile file_;
};

}  // namespace haversack
