"""Every retrieval task in four kinds of tokenizer: exact lengths, exact depths, one answer in one place, and no other way to tell it."""

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from rope_lab.data.tokenizer import BytesTokenizer
from rope_lab.probes.prompts import Prompts, Writer, occurrences
from rope_lab.probes.tasks import (
    TASKS,
    FirstSentence,
    LongEvalLines,
    MultikeyNeedle,
    Needle,
    Passkey,
    Task,
    VariableTracking,
    default_lengths,
)
from rope_lab.probes.tasks.first_sentence import rouge_l
from rope_lab.probes.tasks.longeval_lines import ADJECTIVES, CONTENTS, NOUNS, NUMBERS
from rope_lab.probes.tasks.needle import CODES, NAMES
from rope_lab.probes.tasks.passkey import FILLER
from tests.probes.oracles import KINDS, make_writer

LENGTHS = np.geomspace(128, 1_000_000, 20).round().astype(int).tolist()

# How a statement of the task begins and ends, and how its question does.
STATEMENTS = {
    "passkey": (" The pass key is", ". Keep it in mind.", " What is the pass key?"),
    "needle": (" The code of the", ".", " The code of the"),
    "multikey_needle": (" The code of the", ".", " The code of the"),
    "variable_tracking": (" VAR", ".", " Variables equal to"),
}


def statements(prompts: Prompts, row: int, name: str, writer: Writer) -> tuple[list[tuple[int, int]], int]:
    """First token and one past the last of every statement of a prompt, and where its question begins."""
    begin, end, question = (writer.text(text) for text in STATEMENTS[name])
    context = prompts.tokens[row, : -prompts.answer_length]
    asked = int(occurrences(context, question)[-1])
    begins, ends = occurrences(context[:asked], begin), occurrences(context[:asked], end) + len(end)
    return [(int(first), int(ends[np.searchsorted(ends, first, side="right")])) for first in begins], asked


def asked_depths(task: Task, length: int) -> np.ndarray:
    """All depths of short prompts and one of long ones."""
    return task.depths[::2] if length < 2000 else task.depths[len(task.depths) // 4 :][:1]


def written(task: Task, writer: Writer) -> Iterator[tuple[int, Prompts]]:
    for length in LENGTHS:
        yield length, task.prompts(writer, length, asked_depths(task, length))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TASKS)
def test_prompts_are_exact(name: str, kind: str):
    task, writer = TASKS[name](), make_writer(kind)
    answer_lengths = set()
    for length, prompts in written(task, writer):
        A, N = prompts.answer_length, len(prompts.depths)
        answer_lengths.add(A)
        for rows in (prompts.tokens, prompts.control):
            assert rows.shape == (N, length + 1)
            assert rows.dtype == np.int32
            assert (rows[:, 0] == writer.separator).all()
            assert ((rows[:, 1:] >= 0) & (rows[:, 1:] < writer.tokenizer.vocab_size) & (rows[:, 1:] != writer.separator)).all()
        assert prompts.distractors.shape[0] == N
        assert prompts.distractors.shape[2] == A
        np.testing.assert_array_equal(prompts.depths, asked_depths(task, length))
        for row in range(N):
            answer, (start, end) = prompts.answers[row], prompts.needles[row].tolist()
            before, control = prompts.tokens[row, :-A], prompts.control[row, :-A]
            np.testing.assert_array_equal(prompts.control[row, -A:], answer)
            assert len(occurrences(control, answer)) == 0
            assert all(len(occurrences(distractor, answer)) == 0 for distractor in prompts.distractors[row])
            found = occurrences(before, answer).tolist()
            if name != "variable_tracking":
                assert len(found) == 1
                assert start <= found[0] <= found[0] + A <= end
            assert prompts.distances[row] == (len(before) - 1) - (end - 1)
            changed = np.flatnonzero(before != control)
            assert changed[0] >= start
            if name in ("needle", "multikey_needle", "longeval_lines", "first_sentence"):
                assert changed[-1] < end
            check_depth(task, writer, prompts, row)
    assert len(answer_lengths) == 1


def check_depth(task: Task, writer: Writer, prompts: Prompts, row: int) -> None:
    """Of the text around, as much stands before the needle as the depth says, to within one token (for lines: half a line)."""
    start, end = prompts.needles[row].tolist()
    if task.name == "first_sentence":
        assert (start, end) == (1, 1 + prompts.answer_length)
    elif task.name == "longeval_lines":
        firsts = occurrences(prompts.tokens[row], writer.text("\nline"))
        assert set(np.diff(firsts)) == {end - start}
        assert firsts[0] - 1 < end - start
        lines = len(firsts) - 1
        assert abs((start - firsts[0]) / (end - start) - prompts.depths[row] * (lines - 1)) <= 0.5
    else:
        found, asked = statements(prompts, row, task.name, writer)
        assert (start, end) in found
        text = asked - 1 - sum(last - first for first, last in found)
        text_before = start - 1 - sum(last - first for first, last in found if last <= start)
        assert abs(text_before - prompts.depths[row] * text) <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TASKS)
def test_prompts_are_a_pure_function_of_the_seed(name: str, kind: str):
    writer, depths = make_writer(kind), np.array([0.1, 0.6, 0.3])
    one, again, fewer, other = (
        TASKS[name](seed=seed).prompts(writer, 300, depths[:count]) for seed, count in ((0, 3), (0, 3), (0, 2), (1, 3))
    )
    for field in ("tokens", "control", "distractors", "needles"):
        np.testing.assert_array_equal(getattr(one, field), getattr(again, field))
        np.testing.assert_array_equal(getattr(one, field)[:2], getattr(fewer, field))
    assert (one.tokens != other.tokens).any(axis=1).all()
    assert len(np.unique(one.answers, axis=0)) == 3  # nor does one prompt repeat another


def test_every_needle_has_its_own_key_and_code():
    writer = make_writer("bytes")
    task = MultikeyNeedle(num_distractors=len(NAMES) - 1)
    for length, count in ((128, 2), (1500, len(NAMES))):
        prompts = task.prompts(writer, length, np.linspace(0, 1, 8))
        depths = []
        for row, text in enumerate(writer.tokenizer.decode(tokens) for tokens in prompts.tokens):
            told = re.findall(r" The code of the (\w+) is (\d+)\.", text)
            keys, codes = zip(*told, strict=True)
            assert len(set(keys)) == len(set(codes)) == count
            asked, answer = re.findall(r" The code of the (\w+) is ?( \d+)$", text)[0]
            assert dict(told)[asked] == answer.strip()
            distractors = {writer.tokenizer.decode(distractor).strip() for distractor in prompts.distractors[row]}
            assert distractors == set(codes) - {answer.strip()}
            depths += [place / length for place, _ in statements(prompts, row, task.name, writer)[0]]
    assert np.histogram(depths, 4, (0, 1))[0].min() > 25  # strewn everywhere


@pytest.mark.parametrize(("length", "rows"), [(128, 4), (2000, 8), (1_000_000, 1)])
def test_no_line_has_the_label_or_the_content_of_the_asked_one(length: int, rows: int):
    writer = make_writer("bytes")
    prompts = LongEvalLines().prompts(writer, length, np.linspace(0.2, 0.8, rows))
    for row in range(rows):
        text, control = (writer.tokenizer.decode(tokens) for tokens in (prompts.tokens[row], prompts.control[row]))
        lines = re.findall(r"\nline ([a-z]{5}-[a-z]{5}-\d{3}): REGISTER_CONTENT is <(\d{5})>", text)
        content = dict(lines)
        assert len(content) == len(lines) == (length - 48) // 50
        asked, answer = re.findall(r"\nline (\S+): REGISTER_CONTENT is <(\d{5})$", text)[0]
        assert content[asked] == answer
        assert [what for _, what in lines].count(answer) == 1
        others = {writer.tokenizer.decode(distractor) for distractor in prompts.distractors[row]}
        assert answer not in others
        if len(lines) > 1:
            assert others <= set(content.values())
        removed = dict(re.findall(r"\nline (\S+): REGISTER_CONTENT is <(\d{5})>", control))
        assert len(removed) == len(lines)
        assert set(content) - set(removed) == {asked}
        assert answer not in removed.values()


@pytest.mark.parametrize("num_hops", [1, 4, 7])
def test_variables_form_one_chain_and_a_second_where_it_fits(num_hops: int):
    writer, task = make_writer("bytes"), VariableTracking(num_hops=num_hops)
    seconds = []
    for length in (50 + 22 * num_hops, 80 + 40 * num_hops, 3000):
        prompts = task.prompts(writer, length, np.linspace(0, 1, 5))
        for row, text in enumerate(writer.tokenizer.decode(tokens) for tokens in prompts.tokens):
            told = re.findall(r" VAR ([A-Z]{3}) = (\w+)\.", text)
            names = [name for name, _ in told]
            assert len(set(names)) == len(names)
            value, answer = re.findall(r" Variables equal to (\d+):((?: [A-Z]{3})+)$", text)[0]
            chain, rest = answer.split(), [name for name in names if name not in answer]
            assert [(name, what) for name, what in told if name in chain] == list(zip(chain, [value, *chain[:-1]], strict=True))
            distractor = writer.tokenizer.decode(prompts.distractors[row, 0]).split()
            seconds.append(bool(rest))
            assert len(chain) == len(set(distractor)) == num_hops + 1
            assert not set(chain) & set(distractor)
            if rest:
                assert rest == distractor
                other = dict(told)[rest[0]]
                assert other.isdigit()
                assert other != value
                assert [dict(told)[name] for name in rest[1:]] == rest[:-1]
            control = writer.tokenizer.decode(prompts.control[row])
            assert re.findall(r" VAR (\w+) = ", control) == rest
    assert seconds == [False] * 5 + [True] * 10


def test_a_chain_is_spread_from_its_depth_to_the_end():
    writer = make_writer("bytes")
    prompts = VariableTracking(num_hops=3).prompts(writer, 10_000, np.array([0.0, 0.5]))
    for row, depth in enumerate((0.0, 0.5)):
        answer = writer.tokenizer.decode(prompts.answers[row]).split()
        text = writer.tokenizer.decode(prompts.tokens[row])
        places = [text.index(f"VAR {name}") / len(text) for name in answer]
        np.testing.assert_allclose(places, depth + (1 - depth) * np.arange(4) / 4, atol=0.02)


def test_the_passkey_filler_repeats_token_by_token():
    writer = make_writer("bpe_8k")
    prompts = TASKS["passkey"]().prompts(writer, 500, np.array([0.4]))
    start, end = prompts.needles[0].tolist()
    _, asked = statements(prompts, 0, "passkey", writer)
    text, period = np.delete(prompts.tokens[0, :asked], np.r_[0, start:end]), len(writer.text(FILLER))
    np.testing.assert_array_equal(text[period:], text[:-period])
    np.testing.assert_array_equal(prompts.control[0, period + 1 : asked], prompts.control[0, 1 : asked - period])


def test_a_text_shorter_than_the_prompt_does_not_come_round_to_its_opening():
    writer = Writer(BytesTokenizer(), np.random.default_rng(0).permutation(256))
    for length in (128, 400, 5000):
        prompts = FirstSentence().prompts(writer, length, np.zeros(3))
        for row in range(3):
            assert len(occurrences(prompts.tokens[row, :-16], prompts.answers[row])) == 1


def test_an_answer_that_the_text_holds_is_not_asked_for():
    """Half of all codes stand in the text around; all that are asked for are of the other half."""
    tokenizer = BytesTokenizer()
    writer = Writer(tokenizer, tokenizer.encode("".join(CODES[:500])))
    for task in (Needle(), MultikeyNeedle()):
        prompts = task.prompts(writer, 7000, np.linspace(0, 1, 20))
        assert {tokenizer.decode(answer) for answer in prompts.answers} <= set(CODES[500:])


@pytest.mark.parametrize(
    ("task", "text"),
    [(Needle(), "".join(CODES)), (FirstSentence(), "abcd" * 50), (LongEvalLines(), "."), (VariableTracking(), "abcd" * 50)],
)
def test_a_text_that_holds_every_answer(task: Task, text: str):
    tokenizer = BytesTokenizer()
    writer = Writer(tokenizer, tokenizer.encode(text * 2))
    depths = np.array([0.5])
    if task.name in ("needle", "first_sentence"):
        message = rf"^probes\.{task.name}: the held-out text repeats every answer tried at length=9000; give probes\.path other documents$"
        with pytest.raises(ValueError, match=message):
            task.prompts(writer, 9000, depths)
    else:
        assert task.prompts(writer, 9000, depths).tokens.shape == (1, 9001)


@pytest.mark.parametrize("kind", KINDS)
def test_chance(kind: str):
    writer = make_writer(kind)
    for name in ("passkey", "needle", "multikey_needle"):
        assert TASKS[name]().chance(writer) == 1 / len(writer.alphabet(CODES))
    assert LongEvalLines().chance(writer) == 1 / len(writer.alphabet(CONTENTS))
    assert FirstSentence().chance(writer) == 1 / writer.num_places
    assert FirstSentence().prompts(writer, 200, np.zeros(1)).chance == 1 / writer.num_places
    if kind == "bytes":
        assert Needle().chance(writer) == 1 / 1000
        assert VariableTracking(num_hops=1).chance(writer) == 1 / (1000 * 999)


def longest_common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest_common(a[1:], b[1:])
    return max(longest_common(a[1:], b), longest_common(a, b[1:]))


def test_rouge_l_is_that_of_a_recursion():
    rng = np.random.default_rng(0)
    predicted, answers = rng.integers(0, 4, (40, 5)), rng.integers(0, 4, (40, 7))
    for score, p, a in zip(rouge_l(predicted, answers), predicted.tolist(), answers.tolist(), strict=True):
        common = longest_common(tuple(p), tuple(a))
        precision, recall = common / 5, common / 7
        assert score == pytest.approx(2 * precision * recall / (precision + recall) if common else 0)
    assert rouge_l(np.array([[1, 2, 3, 4]]), np.array([[1, 3, 2, 4]])).tolist() == [0.75]
    assert rouge_l(answers, answers).tolist() == [1.0] * 40


def test_default_lengths():
    assert default_lengths(1000) == (128, 256, 512, 1000)
    assert default_lengths(128) == (128,)
    assert default_lengths(64) == (64,)
    assert default_lengths(1_000_000)[-2:] == (2**19, 1_000_000)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_says_from_which_length_on_it_fits(name: str):
    task, writer = TASKS[name](), make_writer("bytes")
    prefix = rf"^probes\.{name}: a prompt of length=16 tokens is too short, its needles, question and answer take "
    with pytest.raises(ValueError, match=rf"{prefix}\d+; ask for probes\.{name}\.lengths of so many or more$") as caught:
        task.prompts(writer, 16, task.depths)
    (least,) = re.findall(r"take (\d+);", str(caught.value))
    assert int(least) <= 128
    for length in range(int(least), int(least) + 20):
        assert task.prompts(writer, length, np.repeat(task.depths, 3)).tokens.shape[1] == length + 1
    with pytest.raises(ValueError, match=rf"^probes\.{name}: a prompt of length={int(least) - 1} tokens .* take {least};"):
        task.prompts(writer, int(least) - 1, task.depths)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 0}, r"samples=0 must be at least 1"),
        ({"lengths": (256, 128)}, r"lengths=\(256, 128\) must increase, from 16 tokens or more"),
        ({"lengths": (8, 128)}, r"lengths=\(8, 128\) must increase, from 16 tokens or more"),
        ({"threshold": 0.0}, r"threshold=0\.0 must lie in \(0, 1\]: it is an accuracy"),
        ({"threshold": 1.1}, r"threshold=1\.1 must lie in \(0, 1\]: it is an accuracy"),
        ({"seed": -1}, r"seed=-1 must lie in 0 \.\. 2\*\*32 - 1"),
    ],
)
def test_bad_fields(name: str, fields: dict, message: str):
    with pytest.raises(ValueError, match=rf"^probes\.{name}\.{message}$"):
        TASKS[name](**fields)


def test_bad_fields_of_one_task():
    with pytest.raises(ValueError, match=r"^probes\.multikey_needle\.num_distractors=0 must lie in 1 \.\. 23: each has its own name$"):
        MultikeyNeedle(num_distractors=0)
    with pytest.raises(ValueError, match=r"^probes\.multikey_needle\.num_distractors=24 must lie in 1 \.\. 23"):
        MultikeyNeedle(num_distractors=24)
    with pytest.raises(ValueError, match=r"^probes\.variable_tracking\.num_hops=0 must be at least 1$"):
        VariableTracking(num_hops=0)
    with pytest.raises(ValueError, match=r"^probes\.passkey\.num_depths=0 must be at least 1$"):
        Passkey(num_depths=0)
    with pytest.raises(ValueError, match=r"^probes\.first_sentence\.answer_tokens=0 must be at least 1$"):
        FirstSentence(answer_tokens=0)


def test_fields_that_the_text_or_the_tokenizer_does_not_allow():
    writer = Writer(BytesTokenizer(), np.arange(30))
    message = r"^probes\.first_sentence\.answer_tokens=16 must be at most half the held-out text, 30 tokens$"
    with pytest.raises(ValueError, match=message):
        FirstSentence().prompts(writer, 200, np.zeros(1))
    with pytest.raises(ValueError, match=r"^probes\.variable_tracking\.num_hops=500 must be below 500: two chains of different names$"):
        VariableTracking(num_hops=500).prompts(writer, 100_000, np.zeros(1))
    small = Writer(BytesTokenizer(), np.arange(30))
    small.alphabet = lambda candidates: Writer.alphabet(small, candidates)[:2]
    with pytest.raises(ValueError, match=r"^probes\.longeval_lines: length=1000 holds 19 lines, more than tokenizer 'bytes' has labels$"):
        LongEvalLines().prompts(small, 1000, np.zeros(1))


def test_the_words_make_distinct_labels():
    for words in (ADJECTIVES, NOUNS, NUMBERS):
        assert len(set(words)) == len(words)
        assert len({len(word) for word in words}) == 1
    assert all(a < b for words in (ADJECTIVES, NOUNS) for a, b in pairwise(words))
