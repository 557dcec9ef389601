#include "train/options.h"

#include <set>

#include "base/error.h"

namespace haversack {

nlohmann::json RunIdentity(const TrainOptions& o) {
  return {{"--model", o.model},
          {"--batch", o.batch},
          {"--seq", o.seq},
          {"--steps", o.steps},
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
          {"--loss-chunk", o.loss_chunk}};
}

std::vector<std::string> CheckResumed(const nlohmann::json& stored, const nlohmann::json& now) {
  // What may change: it takes effect at the next step and leaves the data order alone.
  static const std::set<std::string> free = {"--steps",   "--lr",    "--schedule", "--final-lr-ratio",
                                             "--warmup",  "--clip",  "--beta1",    "--beta2",
                                             "--epsilon", "--weight-decay"};
  std::vector<std::string> changes;
  for (const auto& [flag, value] : now.items()) {
    const nlohmann::json before = stored.value(flag, nlohmann::json());
    if (before == value || flag == "--model") continue;  // the model is compared by content
    if (!free.contains(flag)) {
      throw UserError(ExitCode::kUsage,
                      "{} is {} here, but the checkpoint's run has {}; pass the stored value, or "
                      "start a new run with another --out",
                      flag, value.dump(), before.dump());
    }
    std::string change = fmt::format("{} changes from {} to {}", flag, before.dump(), value.dump());
    if (flag == "--steps") change += ": the learning-rate schedule now ends there";
    changes.push_back(std::move(change));
  }
  return changes;
}

}  // namespace haversack
