#include "train/local_sgd.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "dist/agreement.h"
#include "dist/batch_size.h"
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
  const int64_t trainers = adaptive() ? options.dist.trainers : 1;
  if (trainers > world.size()) {
    throw UserError(ExitCode::kUsage,
                    "--trainers {} needs as many ranks at least, not {}: start more ranks, or ask "
                    "for fewer trainers",
                    trainers, world.size());
  }
  DealTeams(static_cast<int>(trainers));
}

// Ranks over trainers, evenly; each trainer asks for its part of the batch.
void LocalSgd::DealTeams(int trainers) {
  teams_.resize(trainers);
  for (int t = 0; t < trainers; ++t) {
    const BatchShare share = ShareOf(world_.size(), t, trainers);
    teams_[t].ranks.clear();
    for (int64_t r = share.begin; r < share.end; ++r) {
      teams_[t].ranks.push_back(static_cast<int>(r));
    }
    teams_[t].state.request =
        static_cast<double>(options_.batch) * static_cast<double>(share.count()) / world_.size();
  }
  FormTeam();
}

OuterStep::Options LocalSgd::OuterOptions(int workers) const {
  return {.lr = options_.dist.outer_lr,
          .momentum = options_.dist.outer_momentum,
          // By itself nobody needs fewer bits.
          .wire = workers == 1 ? WireFormat() : WireFormat::Parse(options_.dist.transport)};
}

// Merges make larger teams.
int64_t LocalSgd::OuterBytes() const {
  int64_t bytes = 0;
  for (int workers = merges() ? 1 : world_.size(); workers <= world_.size(); ++workers) {
    bytes = std::max(bytes, OuterStep::Bytes(count_, workers, OuterOptions(workers).wire));
  }
  return static_cast<int64_t>(AlignUp(bytes, 64));
}

int64_t LocalSgd::StateBytes() const {
  int64_t merge = 0;
  for (int workers = 2; merges() && workers <= world_.size(); ++workers) {
    merge = std::max(merge, OwnerExchange::BufferBytes(count_, workers, WireFormat()));
  }
  return OuterBytes() + merge;
}

void LocalSgd::FormTeam() {
  for (size_t t = 0; t < teams_.size(); ++t) {
    if (std::ranges::find(teams_[t].ranks, world_.rank()) == teams_[t].ranks.end()) continue;
    my_team_ = static_cast<int>(t);
    team_comm_ = world_.Group(teams_[t].ranks);
  }
}

void LocalSgd::OpenOuter() {
  outer_.emplace(*team_comm_, count_, gaps_, OuterOptions(), open_.memory);
  outer_->Reset(state_.weights);
}

void LocalSgd::Open(const OpenStrategy& open) {
  open_ = open;
  state_ = open.state;
  OpenOuter();
}

bool LocalSgd::LengthReached(const Progress& progress) const {
  return length_.tokens ? progress.tokens >= *length_.tokens : progress.step >= length_.steps;
}

bool LocalSgd::Finished(const Progress& progress) const {
  return inner_ == 0 && LengthReached(progress);
}

// The last round is as short as it may be.
int64_t LocalSgd::RoundSteps(const Progress& progress) const {
  int64_t left = length_.steps - (progress.step - inner_);
  if (length_.tokens) {
    const double tokens = static_cast<double>(StepSequences(1)) * length_.targets_per_sequence;
    left = static_cast<int64_t>(
        std::ceil(static_cast<double>(*length_.tokens - progress.tokens) / tokens));
  }
  return std::max({inner_, int64_t{1}, std::min(options_.dist.inner_steps, left)});
}

int64_t LocalSgd::WorkerSequences(const Team& team, int64_t inner) const {
  const auto workers = static_cast<double>(team.ranks.size());
  const int64_t used = UsedBatch(team.state.request / workers, open_.micro_batch);
  // The noise of a worker by itself shows between micro-batches of the round's first step.
  return team.ranks.size() == 1 && inner == 0 ? std::max<int64_t>(used, 2) : used;
}

int64_t LocalSgd::TeamSequences(const Team& team, int64_t inner) const {
  if (!adaptive()) return options_.batch;
  return static_cast<int64_t>(team.ranks.size()) * WorkerSequences(team, inner);
}

int64_t LocalSgd::StepSequences(int64_t inner) const {
  int64_t sum = 0;
  for (const Team& team : teams_) sum += TeamSequences(team, inner);
  return sum;
}

StepShare LocalSgd::Share(const Progress& progress) const {
  if (!adaptive()) {
    const BatchShare share = ShareOf(options_.batch, world_.rank(), world_.size());
    return {progress.cursor + static_cast<uint64_t>(share.begin), share.count()};
  }
  const Team& team = teams_[my_team_];
  int64_t begin = 0;
  for (int t = 0; t < my_team_; ++t) begin += TeamSequences(teams_[t], inner_);
  const int64_t mine = WorkerSequences(team, inner_);
  return {.cursor = progress.cursor + static_cast<uint64_t>(begin + team_comm_->rank() * mine),
          .sequences = mine,
          .parts = team_comm_->alone() && inner_ == 0 ? 2 : 1};
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
  progress.cursor += static_cast<uint64_t>(StepSequences(inner_));
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
  if (adaptive()) {
    Adapt(progress);
    MergeIfDue(progress);
  }
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
  const int64_t first = progress.step - steps;
  if (settled_) {
    MakeReports(settled_->records, settled_->teams, settled_->steps, first - settled_->steps,
                settled_->round, report, reports);
    settled_.reset();
  }
  MakeReports(all, teams_, steps, first, round_, report, reports);
}

// Steps of a round as all ranks of a team took them. `all`: [ranks, steps].
void LocalSgd::MakeReports(const std::vector<StepRecord>& all, const std::vector<Team>& teams,
                           int64_t steps, int64_t first_step, int64_t round,
                           const StepReport& report, std::vector<StepReport>& reports) const {
  const Traffic& traffic = world_.traffic();
  for (int64_t i = 0; i < steps; ++i) {
    for (size_t t = 0; t < teams.size(); ++t) {
      const StepRecord& first = all[teams[t].ranks[0] * steps + i];
      StepReport line = report;
      line.step = first_step + i + 1;
      line.grad_norm = first.grad_norm;
      line.lr = first.lr;
      line.step_s = 0;
      line.tokens = 0;
      line.skipped = false;
      double loss_sum = 0;
      for (const int r : teams[t].ranks) {
        const StepRecord& record = all[r * steps + i];
        loss_sum += record.loss_sum;
        line.tokens += record.targets;
        line.skipped = line.skipped || record.skipped != 0;
        line.step_s = std::max(line.step_s, record.step_s);
      }
      line.loss.reset();
      if (line.tokens > 0) line.loss = loss_sum / static_cast<double>(line.tokens);
      const int64_t batch = TeamSequences(teams[t], i);
      line.tokens_per_s = static_cast<double>(batch * options_.seq) / line.step_s;
      line.dist = {.round = round,
                   .batch = batch,
                   .workers = static_cast<int64_t>(teams[t].ranks.size()),
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
