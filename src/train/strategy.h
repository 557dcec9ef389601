// How the ranks of a run share its steps. The trainer's loop asks a strategy which sequences are
// this rank's, and tells it when gradients are there and when a step is done; what goes over the
// network, and when, is the strategy's affair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "exec/model_state.h"
#include "graph/graph.h"
#include "optim/lr_schedule.h"
#include "train/options.h"
#include "train/progress.h"
#include "train/reporter.h"

namespace haversack {

// This rank's sequences of a step.
struct StepShare {
  uint64_t cursor = 0;
  int64_t sequences = 0;
  int64_t parts = 1;  // micro-batches at least, where there are as many sequences
};

// What all ranks agree on before a step.
struct StepTerms {
  bool stop = false;    // the step is not taken: the run saves and ends
  int64_t targets = 0;  // by whose number the summed loss is divided
};

// What a strategy works on once a run is prepared.
struct OpenStrategy {
  ModelState state;             // the weights that training begins or goes on with
  std::byte* memory = nullptr;  // StateBytes, zero
  int64_t micro_batch = 1;      // the largest that memory allows
  // Loss of the weights on a fixed micro-batch of the held-out data, where there are any.
  std::function<double()> probe_loss;
};

// How long a run is.
struct RunLength {
  int64_t steps = 0;
  std::optional<int64_t> tokens;    // in place of steps, where the batch may change
  double targets_per_sequence = 1;  // in the mean
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // Before the first step.
  void set_length(const RunLength& length) { length_ = length; }

  // Bytes that it keeps beside the model's state and the schedule, counted in the budget.
  virtual int64_t StateBytes() const { return 0; }
  virtual void Open(const OpenStrategy& open) { (void)open; }

  // Whether the run has done what it was asked for.
  virtual bool Finished(const Progress& progress) const { return progress.step >= length_.steps; }
  // Sequences of a step that a rank's plan is made for.
  virtual int64_t PlannedBatch() const = 0;
  virtual StepShare Share(const Progress& progress) const = 0;
  virtual double Rate(const LrSchedule& schedule, const Progress& progress) const {
    return schedule.At(progress.step);
  }
  // `targets`: of this rank's share. `stop`: this rank was told to stop.
  virtual StepTerms Agree(const Progress& progress, int64_t targets, bool stop) = 0;

  // A micro-batch of `sequences` with `targets` of the step's `all_targets` is in the gradients.
  virtual void EndMicroBatch(int64_t sequences, int64_t targets, int64_t all_targets) {
    (void)sequences, (void)targets, (void)all_targets;
  }
  // Whether it wants to know, during a step's last backward pass, which gradients are complete.
  virtual bool overlaps() const { return false; }
  // Before that pass; gradients from element `from` on are complete.
  virtual void BeginReduce() {}
  virtual void Advance(int64_t from) { (void)from; }
  // After it: makes the gradients, and the sum of losses, those that the update is to use.
  virtual void Reduce(const Progress& progress, double& loss_sum) {
    (void)progress, (void)loss_sum;
  }

  // The step is done, `report` is this rank's account of it. Moves `progress` on and appends to
  // `reports` what is final. Returns whether all ranks are now at one point, where a run may be
  // evaluated, saved or ended.
  virtual bool EndStep(Progress& progress, const StepReport& report,
                       std::vector<StepReport>& reports) = 0;

  // The ranks that hold the same model as this one.
  virtual const Communicator& replicas() const = 0;
  // What people should know, since this was last asked.
  virtual std::vector<std::string> TakeNotes() { return {}; }

  // Where ranks differ, a checkpoint holds more than the model's state: what all ranks say about
  // themselves (every rank asks for it), and a file a rank. null: nothing more.
  virtual nlohmann::json SaveInfo(const Progress& progress) {
    (void)progress;
    return nullptr;
  }
  virtual int64_t RankFileBytes() const { return 0; }
  virtual void SaveRank(const std::string& folder) { (void)folder; }
  // After Open: goes on from what SaveInfo said and the files in `folder`, perhaps of another
  // number of ranks.
  virtual void Restore(const std::string& folder, const nlohmann::json& stored,
                       Progress& progress) {
    (void)folder, (void)stored, (void)progress;
  }

 protected:
  RunLength length_;
};

std::unique_ptr<Strategy> MakeSolo(const TrainOptions& options);
std::unique_ptr<Strategy> MakeDdp(const TrainOptions& options, const ParamLayout& layout,
                                  const Communicator& world);

// That of options.dist. All references outlive it.
std::unique_ptr<Strategy> MakeStrategy(const TrainOptions& options, const Graph& graph,
                                       const ParamLayout& layout, const Communicator& world);

}  // namespace haversack
