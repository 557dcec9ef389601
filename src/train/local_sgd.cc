#include "train/local_sgd.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "dist/agreement.h"
#include "train/rank_files.h"

namespace haversack {
namespace {

std::string RoundName(int64_t round) { return fmt::format("the end of round {}", round + 1); }

}  // namespace

nlohmann::json ToJson(const StepRecord& r) {
  return {r.loss_sum, r.grad_norm, r.lr, r.step_s, r.targets, r.skipped};
}

StepRecord StepRecordFromJson(const nlohmann::json& json) {
  const auto number = [&](int i) {  // JSON has no NaN
    return json.at(i).is_null() ? 0.0 : json.at(i).get<double>();
  };
  return {.loss_sum = number(0),
          .grad_norm = number(1),
          .lr = number(2),
          .step_s = number(3),
          .targets = json.at(4),
          .skipped = json.at(5)};
}

LocalSgd::LocalSgd(const TrainOptions& options, const Graph& graph, const ParamLayout& layout,
                   const Communicator& world)
    : options_(options), count_(layout.total), gaps_(GapsOf(graph, layout)), world_(world) {
  Team all;
  for (int r = 0; r < world.size(); ++r) all.ranks.push_back(r);
  teams_.push_back(std::move(all));
  FormTeam();
}

OuterStep::Options LocalSgd::OuterOptions() const {
  return {.lr = options_.dist.outer_lr,
          .momentum = options_.dist.outer_momentum,
          // By itself nobody needs fewer bits.
          .wire = team_comm_->alone() ? WireFormat() : WireFormat::Parse(options_.dist.transport)};
}

int64_t LocalSgd::StateBytes() const {
  return OuterStep::Bytes(count_, team_comm_->size(), OuterOptions().wire);
}

void LocalSgd::FormTeam() {
  for (size_t t = 0; t < teams_.size(); ++t) {
    if (std::ranges::find(teams_[t].ranks, world_.rank()) == teams_[t].ranks.end()) continue;
    my_team_ = static_cast<int>(t);
    team_comm_ = world_.Group(teams_[t].ranks);
  }
}

void LocalSgd::Open(const OpenStrategy& open) {
  state_ = open.state;
  memory_ = open.memory;
  outer_.emplace(*team_comm_, count_, gaps_, OuterOptions(), memory_);
  outer_->Reset(state_.weights);
}

bool LocalSgd::Finished(const Progress& progress) const {
  return inner_ == 0 && progress.step >= options_.steps;
}

int64_t LocalSgd::RoundSteps(const Progress& progress) const {
  const int64_t begin = progress.step - inner_;
  return std::max(inner_, std::min(options_.dist.inner_steps, options_.steps - begin));
}

StepShare LocalSgd::Share(const Progress& progress) const {
  const BatchShare share = ShareOf(options_.batch, world_.rank(), world_.size());
  return {progress.cursor + static_cast<uint64_t>(share.begin), share.count()};
}

std::vector<LocalSgd::Header> LocalSgd::ExchangeHeaders(const Progress& progress, bool stop) {
  const Header mine = {.round = round_,
                       .step = progress.step - inner_,
                       .inner = inner_,
                       .tokens = RoundTokens(),
                       .stop = stop ? 1 : 0,
                       .bad_in_row = progress.bad_in_row};
  const std::vector<Header> all = world_.AllGather(mine, RoundName(round_));
  for (int r = 0; r < world_.size(); ++r) {
    HAVERSACK_CHECK(all[r].round == mine.round && all[r].step == mine.step,
                    "rank {} is in round {} from step {} on; rank {} in round {} from step {} on",
                    r, all[r].round, all[r].step, world_.rank(), mine.round, mine.step);
  }
  return all;
}

// Ranks may be some steps apart: those behind catch up with the first.
void LocalSgd::AgreeToStop(const std::vector<Header>& headers) {
  if (stop_at_) return;
  const auto stops = [](const Header& h) { return h.stop != 0; };
  if (std::none_of(headers.begin(), headers.end(), stops)) return;
  stop_at_ = 0;
  for (const Header& h : headers) stop_at_ = std::max(*stop_at_, h.inner);
}

StepTerms LocalSgd::Agree(const Progress& progress, int64_t targets, bool stop) {
  if (!stop_at_ && (stop || world_.Noticed())) {
    if (stop) world_.Notice();
    AgreeToStop(ExchangeHeaders(progress, true));
  }
  return {.stop = stop_at_ == inner_, .targets = targets};
}

int64_t LocalSgd::RoundTokens() const {
  int64_t tokens = 0;
  for (const StepRecord& record : records_) tokens += record.targets;
  return tokens;
}

bool LocalSgd::EndStep(Progress& progress, const StepReport& report,
                       std::vector<StepReport>& reports) {
  const bool learned = report.loss && !report.skipped;
  records_.push_back({.loss_sum = learned ? *report.loss * static_cast<double>(report.tokens) : 0,
                      .grad_norm = report.grad_norm,
                      .lr = report.lr,
                      .step_s = report.step_s,
                      .targets = learned ? report.tokens : 0,
                      .skipped = report.skipped ? 1 : 0});
  progress.step += 1;
  progress.cursor += static_cast<uint64_t>(StepSequences());
  inner_ += 1;
  if (inner_ < RoundSteps(progress)) return false;
  EndRound(progress, report, reports);
  return true;
}

void LocalSgd::EndRound(Progress& progress, const StepReport& report,
                        std::vector<StepReport>& reports) {
  std::vector<Header> headers = ExchangeHeaders(progress, false);
  // Some rank was told to stop: all have heard of it now, and come here again when they are done.
  if (const bool knew = stop_at_.has_value(); !knew) {
    AgreeToStop(headers);
    if (stop_at_) headers = ExchangeHeaders(progress, false);
  }
  OuterRound(headers);
  Report(progress, report, reports);
  for (const Header& h : headers) {
    progress.tokens += h.tokens;
    progress.bad_in_row = std::max(progress.bad_in_row, h.bad_in_row);
  }
  learned_ += RoundTokens();
  records_.clear();
  round_ += 1;
  inner_ = 0;
  if (stop_at_) stop_at_ = 0;
}

void LocalSgd::OuterRound(const std::vector<Header>& headers) {
  std::vector<int64_t> tokens;
  int64_t total = 0;
  for (const int r : teams_[my_team_].ranks) {
    tokens.push_back(headers[r].tokens);
    total += headers[r].tokens;
  }
  if (total == 0) {
    notes_.push_back(
        fmt::format("round {} changed nothing: no rank had a target to learn from", round_ + 1));
    return;
  }
  outer_->Run(state_.weights, tokens, fmt::format("the outer step of round {}", round_ + 1));
  CheckReplicas();
}

void LocalSgd::CheckReplicas() const {
  Hasher hasher;
  hasher.Add(state_.weights, static_cast<uint64_t>(count_) * sizeof(float));
  const std::vector<uint64_t> hashes = team_comm_->AllGather(hasher.Digest(), RoundName(round_));
  for (int r = 0; r < team_comm_->size(); ++r) {
    HAVERSACK_CHECK(hashes[r] == hashes[0],
                    "after round {} rank {} holds another model than rank {} (hash {:x}, {:x})",
                    round_ + 1, team_comm_->world_rank(r), team_comm_->world_rank(0), hashes[r],
                    hashes[0]);
  }
}

void LocalSgd::Report(const Progress& progress, const StepReport& report,
                      std::vector<StepReport>& reports) {
  const auto steps = static_cast<int64_t>(records_.size());
  std::vector<StepRecord> all(steps * world_.size());
  world_.AllGatherBytes(records_.data(), steps * sizeof(StepRecord), all.data(), RoundName(round_));
  std::vector<std::vector<int>> teams;
  for (const Team& team : teams_) teams.push_back(team.ranks);
  const int64_t first = progress.step - steps;
  if (settled_) {
    std::vector<int> ranks(settled_->records.size() / settled_->steps);
    std::iota(ranks.begin(), ranks.end(), 0);
    MakeReports(settled_->records, {ranks}, settled_->steps, first - settled_->steps,
                settled_->round, report, reports);
    settled_.reset();
  }
  MakeReports(all, teams, steps, first, round_, report, reports);
}

// Steps of a round as all ranks of a team took them. `all`: [ranks, steps].
void LocalSgd::MakeReports(const std::vector<StepRecord>& all,
                           const std::vector<std::vector<int>>& teams, int64_t steps,
                           int64_t first_step, int64_t round, const StepReport& report,
                           std::vector<StepReport>& reports) const {
  const Traffic& traffic = world_.traffic();
  for (int64_t i = 0; i < steps; ++i) {
    for (size_t t = 0; t < teams.size(); ++t) {
      const StepRecord& first = all[teams[t][0] * steps + i];
      StepReport line = report;
      line.step = first_step + i + 1;
      line.grad_norm = first.grad_norm;
      line.lr = first.lr;
      line.step_s = 0;
      line.tokens = 0;
      line.skipped = false;
      double loss_sum = 0;
      for (const int r : teams[t]) {
        const StepRecord& record = all[r * steps + i];
        loss_sum += record.loss_sum;
        line.tokens += record.targets;
        line.skipped = line.skipped || record.skipped != 0;
        line.step_s = std::max(line.step_s, record.step_s);
      }
      line.loss.reset();
      if (line.tokens > 0) line.loss = loss_sum / static_cast<double>(line.tokens);
      const int64_t batch = StepSequences();
      line.tokens_per_s = static_cast<double>(batch * options_.seq) / line.step_s;
      line.dist = {.round = round,
                   .batch = batch,
                   .workers = static_cast<int64_t>(teams[t].size()),
                   .trainer = static_cast<int64_t>(t),
                   .trainers = static_cast<int64_t>(teams.size()),
                   .syncs = traffic.syncs,
                   .bytes_sent = traffic.sent_bytes,
                   .bytes_received = traffic.received_bytes,
                   .wait_s = traffic.wait_seconds};
      reports.push_back(std::move(line));
    }
  }
}

}  // namespace haversack
