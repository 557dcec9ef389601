// What local SGD adds to a checkpoint, and how another number of ranks goes on from it.
#include <algorithm>

#include "base/error.h"
#include "train/local_sgd.h"
#include "train/rank_files.h"

namespace haversack {

nlohmann::json LocalSgd::SaveInfo(const Progress& progress) {
  nlohmann::json records = nlohmann::json::array();
  for (const StepRecord& record : records_) records.push_back(ToJson(record));
  const nlohmann::json mine = {{"updates", progress.updates},
                               {"skipped", progress.skipped},
                               {"bad_in_row", progress.bad_in_row},
                               {"learned", learned_},
                               {"records", records}};
  nlohmann::json ranks = nlohmann::json::array();
  for (const std::string& text : world_.AllGatherText(mine.dump(), "the checkpoint")) {
    ranks.push_back(nlohmann::json::parse(text));
  }
  nlohmann::json teams = nlohmann::json::array();
  for (const Team& team : teams_) {
    const TeamState& state = team.state;
    teams.push_back({{"ranks", team.ranks},
                     {"transport", OuterOptions(static_cast<int>(team.ranks.size())).wire.name()},
                     {"request", state.request},
                     {"asked", state.asked},
                     {"noise", {state.noise.t, state.noise.t_par, state.noise.g2}}});
  }
  return {{"mode", ToText(options_.dist.mode)},
          {"round", round_},
          {"inner", inner_},
          {"teams", teams},
          {"ranks", ranks}};
}

int64_t LocalSgd::RankFileBytes() const {
  const int64_t vectors =
      inner_ > 0 || options_.save_every % options_.dist.inner_steps != 0 ? 5 : 3;
  const int64_t errors = OuterOptions().wire.feeds_back() ? 2 : 0;
  return (vectors + errors) * count_ * static_cast<int64_t>(sizeof(float)) + 65536;
}

void LocalSgd::SaveRank(const std::string& folder) {
  const auto whole = [&](const float* x) {
    return std::span<const float>(x, static_cast<size_t>(count_));
  };
  std::vector<NamedVector> vectors = {
      {"m", whole(state_.m)}, {"v", whole(state_.v)}, {"outer_momentum", outer_->momentum()}};
  if (inner_ > 0) vectors.push_back({"start", outer_->start()});
  // Where the round is not over every rank has weights of its own.
  if (inner_ > 0 || team_comm_->leader()) vectors.push_back({"weights", whole(state_.weights)});
  if (!outer_->part_error().empty()) {
    vectors.push_back({"part_error", outer_->part_error()});
    vectors.push_back({"owner_error", outer_->owner_error()});
  }
  WriteRankFile(folder, world_.rank(), vectors);
}

void LocalSgd::Restore(const std::string& folder, const nlohmann::json& stored,
                       Progress& progress) {
  round_ = stored.at("round");
  inner_ = stored.at("inner");
  if (inner_ > 0 && progress.step >= options_.steps) {
    throw UserError(ExitCode::kUsage,
                    "--steps {}: the checkpoint is {} steps into a round that begins at step {}; "
                    "let the run go on for some steps more",
                    options_.steps, inner_, progress.step - inner_);
  }
  const auto same = static_cast<size_t>(world_.size()) == stored.at("ranks").size();
  RestoreTeams(stored, same);
  if (same) {
    RestoreSame(folder, stored, progress);
  } else {
    RestoreOther(folder, stored, progress);
  }
}

// The trainers of the checkpoint; over another number of ranks they are dealt anew.
void LocalSgd::RestoreTeams(const nlohmann::json& stored, bool same) {
  const nlohmann::json& teams = stored.at("teams");
  if (teams.size() > static_cast<size_t>(world_.size())) {
    throw UserError(ExitCode::kUsage,
                    "the checkpoint's run has {} trainers, and there are {} ranks here; each "
                    "trainer needs one: start more ranks",
                    teams.size(), world_.size());
  }
  DealTeams(static_cast<int>(teams.size()));
  for (size_t t = 0; t < teams_.size(); ++t) {
    const nlohmann::json& team = teams[t];
    if (same) teams_[t].ranks = team.at("ranks").get<std::vector<int>>();
    const nlohmann::json& noise = team.at("noise");
    teams_[t].state = {.request = team.at("request"),
                       .asked = team.at("asked"),
                       .noise = {.t = noise.at(0), .t_par = noise.at(1), .g2 = noise.at(2)}};
  }
  FormTeam();
  OpenOuter();
}

void LocalSgd::RestoreSame(const std::string& folder, const nlohmann::json& stored,
                           Progress& progress) {
  const nlohmann::json& mine = stored.at("ranks").at(world_.rank());
  progress.updates = mine.at("updates");
  progress.skipped = mine.at("skipped");
  progress.bad_in_row = mine.at("bad_in_row");
  learned_ = mine.at("learned");
  for (const nlohmann::json& record : mine.at("records")) {
    records_.push_back(StepRecordFromJson(record));
  }
  const auto whole = [&](float* x) { return std::span<float>(x, static_cast<size_t>(count_)); };
  const RankFile file(folder, world_.rank());
  file.Read("m", whole(state_.m));
  file.Read("v", whole(state_.v));
  if (inner_ > 0) {
    file.Read("weights", whole(state_.weights));
    file.Read("start", outer_->start());
  } else {
    RankFile(folder, teams_[my_team_].ranks[0]).Read("weights", whole(state_.weights));
    std::copy_n(state_.weights, count_, outer_->start().data());
  }
  if (stored.at("teams").at(my_team_).at("transport") != OuterOptions().wire.name()) {
    // Owners, chunks and errors are those of the other transport. The momentum is put together in
    // the memory of the second moments.
    notes_.push_back("the transport changes: what rounding owed is dropped");
    RestoreMomentum(folder, stored, teams_[my_team_].ranks);
    file.Read("v", whole(state_.v));
    return;
  }
  file.Read("outer_momentum", outer_->momentum());
  if (!outer_->part_error().empty()) {
    file.Read("part_error", outer_->part_error());
    file.Read("owner_error", outer_->owner_error());
  }
}

// Puts the momentum together from its old owners, in the memory of the second moments, and takes
// what this rank owns now.
void LocalSgd::RestoreMomentum(const std::string& folder, const nlohmann::json& stored,
                               const std::vector<int>& old_ranks) {
  const ExchangeShape before(count_, static_cast<int>(old_ranks.size()),
                             WireFormat::Parse(stored.at("teams").at(my_team_).at("transport")));
  for (int owner = 0; owner < before.ranks; ++owner) {
    const RankFile file(folder, old_ranks[owner]);
    for (int64_t s = 0; s < before.stages; ++s) {
      file.ReadRange("outer_momentum", s * before.chunk, before.Count(s, owner),
                     state_.v + before.Begin(s, owner));
    }
  }
  TakeMomentum(state_.v);
}

void LocalSgd::TakeMomentum(const float* v) {
  TakeOwned(outer_->shape(), team_comm_->rank(), {v, static_cast<size_t>(count_)},
            outer_->momentum());
}

void LocalSgd::RestoreOther(const std::string& folder, const nlohmann::json& stored,
                            Progress& progress) {
  const std::vector<int> old_ranks = stored.at("teams").at(my_team_).at("ranks");
  notes_.push_back(fmt::format(
      "{} ranks go on from a checkpoint of {}: each takes the mean of the inner moments, weighted "
      "by tokens; the outer momentum is carried",
      world_.size(), stored.at("ranks").size()));
  RestoreMomentum(folder, stored, old_ranks);
  if (inner_ > 0) {
    SettleRound(folder, stored, old_ranks, progress);
  } else {
    RankFile(folder, old_ranks[0])
        .Read("weights", std::span<float>(state_.weights, static_cast<size_t>(count_)));
  }
  // Weighted sums, one file after the other, in rank order: the same bits on every new rank.
  const std::vector<double> shares = SharesOf(stored, old_ranks, "learned");
  AverageFiles(folder, "m", old_ranks, shares, state_.m);
  AverageFiles(folder, "v", old_ranks, shares, state_.v);
  progress.updates = progress.skipped = progress.bad_in_row = 0;
  for (const int r : old_ranks) {
    const nlohmann::json& rank = stored.at("ranks").at(r);
    progress.updates = std::max(progress.updates, rank.at("updates").get<int64_t>());
    progress.skipped = std::max(progress.skipped, rank.at("skipped").get<int64_t>());
  }
  std::copy_n(state_.weights, count_, outer_->start().data());
}

// Each old rank's part of the tokens: of all rounds, and those of the open one.
std::vector<double> LocalSgd::SharesOf(const nlohmann::json& stored, const std::vector<int>& ranks,
                                       const std::string& field) {
  std::vector<double> shares;
  double total = 0;
  for (const int r : ranks) {
    const nlohmann::json& rank = stored.at("ranks").at(r);
    double tokens = field == "learned" ? rank.at("learned").get<double>() : 0;
    for (const nlohmann::json& record : rank.at("records")) {
      tokens += static_cast<double>(StepRecordFromJson(record).targets);
    }
    shares.push_back(tokens);
    total += tokens;
  }
  for (double& share : shares) share = total > 0 ? share / total : 1.0 / shares.size();
  return shares;
}

void LocalSgd::AverageFiles(const std::string& folder, const std::string& name,
                            const std::vector<int>& ranks, const std::vector<double>& shares,
                            float* out) {
  const std::span<float> part(state_.grads, static_cast<size_t>(count_));
  std::fill_n(out, count_, 0.0f);
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (shares[r] == 0) continue;
    RankFile(folder, ranks[r]).Read(name, part);
    const auto share = static_cast<float>(shares[r]);
    for (int64_t i = 0; i < count_; ++i) out[i] += share * part[i];
  }
}

// Ends a round that was under way when other ranks left it: its outer step, from their files.
void LocalSgd::SettleRound(const std::string& folder, const nlohmann::json& stored,
                           const std::vector<int>& old_ranks, Progress& progress) {
  const std::vector<double> shares = SharesOf(stored, old_ranks, "round");
  notes_.push_back(fmt::format("round {} ends here, after {} steps", round_ + 1, inner_));
  const std::span<float> start = outer_->start();
  RankFile(folder, old_ranks[0]).Read("start", start);
  float* momentum = state_.v;  // where RestoreMomentum has left it
  AverageFiles(folder, "weights", old_ranks, shares, state_.weights);
  const auto lr = static_cast<float>(options_.dist.outer_lr);
  const auto mu = static_cast<float>(options_.dist.outer_momentum);
  for (int64_t i = 0; i < count_; ++i) {
    const float delta = start[i] - state_.weights[i];
    momentum[i] = mu * momentum[i] + delta;
    state_.weights[i] = start[i] - lr * (delta + mu * momentum[i]);
  }
  TakeMomentum(momentum);
  Settled settled = {.round = round_, .steps = inner_, .teams = teams_, .records = {}};
  for (size_t t = 0; t < settled.teams.size(); ++t) {
    settled.teams[t].ranks = stored.at("teams").at(t).at("ranks").get<std::vector<int>>();
  }
  for (const nlohmann::json& rank : stored.at("ranks")) {
    for (const nlohmann::json& record : rank.at("records")) {
      settled.records.push_back(StepRecordFromJson(record));
      progress.tokens += settled.records.back().targets;
    }
  }
  settled_ = std::move(settled);
  round_ += 1;
  inner_ = 0;
}

}  // namespace haversack
