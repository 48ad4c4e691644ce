"""Retrieval tasks put to stand-ins, and their scores against slow ones: from the full logits, and from decoding token by token."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rope_lab.probes.prompts import Prompts, Writer
from rope_lab.probes.retrieval import RetrievalProbe, generated_matches
from rope_lab.probes.score import Scorer
from rope_lab.probes.tasks import TASKS, Needle, Task
from rope_lab.probes.tasks.task import DepthTask, Prompt
from tests.probes import models
from tests.probes.oracles import KINDS, Oracle, Rule, bigrams, copy, make_writer, perfect

GRID = (128, 200, 431)
LENGTH = 16  # of a real model's prompts


def probe(rule: Rule, task: Task, writer: Writer, context_length: int = 128) -> RetrievalProbe:
    return RetrievalProbe(Oracle(rule), task, writer, context_length)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TASKS)
def test_one_that_retrieves_perfectly(name: str, kind: str):
    """Scores 1 everywhere, and nothing once the needle is gone."""
    task, writer = TASKS[name](lengths=GRID), make_writer(kind)
    scalars, arrays = probe(perfect(name, writer), task, writer)({})
    assert (arrays["accuracy"] == 1).all()
    assert not arrays["control_correct"].any()
    rouge = {"rouge_l": 1.0, "control_rouge_l": scalars.get("control_rouge_l")} if name == "first_sentence" else {}
    assert scalars == {
        "effective_length_tokens": 431,
        "effective_length_low_tokens": 431,
        "effective_length_high_tokens": 431,
        "longest_passing_length_tokens": 431,
        "effective_length_relative_tokens": 431,
        "effective_length_ruler_tokens": 431,
        "accuracy": 1.0,
        "accuracy_farthest": 1.0,
        "answer_log_probability_nats": 0.0,
        "margin_nats": 1.0,
        "control_accuracy": 0.0,
        "chance": task.chance(writer),
        **rouge,
    }
    assert scalars.get("control_rouge_l", 0) < 0.3
    assert arrays["depths"].tolist() == ([0.0] if name == "first_sentence" else [0, 0.25, 0.5, 0.75, 1])
    shape = (3, len(arrays["depths"]), task.samples)
    for array in ("correct", "control_correct", "answer_log_probability_nats", "margin_nats", "distance_tokens"):
        assert arrays[array].shape == shape
    assert arrays["accuracy"].shape == arrays["control_accuracy"].shape == shape[:2]


def test_copying_does_not_follow_variables():
    """A copy from the last such place gives the name after the value, or after a colon, and no chain."""
    writer = make_writer("bytes")
    scalars, _ = probe(copy, TASKS["variable_tracking"](lengths=GRID), writer)({})
    assert scalars["accuracy"] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TASKS)
def test_one_that_knows_only_which_token_follows_which(name: str, kind: str):
    """Statistics of other prompts of the same task, the answers among them: no more is right than by chance."""
    writer = make_writer(kind)
    depths = np.linspace(0, 1, 100) if name != "first_sentence" else np.zeros(100)
    rule = bigrams(TASKS[name](seed=1).prompts(writer, 256, depths).tokens)
    task = TASKS[name](lengths=(256,), samples=100 if name == "first_sentence" else 20)
    scalars, arrays = probe(rule, task, writer)({})
    chance = scalars["chance"]
    assert arrays["correct"].size == 100
    assert scalars["accuracy"] <= chance + 4 * math.sqrt(chance / 100)
    assert scalars["control_accuracy"] <= chance + 4 * math.sqrt(chance / 100)
    assert scalars["effective_length_high_tokens"] == 0


def test_one_that_sees_so_far_back_and_no_farther():
    """Depth by length: right where the distance is short enough, which the probe tells in tokens."""
    writer = make_writer("bytes")

    def near(row: np.ndarray, answer_length: int) -> np.ndarray:
        return copy(np.concatenate([np.full(1, -1), row[-answer_length - 300 :]]), answer_length)

    _, arrays = probe(near, Needle(lengths=(256, 512, 1024)), writer)({})
    span = arrays["distance_tokens"] + 34  # and the needle itself, which is not much longer or shorter
    assert arrays["correct"][span < 290].all()
    assert not arrays["correct"][span > 310].any()
    np.testing.assert_array_equal(arrays["accuracy"], arrays["correct"].mean(axis=2))
    assert arrays["accuracy"].tolist() == [[1] * 5, [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]


def test_lengths_are_powers_of_two_up_to_the_context_unless_named():
    writer = make_writer("bytes")
    _, arrays = probe(copy, Needle(num_depths=1, samples=1), writer, context_length=300)({})
    assert arrays["lengths_tokens"].tolist() == [128, 256, 300]
    assert arrays["depths"].tolist() == [0.5]


def test_a_length_that_does_not_fit_is_refused_when_the_probe_is_made():
    with pytest.raises(ValueError, match=r"^probes\.needle: a prompt of length=64 tokens is too short"):
        probe(copy, Needle(), make_writer("bytes"), context_length=64)


# ---- against a real model


@pytest.fixture(scope="module")
def model() -> tuple[nnx.GraphDef, dict, Scorer]:
    return models.scored(models.config(vocab_size=5), models.one_device(), tokens_per_forward=23 * (LENGTH + 1))


class Noise(DepthTask):
    """Prompts of random tokens, whose answers are right now and then."""

    name = "noise"

    def prompt(self, writer: Writer, rng: np.random.Generator, length: int, depth: float) -> Prompt:
        raise AssertionError

    def chance(self, writer: Writer) -> float:
        return 1 / 25

    def prompts(self, writer: Writer, length: int, depths: np.ndarray) -> Prompts:
        N = len(depths)
        rng = np.random.default_rng(length)
        rows, control = rng.integers(0, 5, (2, N, length + 1)).astype(np.int32)
        control[:, -2:] = rows[:, -2:]
        first, second = rng.integers(1, 5, (2, N))
        steps = [(first, 0 * first), (0 * second, second), (first, second)]  # another first token; another second; both
        distractors = np.stack([(rows[:, -2:] + np.stack(step, axis=1)) % 5 for step in steps], axis=1).astype(np.int32)
        return Prompts(rows, control, 2, distractors, depths, np.zeros((N, 2), np.int32), 1 / 25)


def test_answers_are_scored_as_from_the_full_logits(model: tuple[nnx.GraphDef, dict, Scorer]):
    """Each distractor alone, one of which shares the answer's first token, and all at once."""
    graph, params, scorer = model
    prompts = Noise().prompts(make_writer("bytes"), LENGTH, np.zeros(23))
    got = scorer.answers(params, prompts.tokens, 2, prompts.distractors)
    alone = [scorer.answers(params, prompts.tokens, 2, prompts.distractors[:, [number] * 3]).margins for number in range(3)]
    forward = jax.jit(lambda params, tokens: nnx.merge(graph, params)(tokens, jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)))
    logits = np.asarray(forward(params, jnp.asarray(prompts.tokens[:, :-1])), np.float64)
    for row, answer in enumerate(prompts.answers):
        log_p = [logits[row, place] - np.log(np.exp(logits[row, place]).sum()) for place in (LENGTH - 2, LENGTH - 1)]
        right = [log_p[k][answer[k]] for k in range(2)]
        assert got.predicted[row].tolist() == [int(log_p[0].argmax()), int(log_p[1].argmax())]
        np.testing.assert_allclose(got.log_probs[row], right, atol=1e-5)
        # The model reads the right first token, so a distractor is told from the answer at its first other one.
        margins = [right[k] - log_p[k][prompts.distractors[row, number, k]] for number, k in enumerate((0, 1, 0))]
        np.testing.assert_allclose([margin[row] for margin in alone], margins, atol=1e-5)
        assert got.margins[row] == pytest.approx(min(margins), abs=1e-5)
    assert 0 < (got.margins > 0).sum() < 23


def test_exact_match_is_that_of_greedy_decoding(model: tuple[nnx.GraphDef, dict, Scorer]):
    """In passes of 23 rows for 120, the last filled up."""
    graph, params, scorer = model
    task = Noise(lengths=(LENGTH,), num_depths=3, samples=40)
    _, arrays = RetrievalProbe(scorer, task, make_writer("bytes"), LENGTH)(params)
    prompts = task.prompts(make_writer("bytes"), LENGTH, np.zeros(120))
    removed = prompts._replace(tokens=prompts.control)
    for name, asked in (("correct", prompts), ("control_correct", removed)):
        matches = generated_matches(graph, params, asked, tokens_per_pass=23 * (LENGTH - 1))
        assert 2 <= matches.sum() <= 30
        np.testing.assert_array_equal(arrays[name].ravel(), matches)
