#include "exec/cost_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/machine.h"
#include "base/threads.h"

namespace haversack {
namespace {

// "384 bf16,192 int8": the pieces of an encoded value.
std::string Encoding(const Schedule& schedule, ValueId v) {
  std::string text;
  for (const EncodedPiece& piece : schedule.encodings[v]) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ",", piece.cols, piece.codec.ToText());
  }
  return text;
}

// Empty for what is not measured: updates.
std::string Key(const Graph& graph, const Schedule& schedule, const Instr& instr) {
  const auto [sequences, seq] = schedule.shape;
  if (instr.kind == InstrKind::kEncode || instr.kind == InstrKind::kDecode) {
    return fmt::format("{}({}) {}x{}", ToText(instr.kind), Encoding(schedule, instr.value),
                       sequences, seq);
  }
  if (instr.node < 0) return "";
  const Op& op = *graph.nodes[instr.node].op;
  // Running an op again is the same work as running it, but for the cheap ones, which have
  // shortcuts.
  const bool same = instr.kind == InstrKind::kRecompute && !op.cheap();
  std::string reads;
  for (const ValueId v : instr.encoded_in) {
    if (v >= 0) reads += fmt::format(" from {}", Encoding(schedule, v));
  }
  return fmt::format("{} {}{} {}x{}", op.signature(),
                     ToText(same ? InstrKind::kForward : instr.kind), reads, sequences, seq);
}

}  // namespace

CostProfile CostProfile::Load(const std::string& path) {
  CostProfile profile;
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object()) return profile;
  for (const auto& [key, seconds] : json.items()) {
    if (seconds.is_number()) profile.seconds_[key] = seconds.get<double>();
  }
  return profile;
}

void CostProfile::Save(const std::string& path) const {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string fresh = fmt::format("{}.{}", path, static_cast<const void*>(this));
  {
    std::ofstream file(fresh);
    file << nlohmann::json(seconds_).dump(1) << '\n';
    file.close();
    if (!file) {  // a full disk: the costs are measured again next time
      std::filesystem::remove(fresh, ignored);
      return;
    }
  }
  std::filesystem::rename(fresh, path, ignored);
}

void CostProfile::Measure(const Graph& graph, const Schedule& schedule, Executor& executor,
                          const MicroBatch& batch, int repetitions, int known_repetitions) {
  std::set<std::string> done;
  for (const Instr& instr : schedule.instrs) {
    const std::string key = Key(graph, schedule, instr);
    if (key.empty() || !done.insert(key).second) continue;
    // A cost that was taken on a busy machine mends itself where it is measured again.
    const auto known = seconds_.find(key);
    double best = std::numeric_limits<double>::infinity();
    if (known != seconds_.end()) best = known->second;
    for (int i = 0; i < (known == seconds_.end() ? repetitions : known_repetitions); ++i) {
      best = std::min(best, executor.Time(schedule, instr, batch));
    }
    seconds_[key] = best;
  }
}

bool CostProfile::Knows(const Graph& graph, const Schedule& schedule) const {
  return std::ranges::all_of(schedule.instrs, [&](const Instr& instr) {
    const std::string key = Key(graph, schedule, instr);
    return key.empty() || seconds_.contains(key);
  });
}

void CostProfile::Set(const Graph& graph, const Schedule& schedule, const Instr& instr,
                      double seconds) {
  seconds_[Key(graph, schedule, instr)] = seconds;
}

double CostProfile::Seconds(const Graph& graph, const Schedule& schedule,
                            const Instr& instr) const {
  const auto found = seconds_.find(Key(graph, schedule, instr));
  return found == seconds_.end() ? 0 : found->second;
}

double CostProfile::Seconds(const Graph& graph, const Schedule& schedule) const {
  double total = 0;
  for (const Instr& instr : schedule.instrs) total += Seconds(graph, schedule, instr);
  return total;
}

std::string CostProfilePath(const std::string& cache_folder) {
  std::string machine = CpuModel() + " " + CpuIsa();
  for (char& c : machine) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  }
  return fmt::format("{}/costs/{}-{}threads.json", cache_folder, machine, NumThreads());
}

}  // namespace haversack
