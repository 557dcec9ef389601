// Local SGD over slow links: DiLoCo (Douillard et al., arXiv 2311.08105), and AdLoCo (arXiv
// 2508.18182), in which ranks form several trainers that adapt their batch and merge.
//
// A round is some inner steps of every rank by itself, then one outer step of each trainer
// (dist/outer_step.h). Rounds are the same for all ranks, all or nothing: a round begins its end
// with a header of every rank (round, step, tokens), and ends it when the replicas of each trainer
// have shown equal hashes. What happens in a round is known to all only then, and reported then.
//
// All ranks walk one shuffled stream of sequences: every step deals the next ones in rank order, so
// none is left out or used twice, whatever the number of ranks before and after a resume.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist/noise.h"
#include "dist/outer_step.h"
#include "dist/sketch.h"
#include "train/strategy.h"

namespace haversack {

// One inner step of one rank. Exchanged as it is.
struct StepRecord {
  double loss_sum = 0;
  double grad_norm = 0;
  double lr = 0;
  double step_s = 0;
  int64_t targets = 0;  // learned from; 0 where the step was skipped
  int64_t skipped = 0;
};
nlohmann::json ToJson(const StepRecord& record);
StepRecord StepRecordFromJson(const nlohmann::json& json);

// What a trainer knows of its batch. Exchanged as it is.
struct TeamState {
  double request = 0;  // sequences a step that it asks for
  double asked = 0;    // the most that the gradient's noise has asked for
  NoiseAverage noise;
};

// A trainer: the ranks that hold one model.
struct Team {
  std::vector<int> ranks;  // of the run, ascending
  TeamState state;
};

class LocalSgd : public Strategy {
 public:
  LocalSgd(const TrainOptions& options, const Graph& graph, const ParamLayout& layout,
           const Communicator& world);

  int64_t StateBytes() const override;
  void Open(const OpenStrategy& open) override;
  bool Finished(const Progress& progress) const override;
  StepShare Share(const Progress& progress) const override;
  int64_t PlannedBatch() const override;
  double Rate(const LrSchedule& schedule, const Progress& progress) const override;
  void EndMicroBatch(int64_t sequences, int64_t targets, int64_t all_targets) override;
  void Reduce(const Progress& progress, double& loss_sum) override;
  StepTerms Agree(const Progress& progress, int64_t targets, bool stop) override;
  bool EndStep(Progress& progress, const StepReport& report,
               std::vector<StepReport>& reports) override;
  const Communicator& replicas() const override { return *team_comm_; }
  std::vector<std::string> TakeNotes() override { return std::move(notes_); }

  nlohmann::json SaveInfo(const Progress& progress) override;
  int64_t RankFileBytes() const override;
  void SaveRank(const std::string& folder) override;
  void Restore(const std::string& folder, const nlohmann::json& stored,
               Progress& progress) override;

 private:
  // Sent by every rank when a round ends, or when one is told to stop.
  struct Header {
    int64_t round, step, inner;
    int64_t tokens;  // of this rank in the round
    int64_t stop, bad_in_row;
  };

  int64_t RoundSteps(const Progress& progress) const;
  int64_t RoundTokens() const;
  bool adaptive() const { return options_.dist.mode == DistMode::kAdloco; }
  bool merges() const { return adaptive() && options_.dist.trainers > 1; }
  int64_t OuterBytes() const;
  bool LengthReached(const Progress& progress) const;

  // Sequences of a step of this round: of one worker of a team (adloco), of a team, of all.
  int64_t WorkerSequences(const Team& team, int64_t inner) const;
  int64_t TeamSequences(const Team& team, int64_t inner) const;
  int64_t StepSequences(int64_t inner) const;
  double LargestBatch(double targets_per_sequence) const;

  // adloco: local_sgd_adaptive.cc
  void Adapt(const Progress& progress);
  void UpdateRequest();
  std::optional<NoiseSample> MeasureTeamNoise() const;
  void ShareTeamStates();
  void MergeIfDue(Progress& progress);
  void Merge(std::vector<int> which, Progress& progress);
  // Losses on the held-out micro-batch.
  struct MergeOutcome {
    double loss = 0, mean = 0, best = 0;
    int64_t kept = 0;
  };
  MergeOutcome MergeModels(const Team& merged, const std::vector<int>& which, Progress& progress);
  void DealTeams(int trainers);
  void OpenOuter();
  OuterStep::Options OuterOptions() const { return OuterOptions(team_comm_->size()); }
  OuterStep::Options OuterOptions(int workers) const;
  void FormTeam();
  std::vector<Header> ExchangeHeaders(const Progress& progress, bool stop);
  void AgreeToStop(const std::vector<Header>& headers);
  void EndRound(Progress& progress, const StepReport& report, std::vector<StepReport>& reports);
  void OuterRound(const std::vector<Header>& headers);
  void CheckReplicas() const;
  void Report(const Progress& progress, const StepReport& report, std::vector<StepReport>& reports);

  void MakeReports(const std::vector<StepRecord>& all, const std::vector<Team>& teams,
                   int64_t steps, int64_t first_step, int64_t round, const StepReport& report,
                   std::vector<StepReport>& reports) const;

  void RestoreSame(const std::string& folder, const nlohmann::json& stored, Progress& progress);
  void RestoreOther(const std::string& folder, const nlohmann::json& stored, Progress& progress);
  void RestoreMomentum(const std::string& folder, const nlohmann::json& stored,
                       const std::vector<int>& old_ranks);
  void TakeMomentum(const float* v);
  static std::vector<double> SharesOf(const nlohmann::json& stored, const std::vector<int>& ranks,
                                      const std::string& field);
  void RestoreTeams(const nlohmann::json& stored, bool same);
  void AverageFiles(const std::string& folder, const std::string& name,
                    const std::vector<int>& ranks, const std::vector<double>& shares, float* out);
  void SettleRound(const std::string& folder, const nlohmann::json& stored,
                   const std::vector<int>& old_ranks, Progress& progress);

  // A round that other ranks had begun, ended at a resume; its steps are reported with the next.
  struct Settled {
    int64_t round = 0, steps = 0;
    std::vector<Team> teams;
    std::vector<StepRecord> records;  // [ranks, steps]
  };

  const TrainOptions options_;  // but for steps and tokens: length_
  const int64_t count_;
  const std::vector<Gap> gaps_;
  const Communicator world_;
  ModelState state_;
  OpenStrategy open_;

  std::vector<Team> teams_;
  int my_team_ = 0;
  std::optional<Communicator> team_comm_;
  std::optional<OuterStep> outer_;

  int64_t round_ = 0;                // finished ones
  int64_t inner_ = 0;                // steps of this round done
  std::vector<StepRecord> records_;  // of this round
  int64_t learned_ = 0;              // targets of this rank in all rounds
  std::optional<int64_t> stop_at_;   // all ranks stop before this step of the round
  std::optional<Settled> settled_;

  // Gradients of the round's first step: of this worker, or of its micro-batches if it is alone.
  std::vector<Sketch> gradients_;
  std::vector<double> samples_;  // sequences of each
  Sketch before_{};              // of the gradients of the micro-batches so far
  std::vector<std::string> notes_;
};

}  // namespace haversack
