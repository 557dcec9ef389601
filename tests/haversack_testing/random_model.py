"""RND: tiny models of every supported family with random weights, written by transformers."""

from pathlib import Path
from typing import Any

from haversack_testing.tokenizer import END_OF_TEXT, write_tokenizer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt2")

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": END_OF_TEXT,
    "pad_token_id": END_OF_TEXT,
}

# What a family's own defaults would make of another size or kind.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "mistral": SHAPE | {"head_dim": 16, "sliding_window": None},
    "qwen2": SHAPE,
    "qwen3": SHAPE | {"head_dim": 16},
    "gpt2": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 512,
        "vocab_size": 320,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": END_OF_TEXT,
        "pad_token_id": END_OF_TEXT,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
}


def random_model(family: str, path: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Writes a random model of `family` with tokenizer B0 to the directory `path`; returns it.

    overrides: fields of the family's config, under its own names (`n_embd` for gpt2). Norm weights
    and biases, which transformers starts at ones and zeros, are random too: a reader that swapped
    or skipped one would otherwise go unnoticed.
    """
    # Slow to import, and not every test needs them.
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **(DEFAULTS[family] | overrides))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    write_tokenizer(path)
    return path
