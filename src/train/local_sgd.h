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

#include "dist/outer_step.h"
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

// The ranks that hold one model.
struct Team {
  std::vector<int> ranks;  // of the run, ascending
};

class LocalSgd : public Strategy {
 public:
  LocalSgd(const TrainOptions& options, const Graph& graph, const ParamLayout& layout,
           const Communicator& world);

  int64_t StateBytes() const override;
  void Open(const OpenStrategy& open) override;
  bool Finished(const Progress& progress) const override;
  StepShare Share(const Progress& progress) const override;
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
  int64_t StepSequences() const { return options_.batch; }
  int64_t RoundTokens() const;
  OuterStep::Options OuterOptions() const;
  void FormTeam();
  std::vector<Header> ExchangeHeaders(const Progress& progress, bool stop);
  void AgreeToStop(const std::vector<Header>& headers);
  void EndRound(Progress& progress, const StepReport& report, std::vector<StepReport>& reports);
  void OuterRound(const std::vector<Header>& headers);
  void CheckReplicas() const;
  void Report(const Progress& progress, const StepReport& report, std::vector<StepReport>& reports);

  void MakeReports(const std::vector<StepRecord>& all, const std::vector<std::vector<int>>& teams,
                   int64_t steps, int64_t first_step, int64_t round, const StepReport& report,
                   std::vector<StepReport>& reports) const;

  void RestoreSame(const std::string& folder, const nlohmann::json& stored, Progress& progress);
  void RestoreOther(const std::string& folder, const nlohmann::json& stored, Progress& progress);
  void RestoreMomentum(const std::string& folder, const nlohmann::json& stored,
                       const std::vector<int>& old_ranks);
  void TakeMomentum(const float* v);
  static std::vector<double> SharesOf(const nlohmann::json& stored, const std::vector<int>& ranks,
                                      const std::string& field);
  void AverageFiles(const std::string& folder, const std::string& name,
                    const std::vector<int>& ranks, const std::vector<double>& shares, float* out);
  void SettleRound(const std::string& folder, const nlohmann::json& stored,
                   const std::vector<int>& old_ranks, Progress& progress);

  // A round that other ranks had begun, ended at a resume; its steps are reported with the next.
  struct Settled {
    int64_t round = 0, steps = 0;
    std::vector<StepRecord> records;  // [ranks, steps]
  };

  const TrainOptions options_;
  const int64_t count_;
  const std::vector<Gap> gaps_;
  const Communicator world_;
  ModelState state_;
  std::byte* memory_ = nullptr;

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
  std::vector<std::string> notes_;
};

}  // namespace haversack
