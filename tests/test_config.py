"""The wall: every field can be set from the command line and arrives as it should, and nothing wrong gets past."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from rope_lab.config import Config, default, load, resolve
from rope_lab.data.pipeline import LLAMA_WEIGHTS
from rope_lab.probes.tasks import TASKS
from rope_lab.probes.tasks.task import DepthTask
from rope_lab.rotary import ABF, PI, Custom, DynamicNTK, Llama3, LongRoPE, Method2, NoPE, NTKByParts, Partial, RoPE, Scaled, XPos, YaRN
from tests.rotary.examples import frequencies_file

EXTENDED: dict[str, Any] = {"factor": 2.0, "trained_length": 64, "base": 1e4}
EXTENSION = ("rotary.factor=2", "rotary.trained_length=64")
FREQUENCIES = frequencies_file(str([0.5] * 16))

# Each field: what the command line says, what must arrive (never what configs/tiny.py holds), and what it needs beside it.
FIELDS: dict[str, tuple] = {
    "rotary.variant": ("abf", ABF(base=1e4)),
    "rotary.base": ("1e6", RoPE(base=1e6)),
    "rotary.factor": ("4", PI(factor=4.0, base=1e4), "rotary.variant=pi"),
    "rotary.boundary_pair": ("5", Method2(factor=2.0, boundary_pair=5, base=1e4), "rotary.variant=method2", "rotary.factor=2"),
    "rotary.trained_length": (
        "64",
        DynamicNTK(factor=2.0, trained_length=64, base=1e4),
        "rotary.variant=dynamic_ntk",
        "rotary.factor=2",
    ),
    "rotary.beta_fast": ("16", NTKByParts(**EXTENDED, beta_fast=16.0), "rotary.variant=ntk_by_parts", *EXTENSION),
    "rotary.beta_slow": ("2", NTKByParts(**EXTENDED, beta_slow=2.0), "rotary.variant=ntk_by_parts", *EXTENSION),
    "rotary.truncate": ("false", YaRN(**EXTENDED, truncate=False), "rotary.variant=yarn", *EXTENSION),
    "rotary.attention_factor": ("1", YaRN(**EXTENDED, attention_factor=1.0), "rotary.variant=yarn", *EXTENSION),
    "rotary.mscale": (
        "0.7",
        YaRN(**EXTENDED, mscale=0.7, mscale_all_dim=1.0),
        "rotary.variant=yarn",
        "rotary.mscale_all_dim=1",
        *EXTENSION,
    ),
    "rotary.mscale_all_dim": (
        "1",
        YaRN(**EXTENDED, mscale=0.7, mscale_all_dim=1.0),
        "rotary.variant=yarn",
        "rotary.mscale=0.7",
        *EXTENSION,
    ),
    "rotary.low_freq_factor": ("2", Llama3(**EXTENDED, low_freq_factor=2.0), "rotary.variant=llama3", *EXTENSION),
    "rotary.high_freq_factor": ("3", Llama3(**EXTENDED, high_freq_factor=3.0), "rotary.variant=llama3", *EXTENSION),
    "rotary.short_factor": (
        str((1,) * 16),
        LongRoPE(**EXTENDED, short_factor=(1.0,) * 16, long_factor=(2.0,) * 16),
        "rotary.variant=longrope",
        f"rotary.long_factor={(2.0,) * 16}",
        *EXTENSION,
    ),
    "rotary.long_factor": (
        str((2,) * 16),
        LongRoPE(**EXTENDED, short_factor=(1.0,) * 16, long_factor=(2.0,) * 16),
        "rotary.variant=longrope",
        f"rotary.short_factor={(1.0,) * 16}",
        *EXTENSION,
    ),
    "rotary.fraction": ("0.5", Partial(fraction=0.5, base=1e4), "rotary.variant=partial"),
    "rotary.layout": (
        "proportional",
        Partial(fraction=0.5, layout="proportional", base=1e4),
        "rotary.variant=partial",
        "rotary.fraction=0.5",
    ),
    "rotary.path": (FREQUENCIES, Custom(path=FREQUENCIES), "rotary.variant=custom", "rotary.base=None"),
    "rotary.scale_base": ("1024", XPos(scale_base=1024.0, base=1e4), "rotary.variant=xpos"),
    "rotary.log_n_length": ("64", Scaled(encoding=RoPE(base=1e4), log_n_length=64)),
    "rotary.temperature_length": (
        "64",
        Scaled(encoding=NoPE(), temperature_length=64, temperature_scale=0.1),
        "rotary.variant=none",
        "rotary.base=None",
        "rotary.temperature_scale=0.1",
    ),
    "rotary.temperature_scale": (
        "1",
        Scaled(encoding=RoPE(base=1e4), temperature_length=64, temperature_scale=1.0),
        "rotary.temperature_length=64",
    ),
    "model.vocab_size": ("1_000", 1000),
    "model.num_layers": ("3", 3),
    "model.hidden_size": ("128", 128),
    "model.num_heads": ("4", 4),
    "model.num_kv_heads": ("1", 1),
    "model.head_dim": ("64", 64),
    "model.mlp_size": ("96", 96),
    "model.tie_embeddings": ("true", True),
    "model.query_key_norm": ("False", False),
    "model.attention_bias": ("True", True),
    "model.nope_every": ("2", 2),
    "model.norm_epsilon": ("1e-6", 1e-6),
    "model.embedding_init_std": ("0.5", 0.5),
    "model.residual_init_scale": ("1", 1.0),
    "model.compute_dtype": ("bfloat16", "bfloat16"),
    "model.attention": ("blockwise", "blockwise"),
    "model.remat": ("full", "full"),
    "model.scan_unroll": ("1", 1),
    "data.path": ("some/folder", "some/folder"),
    "data.tokenizer": ("bpe_8k", "bpe_8k"),
    "data.weights": ("(('book', 0.5), ('play', 1))", (("book", 0.5), ("play", 1.0))),
    "data.attend_across_documents": ("true", True),
    "data.restart_positions": ("true", True),
    "data.seed": ("7", 7),
    "data.retrieval.weight": ("0", 0.0),
    "data.retrieval.surface": ("pair", "pair"),
    "data.retrieval.num_keys": ("40", 40),
    "data.retrieval.num_values": ("8", 8),
    "data.retrieval.max_records": ("12", 12),
    "data.retrieval.answer_loss_weight": ("2.5", 2.5),
    "optimizer.peak_learning_rate": ("1e-4", 1e-4),
    "optimizer.warmup_steps": ("0", 0),
    "optimizer.schedule": ("constant", "constant"),
    "optimizer.final_fraction": ("0", 0.0),
    "optimizer.decay_steps": ("7", 7, "optimizer.schedule=wsd"),
    "optimizer.b1": ("0.8", 0.8),
    "optimizer.b2": ("0.999", 0.999),
    "optimizer.epsilon": ("1e-12", 1e-12),
    "optimizer.weight_decay": ("0", 0.0),
    "optimizer.clip_norm": ("2", 2.0),
    "train.curriculum": ("((64, 2), (128, 3))", ((64, 2), (128, 3))),
    "train.tokens_per_step": ("8192", 8192),
    "train.microbatches": ("2", 2),
    "train.loss_chunk_tokens": ("256", 256),
    "train.seed": ("4294967295", 2**32 - 1),
    "train.peak_flops_per_device": ("1e12", 1e12),
    "mesh.data": ("8", 8),
    "mesh.fsdp": ("4", 4),
    "mesh.tensor": ("2", 2),
    "checkpoint.every_steps": ("100", 100),
    "checkpoint.keep_last": ("1", 1),
    "checkpoint.keep_every_steps": ("400", 400),
    "checkpoint.keep_best": ("3", 3, "probes.every_steps=100"),
    "checkpoint.best_metric": ("probe/needle/accuracy", "probe/needle/accuracy"),
    "probes.every_steps": ("50", 50),
    "probes.names": ("('needle', 'perplexity')", ("needle", "perplexity")),
    "probes.every_tokens": ("1_000_000", 1_000_000),
    "probes.length": ("64", 64),
    "probes.path": ("other/folder", "other/folder"),
    "probes.perplexity.windows_per_document": ("2", 2),
    "probes.sliding_perplexity.lengths": ("(64, 256)", (64, 256)),
    "probes.sliding_perplexity.stride": ("32", 32),
    "probes.sliding_perplexity.documents": ("2", 2),
    "probes.sliding_perplexity.tokens_per_document": ("4096", 4096),
    "probes.context_gain.contexts": ("(8, 64)", (8, 64)),
    "probes.context_gain.blocks": ("16", 16),
    "probes.context_gain.block_tokens": ("2", 2),
    "probes.kv_by_distance.rows": ("16", 16),
    "probes.kv_by_distance.edges": ("(16, 64)", (16, 64)),
    "probes.similarity_gap.rows": ("16", 16),
    "probes.similarity_gap.queries": ("8", 8),
    "probes.similarity_gap.seed": ("3", 3),
    "probes.kv_by_distance.threshold": ("0.9", 0.9),
    "probes.kv_by_distance.seed": ("3", 3),
    **{f"probes.{task}.lengths": ("(128, 512)", (128, 512)) for task in TASKS},
    **{f"probes.{task}.samples": ("2", 2) for task in TASKS},
    **{f"probes.{task}.threshold": ("0.9", 0.9) for task in TASKS},
    **{f"probes.{task}.seed": ("3", 3) for task in TASKS},
    **{f"probes.{task}.num_depths": ("3", 3) for task, kind in TASKS.items() if issubclass(kind, DepthTask)},
    "probes.multikey_needle.num_distractors": ("2", 2),
    "probes.variable_tracking.num_hops": ("2", 2),
    "probes.first_sentence.answer_tokens": ("8", 8),
    "init.from": ("runs/before=None", "runs/before=None"),
    "init.step": ("3", 3, "init.from=runs/before"),
    "theory.require_bound": ("true", True),
}


def tiny(*overrides: str) -> ConfigDict:
    return load("configs/tiny.py", [f"--config.{override}" for override in overrides])


def leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A checked config's values by the names the command line uses; the position encoding as one value, under its variant."""
    found = {}
    for field in dataclasses.fields(tree):
        value, name = getattr(tree, field.name), prefix + field.name.rstrip("_")
        if name == "rotary" or not dataclasses.is_dataclass(value):
            found[name] = value
        else:
            found |= leaves(value, f"{name}.")
    return found


def names(tree: dict, prefix: str = "") -> set[str]:
    return set().union(*(names(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key} for key, value in tree.items()))


def test_the_table_has_every_field():
    assert set(FIELDS) == names(default().to_dict()), "a new field needs a line in FIELDS"


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_set_from_the_command_line(name: str):
    text, expected, *beside = FIELDS[name]
    changed = leaves(resolve(tiny(*beside, f"{name}={text}")))
    place = "rotary" if name.startswith("rotary.") else name
    arrived = changed[place]
    assert arrived == expected
    assert type(arrived) is type(expected)  # True is not 1, and 1 is not 1.0
    untouched = leaves(resolve(tiny()))
    assert untouched[place] != expected
    others = {override.partition("=")[0] for override in beside}
    assert {key for key in changed if changed[key] != untouched[key]} - others == {place}


def test_the_shares_of_sources_become_floats():
    (_, half), (_, one) = resolve(tiny("data.weights=(('book', 0.5), ('play', 1))")).data.weights
    assert (type(half), type(one)) == (float, float)


@pytest.mark.parametrize(("text", "base"), [("1e6", 1e6), ("100", 100.0), ("1_000", 1000.0), ("2.5", 2.5)])
def test_a_float_may_be_written_as_is_customary(text: str, base: float):
    rotary = resolve(tiny(f"rotary.base={text}")).rotary
    assert rotary == RoPE(base=base)
    assert type(rotary.base) is float  # pyright: ignore[reportAttributeAccessIssue]


def test_the_last_override_wins_and_replaces_tuples_whole():
    config = resolve(tiny("train.curriculum=((32, 5),)", "rotary.base=3", "train.curriculum=((64, 2), (128, 3))", "rotary.base=5"))
    assert config.train.curriculum == ((64, 2), (128, 3))
    assert config.rotary == RoPE(base=5.0)


def test_none_unsets_what_the_file_has_set():
    assert resolve(tiny("rotary.variant=none", "rotary.base=None")).rotary == NoPE()
    big = load("configs/llama_2b.py", ["--config.checkpoint.keep_every_steps=None", "--config.data.path=None"])
    assert resolve(big).checkpoint.keep_every_steps is None
    assert resolve(big).data.path is None


# --- files -------------------------------------------------------------------------------------------------------------------------

FILE = """from rope_lab.config import default
from configs.tiny import get_config as tiny
def get_config(arg=None):
    config = tiny()
    config.rotary.base = float(arg or 7)
    return config
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def base_of(path: str) -> float:
    return resolve(load(path, [])).rotary.base  # pyright: ignore[reportAttributeAccessIssue]


def test_what_follows_a_colon_goes_to_get_config(elsewhere: Path):
    (elsewhere / "mine.py").write_text(FILE)
    assert base_of("mine.py") == 7.0
    assert base_of("mine.py:25") == 25.0
    assert base_of(f"{elsewhere}/mine.py:1e5") == 1e5
    with pytest.raises(ValueError, match=r"mine\.py', line 5: ValueError: could not convert string to float: 'a:b'"):
        load("mine.py:a:b", [])


def test_shipped_configs_are_found_from_any_folder_and_one_of_yours_comes_first(elsewhere: Path):
    assert base_of("configs/tiny.py") == base_of("tiny.py") == 1e4
    (elsewhere / "configs").mkdir()
    (elsewhere / "configs" / "tiny.py").write_text(FILE)
    assert base_of("configs/tiny.py") == 7.0
    assert base_of("tiny.py") == 1e4


@pytest.mark.parametrize("path", ["mine/tiny.py", "mine/configs/tiny.py", "/tiny.py", "tinyy.py"])
def test_no_other_file_is_taken_for_one_that_is_missing(elsewhere: Path, path: str):
    shipped = ", ".join(f"configs/{name}.py" for name in ("llama_2b", "llama_350m", "llama_60m", "llama_7b", "tiny"))
    with pytest.raises(ValueError, match=f"^{re.escape(f'config file {path!r} does not exist; rope_lab comes with {shipped}')}$"):
        load(path, [])


HEAD = "from rope_lab.config import default\ndef get_config():\n    config = default()\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nfoo()\n", ", line 2: NameError: name 'foo' is not defined"),
        ("def helper():\n    foo()\ndef get_config():\n    helper()\n", ", line 2: NameError: name 'foo' is not defined"),
        ("def get_config(:\n", ", line 1: SyntaxError: invalid syntax"),
        ("import flaxx\n", ", line 1: ModuleNotFoundError: No module named 'flaxx'"),
        ("open('not here')\n", ", line 1: FileNotFoundError: "),
        ("def get_config():\n    return 1 / 0\n", ", line 2: ZeroDivisionError: division by zero"),
        ("def get_config():\n    return int('x')\n", ", line 2: ValueError: invalid literal for int() with base 10: 'x'"),
        ("x = 1\n", ": AttributeError: module 'config_file' has no attribute 'get_config'"),
        (f"{HEAD}    config.modl = 1\n    return config\n", ", line 4: AttributeError: "),
        (f"{HEAD}    config.model.num_layers = 2.5\n    return config\n", ", line 4: TypeError: Could not override field 'num_layers'"),
        (HEAD, ": get_config() must return a ConfigDict, not None; is its last line a return?"),
    ],
)
def test_what_a_config_file_does_wrong_is_told_with_file_and_line(elsewhere: Path, text: str, message: str):
    file = elsewhere / "wrong.py"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"^{re.escape(f'config file {str(file)!r}{message}')}") as told:
        load("wrong.py", [])
    assert "\n" not in str(told.value)


def test_a_misspelt_field_in_a_file_is_told_without_the_whole_config(elsewhere: Path):
    (elsewhere / "wrong.py").write_text(f"{HEAD}    config.modl = 1\n    return config\n")
    with pytest.raises(ValueError, match=r'"modl" does not exist .* Did you mean "model" instead of "modl"') as told:
        load("wrong.py", [])
    assert len(str(told.value)) < 300 + len(str(elsewhere))


def test_a_file_that_is_not_python_is_refused(elsewhere: Path):
    (elsewhere / "mine.yaml").write_text("rotary: 1")
    with pytest.raises(ValueError, match=r"mine\.yaml' must be a Python file, NAME\.py$"):
        load("mine.yaml", [])


# --- resolve, for configs made by hand -----------------------------------------------------------------------------------------------


def changed(**values: Any) -> ConfigDict:
    """configs/tiny.py with values put in past all of ConfigDict's own checks; `a__b` is a field of a group."""
    tree = tiny().to_dict()
    for name, value in values.items():
        *groups, key = name.split("__")
        group = tree
        for part in groups:
            group = group[part]
        group[key] = value
    return ConfigDict(tree)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modl": 1}, "unknown config key config.modl; did you mean 'model'?"),
        ({"model__num_layer": 1}, "unknown config key model.num_layer; did you mean 'num_layers'?"),
        ({"data__retrieval__wait": 1}, "unknown config key data.retrieval.wait; did you mean 'weight'?"),
        ({"rotary__bass": 1.0}, "unknown config key rotary.bass; did you mean 'base'?"),
        ({"model": 3}, "model=3 must be a group of fields: attention, attention_bias, "),
        ({"data__retrieval": 3}, "data.retrieval=3 must be a group of fields: answer_loss_weight, "),
        ({"rotary": None}, "rotary=None must be a group of fields: attention_factor, base, beta_fast,"),
        ({"model__num_layers": 2.0}, "model.num_layers=2.0 must be of type int"),
        ({"model__num_layers": True}, "model.num_layers=True must be of type int"),
        ({"model__num_layers": (2,)}, "model.num_layers=(2,) must be of type int"),
        ({"model__tie_embeddings": 1}, "model.tie_embeddings=1 must be of type bool"),
        ({"model__norm_epsilon": "1e-5"}, "model.norm_epsilon='1e-5' must be of type float"),
        ({"model__norm_epsilon": True}, "model.norm_epsilon=True must be of type float"),
        ({"data__path": 3}, "data.path=3 must be of type str"),
        ({"rotary__base": "big"}, "rotary.base='big' must be of type float"),
        ({"train__curriculum": 64}, "train.curriculum=64 must be of type tuple[tuple[int, int], ...]"),
        ({"train__curriculum": ((64, 2.5),)}, "train.curriculum[0][1]=2.5 must be of type int"),
        ({"train__curriculum": ((64, 2, 1),)}, "train.curriculum[0]=(64, 2, 1) must have 2 entries: int, int"),
        ({"data__weights": (("book", "half"),)}, "data.weights[0][1]='half' must be of type float"),
        ({"model__hidden_size": None}, "model.hidden_size is not set; it needs a value of type int, e.g. --config.model.hidden_size=..."),
    ],
)
def test_resolve_names_the_key_the_value_and_the_type(values: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        resolve(changed(**values))


@pytest.mark.parametrize(
    "name", ["rotary", "rotary.variant", "model", "checkpoint", "init", "model.head_dim", "data.retrieval", "probes.kv_by_distance.rows"]
)
def test_resolve_names_what_is_missing(name: str):
    tree = tiny().to_dict()
    *groups, key = name.split(".")
    group = tree
    for part in groups:
        group = group[part]
    del group[key]
    with pytest.raises(ValueError, match=rf"^config key {re.escape(name)} is missing; start from rope_lab\.config\.default\(\)$"):
        resolve(ConfigDict(tree))


def test_an_int_stands_for_a_float_and_a_list_for_a_tuple():
    config = resolve(changed(rotary__base=10_000, train__curriculum=[[64, 2]], data__weights=[["book", 1]]))
    assert config.train.curriculum == ((64, 2),)
    assert config.data.weights == (("book", 1.0),)
    assert type(config.rotary.base) is float  # pyright: ignore[reportAttributeAccessIssue]


def test_a_variants_own_default_holds_where_the_config_says_nothing():
    assert resolve(tiny("rotary.base=None")).rotary == RoPE()


def test_default_is_locked_and_wants_the_shape_of_a_model():
    with pytest.raises(AttributeError, match="locked"):
        default().modl = 1
    with pytest.raises(ValueError, match=r"^model\.vocab_size is not set"):
        resolve(default())


def test_checked_configs_are_frozen():
    config: Config = resolve(tiny())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.seed = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_the_named_default_mixture_is_a_mixture():
    assert resolve(load("configs/llama_60m.py", [])).data.weights == LLAMA_WEIGHTS
    assert sum(share for _, share in LLAMA_WEIGHTS) == pytest.approx(1.0)
