// Codecs whose values share a scale, and perhaps a minimum, in groups along a row. Common to all:
// the layout, the outlier columns, and what becomes of columns that do not fill a group.
//
// Columns are cut into chunks of 32, a group is 1, 2 or 4 chunks, the last may have fewer; the last
// chunk is padded. Scales and minima are bf16. Against f32 that adds 0.8% to int8's squared error
// on normal values and 0.4% to int4's (f16: 0.1%), and saves 3% of int8's bytes and 6% to 17% of
// int4's; unlike f16 it has f32's range, so no activation overflows it, and a product of a code and
// a scale is exact in f32, so every vector extension decodes to the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "codec/format.h"
#include "hwy/aligned_allocator.h"

namespace haversack {

inline constexpr int64_t kChunk = 32;

// What one grouped codec stores beside the codes.
struct GroupedKind {
  int bits = 8;          // of a code
  bool minimum = false;  // a group has a minimum as well as a scale
};

// Sections of an encoded value, each at a multiple of 64 bytes: codes, scales, minima, outliers.
struct GroupedLayout {
  GroupedLayout(const GroupedKind& kind, const CodecSpec& codec, int64_t rows, int64_t cols);

  int64_t width;      // padded columns, a multiple of kChunk
  int64_t group;      // columns of a group
  int group_log2;     // of those
  int64_t groups;     // of a row
  int64_t row_bytes;  // codes of a row
  size_t scales;      // offset; [rows, groups] bf16
  size_t minima;      // offset; [rows, groups] bf16
  size_t outliers;    // offset; [rows, outliers] bf16
  size_t bytes;       // of all
};

// What one row's random numbers come from (RandomBits in grouped-inl.h).
struct RowKey {
  uint32_t slope = 0;
  uint32_t offset = 0;
};

// Where one row's parts are.
struct GroupedRow {
  uint8_t* codes;
  uint16_t* scales;
  uint16_t* minima;
};

struct ConstGroupedRow {
  const uint8_t* codes;
  const uint16_t* scales;
  const uint16_t* minima;
};

// Columns that stand in no group's range: outliers and padding.
class ExcludedColumns {
 public:
  ExcludedColumns(const GroupedLayout& layout, const EncodedShape& shape);

  // Of group g: null where all its columns count, else [group], all bits set where a column does
  // not.
  const int32_t* Mask(int64_t g) const {
    return sources_[g] == kNone ? nullptr : mask_.get() + g * group_;
  }
  // A value to put in their place, given the row: one of the same group's, 0 where there is none.
  float Substitute(int64_t g, const float* row) const {
    return sources_[g] < 0 ? 0.0f : row[sources_[g]];
  }

 private:
  static constexpr int64_t kNone = -2;
  int64_t group_;
  std::vector<int64_t> sources_;  // by group: kNone, or the column of the substitute, or -1
  hwy::AlignedFreeUniquePtr<int32_t[]> mask_;
};

// Per-group numbers of the row being encoded, each padded to whole vectors.
struct GroupScratch {
  explicit GroupScratch(int64_t groups);

  hwy::AlignedFreeUniquePtr<float[]> memory;
  float* low;
  float* high;
  float* inverse;  // random units or 1, over the step
  uint16_t* scales;
  uint16_t* minima;
};

// A codec's own part. x: rows of layout.width floats.
struct GroupedKernels {
  // `key` is null where rounding is to nearest. `next` is the row that will be encoded after this.
  void (*encode_row)(const GroupedLayout& layout, const ExcludedColumns& excluded, const float* x,
                     const float* next, const RowKey* key, const GroupScratch& scratch,
                     const GroupedRow& out);
  // Chunks [first, last); x is where chunk `first` goes.
  void (*decode_chunks)(const GroupedLayout& layout, const ConstGroupedRow& in, int64_t first,
                        int64_t last, float* x);
};

class GroupedFormat final : public CodecFormat {
 public:
  GroupedFormat(std::string_view name, const GroupedKind& kind, GroupedKernels (*kernels)())
      : name_(name), kind_(kind), kernels_(kernels) {}

  std::string_view name() const override { return name_; }
  bool grouped() const override { return true; }
  size_t EncodedBytes(const CodecSpec& codec, int64_t rows, int64_t cols) const override;
  void EncodeRows(const EncodedShape& shape, int64_t begin, int64_t end, const float* x,
                  int64_t stride, const Rounding& rounding, std::byte* out) const override;
  void DecodeRows(const EncodedShape& shape, const std::byte* in, int64_t begin, int64_t end,
                  float* x, int64_t stride) const override;

 private:
  std::string_view name_;
  GroupedKind kind_;
  GroupedKernels (*kernels_)();  // for the vector extension in use
};

}  // namespace haversack
