"""Writing in token space, against text and against slow rewrites."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_lab.data.store import open_sources, write_store
from rope_lab.data.tokenizer import BytesTokenizer
from rope_lab.probes.prompts import Writer, held_out_stream, lay_out, occurrences
from rope_lab.probes.tasks.longeval_lines import CONTENTS
from rope_lab.probes.tasks.needle import CODES
from tests.probes.oracles import KINDS, make_writer

BYTES = BytesTokenizer()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [" The code of the harbour is", "48213", "\nline", "-otter", ".", ": REGISTER_CONTENT is <"])
def test_a_continuation_reads_as_its_text(kind: str, text: str):
    """Also where a tokenizer puts a space in front of what it encodes, or joins a full stop to what follows."""
    writer = make_writer(kind)
    before = writer.tokenizer.encode("Some words")
    expected = "Some words" + (text.replace("\n", " ") if kind == "sentencepiece" else text)
    assert writer.tokenizer.decode(np.concatenate([before, writer.text(text)])) == expected


class Joining(BytesTokenizer):
    """Bytes, but `x.` and `..` are one token, 257."""

    def encode(self, text: str) -> np.ndarray:
        ids = super().encode(text.replace("x.", "\x00").replace("..", "\x00"))
        return np.where(ids == 0, 257, ids).astype(np.int32)


def test_what_merges_with_every_opening_is_encoded_alone():
    writer = Writer(Joining(), np.arange(10))
    assert writer.text(".").tolist() == [ord(".")]
    assert writer.text(".5").tolist() == [ord("."), ord("5")]
    assert writer.text("..").tolist() == [257]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("candidates", [CODES, CONTENTS], ids=["codes", "contents"])
def test_an_alphabet_has_one_length_and_no_member_twice(kind: str, candidates: tuple[str, ...]):
    writer = make_writer(kind)
    alphabet = writer.alphabet(candidates)
    assert len(np.unique(alphabet, axis=0)) == len(alphabet) > 300
    texts = {writer.tokenizer.decode(np.concatenate([writer.text(" is"), row])).split("is")[1] for row in alphabet}
    assert texts <= set(candidates)
    assert len(texts) == len(alphabet)
    lengths = [len(writer.text(candidate)) for candidate in candidates]
    assert alphabet.shape == (lengths.count(alphabet.shape[1]), alphabet.shape[1])
    assert max(lengths.count(length) for length in set(lengths)) == len(alphabet)


def test_an_alphabet_of_the_commonest_length():
    writer = Writer(BYTES, np.arange(10))
    assert writer.alphabet(("10", "9", "8", "100", "7", "8")).tolist() == [[ord("7")], [ord("8")], [ord("9")]]


@pytest.mark.parametrize("candidates", [("1", "22"), ("8", "8")])
def test_no_alphabet(candidates: tuple[str, ...]):
    message = rf"^tokenizer 'bytes' tells no two of '{candidates[0]}', ... apart in one token count; use another one$"
    with pytest.raises(ValueError, match=message):
        Writer(BYTES, np.arange(10)).alphabet(candidates)


def test_a_writer_needs_text():
    with pytest.raises(ValueError, match=r"^the haystack has 1 tokens; give probes\.path longer documents$"):
        Writer(BYTES, np.zeros(1, np.int32))


@given(st.integers(2, 30), st.integers(0, 40), st.integers(0, 100), st.data())
def test_text_from_a_place(size: int, start: int, count: int, data: st.DataObject):
    writer = Writer(BYTES, np.arange(100, 100 + size))
    without = data.draw(st.integers(0, min(start, size - 1)))
    rounds = [100 + (start + k) % size for k in range(size - without)]  # all but those left out, in order
    expected = (rounds * (count // len(rounds) + 1))[:count]
    assert writer.from_place(start, count, without).tolist() == expected
    if without:
        assert not {100 + (start - k) % size for k in range(1, without + 1)} & set(expected)


def test_a_haystack_begins_anywhere():
    writer = Writer(BYTES, np.arange(5))
    drawn = [tuple(writer.haystack(np.random.default_rng(seed), 7).tolist()) for seed in range(100)]
    assert set(drawn) == {tuple((start + k) % 5 for k in range(7)) for start in range(5)}


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), min_size=1, max_size=3))
def test_occurrences_are_those_of_a_search(tokens: list[int], pattern: list[int]):
    expected = [i for i in range(len(tokens) - len(pattern) + 1) if tokens[i : i + len(pattern)] == pattern]
    assert occurrences(np.array(tokens, np.int32), np.array(pattern, np.int32)).tolist() == expected


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0, 1)), max_size=4), st.integers(0, 30))
def test_a_row_is_laid_out_token_by_token(inserted: list[tuple[int, float]], room: int):
    depths = sorted(depth for _, depth in inserted)
    inserts = [np.full(size, 1000 + number) for number, (size, _) in enumerate(inserted)]
    question, answer = np.array([2000, 2001]), np.array([3000])
    length = room + sum(map(len, inserts)) + 3
    row, starts = lay_out(256, length, np.arange(40), inserts, depths, question, answer)
    expected, expected_starts = [256], []
    for used in range(room + 1):
        for insert, depth in zip(inserts, depths, strict=True):
            if round(depth * room) == used:
                expected_starts.append(len(expected))
                expected += insert.tolist()
        expected += [used] * (used < room)
    assert row.tolist() == [*expected, 2000, 2001, 3000]
    assert starts.tolist() == expected_starts
    assert row.dtype == starts.dtype == np.int32


def test_the_held_out_stream_is_the_documents_without_separators(tmp_path: Path):
    documents = {"a": [np.arange(5), np.arange(10, 13)], "b": [np.arange(20, 60)]}
    for source, ids in documents.items():
        write_store(tmp_path / source, ids, source=source, tokenizer=BYTES)
    stores = open_sources(tmp_path)
    assert held_out_stream(stores).tolist() == [*range(5), *range(10, 13), *range(20, 60)]
    assert held_out_stream(stores, most=20).tolist() == [*range(5), *range(10, 13), *range(20, 32)]
