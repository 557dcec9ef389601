"""The folders of src/ are layers: each may include itself and what stands before it."""

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"

LAYERS = (
    "base",
    "kernels",
    "codec",
    "tokenizer",
    "ops",
    "graph",
    "models",
    "schedule",
    "exec",
    "plan",
    "optim",
    "io",
    "data",
    "dist",
    "train",
    "cli",
)

# main.cc stands above the layers, but what it starts is cli's to assemble.
MAIN_MAY_INCLUDE = {"base", "cli"}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def included_folders(file: Path) -> list[tuple[str, str]]:
    """(include as written, its folder) of each quoted include of one of the project's own files."""
    text = file.read_text(encoding="utf-8")
    includes = [name for name in INCLUDE.findall(text) if (SOURCE / name).exists()]
    return [(name, name.split("/")[0]) for name in includes]


def sources() -> list[Path]:
    return sorted(f for f in SOURCE.rglob("*") if f.suffix in {".cc", ".h"})


def test_every_folder_is_a_layer() -> None:
    folders = {f.name for f in SOURCE.iterdir() if f.is_dir()}
    assert folders <= set(LAYERS), f"give {folders - set(LAYERS)} a place in LAYERS"


def test_includes_follow_the_order_of_the_layers() -> None:
    wrong = []
    for file in sources():
        path = file.relative_to(SOURCE)
        layer = path.parts[0] if len(path.parts) > 1 else None
        allowed = MAIN_MAY_INCLUDE if layer is None else set(LAYERS[: LAYERS.index(layer) + 1])
        wrong += [
            f"src/{path} includes {name}"
            for name, folder in included_folders(file)
            if folder not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_quoted_includes_are_ours_and_written_from_src() -> None:
    wrong = [
        f"src/{file.relative_to(SOURCE)} includes {name}"
        for file in sources()
        for name in INCLUDE.findall(file.read_text(encoding="utf-8"))
        if not (SOURCE / name).exists() and not name.startswith("hwy/")
    ]
    assert not wrong, "\n".join(wrong)
