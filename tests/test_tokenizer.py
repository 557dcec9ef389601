"""The tokenizer against the `tokenizers` package: ids, decoded text, and cuts."""

import json
import random
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from conftest import Kjv
from haversack_testing import ROOT, Haversack

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
# Not among the patterns with a hand-written scanner.
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
META = "\u2581"

Make = Callable[[], Tokenizer]
PIPELINES: dict[str, Make] = {}


def pipeline(make: Make) -> Make:
    PIPELINES[make.__name__] = make
    return make


def byte_level(pre: Any, normalizer: Any = None, unk: str | None = None, **model: Any) -> Tokenizer:
    tokenizer = Tokenizer(BPE(unk_token=unk, **model))
    tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def bytes_only() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split_then_bytes(pattern: Any, behavior: str = "isolated", invert: bool = False) -> Any:
    split = pre_tokenizers.Split(pattern, behavior, invert)
    return pre_tokenizers.Sequence([split, bytes_only()])


@pipeline
def gpt2() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


@pipeline
def prefix_space() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


@pipeline
def llama3() -> Tokenizer:
    return byte_level(split_then_bytes(Regex(LLAMA3)), ignore_merges=True)


@pipeline
def qwen2() -> Tokenizer:
    return byte_level(split_then_bytes(Regex(QWEN2)), normalizers.NFC())


@pipeline
def o200k() -> Tokenizer:
    return byte_level(split_then_bytes(Regex(O200K), "removed", invert=True))


@pipeline
def deepseek() -> Tokenizer:
    stages = [
        pre_tokenizers.Split(Regex(pattern), "isolated")
        for pattern in (r"\p{N}{1,3}", r"[一-龥\u3040-ゟ\u30a0-ヿ]+", DEEPSEEK)
    ]
    return byte_level(pre_tokenizers.Sequence([*stages, bytes_only()]))


@pipeline
def smollm() -> Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return byte_level(
        pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    )


@pipeline
def digit_runs_nfkc() -> Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=False)
    pre = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=True)])
    return byte_level(pre, normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()]))


@pipeline
def words_nfd() -> Tokenizer:
    pre = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), bytes_only()])
    return byte_level(pre, normalizers.NFD())


@pipeline
def bytes_then_split() -> Tokenizer:
    split = pre_tokenizers.Split("\u0120", "merged_with_next")
    return byte_level(pre_tokenizers.Sequence([bytes_only(), split]), normalizers.NFKD())


def metaspace(scheme: str, split: bool) -> Tokenizer:
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    return tokenizer


@pipeline
def metaspace_always() -> Tokenizer:
    return metaspace("always", split=True)


@pipeline
def metaspace_first() -> Tokenizer:
    return metaspace("first", split=False)


@pipeline
def metaspace_never() -> Tokenizer:
    return metaspace("never", split=True)


@pipeline
def llama2() -> Tokenizer:
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(META), normalizers.Replace(" ", META)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(META, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@pipeline
def unknown_characters() -> Tokenizer:
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


for index, behavior in enumerate(
    ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
):
    for invert in (False, True):

        def make(behavior: str = behavior, invert: bool = invert, index: int = index) -> Tokenizer:
            pattern = Regex(r"\p{P}|\s") if index % 2 == 0 else Regex(r"[aeiou ]+")
            return byte_level(split_then_bytes(pattern, behavior, invert))

        PIPELINES[f"split_{behavior}{'_inverted' if invert else ''}"] = make

ADDED = [
    AddedToken("<|endoftext|>", special=True, normalized=False),
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<l>", lstrip=True, normalized=False),
    AddedToken("<r>", rstrip=True, normalized=False),
    AddedToken("<lr>", lstrip=True, rstrip=True, special=True, normalized=False),
    AddedToken("cat", single_word=True, normalized=False),
    AddedToken("caf\u00e9", normalized=True),
    AddedToken("  ", normalized=False),
]


def train(make: Make, added: list[AddedToken] | None = None) -> Tokenizer:
    tokenizer = make()
    trainer = BpeTrainer(
        vocab_size=1200,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(0, 256))],
        show_progress=False,
    )
    corpus = [path.read_text() for path in sorted((ROOT / "src/base").iterdir())]
    corpus += [(ROOT / "tests/test_tokenizer.py").read_text(), *SAMPLES]
    tokenizer.train_from_iterator((line for text in corpus for line in text.split("\n")), trainer)
    # As tokens of the model only, byte tokens are not found in a text.
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"][1:3] != "0x"]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_tokens(ADDED if added is None else added)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A <|endoftext|>",
        pair="<s> $A $B",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "<|endoftext|>")],
    )
    return tokenizer


SAMPLES = [
    "In the beginning God created the heaven and the earth.",
    "Ĉu vi parolas Esperanton? Да, конечно. 漢字かな交じり文、カタカナ。 한국어 문장입니다.",
    "نص عربي مع أرقام ١٢٣ و٤٥٦؛ ठीक है १२३ ; ภาษาไทยไม่มีช่องว่าง",
    "👨‍👩‍👧‍👦 family 🏳️‍🌈 flag 🇩🇪🇫🇷 👍🏽 ❤️ 1️⃣",
    "e\u0301\u0323 e\u0323\u0301 \u1e69 s\u0323\u0307 a\u0334\u0345\u0327",
    "\uac00\u11a8 \u1100\u1161\u11a8 \u0958 \u2126 \u212b",
    "I'm I'M I'll I'LL you'Re he'\u017f it'S don't 'tis '' 'x 've'VE'd'D",
    "x  y   z    \t\t tabs \t mixed \u00a0\u2003\u3000 spaces\u2028para\u2029\u0085 end ",
    "\r\n\r\n a\r\n  b\n\n\n c \n \n d\r e.\n\n!?\r\n\t\n x",
    "0 1 12 123 1234 12345 1,234.5 ²³¹ ½ Ⅷ ٣ \U0001d7d8\U0001d7d9 一二三 a1b22c333",
    "<|endoftext|><|im_start|>user\nhi<|im_end|> <|im_start| > a <l> b \t<l>\n<r>  c <lr>  d<lr>",
    "cat cats scat cat. (cat) _cat cat_ écat caté cat\u200d cat٣ cat",
    "café cafe\u0301 CAFÉ <s>hi <s> hi a<s>hi </s> <unk> <0xC3> <0x41>",
    "  two  spaces   three    four",
    "▁ ▁▁a ▁b c▁ a ▁ b",
    "unknown: ☃ 𓀀 \ue000 \U000f0000 \U0010ffff \ufffd \u0378 \U000e0001 \ufeff\u200b\u180e",
    "a/b\\c //x ++y --z ... ;;; (((  \"q\" 'q' [1] {2} #3 $4 %5 ^6 &7 *8 ~9 `0",
    "",
    " ",
    "\n",
    "a",
]
BYTES = [
    b"lone \xed\xa0\x80 surrogate \xed\xbf\xbf x",
    b"cut \xe2\x82 and \xf0\x9f\x98 and \xc3",
    b"\x80\xbf continuation \xff\xfe \xc0\xaf overlong \xf4\x90\x80\x80 \xf5",
    b"\xe0\x80\x80\xf0\x80\x80\x80\xe1\x80\xe2\xf0\x91\x92\xf1\xbf",
]


def categories() -> list[str]:
    """Some characters of every category among letters, blanks and line ends; also those that are
    unassigned to Python."""
    generator = random.Random(1)
    by_category: dict[str, list[str]] = {}
    for code_point in range(0x110000):
        by_category.setdefault(unicodedata.category(chr(code_point)), []).append(chr(code_point))
    del by_category["Cs"]
    texts = []
    for characters in by_category.values():
        chosen = generator.sample(characters, min(len(characters), 60))
        texts.append("".join(chosen))
        texts.append(
            "".join(f"{generator.choice(['', ' ', 'a', '1', '.', chr(10)])}{c}" for c in chosen)
        )
    return texts


def mixtures() -> list[str]:
    generator = random.Random(2)
    atoms = [*"abcXYZ  ''\t\r\n\n.,!019"]
    atoms += [
        "é",
        "e\u0301",
        "漢",
        "字",
        "\u017f",
        "\u00a0",
        "\u2003",
        "²",
        "٣",
        "▁",
        "👍🏽",
        "\u200d",
    ]
    atoms += ["'s", "'ll", "'RE", "<s>", "<l>", "<r>", "<lr>", "cat", "café", "  "]
    atoms += [chr(c) for c in (0x0897, 0x1C89, 0x11DE0, 0x10D40, 0x2EBF0, 0x16D68, 0x1E5D0, 0x1715)]
    return ["".join(generator.choices(atoms, k=generator.randint(1, 40))) for _ in range(250)]


def texts() -> list[bytes]:
    runs = [" " * 300 + "x", "a" * 300, "\n" * 200, "7" * 100, "é" * 100, "e" + "\u0301" * 150]
    runs += [" \n" * 100, "us" * 100, "漢" * 100, "." * 200, "\u0316\u0301" * 50]
    generated = [*SAMPLES, *runs, *categories(), *mixtures()]
    return [*(text.encode() for text in generated), *BYTES]


def write_model(tokenizer: Tokenizer, path: Path) -> Path:
    path.mkdir(exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def probe(model_dir: Path, inputs: list[bytes], tmp_path: Path) -> list[dict[str, Any]]:
    request = tmp_path / "request.json"
    request.write_text(json.dumps([text.hex() for text in inputs]))
    binary = ROOT / "build" / "tokenizer_probe"
    done = subprocess.run([binary, model_dir, request], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def compare(judge: Tokenizer, model_dir: Path, inputs: list[bytes], tmp_path: Path) -> None:
    for data, got in zip(inputs, probe(model_dir, inputs, tmp_path), strict=True):
        text = data.decode("utf-8", "replace")
        judge.encode_special_tokens = False
        ids = judge.encode(text, add_special_tokens=False).ids
        assert got["ids"] == ids, text
        assert got["framed"] == judge.encode(text).ids, text
        assert got["text"] == judge.decode(ids, skip_special_tokens=False), text
        plain = judge.decode(ids, skip_special_tokens=True)
        assert got["plain"] == plain, text
        assert got["streamed"] == plain, text
        judge.encode_special_tokens = True
        assert got["ordinary"] == judge.encode(text, add_special_tokens=False).ids, text


def compare_cuts(judge: Tokenizer, model_dir: Path, inputs: list[bytes], tmp_path: Path) -> int:
    """Each input cut inside, followed by another one; the number of inputs that could be cut."""
    judge.encode_special_tokens = False
    cut = 0
    for i, (data, got) in enumerate(zip(inputs, probe(model_dir, inputs, tmp_path), strict=True)):
        for more in (b"", inputs[(i + 1) % len(inputs)]):
            pieces = ((data + more)[: got["cut"]], (data + more)[got["cut"] :])
            parts = [
                judge.encode(piece.decode("utf-8", "replace"), add_special_tokens=False).ids
                for piece in pieces
            ]
            whole = (data + more).decode("utf-8", "replace")
            assert [*parts[0], *parts[1]] == judge.encode(whole, add_special_tokens=False).ids, (
                data,
                more,
            )
        cut += got["cut"] > 0
    return cut


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_agrees_with_tokenizers(name: str, tmp_path: Path) -> None:
    judge = train(PIPELINES[name])
    model_dir = write_model(judge, tmp_path / "model")
    compare(judge, model_dir, texts(), tmp_path)
    compare_cuts(judge, model_dir, texts(), tmp_path)


def llama2_whole() -> Tokenizer:
    """No pre-tokenizer splits, but no token of the vocabulary reaches over a blank."""
    content = json.loads(train(metaspace_always, PLAIN).to_str())
    content["pre_tokenizer"] |= {"split": False, "prepend_scheme": "first"}
    return Tokenizer.from_str(json.dumps(content))


PLAIN = [token for token in ADDED if not token.normalized]


@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen2", "smollm", "llama2_whole"])
def test_texts_of_usual_pipelines_can_be_cut(name: str, tmp_path: Path) -> None:
    judge = llama2_whole() if name == "llama2_whole" else train(PIPELINES[name], PLAIN)
    model_dir = write_model(judge, tmp_path / "model")
    inputs = [text.encode() for text in SAMPLES[:4]]
    assert compare_cuts(judge, model_dir, inputs, tmp_path) == len(inputs)
    compare(judge, model_dir, texts(), tmp_path)
    compare_cuts(judge, model_dir, texts(), tmp_path)


def test_all_of_unicode_agrees_with_tokenizers(tmp_path: Path) -> None:
    # Of the long stretches of one kind, the ends.
    stretches = ((0x4F00, 0x9F00), (0xAD00, 0xE000), (0xE100, 0xF800), (0x20100, 0x2EB00))
    stretches += ((0x17100, 0x18600), (0x32400, 0xDFF00), (0xE0200, 0xFFF00), (0x100100, 0x10FF00))
    characters = [chr(c) for c in range(0x110000) if not any(a <= c < b for a, b in stretches)]
    inputs = ["".join(characters[i : i + 512]) for i in range(0, len(characters), 512)]
    inputs += ["'" + "'".join(characters[i : i + 512]) for i in range(0, 0x3000, 512)]
    for name in ("gpt2", "llama3", "qwen2", "smollm", "o200k"):
        judge = train(PIPELINES[name])
        model_dir = write_model(judge, tmp_path / name)
        data = [text.encode() for text in inputs]
        for text, got in zip(inputs, probe(model_dir, data, tmp_path), strict=True):
            assert got["ids"] == judge.encode(text, add_special_tokens=False).ids


def test_byte_level_text_survives_the_round_trip(tmp_path: Path) -> None:
    judge = train(PIPELINES["smollm"])
    model_dir = write_model(judge, tmp_path / "model")
    plain = [text for text in texts() if b"<" not in text and b"caf" not in text]
    for data, got in zip(plain, probe(model_dir, plain, tmp_path), strict=True):
        assert got["text"] == data.decode("utf-8", "replace")


def lines_of(path: Path) -> list[bytes]:
    lines = path.read_bytes().split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def test_smollm2_agrees_on_all_texts(smollm2_dir: Path, tmp_path: Path) -> None:
    judge = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    compare(judge, smollm2_dir, texts(), tmp_path)
    compare_cuts(judge, smollm2_dir, texts(), tmp_path)


def test_tokenize_agrees_on_the_bible_and_the_sources(
    haversack: Haversack, smollm2_dir: Path, kjv: Kjv, tmp_path: Path
) -> None:
    judge = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    sources = tmp_path / "sources.txt"
    files = sorted(f for f in (ROOT / "src").rglob("*") if f.suffix in {".cc", ".h"})
    sources.write_bytes(b"".join(f.read_bytes() for f in files))
    generated = tmp_path / "generated.txt"
    generated.write_bytes(b"\n".join(texts()))
    for file in (kjv.train, kjv.valid, sources, generated):
        lines = [line.decode("utf-8", "replace") for line in lines_of(file)]
        want = [e.ids for e in judge.encode_batch(lines, add_special_tokens=False)]
        out = haversack.run("tokenize", "--model", smollm2_dir, file).stdout
        assert [json.loads(line) for line in out.splitlines()] == want
