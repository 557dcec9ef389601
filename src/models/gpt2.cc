// GPT-2: layer norms with biases, learned positions, GELU, weights stored [in, out] (Conv1D).
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/common.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/lm_loss.h"
#include "ops/norm.h"

namespace haversack {
namespace {

ModelConfig Parse(const JsonFields& fields) {
  RefuseHugeSizes(fields, "n_layer", {"n_embd", "n_inner", "n_head", "n_positions", "vocab_size"});
  ModelConfig config;
  config.hidden = fields.RequiredSize("n_embd");
  config.ffn = fields.Size("n_inner", 4 * config.hidden);
  config.layers = fields.RequiredSize("n_layer");
  config.q_heads = config.kv_heads = fields.RequiredSize("n_head");
  config.vocab = fields.RequiredSize("vocab_size");
  config.max_positions = fields.Size("n_positions", 1024);
  config.learned_positions = true;
  if (config.hidden % config.q_heads != 0) {
    throw UserError(ExitCode::kUsage, "{}: n_embd {} is not a multiple of n_head {}",
                    fields.where(), config.hidden, config.q_heads);
  }
  config.head_dim = config.hidden / config.q_heads;
  config.activation = ParseActivation(fields, "activation_function", "gelu_new",
                                      {Activation::kGeluTanh, Activation::kGeluErf});
  config.norm_epsilon = static_cast<float>(fields.Get<double>("layer_norm_epsilon", 1e-5));
  config.tied_embeddings = fields.Get<bool>("tie_word_embeddings", true);
  config.initializer_range = fields.Get<double>("initializer_range", 0.02);
  config.qkv_bias = config.output_bias = config.ffn_bias = true;
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (fields.Get<bool>(key, false)) {
      throw UserError(ExitCode::kUsage, "{}: field '{}' true is not supported", fields.where(),
                      key);
    }
  }
  if (!fields.Get<bool>("scale_attn_weights", true)) {
    throw UserError(ExitCode::kUsage, "{}: field 'scale_attn_weights' false is not supported",
                    fields.where());
  }
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    if (fields.Get<double>(key, 0.0) > 0 && config.warnings.empty()) {
      config.warnings.push_back(fmt::format(
          "{}: dropout ({} and the like) is not applied in training", fields.where(), key));
    }
  }
  ParseSpecialTokens(fields, config);
  return config;
}

class Gpt2Decoder {
 public:
  Gpt2Decoder(const ModelConfig& config, const BuildOptions& options)
      : config_(config), options_(options) {}

  Graph Build() {
    const int64_t hidden = config_.hidden;
    const auto std = static_cast<float>(config_.initializer_range);
    const ParamId table =
        AddMatrix(builder_, "embedding", config_.vocab, hidden,
                  {{.name = "transformer.wte.weight", .row_begin = 0, .rows = config_.vocab}}, std);
    const ParamId positions = AddMatrix(
        builder_, "positions", config_.max_positions, hidden,
        {{.name = "transformer.wpe.weight", .row_begin = 0, .rows = config_.max_positions}}, std);
    ValueId x =
        builder_.Apply(std::make_shared<Embedding>(config_.vocab, hidden, config_.max_positions),
                       "embedding", -1, {}, {table, positions})[0];
    for (int layer = 0; layer < config_.layers; ++layer) {
      x = FeedForward(layer, SelfAttention(layer, x));
    }
    x = Norm("final_norm", -1, x, "transformer.ln_f");
    const ParamId head =
        config_.tied_embeddings
            ? table
            : AddMatrix(builder_, "lm_head", config_.vocab, hidden,
                        {{.name = "lm_head.weight", .row_begin = 0, .rows = config_.vocab}}, std);
    builder_.Apply(
        std::make_shared<LmLoss>(hidden, config_.vocab, options_.loss_chunk, options_.compute),
        "lm_loss", -1, {x}, {head});
    return std::move(builder_).Build();
  }

 private:
  static std::string Name(int layer, const char* what) {
    return "blocks." + std::to_string(layer) + "." + what;
  }
  static std::string Tensor(int layer, const char* what) {
    return "transformer.h." + std::to_string(layer) + "." + what;
  }

  ValueId Norm(const std::string& name, int layer, ValueId x, const std::string& tensor) {
    const int64_t hidden = config_.hidden;
    const ParamId weight =
        AddVector(builder_, name, hidden, ParamInit::kOnes, {{tensor + ".weight", hidden}});
    const ParamId bias = AddVector(builder_, name + "_bias", hidden, ParamInit::kZeros,
                                   {{tensor + ".bias", hidden}});
    return builder_.Apply(std::make_shared<LayerNorm>(hidden, config_.norm_epsilon), name, layer,
                          {x}, {weight, bias}, {"mean", "rstd"})[0];
  }

  // A Conv1D's weight and bias. Projections back into the residual stream start smaller (GPT-2
  // report).
  std::vector<ParamId> Conv1d(const std::string& name, const std::string& tensor, int64_t in,
                              int64_t out, bool into_residual) {
    double std = config_.initializer_range;
    if (into_residual) std /= std::sqrt(2.0 * static_cast<double>(config_.layers));
    return {
        AddMatrix(builder_, name, out, in,
                  {{.name = tensor + ".weight", .row_begin = 0, .rows = out, .transposed = true}},
                  static_cast<float>(std)),
        AddVector(builder_, name + "_bias", out, ParamInit::kZeros, {{tensor + ".bias", out}})};
  }

  ValueId SelfAttention(int layer, ValueId x) {
    const int64_t hidden = config_.hidden;
    const ValueId norm = Norm(Name(layer, "attn_norm"), layer, x, Tensor(layer, "ln_1"));
    const QkvProjection::Heads heads = {
        .q = config_.q_heads, .kv = config_.kv_heads, .dim = config_.head_dim};
    const ValueId qkv = builder_.Apply(
        std::make_shared<QkvProjection>(hidden, heads, true, nullptr, options_.compute),
        Name(layer, "qkv"), layer, {norm},
        Conv1d(Name(layer, "qkv"), Tensor(layer, "attn.c_attn"), hidden, 3 * hidden, false))[0];
    const float scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    const ValueId out =
        builder_.Apply(std::make_shared<Attention>(config_.q_heads, config_.kv_heads,
                                                   config_.head_dim, scale, false),
                       Name(layer, "attn_out"), layer, {qkv}, {}, {"lse"})[0];
    return builder_.Apply(
        std::make_shared<ResidualLinear>(hidden, hidden, true, options_.compute),
        Name(layer, "x_mid"), layer, {out, x},
        Conv1d(Name(layer, "attn_proj"), Tensor(layer, "attn.c_proj"), hidden, hidden, true))[0];
  }

  ValueId FeedForward(int layer, ValueId x_mid) {
    const int64_t hidden = config_.hidden;
    const ValueId norm = Norm(Name(layer, "ffn_norm"), layer, x_mid, Tensor(layer, "ln_2"));
    const ValueId up = builder_.Apply(
        std::make_shared<Linear>(hidden, config_.ffn, true, options_.compute), Name(layer, "up"),
        layer, {norm},
        Conv1d(Name(layer, "up"), Tensor(layer, "mlp.c_fc"), hidden, config_.ffn, false))[0];
    const auto form =
        config_.activation == Activation::kGeluErf ? Gelu::Form::kErf : Gelu::Form::kTanh;
    const ValueId act = builder_.Apply(std::make_shared<Gelu>(config_.ffn, form),
                                       Name(layer, "gelu"), layer, {up}, {})[0];
    return builder_.Apply(
        std::make_shared<ResidualLinear>(config_.ffn, hidden, true, options_.compute),
        Name(layer, "x"), layer, {act, x_mid},
        Conv1d(Name(layer, "down"), Tensor(layer, "mlp.c_proj"), config_.ffn, hidden, true))[0];
  }

  const ModelConfig& config_;
  const BuildOptions& options_;
  GraphBuilder builder_;
};

Graph Build(const ModelConfig& config, const BuildOptions& options) {
  return Gpt2Decoder(config, options).Build();
}

}  // namespace

const ModelFamily kGpt2 = {.model_type = "gpt2",
                           .architecture = "GPT2LMHeadModel",
                           .base_architecture = "GPT2Model",
                           .parse = Parse,
                           .build = Build};

}  // namespace haversack
