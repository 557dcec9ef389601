// One safetensors file: 8 bytes of header length, a JSON header, the tensors' bytes.
// Format: https://github.com/huggingface/safetensors.
//
//   const SafetensorsFile file = SafetensorsFile::Open("model.safetensors");
//   const TensorInfo& info = file.tensors().at("model.norm.weight");
//   std::vector<float> weight(info.elements());
//   file.ReadAsF32(info, weight.data());
//
// What is wrong with a file's content is a UserError (exit 2) that names file and tensor; a device
// that fails is exit 5.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace haversack {

// Element types that convert to and from f32. kOther: known or not, a type that weights here never
// have.
enum class StoredType { kF32, kF16, kBF16, kOther };

StoredType StoredTypeOf(std::string_view dtype);
// Bytes of an element; `type` is not kOther.
uint64_t ElementBytes(StoredType type);

struct TensorInfo {
  std::string name;
  std::string dtype;  // as the header spells it: "F32", "BF16", "I64"
  std::vector<int64_t> shape = {};
  uint64_t begin = 0;  // bytes from the start of the file
  uint64_t end = 0;

  // Product of the shape: 1 for a scalar, 0 where a dimension is 0.
  int64_t elements() const;
};

// "[576, 1536]".
std::string ShapeText(const std::vector<int64_t>& shape);

class SafetensorsFile {
 public:
  // Reads and checks the header; no tensor.
  static SafetensorsFile Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  // The header's __metadata__.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // All elements of a tensor of this file, row by row, as f32. Reads through a buffer of 256 KiB.
  void ReadAsF32(const TensorInfo& info, float* out) const;
  // Elements [begin, end) of its flat storage.
  void ReadRangeAsF32(const TensorInfo& info, int64_t begin, int64_t end, float* out) const;
  // All bytes of a tensor of this file, as they are stored.
  void ReadStored(const TensorInfo& info, void* out) const;

 private:
  File file_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

struct TensorSpec {
  std::string name;
  std::string dtype;  // "F32", "F16", "BF16" or "U8"
  std::vector<int64_t> shape;
};

// Writes a file whose tensors are known ahead and arrive in any order. Without Finish the
// half-written file is removed. A full disk shows at Open where the file system can tell, as
// exit 5.
class SafetensorsWriter {
 public:
  static SafetensorsWriter Open(const std::string& path, const std::vector<TensorSpec>& tensors,
                                const std::map<std::string, std::string>& metadata = {
                                    {"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;

  // All elements of tensor `name`, rounded to its type.
  void Write(const std::string& name, const float* data);
  // `count` elements from element `begin` on of its flat storage. Pieces must not overlap.
  void WriteRange(const std::string& name, int64_t begin, int64_t count, const float* data);
  // All elements of tensor `name` as they are in memory.
  void WriteStored(const std::string& name, const void* data);
  // Checks that every element was written and syncs.
  void Finish();

 private:
  SafetensorsWriter() = default;

  struct Slot {
    TensorInfo info;
    int64_t written = 0;  // elements
  };
  File file_;
  std::map<std::string, Slot> slots_;
};

}  // namespace haversack
