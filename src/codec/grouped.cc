#include "codec/grouped.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "codec/bf16.h"

namespace haversack {
namespace {

constexpr size_t kLargestVector = 64;  // bytes; ChunkF32 is no wider on any target

// Whole chunks of a row whose columns do not fill the last one.
class PaddedRow {
 public:
  PaddedRow(int64_t cols, int64_t width) : cols_(cols) {
    if (width == cols) return;
    copy_ = hwy::AllocateAligned<float>(static_cast<size_t>(width));
    std::fill_n(copy_.get(), width, 0.0f);
  }
  const float* operator()(const float* row) const {
    if (!copy_) return row;
    std::memcpy(copy_.get(), row, static_cast<size_t>(cols_) * sizeof(float));
    return copy_.get();
  }

 private:
  int64_t cols_;
  hwy::AlignedFreeUniquePtr<float[]> copy_;
};

// The keys of successive rows: half a Philox block each, several blocks at a time, so that their
// long chains of operations overlap.
class RowKeys {
 public:
  explicit RowKeys(const Rounding& rounding) : stream_(rounding.key), first_(rounding.first_row) {}

  RowKey operator()(int64_t row) {
    const auto at = static_cast<uint64_t>(first_ + row);
    if (at / kRows != batch_) {
      batch_ = at / kRows;
      for (uint64_t i = 0; i < kRows / 2; ++i) {
        const std::array<uint32_t, 4> words = stream_.Block(batch_ * (kRows / 2) + i);
        keys_[2 * i] = {words[0], words[1]};
        keys_[2 * i + 1] = {words[2], words[3]};
      }
    }
    return keys_[at % kRows];
  }

 private:
  static constexpr uint64_t kRows = 16;
  RandomStream stream_;
  int64_t first_;
  uint64_t batch_ = ~uint64_t{0};
  std::array<RowKey, kRows> keys_;
};

}  // namespace

GroupedLayout::GroupedLayout(const GroupedKind& kind, const CodecSpec& codec, int64_t rows,
                             int64_t cols)
    : width(static_cast<int64_t>(AlignUp(cols, kChunk))),
      group(codec.group),
      group_log2(std::countr_zero(static_cast<uint32_t>(codec.group))),
      groups((cols + group - 1) / group),
      row_bytes(width * kind.bits / 8) {
  const size_t section = AlignUp(static_cast<uint64_t>(rows * groups) * sizeof(uint16_t), 64);
  scales = AlignUp(static_cast<uint64_t>(rows * row_bytes), 64);
  minima = scales + section;
  outliers = minima + (kind.minimum ? section : 0);
  bytes = outliers + AlignUp(static_cast<uint64_t>(rows * codec.outliers) * sizeof(uint16_t), 64);
}

ExcludedColumns::ExcludedColumns(const GroupedLayout& layout, const EncodedShape& shape)
    : group_(layout.group), sources_(static_cast<size_t>(layout.groups), kNone) {
  std::vector<int32_t> columns(shape.outliers.begin(), shape.outliers.end());
  for (int64_t c = shape.cols; c < layout.width; ++c) columns.push_back(static_cast<int32_t>(c));
  if (columns.empty()) return;
  const int64_t count = layout.groups * group_;
  mask_ = hwy::AllocateAligned<int32_t>(static_cast<size_t>(count));
  std::fill_n(mask_.get(), count, 0);
  for (const int32_t column : columns) mask_[column] = -1;
  for (const int32_t column : columns) {
    const int64_t begin = column / group_ * group_;
    const int64_t end = std::min(begin + group_, layout.width);
    const auto* kept = std::find(mask_.get() + begin, mask_.get() + end, 0);
    sources_[column / group_] = kept == mask_.get() + end ? -1 : kept - mask_.get();
  }
}

GroupScratch::GroupScratch(int64_t groups) {
  const size_t padded = AlignUp(static_cast<uint64_t>(groups), kLargestVector / sizeof(float));
  memory = hwy::AllocateAligned<float>(4 * padded);
  std::fill_n(memory.get(), 4 * padded, 0.0f);
  low = memory.get();
  high = low + padded;
  inverse = high + padded;
  scales = reinterpret_cast<uint16_t*>(inverse + padded);
  minima = scales + padded;
}

size_t GroupedFormat::EncodedBytes(const CodecSpec& codec, int64_t rows, int64_t cols) const {
  HAVERSACK_CHECK(codec.group >= kChunk && std::has_single_bit(static_cast<uint32_t>(codec.group)),
                  "group {}", codec.group);
  return GroupedLayout(kind_, codec, rows, cols).bytes;
}

void GroupedFormat::EncodeRows(const EncodedShape& shape, int64_t begin, int64_t end,
                               const float* x, int64_t stride, const Rounding& rounding,
                               std::byte* out) const {
  const GroupedLayout layout(kind_, shape.codec, shape.rows, shape.cols);
  const ExcludedColumns excluded(layout, shape);
  const PaddedRow padded(shape.cols, layout.width);
  const GroupScratch scratch(layout.groups);
  const GroupedKernels kernels = kernels_();
  RowKeys keys(rounding);
  auto* codes = reinterpret_cast<uint8_t*>(out);
  auto* scales = reinterpret_cast<uint16_t*>(out + layout.scales);
  auto* minima = reinterpret_cast<uint16_t*>(out + layout.minima);
  auto* outliers = reinterpret_cast<uint16_t*>(out + layout.outliers);
  for (int64_t r = begin; r < end; ++r, x += stride) {
    const RowKey key = shape.codec.stochastic ? keys(r) : RowKey{};
    kernels.encode_row(
        layout, excluded, padded(x), x + stride, shape.codec.stochastic ? &key : nullptr, scratch,
        {codes + r * layout.row_bytes, scales + r * layout.groups, minima + r * layout.groups});
    uint16_t* row_outliers = outliers + r * shape.codec.outliers;
    for (const int32_t column : shape.outliers) *row_outliers++ = RoundToBf16(x[column]);
  }
}

void GroupedFormat::DecodeRows(const EncodedShape& shape, const std::byte* in, int64_t begin,
                               int64_t end, float* x, int64_t stride) const {
  const GroupedLayout layout(kind_, shape.codec, shape.rows, shape.cols);
  const auto* codes = reinterpret_cast<const uint8_t*>(in);
  const auto* scales = reinterpret_cast<const uint16_t*>(in + layout.scales);
  const auto* minima = reinterpret_cast<const uint16_t*>(in + layout.minima);
  const auto* outliers = reinterpret_cast<const uint16_t*>(in + layout.outliers);
  const GroupedKernels kernels = kernels_();
  const int64_t whole = shape.cols / kChunk;
  for (int64_t r = begin; r < end; ++r, x += stride) {
    const ConstGroupedRow row{codes + r * layout.row_bytes, scales + r * layout.groups,
                              minima + r * layout.groups};
    kernels.decode_chunks(layout, row, 0, whole, x);
    if (whole * kChunk < shape.cols) {
      alignas(64) float last[kChunk];
      kernels.decode_chunks(layout, row, whole, whole + 1, last);
      std::memcpy(x + whole * kChunk, last,
                  static_cast<size_t>(shape.cols - whole * kChunk) * sizeof(float));
    }
    const uint16_t* row_outliers = outliers + r * shape.codec.outliers;
    for (const int32_t column : shape.outliers) x[column] = FromBf16(*row_outliers++);
  }
}

}  // namespace haversack
