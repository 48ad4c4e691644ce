"""Reads planted rows back: walks over the tokens one by one, and knows of each surface only what a person would be told."""

import re
from collections.abc import Iterator
from typing import NamedTuple

BYTES = 257
"""Ids of the bytes tokenizer; reserved ids start here."""


class Found(NamedTuple):
    """A record or a question: where it begins, its last token and, for a question, its query's last token."""

    is_record: bool
    key: int
    value: int
    first: int
    last: int
    query_last: int


def _read_token(row: list[int], num_keys: int, num_values: int) -> Iterator[Found]:
    for place, token in enumerate(row):
        number = token - BYTES
        if 0 <= number < num_keys * num_values:
            yield Found(True, number // num_values, number % num_values, place, place, place)
        elif num_keys * num_values <= number < num_keys * num_values + num_keys:
            answer = row[place + 1] - BYTES - num_keys * num_values - num_keys
            assert 0 <= answer < num_values, "a query without an answer"
            yield Found(False, number - num_keys * num_values, answer, place, place + 1, place)


def _read_pair(row: list[int], num_keys: int, num_values: int) -> Iterator[Found]:
    """Records and questions look alike; a key's first pair is its record."""
    met = set()
    for place, token in enumerate(row):
        key = token - BYTES
        if 0 <= key < num_keys:
            value = row[place + 1] - BYTES - num_keys
            assert 0 <= value < num_values, "a key without a value"
            yield Found(key not in met, key, value, place, place + 1, place)
            met.add(key)


def _read_text(row: list[int], num_keys: int, num_values: int) -> Iterator[Found]:
    """The text around must hold neither brackets nor digits."""
    text = "".join(chr(token) for token in row)  # the separator, 256, is one character, too
    for match in re.finditer(r"\[key (\d\d) is (\d\d)(\]?)", text):
        key, value = int(match[1]), int(match[2])
        assert key < num_keys
        assert value < num_values
        yield Found(bool(match[3]), key, value, match.start(), match.end() - 1, match.start(2) - 2)


_READERS = {"token": _read_token, "pair": _read_pair, "text": _read_text}
SHORTEST = {"token": 1, "pair": 1, "text": 10}
RECORD_AND_ANSWER = {"token": 2, "pair": 3, "text": 17}
"""Tokens of a record and of an answer together, the tokens that no distance can span."""


class Question(NamedTuple):
    """A question that has been answered by its one record."""

    key: int
    value: int
    query_last: int
    last: int
    distance: int


class Read(NamedTuple):
    """A row taken apart. `kinds` spells each token: `.` text, `p` record or query, `a` answer."""

    questions: list[Question]
    text: list[int]
    kinds: str


def read_row(row: list[int], surface: str, num_keys: int, num_values: int) -> Read:
    """Takes a row apart, refusing it unless every key has one record and, later, one question with that record's value."""
    kinds = ["."] * len(row)
    records: dict[int, Found] = {}
    questions: list[Question] = []
    for found in _READERS[surface](row, num_keys, num_values):
        answer_first = found.query_last + 1 if not found.is_record else found.last + 1
        for place in range(found.first, found.last + 1):
            assert kinds[place] == ".", "two of them share a token"
            kinds[place] = "p" if place < answer_first else "a"
        if found.is_record:
            assert found.key not in records, "two records have one key"
            records[found.key] = found
        else:
            assert found.key not in {question.key for question in questions}, "a key is asked for twice"
            record = records[found.key]  # a question before its record fails here
            assert record.value == found.value
            questions.append(Question(found.key, found.value, found.query_last, found.last, found.query_last - record.last))
    assert len(records) == len(questions)
    return Read(questions, [token for token, kind in zip(row, kinds, strict=True) if kind == "."], "".join(kinds))
