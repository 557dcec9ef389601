"""Turns a Llama GGUF file into a Hugging Face model directory.

    python tools/gguf_to_hf.py MODEL.gguf OUT

OUT gets config.json, model.safetensors, tokenizer.json, tokenizer_config.json and
generation_config.json, and loads in transformers. Quantised tensors become f32: a block's scale
times its integers (plus its minimum) is what any GGUF reader computes, so nothing is lost again.
What this does not know (another architecture, tokenizer or pre-tokenizer) it refuses by name.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

# GGUF names a pre-tokenizer instead of storing it (llama.cpp, src/llama-vocab.cpp).
PRE_TOKENIZERS: dict[str, list[Any]] = {
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)],
    "smollm": [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ],
}

TENSOR_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_TENSOR_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


class UnsupportedError(Exception):
    """The file holds something that has no translation here; the message names it."""


class Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def get(self, key: str, default: Any = None) -> Any:
        return self._fields[key].contents() if key in self._fields else default

    def __getitem__(self, key: str) -> Any:
        if key not in self._fields:
            raise UnsupportedError(f"the file has no '{key}'")
        return self._fields[key].contents()

    def choice(self, key: str, supported: list[str]) -> str:
        value = self[key]
        if value not in supported:
            raise UnsupportedError(f"{key} '{value}'; supported: {', '.join(supported)}")
        return value


def undo_permutation(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a Q or K projection [heads * head_dim, hidden], from GGUF's order to Hugging Face's.

    GGUF rotates neighbours (2i, 2i + 1) of a head, Hugging Face rotates (i, i + head_dim / 2).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def hf_name(name: str) -> str:
    if name in TENSOR_NAMES:
        return TENSOR_NAMES[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    if name.startswith("blk.") and rest in BLOCK_TENSOR_NAMES:
        return f"model.layers.{block}.{BLOCK_TENSOR_NAMES[rest]}"
    raise UnsupportedError(f"tensor '{name}'")


def tensors(reader: GGUFReader, heads: int, kv_heads: int) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face name, f32 array [out, in]) of each tensor."""
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        # GGUF lists a shape fastest dimension first.
        shape = [int(n) for n in reversed(tensor.shape)]
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        if name.endswith("q_proj.weight"):
            array = undo_permutation(array, heads)
        elif name.endswith("k_proj.weight"):
            array = undo_permutation(array, kv_heads)
        yield name, np.ascontiguousarray(array)


def f32(value: float) -> float:
    """The shortest decimal that names the same f32: 1e-05 and not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def token_ids(meta: Metadata) -> dict[str, int | None]:
    return {
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }


def model_config(meta: Metadata, tied: bool) -> dict[str, Any]:
    scaling = meta.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedError(f"llama.rope.scaling.type '{scaling}'")
    hidden, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": meta.get("llama.attention.key_length", hidden // heads),
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": f32(meta["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": f32(meta.get("llama.rope.freq_base", 10000.0)),
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": tied,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "torch_dtype": "float32",
        **token_ids(meta),
    }


def build_tokenizer(meta: Metadata) -> Tokenizer:
    meta.choice("tokenizer.ggml.model", ["gpt2"])
    for flag in ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"):
        if meta.get(flag, False):
            raise UnsupportedError(f"{flag} true")
    pre = PRE_TOKENIZERS[meta.choice("tokenizer.ggml.pre", sorted(PRE_TOKENIZERS))]
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]

    tokenizer = Tokenizer(BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pre) if len(pre) > 1 else pre[0]
    tokenizer.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, types, strict=True)
            if kind == TokenType.CONTROL
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == TokenType.USER_DEFINED
        ]
    )
    return tokenizer


def tokenizer_config(meta: Metadata) -> dict[str, Any]:
    tokens = meta["tokenizer.ggml.tokens"]
    special = {
        "bos_token": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token": meta.get("tokenizer.ggml.padding_token_id"),
        "unk_token": meta.get("tokenizer.ggml.unknown_token_id"),
    }
    config: dict[str, Any] = {
        # A class that takes tokenizer.json as it is, in transformers 4 and 5.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
    }
    config |= {name: tokens[i] for name, i in special.items() if i is not None}
    template = meta.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config


def convert(source: Path, out: Path) -> None:
    """Writes OUT from the GGUF file; raises UnsupportedError before anything is written."""
    reader = GGUFReader(source)
    meta = Metadata(reader)
    meta.choice("general.architecture", ["llama"])
    tied = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    config = model_config(meta, tied)
    tokenizer = build_tokenizer(meta)
    weights = dict(tensors(reader, config["num_attention_heads"], config["num_key_value_heads"]))

    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    for name, value in {
        "config.json": config,
        "tokenizer_config.json": tokenizer_config(meta),
        "generation_config.json": {k: v for k, v in token_ids(meta).items() if v is not None},
    }.items():
        text = json.dumps(value, indent=2, ensure_ascii=False)
        (out / name).write_text(text + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="GGUF file to Hugging Face model directory.")
    parser.add_argument("source", type=Path, metavar="MODEL.gguf")
    parser.add_argument("out", type=Path, metavar="OUT")
    args = parser.parse_args()
    try:
        convert(args.source, args.out)
    except UnsupportedError as error:
        print(f"{args.source}: not supported: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
