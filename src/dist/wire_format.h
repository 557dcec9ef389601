// How vectors look on the wire: f32 as they are, or bf16, int8 or int4 in groups (src/codec).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "codec/codec.h"

namespace haversack {

class WireFormat {
 public:
  // Rows of this many floats; a vector on the wire is padded to whole rows.
  static constexpr int64_t kRow = 1024;

  WireFormat() = default;  // f32
  // Throws UserError (exit 2) naming --transport and what is known: f32, bf16, int8, int4.
  static WireFormat Parse(const std::string& text);

  const std::string& name() const { return name_; }
  bool exact() const { return !codec_; }
  // Whether what rounding leaves is added to the next vector: at 4 bits, on both sides.
  bool feeds_back() const { return name_ == "int4"; }

  // Bytes of `count` floats, a multiple of kRow; a multiple of 64.
  size_t Bytes(int64_t count) const;
  // x: [count]; out: Bytes(count), 64-byte aligned. Equal input gives equal bytes everywhere.
  void Encode(const float* x, int64_t count, std::byte* out) const;
  void Decode(const std::byte* in, int64_t count, float* x) const;

 private:
  std::string name_ = "f32";
  std::optional<CodecSpec> codec_;
};

}  // namespace haversack
