#include "train/rank_files.h"

#include "base/error.h"
#include "io/safetensors.h"

namespace haversack {
namespace {

std::string PathOf(const std::string& folder, int rank) {
  return folder + "/" + RankFileName(rank);
}

}  // namespace

std::string RankFileName(int rank) { return fmt::format("rank-{:04}.safetensors", rank); }

void WriteRankFile(const std::string& folder, int rank, const std::vector<NamedVector>& vectors) {
  std::vector<TensorSpec> specs;
  for (const NamedVector& v : vectors) {
    specs.push_back(
        {.name = v.name, .dtype = "F32", .shape = {static_cast<int64_t>(v.values.size())}});
  }
  SafetensorsWriter writer = SafetensorsWriter::Open(PathOf(folder, rank), specs, {});
  for (const NamedVector& v : vectors) writer.Write(v.name, v.values.data());
  writer.Finish();
}

RankFile::RankFile(const std::string& folder, int rank)
    : file_(SafetensorsFile::Open(PathOf(folder, rank))) {}

int64_t RankFile::Count(const std::string& name) const {
  const auto found = file_.tensors().find(name);
  return found == file_.tensors().end() ? -1 : found->second.elements();
}

void RankFile::Read(const std::string& name, std::span<float> out) const {
  if (Count(name) != static_cast<int64_t>(out.size())) {
    throw UserError(ExitCode::kUsage,
                    "{}: {} has {} numbers, not {}: the checkpoint is of another model or setting",
                    file_.path(), name, Count(name), out.size());
  }
  file_.ReadAsF32(file_.tensors().at(name), out.data());
}

void RankFile::ReadRange(const std::string& name, int64_t begin, int64_t count, float* out) const {
  if (Count(name) < begin + count) {
    throw UserError(ExitCode::kUsage,
                    "{}: {} has {} numbers, fewer than {}: the checkpoint is of another model",
                    file_.path(), name, Count(name), begin + count);
  }
  file_.ReadRangeAsF32(file_.tensors().at(name), begin, begin + count, out);
}

}  // namespace haversack
