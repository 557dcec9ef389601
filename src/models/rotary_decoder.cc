#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "models/common.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/lm_loss.h"
#include "ops/norm.h"

namespace haversack {
namespace {

class RotaryDecoder {
 public:
  RotaryDecoder(const ModelConfig& config, const BuildOptions& options)
      : config_(config),
        options_(options),
        rope_(std::make_shared<RopeTable>(options.positions, config.head_dim, config.rope_theta,
                                          config.rope_scaling)) {}

  Graph Build() {
    const ParamId table = Matrix("embedding", config_.vocab, config_.hidden,
                                 {{"model.embed_tokens.weight", config_.vocab}});
    ValueId x = builder_.Apply(std::make_shared<Embedding>(config_.vocab, config_.hidden, 0),
                               "embedding", -1, {}, {table})[0];
    for (int layer = 0; layer < config_.layers; ++layer) {
      x = FeedForward(layer, SelfAttention(layer, x));
    }
    x = Norm("final_norm", -1, x, "model.norm.weight");
    const ParamId head = config_.tied_embeddings ? table
                                                 : Matrix("lm_head", config_.vocab, config_.hidden,
                                                          {{"lm_head.weight", config_.vocab}});
    builder_.Apply(std::make_shared<LmLoss>(config_.hidden, config_.vocab, options_.loss_chunk,
                                            options_.compute),
                   "lm_loss", -1, {x}, {head});
    return std::move(builder_).Build();
  }

 private:
  using Pieces = std::vector<std::pair<std::string, int64_t>>;

  static std::string Name(int layer, const char* what) {
    return "blocks." + std::to_string(layer) + "." + what;
  }
  static std::string Tensor(int layer, const char* what) {
    return "model.layers." + std::to_string(layer) + "." + what;
  }

  ParamId Matrix(const std::string& name, int64_t rows, int64_t cols, const Pieces& pieces) {
    std::vector<TensorSource> sources;
    int64_t row = 0;
    for (const auto& [tensor, count] : pieces) {
      sources.push_back({.name = tensor, .row_begin = row, .rows = count});
      row += count;
    }
    return AddMatrix(builder_, name, rows, cols, sources,
                     static_cast<float>(config_.initializer_range));
  }

  ValueId Norm(const std::string& name, int layer, ValueId x, const std::string& tensor) {
    const ParamId weight =
        AddVector(builder_, name, config_.hidden, ParamInit::kOnes, {{tensor, config_.hidden}});
    return builder_.Apply(std::make_shared<RmsNorm>(config_.hidden, config_.norm_epsilon), name,
                          layer, {x}, {weight}, {"rstd"})[0];
  }

  ValueId SelfAttention(int layer, ValueId x) {
    const int64_t dim = config_.head_dim;
    const int64_t q = config_.q_heads * dim;
    const int64_t kv = config_.kv_heads * dim;
    const ValueId norm =
        Norm(Name(layer, "attn_norm"), layer, x, Tensor(layer, "input_layernorm.weight"));
    std::vector<ParamId> params = {Matrix(Name(layer, "qkv"), q + 2 * kv, config_.hidden,
                                          {{Tensor(layer, "self_attn.q_proj.weight"), q},
                                           {Tensor(layer, "self_attn.k_proj.weight"), kv},
                                           {Tensor(layer, "self_attn.v_proj.weight"), kv}})};
    if (config_.qkv_bias) {
      params.push_back(AddVector(builder_, Name(layer, "qkv_bias"), q + 2 * kv, ParamInit::kZeros,
                                 {{Tensor(layer, "self_attn.q_proj.bias"), q},
                                  {Tensor(layer, "self_attn.k_proj.bias"), kv},
                                  {Tensor(layer, "self_attn.v_proj.bias"), kv}}));
    }
    const QkvProjection::Heads heads = {.q = config_.q_heads, .kv = config_.kv_heads, .dim = dim};
    const ValueId qkv = builder_.Apply(
        std::make_shared<QkvProjection>(config_.hidden, heads, config_.qkv_bias,
                                        config_.qk_norm ? nullptr : rope_, options_.compute),
        Name(layer, "qkv"), layer, {norm}, params)[0];
    builder_.Pack(qkv, {{"q", q}, {"k", kv}, {"v", kv}});
    std::vector<ValueId> inputs = {qkv};
    if (config_.qk_norm) inputs.push_back(QueryKeyNorm(layer, qkv));
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    const ValueId out = builder_.Apply(
        std::make_shared<Attention>(config_.q_heads, config_.kv_heads, dim, scale, config_.qk_norm),
        Name(layer, "attn_out"), layer, inputs, {}, {"lse"})[0];
    std::vector<ParamId> output = {
        Matrix(Name(layer, "attn_proj"), config_.hidden, q,
               {{Tensor(layer, "self_attn.o_proj.weight"), config_.hidden}})};
    if (config_.output_bias) {
      output.push_back(AddVector(builder_, Name(layer, "attn_proj_bias"), config_.hidden,
                                 ParamInit::kZeros,
                                 {{Tensor(layer, "self_attn.o_proj.bias"), config_.hidden}}));
    }
    return builder_.Apply(
        std::make_shared<ResidualLinear>(q, config_.hidden, config_.output_bias, options_.compute),
        Name(layer, "x_mid"), layer, {out, x}, output)[0];
  }

  ValueId QueryKeyNorm(int layer, ValueId qkv) {
    const int64_t dim = config_.head_dim;
    const ParamId q_weight = AddVector(builder_, Name(layer, "q_norm"), dim, ParamInit::kOnes,
                                       {{Tensor(layer, "self_attn.q_norm.weight"), dim}});
    const ParamId k_weight = AddVector(builder_, Name(layer, "k_norm"), dim, ParamInit::kOnes,
                                       {{Tensor(layer, "self_attn.k_norm.weight"), dim}});
    return builder_.Apply(std::make_shared<QkNormRope>(config_.q_heads, config_.kv_heads, dim,
                                                       config_.norm_epsilon, rope_),
                          Name(layer, "qk"), layer, {qkv}, {q_weight, k_weight}, {"rstd"})[0];
  }

  ValueId FeedForward(int layer, ValueId x_mid) {
    const int64_t ffn = config_.ffn;
    const ValueId norm = Norm(Name(layer, "ffn_norm"), layer, x_mid,
                              Tensor(layer, "post_attention_layernorm.weight"));
    std::vector<ParamId> params = {Matrix(Name(layer, "gate_up"), 2 * ffn, config_.hidden,
                                          {{Tensor(layer, "mlp.gate_proj.weight"), ffn},
                                           {Tensor(layer, "mlp.up_proj.weight"), ffn}})};
    if (config_.ffn_bias) {
      params.push_back(AddVector(
          builder_, Name(layer, "gate_up_bias"), 2 * ffn, ParamInit::kZeros,
          {{Tensor(layer, "mlp.gate_proj.bias"), ffn}, {Tensor(layer, "mlp.up_proj.bias"), ffn}}));
    }
    const ValueId gate_up = builder_.Apply(
        std::make_shared<Linear>(config_.hidden, 2 * ffn, config_.ffn_bias, options_.compute),
        Name(layer, "gate_up"), layer, {norm}, params)[0];
    builder_.Pack(gate_up, {{"gate", ffn}, {"up", ffn}});
    const ValueId act = builder_.Apply(std::make_shared<Swiglu>(ffn), Name(layer, "swiglu"), layer,
                                       {gate_up}, {})[0];
    std::vector<ParamId> down = {Matrix(Name(layer, "down"), config_.hidden, ffn,
                                        {{Tensor(layer, "mlp.down_proj.weight"), config_.hidden}})};
    if (config_.ffn_bias) {
      down.push_back(AddVector(builder_, Name(layer, "down_bias"), config_.hidden,
                               ParamInit::kZeros,
                               {{Tensor(layer, "mlp.down_proj.bias"), config_.hidden}}));
    }
    return builder_.Apply(
        std::make_shared<ResidualLinear>(ffn, config_.hidden, config_.ffn_bias, options_.compute),
        Name(layer, "x"), layer, {act, x_mid}, down)[0];
  }

  const ModelConfig& config_;
  const BuildOptions& options_;
  std::shared_ptr<const RopeTable> rope_;
  GraphBuilder builder_;
};

}  // namespace

Graph BuildRotaryDecoder(const ModelConfig& config, const BuildOptions& options) {
  return RotaryDecoder(config, options).Build();
}

}  // namespace haversack
