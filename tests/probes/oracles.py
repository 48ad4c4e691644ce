"""Stand-ins for a model, which answer prompts by a rule, and writers in four kinds of tokenizer."""

import functools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rope_lab.data.tokenizer import AbstractTokenizer, load_tokenizer
from rope_lab.probes.prompts import Writer
from rope_lab.probes.score import Answers, Scorer
from tests.data.texts import sample_texts

Rule = Callable[[np.ndarray, int], np.ndarray]
"""From a row `(L + 1,)`, whose answer it may look at as far as a causal model would, and A, to the predicted tokens `(A,)`."""

KINDS = ("bytes", "bpe_8k", "sentencepiece", "byte_level_bpe")


class Oracle(Scorer):
    """Answers by a rule; a right answer is certain and preferred by 1 nat, a wrong one rejected by as much."""

    def __init__(self, rule: Rule):
        self._rule = rule

    def answers(self, params: dict, rows_NW: np.ndarray, answer_length: int, distractors_NDA: np.ndarray) -> Answers:
        answers = rows_NW[:, -answer_length:]
        assert distractors_NDA.shape[::2] == answers.shape
        assert (distractors_NDA != answers[:, None]).any(axis=2).all(), "a distractor that is right"
        predicted = np.stack([self._rule(row, answer_length) for row in rows_NW]).astype(np.int32)
        hits = predicted == answers
        return Answers(predicted, np.where(hits, 0, -1).astype(np.float32), np.where(hits.all(axis=1), 1, -1).astype(np.float32))


def copy(row: np.ndarray, answer_length: int) -> np.ndarray:
    """Finds the longest stretch before the answer that the row has held earlier, the last such, and copies what followed it there."""
    context = row[:-answer_length]
    ends = np.flatnonzero(context[:-answer_length] == context[-1])
    for back in range(1, len(context)):
        longer = ends[(ends >= back)]
        longer = longer[context[longer - back] == context[-1 - back]]
        if len(longer) == 0:
            break
        ends = longer
    return context[ends[-1] + 1 : ends[-1] + 1 + answer_length] if len(ends) else np.full(answer_length, -1)


def read_opening(row: np.ndarray, answer_length: int) -> np.ndarray:
    """The first tokens behind the separator."""
    return row[1 : 1 + answer_length]


def follow_variables(writer: Writer) -> Rule:
    """Reads the assignments as text and follows them from the value that is asked for."""

    def rule(row: np.ndarray, answer_length: int) -> np.ndarray:
        text = writer.tokenizer.decode(row[:-answer_length])
        (held,) = re.findall(r"Variables equal to (\d+):$", text)
        holders = {what: name for name, what in re.findall(r"VAR (\w+) = (\w+)\.", text)}
        ids = [np.zeros(0, np.int32)]
        while held in holders:
            held = holders[held]
            ids.append(writer.text(f" {held}"))
        read = np.concatenate(ids)
        return read if len(read) == answer_length else np.full(answer_length, -1)

    return rule


def bigrams(rows: np.ndarray) -> Rule:
    """After each token, the one that followed it most often in these rows."""
    size = int(rows.max()) + 1
    pairs, counts = np.unique(rows[:, :-1].astype(np.int64) * size + rows[:, 1:], return_counts=True)
    likeliest = np.full(size, -1)
    for pair in pairs[np.argsort(counts, kind="stable")]:
        likeliest[pair // size] = pair % size
    return lambda row, answer_length: likeliest[row[-answer_length - 1 : -1]]


def perfect(name: str, writer: Writer) -> Rule:
    """The rule that answers the named task."""
    return {"first_sentence": read_opening, "variable_tracking": follow_variables(writer)}.get(name, copy)


@functools.cache
def make_writer(kind: str) -> Writer:
    """Over some 160 thousand characters of the sample."""
    tokenizer = _tokenizer(kind)
    return Writer(tokenizer, np.concatenate(tokenizer.encode_batch(sample_texts(2))))


def _tokenizer(kind: str) -> AbstractTokenizer:
    if kind in ("bytes", "bpe_8k"):
        return load_tokenizer(kind)
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(str({"sentencepiece": _sentencepiece, "byte_level_bpe": _byte_level_bpe}[kind](Path(folder))))


def _sentencepiece(folder: Path) -> Path:
    """As Llama 2's: a dummy space in front, digits on their own, bytes for what is unknown."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(sample_texts(1)).split("\n")[:1000]),
        model_prefix=str(folder / "spm"),
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        split_digits=True,
        minloglevel=2,
    )
    return folder / "spm.model"


def _byte_level_bpe(folder: Path) -> Path:
    """As Llama 3's: up to three digits a token, a punctuation mark may lead a word, and many numbers are single tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    split = pre_tokenizers.Split(words, behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False)
    numbers = " ".join(str(number) for number in range(0, 1000, 3))
    tokenizer.train_from_iterator([*sample_texts(1), numbers, numbers], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
