// Test tool: loss and gradients of one micro-batch, for comparison with an independent computation.
//   gradient_probe MODEL_DIR REQUEST.json OUT.safetensors
// REQUEST: {"sequences", "seq", "ids", "targets", "positions", "boundaries", "plan": name or
// object,
//           "loss_chunk", "compute", "threads"}. Gradients are written under their checkpoint
//           names; stdout gets one
// JSON line with the loss sum and the arena's bytes, predicted and measured. Buffers are filled
// with NaN outside their lifetimes.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/threads.h"
#include "exec/arena.h"
#include "exec/executor.h"
#include "io/model_dir.h"
#include "schedule/schedule.h"

namespace haversack {
namespace {

Plan PlanOf(const Graph& graph, const nlohmann::json& request) {
  const nlohmann::json plan = request.value("plan", nlohmann::json("keep"));
  if (plan == "keep") return KeepPlan(graph, request["sequences"]);
  if (plan == "recompute") return RecomputePlan(graph, request["sequences"]);
  return PlanFromJson(graph, plan, "request");
}

void WriteGradients(const Graph& graph, const ParamLayout& layout, const float* grads,
                    const std::string& path) {
  std::vector<TensorSpec> specs;
  for (const Param& param : graph.params) {
    for (const TensorSource& source : param.sources) {
      specs.push_back({.name = source.name, .dtype = "F32", .shape = {source.rows, param.cols}});
    }
  }
  SafetensorsWriter writer = SafetensorsWriter::Open(path, specs);
  for (size_t p = 0; p < graph.params.size(); ++p) {
    for (const TensorSource& source : graph.params[p].sources) {
      writer.Write(source.name, grads + layout.offset[p] + source.row_begin * graph.params[p].cols);
    }
  }
  writer.Finish();
}

void Run(const std::string& dir, const std::string& request_path, const std::string& out) {
  const nlohmann::json request = ParseJson(ReadWholeFile(request_path), request_path);
  SetNumThreads(request.value("threads", 2));
  const std::string config_path = dir + "/config.json";
  const ModelConfig config =
      ParseModelConfig(ParseJson(ReadWholeFile(config_path), config_path), config_path);
  const bool bf16 = request.value("compute", "f32") == "bf16";
  const Graph graph =
      BuildGraph(config, {.positions = request["seq"],
                          .loss_chunk = request.value("loss_chunk", 256),
                          .compute = bf16 ? ComputeType::kBF16 : ComputeType::kF32});
  const ParamLayout layout(graph);
  const WeightFiles files = WeightFiles::Open(dir);
  CheckWeights(graph, config, files);

  const BatchShape shape = {.sequences = request["sequences"], .seq = request["seq"]};
  const Schedule schedule = Lower(graph, PlanOf(graph, request), shape, ScheduleMode::kTrain);
  Arena arena(2 * layout.bytes() + schedule.arena_bytes + 4096);
  ModelState state;
  state.weights = reinterpret_cast<float*>(arena.Take("weights", layout.bytes()));
  state.grads = reinterpret_cast<float*>(arena.Take("gradients", layout.bytes()));
  LoadWeights(graph, layout, files, state.weights);
  Executor executor(graph, layout, state, arena.Take("schedule", schedule.arena_bytes),
                    schedule.arena_bytes);
  executor.set_poison(true);

  const std::vector<int32_t> ids = request["ids"], targets = request["targets"],
                             positions = request["positions"], boundaries = request["boundaries"];
  int64_t valid = 0;
  for (const int32_t target : targets) valid += target >= 0 ? 1 : 0;
  double loss_sum = 0;
  const MicroBatch batch = {.ids = ids,
                            .targets = targets,
                            .positions = positions,
                            .boundaries = boundaries,
                            .loss_scale = 1.0f / static_cast<float>(valid),
                            .loss_sum = &loss_sum};
  executor.Run(schedule, batch, false);
  WriteGradients(graph, layout, state.grads, out);
  std::puts(nlohmann::json({{"loss_sum", loss_sum},
                            {"valid", valid},
                            {"arena_bytes", schedule.arena_bytes},
                            {"live_bytes", schedule.live_bytes},
                            {"peak_bytes", executor.peak_bytes()}})
                .dump()
                .c_str());
}

}  // namespace
}  // namespace haversack

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    haversack::Run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
