"""What a run made of its data: the token cache's files, read without Haversack."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Document:
    ids: list[int]
    # Of each token, whether it is to be learned.
    learned: list[bool]

    def supervised(self) -> list[int]:
        """The targets: learned tokens that have one before them."""
        return [t for t, yes in zip(self.ids[1:], self.learned[1:], strict=True) if yes]


def cached_documents(cache: Path) -> list[Document]:
    """The documents of the one corpus that was tokenised with HAVERSACK_CACHE=`cache`."""
    (folder,) = [p.parent for p in cache.glob("tokens/*/store.json")]
    info = json.loads((folder / "store.json").read_text(encoding="utf-8"))
    ids = np.fromfile(folder / "tokens.bin", np.dtype(f"<u{info['token_bytes']}"))
    learned = np.ones(len(ids), bool)
    if info["has_mask"]:
        bits = np.fromfile(folder / "learned.bin", np.uint8)
        learned = np.unpackbits(bits, bitorder="little")[: len(ids)].astype(bool)
    # The highest bit marks a record that is kept whole; the last entry ends the last document.
    starts = np.fromfile(folder / "documents.bin", np.uint64) & np.uint64((1 << 63) - 1)
    return [
        Document(ids[a:b].tolist(), learned[a:b].tolist())
        for a, b in zip(starts[:-1].astype(int), starts[1:].astype(int), strict=True)
    ]
