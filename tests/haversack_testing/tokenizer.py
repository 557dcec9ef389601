"""B0: a byte-level tokenizer whose ids are the bytes, so that a test can write ids down."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

END_OF_TEXT, IM_START, IM_END = 256, 257, 258

ADDED_TOKEN_FLAGS = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": False,
}


def byte_alphabet() -> dict[int, str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}


def b0(
    vocab: Mapping[str, int] | None = None,
    merges: Iterable[tuple[str, str] | list[str]] = (),
    added: Iterable[Mapping[str, Any]] = (),
    **model: Any,
) -> dict[str, Any]:
    """The content of a tokenizer.json in which the id of byte b is b.

    256 <|endoftext|>, 257 <|im_start|> and 258 <|im_end|> are special; a test's own start at 259.

    vocab: more entries of the vocabulary, spelled as in the file.
    added: more added tokens, each with `id`, `content` and the flags that are true.
    model: fields of the BPE model to set, such as `ignore_merges`.
    """
    special = {END_OF_TEXT: "<|endoftext|>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            *(
                ADDED_TOKEN_FLAGS | {"id": i, "content": c, "special": True}
                for i, c in special.items()
            ),
            *(ADDED_TOKEN_FLAGS | dict(token) for token in added),
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {c: b for b, c in byte_alphabet().items()} | dict(vocab or {}),
            "merges": [list(pair) for pair in merges],
        }
        | model,
    }


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def write_tokenizer(path: Path, tokenizer: Mapping[str, Any] | None = None) -> None:
    """tokenizer.json (B0 unless given) and tokenizer_config.json into the directory `path`."""
    write_json(path / "tokenizer.json", tokenizer or b0())
    write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
        },
    )
