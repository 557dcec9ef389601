// Seconds of each distinct op at its real shape, measured on this machine.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "exec/executor.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace haversack {

class CostProfile {
 public:
  // Reads what an earlier process measured on the same kind of machine with as many threads; a
  // missing or foreign file is an empty profile.
  static CostProfile Load(const std::string& path);
  // Replaces the file in one step; a cache that cannot be written is not an error.
  void Save(const std::string& path) const;

  // Runs each distinct instruction (updates excepted) of `schedule` alone, `repetitions` times on
  // whatever the buffers hold, and keeps the fastest; one whose cost is known runs
  // `known_repetitions` times. Gradients in the model state are overwritten.
  void Measure(const Graph& graph, const Schedule& schedule, Executor& executor,
               const MicroBatch& batch, int repetitions, int known_repetitions);

  // Whether the cost of every instruction is known.
  bool Knows(const Graph& graph, const Schedule& schedule) const;

  void Set(const Graph& graph, const Schedule& schedule, const Instr& instr, double seconds);
  // Of one instruction; 0 for what is not measured (updates).
  double Seconds(const Graph& graph, const Schedule& schedule, const Instr& instr) const;
  // Of one micro-batch.
  double Seconds(const Graph& graph, const Schedule& schedule) const;

 private:
  std::map<std::string, double> seconds_;
};

// Where profiles of this machine at the present number of threads are kept: in `cache_folder`.
std::string CostProfilePath(const std::string& cache_folder);

}  // namespace haversack
