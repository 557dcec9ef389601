#include "io/model_dir.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "base/threads.h"
#include "io/float_convert.h"
#include "kernels/adamw.h"

namespace haversack {
namespace {

namespace fs = std::filesystem;

// Floats converted at once when a tensor has to be turned or compared.
constexpr int64_t kPieceFloats = 64 * 1024;

std::vector<int64_t> StoredShape(const Param& param, const TensorSource& source) {
  if (source.vector) return {source.rows};
  if (source.transposed) return {param.cols, source.rows};
  return {source.rows, param.cols};
}

// A checkpoint may be saved from the base model: without the "model." or "transformer." prefix.
std::optional<std::string> FindTensor(const WeightFiles& files, const std::string& name) {
  if (files.Has(name)) return name;
  const std::string bare = name.substr(name.find('.') + 1);
  if (!name.starts_with("lm_head") && files.Has(bare)) return bare;
  return std::nullopt;
}

// Buffers that older versions of transformers saved with the weights.
bool IsKnownBuffer(const std::string& name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias");
}

bool SameContent(const WeightFiles& files, const std::string& a, const std::string& b) {
  const int64_t count = files.Info(a).elements();
  if (files.Info(a).shape != files.Info(b).shape) return false;
  std::vector<float> left(kPieceFloats), right(kPieceFloats);
  for (int64_t begin = 0; begin < count; begin += kPieceFloats) {
    const int64_t end = std::min(count, begin + kPieceFloats);
    files.ReadRangeAsF32(a, begin, end, left.data());
    files.ReadRangeAsF32(b, begin, end, right.data());
    if (std::memcmp(left.data(), right.data(), (end - begin) * sizeof(float)) != 0) return false;
  }
  return true;
}

// Remarks on tensors, with what holds of the same tensor in several blocks told once:
// "tensor model.layers.0.mlp.up_proj.weight is missing (and so in blocks 1, 2)".
class Remarks {
 public:
  // `kind` keeps apart what is said of one tensor in different blocks.
  void Add(const std::string& name, const std::string& kind, const std::string& text) {
    // The first component of digits alone is the block's number.
    size_t begin = 0, end = 0;
    do {
      begin = name.find('.', end);
      end = begin == std::string::npos ? begin : name.find_first_not_of("0123456789", begin + 1);
    } while (end != std::string::npos && (end == begin + 1 || name[end] != '.'));
    std::string key = name, block;
    if (end != std::string::npos) {
      key.erase(begin + 1, end - begin - 1);
      block = name.substr(begin + 1, end - begin - 1);
    }
    const auto [place, added] = index_.emplace(kind + " " + key, groups_.size());
    if (added) {
      groups_.push_back({.first = text, .others = ""});
    } else {
      groups_[place->second].others += ", " + block;
    }
  }

  bool empty() const { return groups_.empty(); }

  std::string Text() const {
    std::string text;
    for (const Group& group : groups_) {
      text += (text.empty() ? "" : "; ") + group.first;
      if (!group.others.empty()) text += " (and so in blocks " + group.others.substr(2) + ")";
    }
    return text;
  }

 private:
  struct Group {
    std::string first, others;
  };
  std::vector<Group> groups_;
  std::map<std::string, size_t> index_;
};

// Tied embeddings with a head of its own in the file: equal is fine, different is two models in
// one.
void CheckTiedHead(const Graph& graph, const ModelConfig& config, const WeightFiles& files) {
  const std::string& embedding = graph.params[0].sources[0].name;
  if (!config.tied_embeddings || !files.Has("lm_head.weight")) return;
  const std::optional<std::string> found = FindTensor(files, embedding);
  if (!found || SameContent(files, *found, "lm_head.weight")) return;
  throw UserError(ExitCode::kUsage,
                  "{}: config.json says tie_word_embeddings, but lm_head.weight and {} differ; "
                  "remove one of the tensors or set tie_word_embeddings to false",
                  files.FileOf("lm_head.weight"), *found);
}

// Nothing can be learned from, nor said by, a model that holds NaN or infinity.
void CheckFinite(const WeightFiles& files, const std::string& name, const float* values,
                 int64_t count) {
  if (std::isfinite(SquaredNorm(values, count))) return;
  throw UserError(ExitCode::kUsage,
                  "{}: tensor {} holds numbers that are not finite (NaN or infinity): the model is "
                  "broken; fetch it again, or take one from before it diverged",
                  files.FileOf(name), name);
}

}  // namespace

std::vector<std::string> CheckWeights(const Graph& graph, const ModelConfig& config,
                                      const WeightFiles& files) {
  std::set<std::string> used;
  Remarks faults;
  for (const Param& param : graph.params) {
    for (const TensorSource& source : param.sources) {
      const std::optional<std::string> name = FindTensor(files, source.name);
      if (!name) {
        faults.Add(source.name, "missing", fmt::format("tensor {} is missing", source.name));
        continue;
      }
      used.insert(*name);
      const TensorInfo& info = files.Info(*name);
      if (info.shape != StoredShape(param, source)) {
        faults.Add(
            *name, ShapeText(info.shape),
            fmt::format("{}: tensor {} has shape {}, config.json asks for {}", files.FileOf(*name),
                        *name, ShapeText(info.shape), ShapeText(StoredShape(param, source))));
      } else if (StoredTypeOf(info.dtype) == StoredType::kOther) {
        faults.Add(*name, info.dtype,
                   fmt::format("{}: tensor {} has type {}; supported are F32, F16, BF16",
                               files.FileOf(*name), *name, info.dtype));
      }
    }
  }
  if (!faults.empty()) {
    throw UserError(ExitCode::kUsage, "{}: the weights do not fit config.json: {}", files.dir(),
                    faults.Text());
  }
  CheckTiedHead(graph, config, files);
  std::vector<std::string> notes = files.notes();
  Remarks extra;
  for (const std::string& name : files.names()) {
    if (used.contains(name) || IsKnownBuffer(name)) continue;
    if (config.tied_embeddings && name == "lm_head.weight") continue;
    extra.Add(name, "", OneLine(name));
  }
  if (!extra.empty())
    notes.push_back("tensors that this model does not use are ignored: " + extra.Text());
  return notes;
}

void LoadWeights(const Graph& graph, const ParamLayout& layout, const WeightFiles& files,
                 float* weights) {
  std::vector<float> piece;
  for (size_t p = 0; p < graph.params.size(); ++p) {
    const Param& param = graph.params[p];
    for (const TensorSource& source : param.sources) {
      const std::string name = FindTensor(files, source.name).value_or(source.name);
      float* out = weights + layout.offset[p] + source.row_begin * param.cols;
      if (!source.transposed) {
        files.ReadAsF32(name, out);
        CheckFinite(files, name, out, source.rows * param.cols);
        continue;
      }
      // Stored [cols, rows]: one stored row becomes one column.
      piece.resize(source.rows);
      for (int64_t c = 0; c < param.cols; ++c) {
        files.ReadRangeAsF32(name, c * source.rows, (c + 1) * source.rows, piece.data());
        CheckFinite(files, name, piece.data(), source.rows);
        for (int64_t r = 0; r < source.rows; ++r) out[r * param.cols + c] = piece[r];
      }
    }
  }
}

void InitWeights(const Graph& graph, const ParamLayout& layout, uint64_t seed, float* weights) {
  for (size_t p = 0; p < graph.params.size(); ++p) {
    const Param& param = graph.params[p];
    float* out = weights + layout.offset[p];
    if (param.init != ParamInit::kNormal) {
      std::fill_n(out, param.count(), param.init == ParamInit::kOnes ? 1.0f : 0.0f);
      continue;
    }
    const RandomStream random(
        {.seed = seed, .purpose = RandomPurpose::kInit, .layer = static_cast<uint32_t>(p)});
    ParallelFor(param.count(), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = param.init_std * random.Normal(i);
    });
  }
}

namespace {

// What makes a directory usable beside the weights; whatever of it the source has.
constexpr const char* kCompanions[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "generation_config.json",
                                       "added_tokens.json",
                                       "chat_template.jinja",
                                       "vocab.json",
                                       "merges.txt",
                                       "tokenizer.model"};

// The largest magnitude, or NaN where one is among the values.
float LargestMagnitude(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (!(magnitude <= largest)) largest = magnitude;
    if (std::isnan(largest)) break;
  }
  return largest;
}

float Rounded(float value, StoredType type) {
  if (type == StoredType::kF16) return F32FromF16(F16FromF32(value));
  if (type == StoredType::kBF16) return F32FromBf16(Bf16FromF32(value));
  return value;
}

// A model that holds NaN or infinity, or would after rounding, is never exported.
void CheckExportable(const Graph& graph, const ParamLayout& layout, const float* weights,
                     const std::string& dtype) {
  for (size_t p = 0; p < graph.params.size(); ++p) {
    const Param& param = graph.params[p];
    const float largest = LargestMagnitude(weights + layout.offset[p], param.count());
    if (!std::isfinite(largest)) {
      throw UserError(ExitCode::kDiverged,
                      "training diverged: tensor {} holds numbers that are not finite; nothing was "
                      "exported; lower --lr or lengthen --warmup",
                      param.name);
    }
    if (!std::isfinite(Rounded(largest, StoredTypeOf(dtype)))) {
      throw UserError(ExitCode::kUsage,
                      "tensor {} holds {:g}, more than {} can; nothing was exported; pass --resume "
                      "with another --export-dtype",
                      param.name, largest, dtype);
    }
  }
}

void WriteWeights(const Graph& graph, const ParamLayout& layout, const float* weights,
                  const std::string& dtype, const std::string& path) {
  std::vector<TensorSpec> specs;
  for (const Param& param : graph.params) {
    for (const TensorSource& source : param.sources) {
      specs.push_back({.name = source.name, .dtype = dtype, .shape = StoredShape(param, source)});
    }
  }
  SafetensorsWriter writer = SafetensorsWriter::Open(path, specs);
  std::vector<float> piece;
  for (size_t p = 0; p < graph.params.size(); ++p) {
    const Param& param = graph.params[p];
    for (const TensorSource& source : param.sources) {
      const float* in = weights + layout.offset[p] + source.row_begin * param.cols;
      if (!source.transposed) {
        writer.Write(source.name, in);
        continue;
      }
      piece.resize(source.rows);
      for (int64_t c = 0; c < param.cols; ++c) {
        for (int64_t r = 0; r < source.rows; ++r) piece[r] = in[r * param.cols + c];
        writer.WriteRange(source.name, c * source.rows, source.rows, piece.data());
      }
    }
  }
  writer.Finish();
}

// Through a small buffer: a tokenizer's file may be larger than what the budget leaves.
void CopyFile(const fs::path& from, const fs::path& to) {
  const File source = File::Open(from.string());
  File target = File::Create(to.string());
  std::vector<char> buffer(256 << 10);
  uint64_t offset = 0;
  while (const uint64_t got = source.ReadUpTo(buffer.data(), buffer.size(), offset)) {
    target.WriteAt(buffer.data(), got, offset);
    offset += got;
  }
  target.Sync();
}

std::string ConfigText(const ModelConfig& config, const std::string& dtype) {
  static const std::map<std::string, std::string> names = {
      {"F32", "float32"}, {"BF16", "bfloat16"}, {"F16", "float16"}};
  nlohmann::json json = config.json;
  json[json.contains("dtype") ? "dtype" : "torch_dtype"] = names.at(dtype);
  json["tie_word_embeddings"] = config.tied_embeddings;
  return json.dump(2) + "\n";
}

}  // namespace

int64_t ExportBytes(const Graph& graph, const std::string& dtype, const std::string& source_dir) {
  constexpr int64_t kHeaderBytes = 65536, kHeaderBytesATensor = 160;
  const auto element = static_cast<int64_t>(ElementBytes(StoredTypeOf(dtype)));
  int64_t bytes = graph.parameter_count() * element + kHeaderBytes +
                  static_cast<int64_t>(graph.params.size()) * kHeaderBytesATensor;
  for (const char* name : kCompanions) {
    std::error_code error;
    const auto size = fs::file_size(fs::path(source_dir) / name, error);
    if (!error) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

void ExportModel(const Graph& graph, const ParamLayout& layout, const ModelConfig& config,
                 const float* weights, const std::string& source_dir, const std::string& dtype,
                 const std::string& out_dir) {
  CheckExportable(graph, layout, weights, dtype);
  const fs::path out = out_dir;
  const fs::path fresh = out.string() + ".writing";
  const fs::path old = out.string() + ".old";
  try {
    fs::remove_all(fresh);
    fs::create_directories(fresh);
    WriteWeights(graph, layout, weights, dtype, (fresh / "model.safetensors").string());
    WriteWholeFile((fresh / "config.json").string(), ConfigText(config, dtype));
    for (const char* name : kCompanions) {
      const fs::path source = fs::path(source_dir) / name;
      if (!fs::exists(source)) continue;
      CopyFile(source, fresh / name);
    }
    SyncFolder(fresh.string());
    fs::remove_all(old);
    if (fs::exists(out)) fs::rename(out, old);
    fs::rename(fresh, out);
    fs::remove_all(old);
    SyncFolder(out.parent_path().empty() ? "." : out.parent_path().string());
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    throw FileError("write the model to", out_dir, error.code().value());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    throw;
  }
}

}  // namespace haversack
