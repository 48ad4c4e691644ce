"""A run folder gives back the config it was made from, and refuses to be another run's."""

import json
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

import rope_lab
from rope_lab.config import load, resolve
from rope_lab.rotary import VARIANTS
from rope_lab.runs import open_config, open_run
from tests.rotary.examples import EXAMPLES, HEAD_DIM, SPECTRAL, example

SHIPPED = sorted(path.name for path in (Path(__file__).parents[1] / "configs").glob("*.py"))


def tiny(*overrides: str) -> ConfigDict:
    return load("configs/tiny.py", [f"--config.{override}" for override in overrides])


TINY = tiny()


def with_variant(name: str) -> ConfigDict:
    """configs/tiny.py with a variant's example in place of its own."""
    parameters = [f"rotary.{field}={value}" for field, value in EXAMPLES[name].items()]
    return tiny(f"model.head_dim={HEAD_DIM}", "rotary.base=None", f"rotary.variant={name}", *parameters)


def test_the_shipped_configs_are_all_here():
    assert SHIPPED == ["llama_2b.py", "llama_350m.py", "llama_60m.py", "llama_7b.py", "tiny.py"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_config_comes_back_equal(name: str, tmp_path: Path):
    config = load(name, [])
    folder = open_run(str(tmp_path / "run"), config)
    assert resolve(open_config(str(folder))) == resolve(config)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_comes_back_equal_with_its_spectrum_beside_it(name: str, tmp_path: Path):
    config = with_variant(name)
    folder = open_run(str(tmp_path / "run"), config)
    back = resolve(open_config(str(folder)))
    assert back == resolve(config)
    assert back.rotary == example(name)
    kept = json.loads((folder / "spectrum.json").read_text())
    assert kept["variant"] == repr(example(name))
    if name in SPECTRAL:
        spectrum = example(name).spectrum(HEAD_DIM, 256)  # pyright: ignore[reportAttributeAccessIssue]
        np.testing.assert_array_equal(kept["theta_radians_per_token"], spectrum.theta)  # every bit
        assert (kept["attention_factor"], kept["head_dim"], kept["length_tokens"]) == (spectrum.attention_factor, HEAD_DIM, 256)
    else:
        assert list(kept) == ["variant"]


def test_a_scaled_variant_keeps_the_spectrum_of_what_it_scales(tmp_path: Path):
    folder = open_run(str(tmp_path / "run"), tiny("rotary.log_n_length=128"))
    kept = json.loads((folder / "spectrum.json").read_text())
    rotary = resolve(open_config(str(folder))).rotary
    assert kept["variant"] == repr(rotary)
    assert "log_n_length=128" in kept["variant"]
    assert kept["theta_radians_per_token"] == rotary.encoding.spectrum(32, 256).theta.tolist()  # pyright: ignore[reportAttributeAccessIssue]


def test_tuples_of_tuples_and_unset_fields_come_back(tmp_path: Path):
    config = tiny(
        "data.weights=(('book', 0.25), ('play', 0.75))", "probes.kv_by_distance.edges=(16, 64)", "init.from=before", "init.step=3"
    )
    back = resolve(open_config(str(open_run(str(tmp_path / "run"), config))))
    assert back == resolve(config)
    assert back.data.weights == (("book", 0.25), ("play", 0.75))
    assert (back.init.from_, back.init.step, back.checkpoint.keep_every_steps) == ("before", 3, None)


def test_versions_name_the_code_and_the_packages(tmp_path: Path):
    kept = json.loads((open_run(str(tmp_path / "run"), TINY) / "versions.json").read_text())
    assert kept["rope_lab"] == rope_lab.__version__
    assert {name: kept[name] for name in ("jax", "flax", "grain", "ml-collections")} == {
        name: version(name) for name in ("jax", "flax", "grain", "ml-collections")
    }


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a copy of the package's `__init__.py` that nobody has added yet; `runs` takes it for its own."""
    folder = tmp_path / "repository" / "rope_lab"
    folder.mkdir(parents=True)
    shutil.copy(rope_lab.__file__, folder)
    git(folder, "init", "--quiet")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "somebody's own work")
    monkeypatch.setattr(rope_lab, "__file__", str(folder / "__init__.py"))
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_the_revision_is_rope_labs_own_and_tells_whether_it_was_edited(package: Path, tmp_path: Path):
    def revision(run: str) -> str | None:
        return json.loads((open_run(str(tmp_path / run), TINY) / "versions.json").read_text())["git_revision"]

    assert revision("installed into somebody's repository") is None
    git(package, "add", "__init__.py")
    git(package, "commit", "--quiet", "--message", "rope_lab")
    git(package, "tag", "v1")
    head = git(package, "rev-parse", "HEAD")
    assert revision("clean") == head
    (package / "__init__.py").write_text("edited")
    assert revision("edited") == f"{head}-dirty"


# --- refusals ------------------------------------------------------------------------------------------------------------------------


def told(message: str) -> str:
    return f"^{re.escape(message)}$"


def test_a_run_older_than_a_field_was_made_with_its_default(tmp_path: Path):
    folder = open_run(str(tmp_path / "run"), TINY)
    kept = json.loads((folder / "config.json").read_text())
    del kept["probes"]["kv_by_distance"]["threshold"]
    (folder / "config.json").write_text(json.dumps(kept))
    assert open_run(str(folder), TINY) == folder
    with pytest.raises(ValueError, match=r"probes\.kv_by_distance\.threshold is 0\.5 there, 0\.9 here"):
        open_run(str(folder), tiny("probes.kv_by_distance.threshold=0.9"))


def test_the_same_config_finds_its_folder_again_and_writes_nothing(tmp_path: Path):
    folder = open_run(str(tmp_path / "run"), TINY)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert open_run(str(folder), tiny("rotary.base=10000")) == folder
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before


def test_another_config_is_refused_with_every_key_that_differs(tmp_path: Path):
    folder = open_run(str(tmp_path / "run"), TINY)
    other = tiny("rotary.variant=abf", "rotary.base=1e6", "train.curriculum=((64, 2),)", "data.path=texts")
    message = (
        f"workdir {str(folder)!r} holds a run with another config: data.path is None there, 'texts' here; rotary.base is 10000.0 there, "
        "1000000.0 here; rotary.variant is 'rope' there, 'abf' here; train.curriculum is [[32, 300], [64, 300], [256, 400]] there, "
        "[[64, 2]] here; choose another --workdir, or the same config"
    )
    before = (folder / "config.json").read_bytes()
    with pytest.raises(ValueError, match=told(message)):
        open_run(str(folder), other)
    assert (folder / "config.json").read_bytes() == before


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(
        ValueError, match=told(f"workdir {str(tmp_path)!r} is not empty and holds no run (no config.json); choose another folder")
    ):
        open_run(str(tmp_path), tiny())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_becomes_the_run(tmp_path: Path):
    assert open_run(str(tmp_path), tiny()) == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "spectrum.json", "versions.json"}


@pytest.mark.parametrize("killed_at", ["spectrum.json", "versions.json", "config.json"])
def test_a_start_that_was_killed_can_be_started_again(killed_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Killed(BaseException):
        pass

    replace = Path.replace

    def until(self: Path, target: Path) -> Path:
        if target.name == killed_at:
            raise Killed
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", until)
        with pytest.raises(Killed):
            open_run(str(tmp_path / "run"), TINY)
    with pytest.raises(ValueError, match=r"holds no run \(no config\.json\)"):  # half made is not made
        open_config(str(tmp_path / "run"))
    folder = open_run(str(tmp_path / "run"), TINY)
    assert resolve(open_config(str(folder))) == resolve(TINY)
    assert {path.name for path in folder.iterdir()} == {"config.json", "spectrum.json", "versions.json"}


def test_there_is_no_run_to_open(tmp_path: Path):
    with pytest.raises(
        ValueError, match=told(f"workdir '{tmp_path}' holds no run (no config.json); `rope-lab train --workdir={tmp_path}` makes one")
    ):
        open_config(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"model": ',
            "config.json is damaged (Expecting value: line 1 column 11 (char 10)); choose another --workdir, or bring the file back",
        ),
        ('{"model": {"num_layers": "two"}}', "config.json does not fit this version of rope_lab: "),
    ],
)
def test_a_config_that_was_edited_by_hand(text: str, message: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}/{message}")):
        open_config(str(tmp_path))


def test_a_run_of_another_version_names_the_field_it_does_not_know(tmp_path: Path):
    folder = open_run(str(tmp_path / "run"), TINY)
    kept = json.loads((folder / "config.json").read_text())
    kept["model"]["head_dimension"] = 32
    (folder / "config.json").write_text(json.dumps(kept))
    with pytest.raises(ValueError, match=told("unknown config key model.head_dimension; did you mean 'head_dim'?")):
        resolve(open_config(str(folder)))
