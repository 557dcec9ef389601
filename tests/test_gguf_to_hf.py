"""The converted SmolLM2 is a normal model directory, and its conversion is what GGUF means."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from gguf_to_hf import UnsupportedError, convert, undo_permutation
from haversack_testing import b0, random_model


def test_smollm2_names_the_capital_of_france(smollm2_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        next_id = model(**prompt).logits[0, -1].argmax()
    assert tokenizer.decode(next_id) == " Paris"


def test_smollm2_tokenizer_splits_digits_and_knows_the_chat_markers(smollm2_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    assert [tokenizer.decode(i) for i in tokenizer.encode("in 2024")] == ["in", " ", *"2024"]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n")
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]


def gguf_row_order(head_dim: int, heads: int) -> list[int]:
    """For each row of a GGUF projection its row in Hugging Face's: (i, i + d/2) side by side."""
    head = [row for i in range(head_dim // 2) for row in (i, i + head_dim // 2)]
    return [h * head_dim + row for h in range(heads) for row in head]


def test_rotary_pairs_return_to_their_halves() -> None:
    weight = np.arange(2 * 8 * 3, dtype=np.float32).reshape(16, 3)
    assert np.array_equal(undo_permutation(weight[gguf_row_order(8, 2)], heads=2), weight)


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def write_gguf(model: Path, out: Path, **changes: Any) -> None:
    """A random Llama (head_dim 16, 4 and 2 heads) as an unquantised GGUF file with tokenizer B0."""
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(out, changes.get("architecture", "llama"))
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])

    tokens = {i: t for t, i in b0()["model"]["vocab"].items()}
    tokens |= {t["id"]: t["content"] for t in b0()["added_tokens"]}
    tokens |= {259: "ab", 260: "12"}
    tokens |= {i: f"[PAD{i}]" for i in range(len(tokens), config["vocab_size"])}
    control = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list([tokens[i] for i in range(len(tokens))])
    writer.add_token_types([control if 256 <= i < 259 else 1 for i in range(len(tokens))])
    writer.add_token_merges(["a b", "1 2"])
    writer.add_eos_token_id(256)

    for name, tensor in load_file(model / "model.safetensors").items():
        renamed = name
        for theirs, ours in GGUF_NAMES.items():
            renamed = renamed.replace(theirs, ours)
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        array = tensor[gguf_row_order(16, heads)] if heads else tensor
        writer.add_tensor(renamed, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tied", [False, True])
def test_conversion_keeps_the_logits_bit_for_bit(tmp_path: Path, tied: bool) -> None:
    original = random_model("llama", tmp_path / "original", tie_word_embeddings=tied)
    write_gguf(original, tmp_path / "model.gguf")
    convert(tmp_path / "model.gguf", tmp_path / "converted")

    ids = torch.arange(40).reshape(2, 20)
    logits = [
        AutoModelForCausalLM.from_pretrained(tmp_path / name)(ids).logits
        for name in ("original", "converted")
    ]
    assert torch.equal(logits[0], logits[1])


def test_converted_tokenizer_applies_merges_but_never_across_digits(tmp_path: Path) -> None:
    original = random_model("llama", tmp_path / "original")
    write_gguf(original, tmp_path / "model.gguf")
    convert(tmp_path / "model.gguf", tmp_path / "converted")
    tokenizer = Tokenizer.from_file(str(tmp_path / "converted" / "tokenizer.json"))
    assert tokenizer.encode("ab12<|im_end|>").ids == [259, *b"12", 258]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"pre": "llama-bpe"}, "tokenizer.ggml.pre 'llama-bpe'"),
        ({"architecture": "qwen2"}, "'qwen2'"),
    ],
)
def test_what_has_no_translation_is_refused_by_name(
    tmp_path: Path, change: dict[str, str], named: str
) -> None:
    original = random_model("llama", tmp_path / "original")
    write_gguf(original, tmp_path / "model.gguf", **change)
    with pytest.raises(UnsupportedError, match=named):
        convert(tmp_path / "model.gguf", tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


def test_special_tokens_are_added_tokens(smollm2_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    added = tokenizer.get_added_tokens_decoder()
    assert [added[i].content for i in (0, 1, 2)] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert len(added) == 17
    assert all(token.special and not token.normalized for token in added.values())
