"""CHAIN: a Llama whose next token depends on the last one only; its logits have a closed form."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from haversack_testing.tokenizer import END_OF_TEXT, write_json, write_tokenizer

VOCAB = 320
HIDDEN = 32
KV_WIDTH = 16
HEAD_VALUE = 2.0

# The embedding of a listed token is one-hot, the norm scales its 1 to sqrt(HIDDEN) (less eps), and
# the head multiplies that by HEAD_VALUE. Every other logit is 0.
LISTED_LOGIT = HEAD_VALUE / math.sqrt(1 / HIDDEN + 1e-5)
# Loss of a listed pair, of a wrong target after a listed token, of any target after another.
LISTED_LOSS = math.log(math.exp(LISTED_LOGIT) + VOCAB - 1) - LISTED_LOGIT
WRONG_LOSS = LISTED_LOSS + LISTED_LOGIT
UNLISTED_LOSS = math.log(VOCAB)


def chain(
    path: Path,
    following: Mapping[int, int],
    tokenizer: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the model directory `path` in which id `following[t]` follows id t; returns it.

    At most HIDDEN entries. config: fields to change or add; generation: generation_config.json.
    """
    assert len(following) <= HIDDEN
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)

    def noise(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.02).astype(np.float32)

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    embedding, head = zeros(VOCAB, HIDDEN), zeros(VOCAB, HIDDEN)
    for k, (token, following_token) in enumerate(sorted(following.items())):
        embedding[token, k] = 1
        head[following_token, k] = HEAD_VALUE

    # The layer's two output projections are zero: it adds nothing to the residual stream.
    layer = {
        "input_layernorm": np.ones(HIDDEN, np.float32),
        "post_attention_layernorm": np.ones(HIDDEN, np.float32),
        "self_attn.q_proj": noise(HIDDEN, HIDDEN),
        "self_attn.k_proj": noise(KV_WIDTH, HIDDEN),
        "self_attn.v_proj": noise(KV_WIDTH, HIDDEN),
        "self_attn.o_proj": zeros(HIDDEN, HIDDEN),
        "mlp.gate_proj": noise(HIDDEN, HIDDEN),
        "mlp.up_proj": noise(HIDDEN, HIDDEN),
        "mlp.down_proj": zeros(HIDDEN, HIDDEN),
    }
    tensors = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    } | {f"model.layers.0.{name}.weight": tensor for name, tensor in layer.items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    write_json(path / "config.json", CONFIG | dict(config or {}))
    write_tokenizer(path, tokenizer)
    if generation is not None:
        write_json(path / "generation_config.json", generation)
    return path


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": END_OF_TEXT,
    "pad_token_id": END_OF_TEXT,
    "torch_dtype": "float32",
}
