// AdLoCo (arXiv 2508.18182): how a trainer's batch follows the noise of its gradients, and how
// trainers merge.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/error.h"
#include "dist/agreement.h"
#include "dist/batch_size.h"
#include "train/local_sgd.h"

namespace haversack {
namespace {

constexpr int kMergeTag = 300;
// Of a request, a round.
constexpr double kGrowth = 2;
constexpr int64_t kRoundsToLeave = 20;
// A worker's batch beyond this many sequences brings no speed: more are accumulated.
constexpr int64_t kLargestMicroBatch = 64;

}  // namespace

// What leaves 20 rounds to a run at this batch.
double LocalSgd::LargestBatch(double targets_per_sequence) const {
  if (options_.dist.batch_max) return static_cast<double>(*options_.dist.batch_max);
  const auto rounds = static_cast<double>(kRoundsToLeave * options_.dist.inner_steps);
  const auto batch = static_cast<double>(options_.batch);
  const double sequences = options_.tokens
                               ? static_cast<double>(*options_.tokens) / targets_per_sequence
                               : static_cast<double>(options_.steps) * batch;
  return std::max(batch, sequences / rounds);
}

// adloco: a size with many divisors, of which the planner chooses the fastest that fits.
int64_t LocalSgd::PlannedBatch() const {
  if (!adaptive()) return LargestShare(options_.batch, world_.size());
  const double most = LargestBatch(static_cast<double>(options_.seq)) / world_.size();
  const auto whole = static_cast<int64_t>(std::ceil(most));
  return PlannedSizes(std::clamp<int64_t>(whole, 1, kLargestMicroBatch)).back();
}

double LocalSgd::Rate(const LrSchedule& schedule, const Progress& progress) const {
  if (!adaptive()) return schedule.At(progress.step);
  int64_t step = progress.step;
  if (length_.tokens) {
    // The schedule counts in steps of the first batch.
    const double first = static_cast<double>(options_.batch) * length_.targets_per_sequence;
    const double round = static_cast<double>(inner_) * static_cast<double>(StepSequences(1)) *
                         length_.targets_per_sequence;
    step = static_cast<int64_t>((static_cast<double>(progress.tokens) + round) / first);
  }
  const double first = static_cast<double>(options_.batch) / world_.size();
  const double ratio = static_cast<double>(WorkerSequences(teams_[my_team_], 1)) /
                       static_cast<double>(UsedBatch(first, open_.micro_batch));
  switch (options_.dist.lr_scaling) {
    case LrScaling::kNone:
      return schedule.At(step);
    case LrScaling::kSqrt:
      return schedule.At(step) * std::sqrt(ratio);
    case LrScaling::kLinear:
      return schedule.At(step) * ratio;
  }
  HAVERSACK_CHECK(false, "unknown scaling");
}

// Sketches are linear: the difference of two is that of a micro-batch.
void LocalSgd::EndMicroBatch(int64_t sequences, int64_t targets, int64_t all_targets) {
  if (!adaptive() || inner_ > 0 || !team_comm_->alone()) return;
  const Sketch now = SketchOf(state_.grads, count_, static_cast<uint64_t>(round_));
  if (targets > 0) {
    Sketch mean;
    const auto scale =
        static_cast<float>(static_cast<double>(all_targets) / static_cast<double>(targets));
    for (int64_t i = 0; i < kSketchWidth; ++i) mean[i] = (now[i] - before_[i]) * scale;
    gradients_.push_back(mean);
    samples_.push_back(static_cast<double>(sequences));
  }
  before_ = now;
}

void LocalSgd::Reduce(const Progress&, double&) {
  if (!adaptive() || inner_ > 0 || team_comm_->alone()) return;
  gradients_ = {SketchOf(state_.grads, count_, static_cast<uint64_t>(round_))};
  samples_ = {static_cast<double>(WorkerSequences(teams_[my_team_], inner_))};
}

std::optional<NoiseSample> LocalSgd::MeasureTeamNoise() const {
  struct Part {
    double samples = 0;
    Sketch gradient{};
  };
  std::vector<Part> all;
  if (team_comm_->alone()) {
    for (size_t i = 0; i < gradients_.size(); ++i) all.push_back({samples_[i], gradients_[i]});
  } else {
    Part mine;
    if (!gradients_.empty()) mine = {samples_[0], gradients_[0]};
    all = team_comm_->AllGather(mine, fmt::format("the gradients' noise of round {}", round_ + 1));
  }
  std::vector<GradientPart> parts;
  for (const Part& part : all) parts.push_back({part.gradient, part.samples});
  std::optional<NoiseSample> sample = MeasureNoise(parts);
  if (sample && !std::isfinite(sample->t + sample->t_par + sample->g2)) return std::nullopt;
  return sample;
}

// The request never falls, at most doubles, and is capped.
void LocalSgd::UpdateRequest() {
  TeamState& state = teams_[my_team_].state;
  const std::optional<NoiseSample> sample = MeasureTeamNoise();
  if (sample) state.noise.Add(*sample);
  const std::optional<double> asked = state.noise.Request(options_.dist.batch_test);
  if (!sample || !asked) return;
  state.asked = std::max(state.asked, *asked);
  const double most = LargestBatch(length_.targets_per_sequence) *
                      static_cast<double>(team_comm_->size()) / world_.size();
  const double grown = std::min({*asked, kGrowth * state.request, most});
  state.request = std::max(state.request, grown);
}

void LocalSgd::ShareTeamStates() {
  const std::vector<TeamState> all = world_.AllGather(
      teams_[my_team_].state, fmt::format("the batches after round {}", round_ + 1));
  for (Team& team : teams_) team.state = all[team.ranks[0]];
}

void LocalSgd::Adapt(const Progress& progress) {
  UpdateRequest();
  ShareTeamStates();
  gradients_.clear();
  samples_.clear();
  before_.fill(0);
  if (!LengthReached(progress)) return;
  double asked = 0;
  for (const Team& team : teams_) asked += team.state.asked;
  if (asked <= static_cast<double>(options_.batch)) {
    notes_.push_back(fmt::format(
        "the gradients' noise asked for {:.1f} sequences a step at most, no more than --batch {}: "
        "the batch had no reason to grow",
        asked, options_.batch));
  }
}

// Every few rounds the two trainers that ask for least; at the end all that are left.
void LocalSgd::MergeIfDue(Progress& progress) {
  if (teams_.size() == 1) return;
  const int64_t every = options_.dist.merge_every;
  std::vector<int> order(teams_.size());
  for (size_t t = 0; t < order.size(); ++t) order[t] = static_cast<int>(t);
  if (!LengthReached(progress)) {
    if (every == 0 || (round_ + 1) % every != 0) return;
    std::ranges::stable_sort(
        order, [&](int a, int b) { return teams_[a].state.request < teams_[b].state.request; });
    order.resize(2);
  }
  Merge(order, progress);
}

void LocalSgd::Merge(std::vector<int> which, Progress& progress) {
  std::ranges::sort(which);
  Team merged;
  double noise_weight = 0;
  for (const int t : which) {
    const Team& team = teams_[t];
    merged.ranks.insert(merged.ranks.end(), team.ranks.begin(), team.ranks.end());
    merged.state.request += team.state.request;
    merged.state.asked += team.state.asked;
    noise_weight += team.state.request;
  }
  for (const int t : which) {
    const double share = teams_[t].state.request / noise_weight;
    const NoiseAverage& noise = teams_[t].state.noise;
    merged.state.noise.t += share * noise.t;
    merged.state.noise.t_par += share * noise.t_par;
    merged.state.noise.g2 += share * noise.g2;
  }
  std::ranges::sort(merged.ranks);
  const bool member = std::ranges::find(which, my_team_) != which.end();
  MergeOutcome mine;
  if (member) mine = MergeModels(merged, which, progress);
  const std::string what = fmt::format("the merge after round {}", round_ + 1);
  const MergeOutcome outcome = world_.AllGather(mine, what)[merged.ranks[0]];
  notes_.push_back(
      fmt::format("{}: {} trainers of {} ranks, held-out loss {:.4f} against {:.4f} of the parents "
                  "in the mean, "
                  "{:.4f} of the best: {}",
                  what, which.size(), merged.ranks.size(), outcome.loss, outcome.mean, outcome.best,
                  outcome.kept != 0 ? "kept" : "the best goes on alone"));
  teams_[which[0]] = std::move(merged);
  for (size_t i = which.size() - 1; i > 0; --i) teams_.erase(teams_.begin() + which[i]);
  FormTeam();
  if (!member) return;
  // MergeModels has left the whole momentum in the gradients' memory.
  OpenOuter();
  TakeMomentum(state_.grads);
  CheckReplicas();
}

// Weights, moments and momentum of the trainers `which`, weighted by their batches, on all ranks of
// `merged`; or those of the best of them, where that has the lower held-out loss.
LocalSgd::MergeOutcome LocalSgd::MergeModels(const Team& merged, const std::vector<int>& which,
                                             Progress& progress) {
  const Communicator group = world_.Group(merged.ranks);
  const std::string what = fmt::format("the merge after round {}", round_ + 1);
  OwnerExchange exchange(group, count_, WireFormat(), open_.memory + OuterBytes(), kMergeTag);
  const auto average = [&](float* x, const std::vector<double>& weights) {
    AverageInto(exchange, {x, static_cast<size_t>(count_)}, weights, what);
    group.traffic().syncs += 1;
  };

  // By rank of the group: its trainer, and that trainer's part.
  std::vector<int> trainer(group.size());
  std::vector<double> weights(group.size());
  std::vector<double> losses = group.AllGather(open_.probe_loss(), what);
  double mean_loss = 0;
  int best = 0;
  for (int r = 0; r < group.size(); ++r) {
    for (const int t : which) {
      const std::vector<int>& ranks = teams_[t].ranks;
      if (std::ranges::find(ranks, merged.ranks[r]) == ranks.end()) continue;
      trainer[r] = t;
      weights[r] =
          teams_[t].state.request / merged.state.request / static_cast<double>(ranks.size());
    }
    mean_loss += weights[r] * losses[r];
    if (losses[r] < losses[best] || !std::isfinite(losses[best])) best = r;
  }
  average(state_.weights, weights);
  const double merged_loss = group.AllGather(open_.probe_loss(), what)[0];
  const bool kept = merged_loss <= mean_loss;
  const MergeOutcome outcome = {
      .loss = merged_loss, .mean = mean_loss, .best = losses[best], .kept = kept ? 1 : 0};

  std::vector<double> momentum_weights(group.size());
  if (!kept) {
    std::copy_n(outer_->start().data(), count_, state_.weights);
    std::vector<double> only(group.size(), 0.0);
    only[best] = 1;
    average(state_.weights, only);
    const auto workers = static_cast<double>(teams_[trainer[best]].ranks.size());
    for (int r = 0; r < group.size(); ++r) {
      weights[r] = trainer[r] == trainer[best] ? 1 / workers : 0;
    }
  }
  average(state_.m, weights);
  average(state_.v, weights);
  // Each rank of a trainer owns a part of its momentum: they add up.
  for (int r = 0; r < group.size(); ++r) {
    momentum_weights[r] = weights[r] * static_cast<double>(teams_[trainer[r]].ranks.size());
  }
  std::fill_n(state_.grads, count_, 0.0f);
  PutOwned(outer_->shape(), team_comm_->rank(), outer_->momentum(),
           {state_.grads, static_cast<size_t>(count_)});
  average(state_.grads, momentum_weights);
  for (const int64_t updates : group.AllGather(progress.updates, what)) {
    progress.updates = std::max(progress.updates, updates);
  }
  return outcome;
}

}  // namespace haversack
