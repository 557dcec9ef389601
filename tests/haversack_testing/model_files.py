"""Model directories with something changed: a field, a tensor, a header."""

import json
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from haversack_testing.tokenizer import write_json


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def variant(
    source: Path, path: Path, *, drop: Iterable[str] = (), config: Mapping[str, Any] | None = None
) -> Path:
    """A copy of the model directory `source` with fields of its config.json dropped, then set."""
    shutil.copytree(source, path)
    fields = {k: v for k, v in read_json(path / "config.json").items() if k not in set(drop)}
    write_json(path / "config.json", fields | dict(config or {}))
    return path


def read_tensors(model_dir: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(model_dir / "model.safetensors")


def write_tensors(model_dir: Path, tensors: Mapping[str, Any]) -> None:
    from safetensors.numpy import save_file

    save_file(dict(tensors), model_dir / "model.safetensors", metadata={"format": "pt"})


def read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the bytes of its tensors."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_header(path: Path, header: Mapping[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
