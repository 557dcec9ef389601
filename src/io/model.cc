#include "io/model.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "io/model_dir.h"

namespace haversack {

Model OpenModel(const std::string& dir, const BuildOptions& build, bool with_weights) {
  if (!std::filesystem::is_directory(dir)) {
    throw UserError(ExitCode::kUsage,
                    "--model: {} is not a directory; give a Hugging Face model "
                    "directory (config.json, model.safetensors, tokenizer.json)",
                    dir);
  }
  const std::string path = dir + "/config.json";
  ModelConfig config = ParseModelConfig(ParseJson(ReadWholeFile(path), path), path);
  std::vector<std::string> notes = config.warnings;
  for (std::string& warning : CheckSequenceLength(config, build.positions)) {
    notes.push_back(std::move(warning));
  }
  Graph graph = BuildGraph(config, build);
  ParamLayout layout(graph);
  Model model = {.dir = dir,
                 .build = build,
                 .config = std::move(config),
                 .graph = std::move(graph),
                 .layout = std::move(layout),
                 .files = std::nullopt,
                 .notes = std::move(notes)};
  if (with_weights) OpenWeights(model);
  return model;
}

void OpenWeights(Model& model) {
  model.files = WeightFiles::Open(model.dir);
  for (std::string& note : CheckWeights(model.graph, model.config, *model.files)) {
    model.notes.push_back(std::move(note));
  }
}

std::string ModelHash(const Model& model) {
  constexpr int64_t kSample = 4096;  // floats of each tensor
  Hasher hasher;
  hasher.AddField(model.config.json.dump());
  if (model.files) {
    std::vector<float> sample(kSample);
    for (const std::string& name : model.files->names()) {
      const TensorInfo& info = model.files->Info(name);
      hasher.AddField(name + " " + info.dtype + " " + ShapeText(info.shape));
      if (StoredTypeOf(info.dtype) == StoredType::kOther) continue;
      const int64_t count = std::min(kSample, info.elements());
      model.files->ReadRangeAsF32(name, 0, count, sample.data());
      hasher.Add(sample.data(), count * sizeof(float));
    }
  }
  return hasher.Hex();
}

}  // namespace haversack
