"""What the end-to-end tests share: the binary, tiny models with known answers, random models."""

from pathlib import Path

from haversack_testing import judge
from haversack_testing.binary import Haversack, Result
from haversack_testing.chain import chain
from haversack_testing.model_files import (
    read_header,
    read_json,
    read_tensors,
    variant,
    write_header,
    write_tensors,
)
from haversack_testing.random_model import FAMILIES, random_model
from haversack_testing.tokenizer import b0, byte_alphabet, write_json, write_tokenizer

ROOT = Path(__file__).resolve().parent.parent.parent

__all__ = [
    "FAMILIES",
    "ROOT",
    "Haversack",
    "Result",
    "b0",
    "byte_alphabet",
    "chain",
    "judge",
    "random_model",
    "read_header",
    "read_json",
    "read_tensors",
    "variant",
    "write_header",
    "write_json",
    "write_tensors",
    "write_tokenizer",
]
