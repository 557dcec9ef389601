#include "train/options.h"

#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/machine.h"

namespace haversack {
namespace {

// What a resumed run does about a flag that is not what it was.
enum class OnChange {
  kRefuse,     // the stored steps and data positions would mean something else
  kHonour,     // takes effect at the next step
  kByContent,  // a path: whoever opens it compares what it holds
  kKeep,       // not given: what the checkpoint's run had goes on
};

// Flags that are not listed here are refused.
const std::map<std::string, OnChange>& Rules() {
  static const std::map<std::string, OnChange> rules = {
      {"--model", OnChange::kByContent},
      {"--data", OnChange::kByContent},
      {"--valid", OnChange::kHonour},
      {"--memory", OnChange::kHonour},
      {"--steps", OnChange::kHonour},
      {"--lr", OnChange::kHonour},
      {"--schedule", OnChange::kHonour},
      {"--final-lr-ratio", OnChange::kHonour},
      {"--warmup", OnChange::kHonour},
      {"--clip", OnChange::kHonour},
      {"--beta1", OnChange::kHonour},
      {"--beta2", OnChange::kHonour},
      {"--epsilon", OnChange::kHonour},
      {"--weight-decay", OnChange::kHonour},
      {"--plan", OnChange::kHonour},
      {"--micro-batch", OnChange::kKeep},
      {"--actions", OnChange::kHonour},
      {"--noise-share", OnChange::kHonour},
      {"--lowrank-scale", OnChange::kHonour},
      {"--threads", OnChange::kHonour},
      {"--fused-update", OnChange::kHonour},
      {"--metrics", OnChange::kHonour},
      {"--save-every", OnChange::kHonour},
      {"--keep", OnChange::kHonour},
      {"--eval-every", OnChange::kHonour},
      {"--export-dtype", OnChange::kHonour},
      {"--max-bad-steps", OnChange::kHonour},
      // From a run of one process or ddp to the other; preparation refuses what is more.
      {"--dist", OnChange::kHonour},
      {"--transport", OnChange::kHonour},
      {"--tokens", OnChange::kHonour},
      {"--deadline", OnChange::kHonour},
      {"--inner-steps", OnChange::kHonour},
      {"--outer-lr", OnChange::kHonour},
      {"--outer-momentum", OnChange::kHonour},
      {"--merge-every", OnChange::kHonour},
      {"--batch-test", OnChange::kHonour}};
  return rules;
}

// What a person should know of the change beside the two values.
const char* Consequence(const std::string& flag) {
  if (flag == "--steps") return ": the learning-rate schedule now ends there";
  if (flag == "--metrics") return ": steps from before are not in it";
  if (flag == "--fused-update") return ": the gradient norm is summed in another order";
  return "";
}

std::string Shown(const std::string& flag, const nlohmann::json& value) {
  if (value.is_null()) return "the default";
  if (flag == "--memory") return FormatBytes(value.get<uint64_t>());
  return value.dump();
}

// As published: CompAct redraws often, PRAC's principal directions move slowly.
constexpr int64_t kCompactRefresh = 50;
constexpr int64_t kPracRefresh = 500;

template <typename T>
nlohmann::json OrNull(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

ComputeType ResolveComputeType(const std::string& text) {
  if (text == "f32") return ComputeType::kF32;
  if (text == "auto") {
    return CpuHasBF16Tiles() && CanComputeBF16() ? ComputeType::kBF16 : ComputeType::kF32;
  }
  if (text != "bf16") {
    throw UserError(ExitCode::kUsage, "--compute: '{}' is unknown; use auto, f32 or bf16", text);
  }
  if (!CanComputeBF16()) {
    throw UserError(ExitCode::kUsage,
                    "--compute bf16: this build of LibTorch exports no bf16 product; use f32");
  }
  return ComputeType::kBF16;
}

namespace {

void AddDistIdentity(const DistOptions& o, nlohmann::json& identity) {
  identity["--dist"] = ToText(o.mode);
  identity["--transport"] = o.transport;
  identity["--deadline"] = o.deadline_seconds;
  if (!o.local_steps()) return;
  identity["--inner-steps"] = o.inner_steps;
  identity["--outer-lr"] = o.outer_lr;
  identity["--outer-momentum"] = o.outer_momentum;
  if (o.mode != DistMode::kAdloco) return;
  identity["--trainers"] = o.trainers;
  identity["--merge-every"] = o.merge_every;
  identity["--batch-max"] = OrNull(o.batch_max);
  identity["--batch-test"] = ToText(o.batch_test);
  identity["--batch-lr-scaling"] = ToText(o.lr_scaling);
}

}  // namespace

BuildOptions TrainOptions::build() const {
  BuildOptions build = {
      .positions = seq, .loss_chunk = loss_chunk, .compute = compute, .low_rank = low_rank};
  build.low_rank.seed = seed;
  return build;
}

ProjectionOptions TrainOptions::projections() const {
  const bool compact = low_rank.method == LowRankMethod::kCompact;
  return {.refresh = refresh.value_or(compact ? kCompactRefresh : kPracRefresh),
          .scale = low_rank_scale,
          .moments = moment_rule};
}

nlohmann::json RunIdentity(const TrainOptions& o) {
  const bool low_rank = o.low_rank.method != LowRankMethod::kNone;
  const auto if_low_rank = [&](nlohmann::json value) {
    return low_rank ? std::move(value) : nlohmann::json();
  };
  nlohmann::json identity = {
      {"--model", o.model},
      {"--data", o.data},
      {"--valid", o.valid},
      {"--memory", OrNull(o.memory)},
      {"--batch", o.batch},
      {"--seq", o.seq},
      {"--steps", o.steps},
      {"--tokens", OrNull(o.tokens)},
      {"--init", o.random_init ? "random" : "checkpoint"},
      {"--seed", o.seed},
      {"--cross-document", o.cross_document},
      {"--lr", o.lr},
      {"--schedule", ToText(o.schedule)},
      {"--final-lr-ratio", o.final_lr_ratio},
      {"--warmup", o.warmup},
      {"--clip", o.clip},
      {"--beta1", o.adamw.beta1},
      {"--beta2", o.adamw.beta2},
      {"--epsilon", o.adamw.epsilon},
      {"--weight-decay", o.adamw.weight_decay},
      {"--optimizer", o.moments == MomentType::kF32 ? nlohmann::json() : "adamw8bit"},
      {"--method", if_low_rank(ToText(o.low_rank.method))},
      {"--rank", if_low_rank(OrNull(o.low_rank.rank))},
      {"--rank-ratio",
       if_low_rank(o.low_rank.rank ? nlohmann::json() : nlohmann::json(o.low_rank.ratio()))},
      {"--projection", o.low_rank.orthonormal ? "orthonormal" : nlohmann::json()},
      {"--refresh", if_low_rank(o.projections().refresh)},
      {"--lowrank-scale", if_low_rank(o.low_rank_scale)},
      {"--moments", if_low_rank(ToText(o.moment_rule))},
      {"--fused-update", o.fused_update},
      {"--max-bad-steps", o.max_bad_steps},
      {"--plan", o.plan},
      {"--actions", o.actions},
      {"--noise-share", o.noise_share ? nlohmann::json(*o.noise_share) : "none"},
      {"--micro-batch", OrNull(o.micro_batch)},
      {"--loss-chunk", o.loss_chunk},
      {"--compute", std::string(ToText(o.compute))},
      {"--threads", o.threads > 0 ? nlohmann::json(o.threads) : nlohmann::json()},
      {"--metrics", o.metrics.empty() ? nlohmann::json() : nlohmann::json(o.metrics)},
      {"--save-every", o.save_every},
      {"--keep", o.keep},
      {"--eval-every", o.eval_every},
      {"--export-dtype", o.export_dtype}};
  if (o.dist.on()) AddDistIdentity(o.dist, identity);
  return identity;
}

std::vector<std::string> CheckResumed(const nlohmann::json& stored, const nlohmann::json& now) {
  std::vector<std::string> changes;
  for (const auto& [flag, value] : now.items()) {
    const nlohmann::json before = stored.value(flag, nlohmann::json());
    if (before == value) continue;
    const auto found = Rules().find(flag);
    const OnChange rule = found == Rules().end() ? OnChange::kRefuse : found->second;
    if (rule == OnChange::kRefuse) {
      throw UserError(ExitCode::kUsage,
                      "{} is {} here, but the checkpoint's run has {}; pass the stored value, or "
                      "start a new run with another --out",
                      flag, Shown(flag, value), Shown(flag, before));
    }
    if (rule == OnChange::kKeep && value.is_null()) continue;
    changes.push_back(fmt::format("{} changes from {} to {}{}", flag, Shown(flag, before),
                                  Shown(flag, value),
                                  rule == OnChange::kByContent ? "" : Consequence(flag)));
  }
  return changes;
}

}  // namespace haversack
