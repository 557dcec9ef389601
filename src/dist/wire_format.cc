#include "dist/wire_format.h"

#include <cstring>

#include "base/error.h"

namespace haversack {

WireFormat WireFormat::Parse(const std::string& text) {
  WireFormat format;
  format.name_ = text;
  if (text == "f32") return format;
  if (text != "bf16" && text != "int8" && text != "int4") {
    throw UserError(ExitCode::kUsage, "--transport: '{}' is unknown; use f32, bf16, int8 or int4",
                    text);
  }
  format.codec_ = ParseCodec(text, "--transport");
  return format;
}

size_t WireFormat::Bytes(int64_t count) const {
  HAVERSACK_CHECK(count % kRow == 0, "{} floats are not whole rows", count);
  if (!codec_) return static_cast<size_t>(count) * sizeof(float);
  return EncodedBytes(*codec_, count / kRow, kRow);
}

void WireFormat::Encode(const float* x, int64_t count, std::byte* out) const {
  if (!codec_) {
    std::memcpy(out, x, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  haversack::Encode({*codec_, count / kRow, kRow, {}}, x, kRow, {}, out);
}

void WireFormat::Decode(const std::byte* in, int64_t count, float* x) const {
  if (!codec_) {
    std::memcpy(x, in, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  haversack::Decode({*codec_, count / kRow, kRow, {}}, in, x, kRow);
}

}  // namespace haversack
