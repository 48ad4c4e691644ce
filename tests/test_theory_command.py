"""`rope-lab theory` as a user meets it: golden figures, the shape of the JSON, verdicts, and one line on bad input."""

import json
import math
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

import rope_lab.commands.theory
from rope_lab.__main__ import main
from rope_lab.commands.verdict import judge
from rope_lab.rotary import DynamicNTK, LongRoPE, Method2, NoPE, RoPE
from rope_lab.theory.lower_bound import PAPER_TABLE_2
from tests.interop.published import MODELS

GOLDEN = json.loads((Path(__file__).parent / "golden" / "theory.json").read_text())


def asked(capsys: pytest.CaptureFixture, *arguments: str) -> dict[str, Any]:
    """What `rope-lab theory ARGUMENTS --json` prints: one JSON object and nothing else, without NaN or Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert main(["theory", *arguments, "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return json.loads(told.out, parse_constant=refuse)


def shown(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    assert main(["theory", *arguments]) == 0
    return capsys.readouterr().out


def gaps(theta: list[float], length: int) -> np.ndarray:
    """B_m for every distance, summed pair by pair."""
    m = np.arange(length + 1, dtype=np.float64)
    return np.sum([np.cos(m * angle) for angle in theta], axis=0)


VARIANT_KEYS = {
    *("variant", "head_dim", "length_tokens", "trained_length_tokens", "holds", "verdict", "L_theta_tokens", "L_theta_is_search_limit"),
    *("quarter_period_tokens", "worst_gap", "worst_distance_tokens", "violations", "first_violation_intervals_tokens"),
    *("out_of_distribution_pairs", "attention_factor", "theta_radians_per_token"),
}


# --- bound and table -------------------------------------------------------------------------------------------------------------------


def test_bound(capsys: pytest.CaptureFixture):
    found = asked(capsys, "bound", "--length=1000")
    assert set(found) == {"length", "head_dim", "base_range", "infimum", "stable", "intervals", "guarantee"}
    assert set(found["guarantee"]) == {
        *("infimum", "widest_gap", "gaps", "stable", "stable_precision", "closed_form_above", "intervals", "resolution")
    }
    _, infimum, stable = GOLDEN["base_lower_bound_infimum_head_dim_128"]["rows"][0]
    assert found["infimum"] == pytest.approx(infimum, rel=5e-3)
    assert found["stable"] == pytest.approx(stable, rel=5e-3)
    assert found["base_range"] == [1.0, None]
    assert found["intervals"][0][0] == found["infimum"]
    assert found["intervals"][-1] == [found["stable"], None]
    assert found["guarantee"]["infimum"] == found["guarantee"]["stable"] == "proved"
    text = shown(capsys, "bound", "--length=1000")
    assert "infimum 4,206" in text
    assert "stable 6,018" in text
    quick = asked(capsys, "bound", "--length=1000", "--no-intervals")
    assert (quick["infimum"], quick["stable"], quick["intervals"]) == (found["infimum"], found["stable"], None)
    assert "intervals" not in shown(capsys, "bound", "--length=1000", "--no-intervals")


def test_long_bounds_leave_the_intervals_out_and_say_so(capsys, monkeypatch):
    monkeypatch.setattr("rope_lab.commands.theory.INTERVALS_BY_DEFAULT", 999)
    assert asked(capsys, "bound", "--length=1000")["intervals"] is None
    assert "intervals: left out at this length; --intervals samples them" in shown(capsys, "bound", "--length=1000")
    assert len(asked(capsys, "bound", "--length=1000", "--intervals")["intervals"]) > 1


def test_bound_of_a_head_without_one_is_null_and_not_a_number_in_words(capsys: pytest.CaptureFixture):
    found = asked(capsys, "bound", "--length=2", "--head-dim=2")
    assert (found["infimum"], found["stable"], found["guarantee"]["closed_form_above"], found["intervals"]) == (None, None, None, [])
    assert "infimum none" in shown(capsys, "bound", "--length=2", "--head-dim=2")


def test_table_stands_beside_the_papers(capsys: pytest.CaptureFixture):
    found = asked(capsys, "table", "--longest=4000")
    assert [row["length_tokens"] for row in found["rows"]] == [1000, 2000, 4000]
    for row in found["rows"]:
        assert set(row) == {"length_tokens", "paper", "infimum", "stable"}
        assert row["paper"] == PAPER_TABLE_2[row["length_tokens"]]
    for length, infimum, stable in GOLDEN["base_lower_bound_infimum_head_dim_128"]["rows"][:2]:
        (row,) = (row for row in found["rows"] if row["length_tokens"] == length)
        assert row["infimum"] == pytest.approx(infimum, rel=5e-3)
        assert row["stable"] == pytest.approx(stable, rel=5e-3)
    text = shown(capsys, "table", "--longest=1000")
    assert "4.3e+03" in text
    assert "4,206" in text


# --- one variant -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head_dim", "base", "bound"),
    [(int(name.rsplit("_", 1)[1]), base, bound) for name, row in GOLDEN["L_theta_plain_rope"].items() for base, bound in row.items()],
)
def test_l_theta_through_the_command(head_dim: int, base: str, bound: int, capsys: pytest.CaptureFixture):
    found = asked(capsys, "variant", "--variant=rope", f"--set=base={base}", f"--head-dim={head_dim}", f"--length={bound}")
    assert set(found) == VARIANT_KEYS
    assert (found["L_theta_tokens"], found["L_theta_is_search_limit"]) == (bound, False)
    assert (found["holds"], found["violations"]) == (True, 0)
    beyond = asked(capsys, "variant", "--variant=rope", f"--set=base={base}", f"--head-dim={head_dim}", f"--length={bound + 1}")
    assert (beyond["holds"], beyond["first_violation_intervals_tokens"]) == (False, [[bound + 1, bound + 1]])
    assert beyond["worst_distance_tokens"] == bound + 1
    assert beyond["worst_gap"] == pytest.approx(gaps(found["theta_radians_per_token"], bound + 1)[-1], abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        (["--variant=method1", "--set=base=5e6"], GOLDEN["table_4"]["method1"]),
        (["--variant=method2", "--set=factor=8", "--set=boundary_pair=44"], GOLDEN["table_4"]["method2"]),
    ],
)
def test_counts_of_table_4(settings: list[str], counts: list[int], capsys: pytest.CaptureFixture):
    for length, count in zip((15 * 1024, 30 * 1024), counts, strict=True):
        found = asked(capsys, "variant", *settings, "--head-dim=128", f"--length={length}")
        assert found["violations"] == count
        assert found["out_of_distribution_pairs"] is None  # nobody said what it was trained at
        if count:
            assert found["first_violation_intervals_tokens"][0][0] == GOLDEN["table_4"]["method2_first_negative_m"]


def test_yarn_as_the_issue_asks_for_it(capsys: pytest.CaptureFixture):
    settings = ["--variant=yarn", "--set", "factor=8", "--set", "trained_length=4096", "--head-dim=128", "--length=32768"]
    found = asked(capsys, "variant", *settings)
    values = gaps(found["theta_radians_per_token"], 32_768)
    assert found["attention_factor"] == pytest.approx(0.1 * math.log(8) + 1)
    assert found["violations"] == int((values < 0).sum())
    assert found["L_theta_tokens"] == int((values < 0).argmax()) - 1
    assert found["worst_distance_tokens"] == int(values.argmin())
    assert found["worst_gap"] == pytest.approx(values.min(), abs=1e-8)
    assert found["trained_length_tokens"] == 4096
    assert found["out_of_distribution_pairs"] == []
    text = shown(capsys, "variant", *settings)
    assert f"L_theta = {found['L_theta_tokens']:,}" in text


def test_a_config_gives_head_dim_and_length_and_takes_overrides(capsys: pytest.CaptureFixture):
    found = asked(capsys, "variant", "--config=configs/tiny.py", "--config.rotary.base=100")
    assert (found["head_dim"], found["length_tokens"], found["L_theta_tokens"]) == (
        32,
        256,
        GOLDEN["L_theta_plain_rope"]["head_dim_32"]["1e2"],
    )
    found = asked(capsys, "variant", "--config=configs/tiny.py", "--length=100", "--head-dim=64")
    assert (found["head_dim"], found["length_tokens"], found["L_theta_tokens"]) == (
        64,
        100,
        GOLDEN["L_theta_plain_rope"]["head_dim_64"]["1e4"],
    )


# --- out of distribution ---------------------------------------------------------------------------------------------------------------


def unseen(encoding: Any, length: int, trained_length: int | None = None, head_dim: int = 128) -> tuple[int, ...] | None:
    return judge(encoding, head_dim, length, trained_length).out_of_distribution


def test_pairs_out_of_distribution():
    slow = tuple(i for i in range(64) if 4096 * 1e4 ** (-2 * i / 128) < 2 * math.pi)  # no full turn in training
    assert unseen(RoPE(), 32_768, 4096) == slow
    assert unseen(RoPE(), 4096, 4096) == ()
    assert unseen(RoPE(), 32_768) is None
    assert unseen(Method2(factor=8.0, boundary_pair=44), 32_768, 4096) == ()
    # Frequencies as they were in pretraining, not as they are at the length.
    assert unseen(DynamicNTK(factor=1.0, trained_length=4096), 4096) == ()
    grown = unseen(DynamicNTK(factor=1.0, trained_length=4096), 32_768)
    assert grown is not None
    assert set(grown) < set(slow)
    assert 63 not in grown  # the slowest is interpolated outright
    long = LongRoPE(short_factor=(1.0,) * 64, long_factor=(8.0,) * 64, factor=8.0, trained_length=4096)
    assert unseen(long, 32_768) == ()
    assert unseen(long, 65_536) == slow


def test_nope_has_no_verdict():
    with pytest.raises(ValueError, match=r"^NoPE\(\) is not described by frequencies alone: the theory does not apply$"):
        judge(NoPE(), 64, 128)


# --- periods and compare ---------------------------------------------------------------------------------------------------------------


def test_periods(capsys: pytest.CaptureFixture):
    golden = GOLDEN["scaling_laws"]
    arguments = ["periods", "--base=1e4", "--head-dim=128", "--trained-length=4096", "--tuned-base=1e6", "--tuning-length=16384"]
    found = asked(capsys, *arguments)
    assert set(found) == {
        *("base", "head_dim", "trained_length_tokens", "tuned_base", "tuning_length_tokens"),
        *("critical_dimension", "beta_1_2_3", "T_extra_tokens", "critical_base"),
    }
    assert found["critical_dimension"]["ceiled"] == golden["critical_dimension"][0][3]
    assert [round(beta, 1) for beta in found["beta_1_2_3"]] == golden["beta_1_2_3_for_4096"]
    assert round(found["T_extra_tokens"]["ceiled"]) == golden["T_extra_at_base_1e6"]
    assert round(found["critical_base"]["unceiled"], 1) == golden["critical_base_for_16384_tuning"]
    text = shown(capsys, *arguments)
    for figure in ("92", "129,027", "71,738.4", "2,607.6, 1,303.8, 651.9"):
        assert figure in text
    alone = asked(capsys, "periods", "--trained-length=4096")
    assert (alone["tuned_base"], alone["tuning_length_tokens"]) == (1e4, 4096)
    assert alone["critical_base"]["unceiled"] == pytest.approx(1e4)


def test_compare_draws_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture):
    picture = tmp_path / "compare.png"
    variants = ["--variant", "rope", "base=1e4", "--variant", "method2", "factor=8", "boundary_pair=44"]
    found = asked(capsys, "compare", *variants, "--length=4096", f"--out={picture}")
    assert found["picture"] == str(picture)
    assert [variant["label"] for variant in found["variants"]] == ["rope base=1e4", "method2 factor=8 boundary_pair=44"]
    assert all(set(variant) == VARIANT_KEYS | {"label"} for variant in found["variants"])
    image = matplotlib.image.imread(picture)
    colors = {tuple(color) for color in (image[..., :3].reshape(-1, 3) * 255).round().astype(int)}
    assert {(31, 119, 180), (255, 127, 14)} <= colors  # a line each


# --- check -----------------------------------------------------------------------------------------------------------------------------

KIND_KEYS = VARIANT_KEYS | {"kind", "layers", "applies", "sufficient_base_of_plain_rope"}
CHECK_KEYS = {"source", "path", "model_type", "trained_length_tokens", "claimed_length_tokens", "layer_kinds"}

# Model -> does each kind with positions prefer similar tokens over its whole reach?
HOLDS = {
    "llama_2_7b": [False],
    "llama_3_8b": [True],
    "llama_3_1_8b": [False],
    "llama_3_2_1b": [False],
    "mistral_7b_v0_2": [False],
    "qwen2_5_7b_yarn": [False],
    "phi_3_mini_128k": [False],
    "gemma_3_1b": [True, True],
    "gemma_3_4b": [True, True],
    "gemma_4": [True, True],
    "smollm3": [True],
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the search for the base that would do to `bound`'s own tests: at head_dim 256 it takes half a minute."""
    small = rope_lab.commands.theory.sufficient_base(64, 8)
    monkeypatch.setattr(rope_lab.commands.theory, "sufficient_base", lambda length, head_dim: small)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", MODELS)
def test_every_published_model_gets_a_verdict(name: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "config.json").write_text(json.dumps(MODELS[name]))
    found = asked(capsys, "check", str(tmp_path))
    assert set(found) == CHECK_KEYS
    assert found["source"] == "huggingface"
    applies = [kind for kind in found["layer_kinds"] if kind["applies"]]
    assert [kind["holds"] for kind in applies] == HOLDS[name]
    for kind in applies:
        assert set(kind) == KIND_KEYS
        values = gaps(kind["theta_radians_per_token"], kind["length_tokens"])
        assert kind["holds"] == bool((values >= 0).all())
        assert kind["worst_gap"] == pytest.approx(values.min(), abs=1e-7)
    for kind in found["layer_kinds"]:
        if not kind["applies"]:
            assert set(kind) == {"kind", "layers", "applies", "variant", "verdict"}
    text = shown(capsys, "check", str(tmp_path / "config.json"))
    for kind in found["layer_kinds"]:
        assert kind["verdict"] in text


def test_check_names_the_base_that_would_do_and_keeps_the_lengths_apart(tmp_path: Path, capsys: pytest.CaptureFixture):
    file = tmp_path / "llama.json"
    file.write_text(json.dumps(MODELS["llama_2_7b"]))
    found = asked(capsys, "check", str(file), "--length=8000", "--trained-length=4096")
    assert (found["trained_length_tokens"], found["claimed_length_tokens"]) == (4096, 8000)
    (kind,) = found["layer_kinds"]
    _, infimum, stable = GOLDEN["base_lower_bound_infimum_head_dim_128"]["rows"][2]
    assert kind["sufficient_base_of_plain_rope"]["infimum"] == pytest.approx(infimum, rel=5e-3)
    assert kind["sufficient_base_of_plain_rope"]["stable"] == pytest.approx(stable, rel=5e-3)
    assert (kind["length_tokens"], kind["trained_length_tokens"]) == (8000, 4096)
    assert kind["out_of_distribution_pairs"] == list(range(46, 64))
    text = shown(capsys, "check", str(file), "--length=8000", "--trained-length=4096")
    assert "trained at 4,096 tokens, claimed 8,000" in text
    assert "18 of 64" in text


@pytest.mark.usefixtures("quick")
def test_a_window_is_not_widened_by_a_claim(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "config.json").write_text(json.dumps(MODELS["gemma_3_1b"]))
    found = asked(capsys, "check", str(tmp_path), "--length=65536", "--trained-length=16384")
    assert [(kind["length_tokens"], kind["trained_length_tokens"]) for kind in found["layer_kinds"]] == [(512, 512), (65_536, 16_384)]
    found = asked(capsys, "check", str(tmp_path), "--length=256")
    assert [kind["length_tokens"] for kind in found["layer_kinds"]] == [256, 256]


def test_check_reads_a_config_and_a_run_folder_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture):
    from rope_lab.config import load
    from rope_lab.runs import open_run

    overrides = ["--config.rotary.base=100"]
    planned = asked(capsys, "check", "configs/tiny.py", *overrides)
    assert (planned["source"], planned["model_type"]) == ("config", "rope_lab")
    (kind,) = planned["layer_kinds"]
    assert (kind["layers"], kind["L_theta_tokens"], kind["holds"], kind["out_of_distribution_pairs"]) == ([0, 1], 27, False, [])
    folder = open_run(str(tmp_path / "run"), load("configs/tiny.py", overrides))
    for path in (folder, folder / "config.json"):
        run = asked(capsys, "check", str(path))
        assert run["source"] == "run"
        assert run["layer_kinds"] == planned["layer_kinds"]
    nothing = asked(capsys, "check", "configs/tiny.py", "--config.rotary.variant=none", "--config.rotary.base=None")
    assert nothing["layer_kinds"][0]["applies"] is False
    assert "the theory does not apply" in shown(
        capsys, "check", "configs/tiny.py", "--config.rotary.variant=none", "--config.rotary.base=None"
    )


def test_check_tells_layers_without_positions_of_ours_apart(capsys: pytest.CaptureFixture):
    found = asked(capsys, "check", "configs/tiny.py", "--config.model.num_layers=4", "--config.model.nope_every=2")
    assert [(kind["kind"], kind["layers"], kind["applies"]) for kind in found["layer_kinds"]] == [
        ("full_attention", [0, 2], True),
        ("no_position", [1, 3], False),
    ]


def test_a_scale_on_the_logits_changes_no_sign(capsys: pytest.CaptureFixture):
    plain = asked(capsys, "variant", "--config=configs/tiny.py")
    scaled = asked(capsys, "variant", "--config=configs/tiny.py", "--config.rotary.log_n_length=64")
    assert scaled["variant"].startswith("Scaled(encoding=RoPE(")
    assert {**scaled, "variant": ""} == {**plain, "variant": ""}


# --- bad input -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: bound|table|variant|periods|compare|check; see rope-lab theory --help"),
        (["bound"], "the following arguments are required: --length; see rope-lab theory bound --help"),
        (["bound", "--length=0"], "length=0 must be an integer of 1 .. 67108864 tokens"),
        (["bound", "--length=8", "--head-dim=7"], "head_dim=7 must be a positive even number: rotary embeddings turn dimensions in pairs"),
        (["bound", "--length=8", "--heads=7"], "'--heads=7' is not understood; see rope-lab theory bound --help"),
        (["bound", "--length=8", "--config.rotary.base=7"], "'--config.rotary.base=7' is not understood; see rope-lab theory bound --help"),
        (["table", "--longest=5"], "longest=5 must be at least 1000, the table's first context length"),
        (["variant", "--length=8"], "give either --config=FILE or --variant=NAME"),
        (["variant", "--variant=rope", "--length=8"], "--head-dim is needed with --variant"),
        (["variant", "--variant=rope", "--head-dim=8"], "--length is needed with --variant"),
        (
            ["variant", "--variant=none", "--head-dim=8", "--length=8"],
            "NoPE() is not described by frequencies alone: the theory does not apply",
        ),
        (
            ["variant", "--variant=rope", "--set=bse=7", "--head-dim=8", "--length=8"],
            "'bse' is no field of a variant; did you mean 'base'?",
        ),
        (
            ["variant", "--variant=rope", "--set=base", "--head-dim=8", "--length=8"],
            "'base' is not understood; settings of a variant look like base=1e6",
        ),
        (["variant", "--variant=rope", "--set=base=x", "--head-dim=8", "--length=8"], "base=x must be of type float"),
        (["variant", "--variant=pi", "--head-dim=8", "--length=8"], "rotary.factor is not set; variant 'pi' needs it: factor=..."),
        (
            ["variant", "--config=configs/tiny.py", "--set=base=7"],
            "--set=base=7 goes with --variant; with --config write --config.rotary.base=7",
        ),
        (
            ["variant", "--config=configs/tiny.py", "--trained-length=0"],
            "trained_length=0 must be an integer of 1 .. 67108864 tokens",
        ),
        (
            ["periods", "--trained-length=5"],
            "tuning_length=5 must be a finite number above 2 pi tokens: no pair completes a turn within less",
        ),
        (["periods", "--trained-length=4096", "--base=nan"], "base=nan must be a finite number above 1 (10000 in the original RoPE)"),
        (["compare", "--variant", "rope", "--length=8", "--out=x.pdf"], "--out=x.pdf must be a .png file in an existing folder"),
        (["compare", "--variant", "rope", "--length=8", "--out=no/x.png"], "--out=no/x.png must be a .png file in an existing folder"),
        (["check", "none.json"], "'none.json' does not exist: give a run folder, a Hugging Face config.json, or a config.py"),
        (["check", "."], "'.' holds no config.json: give a run folder, a Hugging Face config.json, or a config.py"),
        (
            ["check", "other.json"],
            "rotary scaling of type 'new' is not understood: {'rope_theta': 10000.0, 'type': 'new', 'gain': 2}; known are default, linear, "
            "dynamic, yarn, llama3, longrope, proportional",
        ),
        (["check", "llama.json", "--config.x=1"], "'--config.x=1' is not understood; only a config.py takes --config. overrides"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama.json").write_text(json.dumps(MODELS["llama_2_7b"]))
    (tmp_path / "other.json").write_text(json.dumps(MODELS["llama_2_7b"] | {"rope_scaling": {"type": "new", "gain": 2}}))
    assert main(["theory", *arguments]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"rope-lab theory: {message}\n")
