"""Tokenizers: text survives, strings that spell special tokens stay text, bad files are refused in one line."""

import json
from pathlib import Path

import numpy as np
import pytest

from rope_lab.data.tokenizer import SHIPPED, AbstractTokenizer, load_tokenizer, pack_ids
from tests.data.texts import TEXTS, sample_texts

KINDS = ("bytes", "bpe_8k", "tokenizer.json", "sentencepiece", "unigram.json")
# What each kind's special tokens look like when somebody writes them into a text.
SPELLINGS = {
    "bytes": ["<|bos|>"],
    "bpe_8k": ["<|bos|>"],
    "tokenizer.json": ["<|bos|>"],
    "sentencepiece": ["<s>", "</s>", "<unk>"],
    "unigram.json": ["<s>", "</s>"],
}


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `load_tokenizer` takes for each kind; the SentencePiece model is trained here."""
    folder = tmp_path_factory.mktemp("tokenizers")
    copy = folder / "tokenizer.json"
    copy.write_bytes(SHIPPED["bpe_8k"].read_bytes())
    unigram = folder / "unigram.json"
    unigram.write_text(unigram_definition())
    return {
        "bytes": "bytes",
        "bpe_8k": "bpe_8k",
        "tokenizer.json": str(copy),
        "sentencepiece": str(train_sentencepiece(folder)),
        "unigram.json": str(unigram),
    }


def train_sentencepiece(folder: Path) -> Path:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(sample_texts(2)).split("\n")[:2000]),
        model_prefix=str(folder / "spm"),
        vocab_size=600,
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return folder / "spm.model"


def unigram_definition() -> str:
    """A Unigram vocabulary that, like T5's, lists its special tokens, at the best score there is."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    byte_alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((character, -5.0) for character in byte_alphabet)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    return tokenizer.to_str()


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, specs: dict[str, str]) -> AbstractTokenizer:
    return load_tokenizer(specs[request.param])


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_survives(tokenizer: AbstractTokenizer, text: str):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(np.concatenate([[tokenizer.separator], ids])) == text
    assert tokenizer.separator not in ids
    assert pack_ids(ids, tokenizer.vocab_size).tolist() == ids.tolist()


def test_a_batch_is_its_texts(tokenizer: AbstractTokenizer):
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        assert ids.tolist() == tokenizer.encode(text).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_spelling_a_special_token_does_not_make_one(specs: dict[str, str], kind: str):
    tokenizer = load_tokenizer(specs[kind])
    special = {tokenizer.separator}
    for path in (SHIPPED["bpe_8k"], Path(specs["unigram.json"])):
        if kind in ("bpe_8k", path.name):
            special |= {added["id"] for added in json.loads(path.read_text())["added_tokens"]}
    if kind == "sentencepiece":
        special |= {0, 1, 2}  # <unk>, <s>, </s>
    for spelling in SPELLINGS[kind]:
        text = f"before {spelling}{spelling} after"
        ids = tokenizer.encode(text)
        assert not special & set(ids.tolist())
        assert tokenizer.decode(ids) == text


def test_bytes_are_the_utf8_bytes():
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.encode("Aé").tolist() == [0x41, 0xC3, 0xA9]
    assert (tokenizer.separator, tokenizer.vocab_size) == (256, 257)


def test_the_shipped_bpe_compresses_text_it_was_not_trained_on():
    tokenizer = load_tokenizer("bpe_8k")
    assert tokenizer.vocab_size == 8192
    text = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. " * 3
    assert 3.0 < len(text) / len(tokenizer.encode(text)) < 5.0


def test_truncation_and_padding_in_the_file_are_not_obeyed(tmp_path: Path):
    definition = json.loads(SHIPPED["bpe_8k"].read_text())
    definition["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    definition["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|bos|>",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    limited = load_tokenizer(str(tmp_path / "tokenizer.json"))
    for text in ("a", TEXTS[0]):
        assert limited.encode(text).tolist() == load_tokenizer("bpe_8k").encode(text).tolist()


def test_the_token_a_template_puts_in_front_is_the_separator(tmp_path: Path):
    from tokenizers import Tokenizer, processors

    definition = Tokenizer.from_file(str(SHIPPED["bpe_8k"]))
    definition.add_special_tokens(["<|endoftext|>", "<|start|>"])
    begin = definition.token_to_id("<|start|>")
    definition.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", begin)])
    definition.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer.separator == begin == 8193
    assert tokenizer.vocab_size == 8194
    assert begin not in tokenizer.encode("x")


def test_equal_fingerprints_mean_equal_definitions(specs: dict[str, str]):
    prints = {kind: load_tokenizer(spec).fingerprint for kind, spec in specs.items()}
    assert prints["bpe_8k"] == prints["tokenizer.json"]
    assert len(set(prints.values())) == len(prints) - 1


def test_what_cannot_be_a_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"^tokenizer='gpt5' is not 'bytes', 'bpe_8k' or an existing tokenizer.json or SentencePiece .model"
    ):
        load_tokenizer("gpt5")
    with pytest.raises(ValueError, match=r"^tokenizer='.*none.json' is not 'bytes'"):
        load_tokenizer(str(tmp_path / "none.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match=r"broken.json' is not a tokenizer.json of Hugging Face's tokenizers library"):
        load_tokenizer(str(tmp_path / "broken.json"))
    (tmp_path / "broken.model").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"broken.model' is not a SentencePiece model"):
        load_tokenizer(str(tmp_path / "broken.model"))
    definition = json.loads(SHIPPED["bpe_8k"].read_text())
    definition["added_tokens"] = []
    (tmp_path / "bare.json").write_text(json.dumps(definition))
    with pytest.raises(ValueError, match=r"bare.json' has no special token to open a document: add one named e.g. '<\|bos\|>'"):
        load_tokenizer(str(tmp_path / "bare.json"))


@pytest.mark.parametrize("bad", [300, -1])
def test_an_id_that_does_not_fit_is_refused(bad: int):
    with pytest.raises(ValueError, match=rf"^token id {bad} does not fit a store of vocab_size=257 \(uint16\): prepare the text again"):
        pack_ids(np.array([1, bad, 2]), 257)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(257, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_the_largest_id_survives_the_narrowest_dtype(vocab_size: int, dtype: str):
    packed = pack_ids(np.array([0, vocab_size - 1]), vocab_size)
    assert packed.dtype == dtype
    assert packed.tolist() == [0, vocab_size - 1]


@pytest.mark.slow
def test_the_shipped_bpe_is_what_its_script_makes(tmp_path: Path):
    from rope_lab.data.train_bpe import train

    train(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == SHIPPED["bpe_8k"].read_bytes()
