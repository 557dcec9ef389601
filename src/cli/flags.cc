#include "cli/flags.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "dist/wire_format.h"
#include "plan/actions.h"

namespace haversack {
namespace {

// A YAML mapping as CLI11 wants it: one item a flag.
class YamlConfig : public CLI::Config {
 public:
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::stringstream text;
    text << input.rdbuf();
    YAML::Node root;
    try {
      root = YAML::Load(text.str());
    } catch (const YAML::Exception& error) {
      throw UserError(ExitCode::kUsage, "--config: line {}: {}", error.mark.line + 1, error.msg);
    }
    std::vector<CLI::ConfigItem> items;
    if (root.IsNull()) return items;
    if (!root.IsMap()) {
      throw UserError(ExitCode::kUsage,
                      "--config: expected a mapping of flags, such as `batch: 4`, a line each");
    }
    for (const auto& entry : root) {
      CLI::ConfigItem item;
      item.name = entry.first.as<std::string>();
      const YAML::Node& value = entry.second;
      if (value.IsSequence()) {
        for (const auto& element : value) item.inputs.push_back(element.as<std::string>());
      } else if (value.IsScalar()) {
        item.inputs.push_back(value.as<std::string>());
      } else {
        throw UserError(ExitCode::kUsage, "--config: line {}: '{}' must be a value or a list",
                        value.Mark().line + 1, item.name);
      }
      items.push_back(std::move(item));
    }
    return items;
  }
};

std::string OnOneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::optional<double> ParseNoiseShare(const std::string& text) {
  if (text == "none") return std::nullopt;
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || end != text.data() + text.size() || !(share > 0)) {
    throw UserError(ExitCode::kUsage,
                    "--noise-share: '{}' is neither a number above 0, such as 0.01, nor none; for "
                    "no compression at all pass --exact",
                    text);
  }
  return share;
}

}  // namespace

Flags::Flags(const std::string& name, const std::string& description)
    : app_(description, "haversack " + name) {
  app_.get_formatter()->column_width(34);
}

void Flags::AddConfig() {
  app_.set_config("--config", "", "YAML file of flags, such as `batch: 4`; the command line wins");
  app_.config_formatter(std::make_shared<YamlConfig>());
  app_.allow_config_extras(CLI::config_extras_mode::error);
}

void Flags::AddBytes(const std::string& flag, std::optional<uint64_t>& bytes,
                     const std::string& help) {
  app_.add_option_function<std::string>(
          flag, [flag, &bytes](const std::string& text) { bytes = ParseBytes(text, flag); }, help)
      ->type_name("BYTES");
}

bool Flags::Parse(int argc, const char* const* argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app_.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw UserError(ExitCode::kUsage, "{}: {} (see {} --help)", app_.get_name(),
                    OnOneLine(error.what()), app_.get_name());
  }
  return true;
}

void AddTrainFlags(Flags& flags, TrainOptions& o) {
  o.compute = ResolveComputeType("auto");
  CLI::App& app = flags.app();
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 40);
  const auto not_negative = CLI::Range(int64_t{0}, int64_t{1} << 40);
  app.option_defaults()->group("What to train");
  app.add_option("--model", o.model, "Hugging Face model directory")->required()->type_name("DIR");
  app.add_option("--data", o.data, "text or JSONL files or folders (.gz, .zst too)")
      ->required()
      ->type_name("FILE...");
  app.add_option("--valid", o.valid, "held-out files, evaluated but never trained on")
      ->type_name("FILE...");
  app.add_option("--out", o.out, "run directory: model, checkpoints, log")->type_name("DIR");
  app.add_option_function<std::string>(
         "--init", [&o](const std::string& how) { o.random_init = how == "random"; },
         "start from the checkpoint's weights, or from random ones")
      ->check(CLI::IsMember({"checkpoint", "random"}))
      ->type_name("checkpoint|random");
  app.add_flag("--cross-document", o.cross_document,
               "let packed documents attend to, and predict, their neighbours");

  app.option_defaults()->group("How much");
  flags.AddBytes("--memory", o.memory,
                 "budget for the whole process, such as 3GiB (default: 90% of what is free)");
  app.add_option("--batch", o.batch, "sequences per optimizer step")->check(positive);
  app.add_option("--seq", o.seq, "tokens per sequence")->check(positive)->capture_default_str();
  app.add_option("--steps", o.steps, "optimizer steps")->check(not_negative);
  app.add_option("--tokens", o.tokens, "targets to learn from, over all ranks, in place of --steps")
      ->check(positive);
  app.add_option("--micro-batch", o.micro_batch,
                 "sequences computed at once; divides --batch (default: the fastest that fits)")
      ->check(positive);
  app.add_option("--plan", o.plan, "what to keep for the backward pass")
      ->type_name("auto|keep|recompute|FILE")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--actions",
         [&o](const std::string& text) {
           ParseActions(text, "--actions");
           o.actions = text;
         },
         "what --plan auto may do with saved values (default: " + o.actions + ")")
      ->type_name("A,B...");
  app.add_flag_callback(
         "--exact", [&o] { o.actions = "keep,recompute"; },
         "no compression: --actions keep,recompute")
      ->excludes("--actions");
  app.add_option_function<std::string>(
         "--noise-share", [&o](const std::string& text) { o.noise_share = ParseNoiseShare(text); },
         "most that compression may add to the gradient's sampling variance, as a share of it "
         "(default: 0.01)")
      ->type_name("X|none");
  app.add_option("--loss-chunk", o.loss_chunk, "tokens whose logits exist at once")
      ->check(positive)
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--compute", [&o](const std::string& text) { o.compute = ResolveComputeType(text); },
         "type of the matrix products; storage stays f32 (default: bf16 where the CPU has AMX)")
      ->type_name("auto|f32|bf16");
  app.add_option("--threads", o.threads, "compute threads (default: all cores)")
      ->check(CLI::Range(0, 4096));

  app.option_defaults()->group("Optimizer");
  app.add_option_function<std::string>(
         "--optimizer",
         [&o](const std::string& name) {
           o.moments = name == "adamw8bit" ? MomentType::kInt8 : MomentType::kF32;
         },
         "AdamW with both moments in f32, or in 8 bits by blocks (default: adamw)")
      ->check(CLI::IsMember({"adamw", "adamw8bit"}))
      ->type_name("adamw|adamw8bit");
  app.add_option("--lr", o.lr, "peak learning rate")->capture_default_str();
  app.add_option_function<std::string>(
         "--schedule", [&o](const std::string& shape) { o.schedule = ParseLrShape(shape); },
         "learning rate after warm-up (default: cosine)")
      ->type_name("constant|linear|cosine");
  app.add_option("--warmup", o.warmup, "steps of linear warm-up")
      ->check(not_negative)
      ->capture_default_str();
  app.add_option("--final-lr-ratio", o.final_lr_ratio, "last rate, as a share of the peak")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--weight-decay", o.adamw.weight_decay, "decoupled; none on norms and biases")
      ->capture_default_str();
  app.add_option("--beta1", o.adamw.beta1)->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--beta2", o.adamw.beta2)->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--epsilon", o.adamw.epsilon)->capture_default_str();
  app.add_option("--clip", o.clip, "global gradient norm, 0 for none")->capture_default_str();
  app.add_flag("--fused-update", o.fused_update,
               "update each tensor as its gradient arrives: no gradient memory; needs --clip 0 and "
               "--micro-batch equal to --batch");
  app.add_option("--max-bad-steps", o.max_bad_steps,
                 "non-finite steps in a row before the run stops")
      ->check(positive)
      ->capture_default_str();

  app.option_defaults()->group("Several ranks (mpirun or srun starts them)");
  app.add_option_function<std::string>(
         "--dist", [&o](const std::string& text) { o.dist.mode = ParseDistMode(text); },
         "how ranks share the run: a gradient a step, or a model every --inner-steps steps, with "
         "a fixed or an adaptive batch (default: none)")
      ->type_name("none|ddp|diloco|adloco");
  app.add_option("--transport", o.dist.transport, "numbers on the wire; int4 feeds errors back")
      ->type_name("f32|bf16|int8|int4")
      ->capture_default_str();
  app.add_option("--deadline", o.dist.deadline_seconds,
                 "seconds that a rank may be late before the run ends with exit 6")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--inner-steps", o.dist.inner_steps, "optimizer steps between outer steps")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--outer-lr", o.dist.outer_lr, "rate of the outer step")->capture_default_str();
  app.add_option("--outer-momentum", o.dist.outer_momentum, "Nesterov momentum of the outer step")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();

  app.add_option("--trainers", o.dist.trainers,
                 "adloco: models trained side by side and merged; each has one rank at least")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--merge-every", o.dist.merge_every,
                 "adloco: rounds between merges of the two trainers that ask for the smallest "
                 "batches (default: all merge at the end)")
      ->check(not_negative);
  app.add_option("--batch-max", o.dist.batch_max,
                 "adloco: the most sequences per step over all ranks (default: what leaves 20 "
                 "rounds)")
      ->check(positive);
  app.add_option_function<std::string>(
         "--batch-test",
         [&o](const std::string& text) { o.dist.batch_test = ParseBatchTest(text); },
         "adloco: what asks for a larger batch (default: norm)")
      ->type_name("norm|augmented");
  app.add_option_function<std::string>(
         "--batch-lr-scaling",
         [&o](const std::string& text) { o.dist.lr_scaling = ParseLrScaling(text); },
         "adloco: the rate's growth with the batch (default: sqrt)")
      ->type_name("none|sqrt|linear");
  app.option_defaults()->group("Low rank");
  app.add_option_function<std::string>(
         "--method", [&o](const std::string& m) { o.low_rank.method = ParseLowRankMethod(m); },
         "what linear layers keep of their inputs for their weights' gradients: all of it, a "
         "random "
         "projection, or a principal and random one with full or low-rank moments")
      ->type_name("adamw|compact|prac|prac-lowrank");
  app.add_option("--rank", o.low_rank.rank, "columns of every projection")->check(positive);
  app.add_option("--rank-ratio", o.low_rank.rank_ratio,
                 "columns of a projection as a share of the value's (default: 0.25; of prac 0.6)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option_function<std::string>(
         "--projection",
         [&o](const std::string& kind) { o.low_rank.orthonormal = kind == "orthonormal"; },
         "of compact: independent entries, or orthonormal columns (default: gaussian)")
      ->check(CLI::IsMember({"gaussian", "orthonormal"}))
      ->type_name("gaussian|orthonormal");
  app.add_option("--refresh", o.refresh,
                 "optimizer steps between projections (default: 50; of prac 500)")
      ->check(positive);
  app.add_option("--lowrank-scale", o.low_rank_scale,
                 "factor on the updates of projected weights: their rate is scale * lr")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--moments", [&o](const std::string& rule) { o.moment_rule = ParseMomentRule(rule); },
         "low-rank moments at a new projection (default: transfer)")
      ->type_name("keep|reset|transfer");

  app.option_defaults()->group("Run");
  app.add_option("--seed", o.seed, "of the data order and of random weights")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--metrics", o.metrics,
                 "JSON lines, one a step; the file is started anew unless --resume goes on")
      ->type_name("FILE");
  app.add_option("--save-every", o.save_every,
                 "steps between checkpoints (default: at the end, and when stopped by a signal)")
      ->check(not_negative);
  app.add_option("--keep", o.keep,
                 "newest checkpoints to keep, beside the best of those evaluated at their step")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--eval-every", o.eval_every,
                 "steps between evaluations of --valid (default: first and last)")
      ->check(not_negative);
  app.add_flag(
      "--resume", o.resume,
      "go on from the newest whole checkpoint in --out; exports where only that is missing");
  app.add_option_function<std::string>(
         "--export-dtype",
         [&o](const std::string& dtype) {
           o.export_dtype = dtype == "bf16" ? "BF16" : dtype == "f16" ? "F16" : "F32";
         },
         "type of the exported weights (default: f32)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->type_name("f32|bf16|f16");
  flags.AddConfig();
}

namespace {

void CheckLowRank(const TrainOptions& o) {
  const LowRankOptions& low_rank = o.low_rank;
  const bool off = low_rank.method == LowRankMethod::kNone;
  const bool prac = !off && low_rank.method != LowRankMethod::kCompact;
  const auto refuse = [](const std::string& what) {
    throw UserError(ExitCode::kUsage, "{}", what);
  };
  if (off && (low_rank.rank || low_rank.rank_ratio || o.refresh || low_rank.orthonormal)) {
    refuse(
        "--rank, --rank-ratio, --refresh and --projection need --method compact, prac or "
        "prac-lowrank");
  }
  if (prac && low_rank.orthonormal) refuse("--projection is of --method compact");
  if (prac && low_rank.rank && *low_rank.rank < 2) {
    refuse(fmt::format("--rank 1: --method {} needs a principal and a random direction",
                       ToText(low_rank.method)));
  }
  if (low_rank.rank && low_rank.rank_ratio) refuse("--rank and --rank-ratio: give one of them");
  if (low_rank.rank_ratio == 0.0) refuse("--rank-ratio 0: nothing would be kept");
  if (!(o.low_rank_scale > 0)) {
    refuse(fmt::format("--lowrank-scale {}: must be positive", o.low_rank_scale));
  }
}

}  // namespace

void CheckTrainOptions(const TrainOptions& o) {
  const auto refuse = [](const std::string& what) {
    throw UserError(ExitCode::kUsage, "{}", what);
  };
  if (!(o.lr >= 0) || std::isinf(o.lr)) refuse(fmt::format("--lr {}: not a learning rate", o.lr));
  if (!(o.clip >= 0)) refuse(fmt::format("--clip {}: a norm is not negative", o.clip));
  if (!(o.adamw.epsilon > 0))
    refuse(fmt::format("--epsilon {}: must be positive", o.adamw.epsilon));
  if (!(o.adamw.weight_decay >= 0)) {
    refuse(fmt::format("--weight-decay {}: must not be negative", o.adamw.weight_decay));
  }
  if (o.adamw.beta1 >= 1 || o.adamw.beta2 >= 1) refuse("--beta1 and --beta2 must be below 1");
  if (o.fused_update && o.clip != 0)
    refuse("--fused-update needs --clip 0: clipping needs all gradients");
  if (o.fused_update && o.micro_batch.value_or(o.batch) != o.batch) {
    refuse("--fused-update needs --micro-batch equal to --batch: accumulation needs all gradients");
  }
  if (o.dist.on() && o.fused_update) {
    refuse("--fused-update cannot be combined with --dist: ranks exchange what it does not keep");
  }
  // Ranks would take their principal directions from data of their own, and local steps join models
  // and moments in the weights' own space.
  const bool compact = o.low_rank.method == LowRankMethod::kCompact;
  if (o.dist.on() && o.low_rank.method != LowRankMethod::kNone &&
      !(compact && o.dist.mode == DistMode::kDdp)) {
    refuse(
        "--method goes with --dist only as compact with ddp: ranks would disagree on projections");
  }
  if (o.dist.local_steps() && o.moments != MomentType::kF32) {
    refuse(
        fmt::format("--optimizer adamw8bit cannot be combined with --dist {}: ranks average "
                    "their moments, which takes f32; use --dist ddp or --optimizer adamw",
                    ToText(o.dist.mode)));
  }
  WireFormat::Parse(o.dist.transport);
  if (!(o.dist.outer_lr >= 0) || std::isinf(o.dist.outer_lr)) {
    refuse(fmt::format("--outer-lr {}: not a learning rate", o.dist.outer_lr));
  }
  if (o.dist.trainers > 1 && o.dist.mode != DistMode::kAdloco) {
    refuse(fmt::format("--trainers {} needs --dist adloco", o.dist.trainers));
  }
  if (o.dist.batch_max && *o.dist.batch_max < o.batch) {
    refuse(fmt::format("--batch-max {} is below --batch {}", *o.dist.batch_max, o.batch));
  }
  if (o.dist.outer_momentum >= 1) refuse("--outer-momentum must be below 1");
  CheckLowRank(o);
  if (o.warmup > 0 && o.steps > 0 && o.warmup > o.steps) {
    refuse(fmt::format("--warmup {} is longer than --steps {}", o.warmup, o.steps));
  }
}

}  // namespace haversack
