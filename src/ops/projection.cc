#include "ops/projection.h"

#include <fmt/format.h>

#include "base/error.h"

namespace haversack {

std::string Projection::signature() const {
  return fmt::format("projection({}->{}{}{})", spec_.cols, spec_.rank,
                     spec_.stored() ? fmt::format(",principal {}", spec_.principal) : "",
                     matmul_.type() == ComputeType::kBF16 ? ",bf16" : "");
}

size_t Projection::forward_scratch(const BatchShape& shape) const {
  return matmul_.Scratch(shape.tokens(), spec_.rank, spec_.tile_rows());
}

double Projection::forward_flops(const BatchShape& shape) const {
  return 2.0 * static_cast<double>(shape.tokens()) * static_cast<double>(spec_.cols) *
         static_cast<double>(spec_.rank);
}

void Projection::Forward(const OpArgs& args) const {
  ForEachTile(spec_, args.projection_epoch, args.basis, args.workspace,
              [&](int64_t begin, int64_t rows, const float* p) {
                matmul_.ByRows(Transpose::kNo, Transpose::kNo, args.tokens, spec_.rank, rows, 1,
                               args.in[0] + begin, spec_.cols, p, spec_.rank, begin == 0 ? 0 : 1,
                               args.out[0], spec_.rank, args.scratch);
              });
}

void Projection::Backward(const OpArgs&) const {
  HAVERSACK_CHECK(false, "a projection has no backward");
}

}  // namespace haversack
