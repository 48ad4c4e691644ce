"""The rotary tests notice a break: each mutation below, made in a copy of the package, must turn them red."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """`old` becomes `new`, once, in `rope_lab/rotary/<file>`."""

    file: str
    old: str
    new: str


MUTATIONS = {
    "rotates clockwise": Mutation(
        "rotate.py",
        "[first * cos - second * sin, first * sin + second * cos]",
        "[first * cos + second * sin, second * cos - first * sin]",
    ),
    "pairs adjacent dimensions": Mutation(
        "rotate.py",
        "first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)",
        "first, second = x.astype(jnp.float32)[..., ::2], x.astype(jnp.float32)[..., 1::2]",
    ),
    "rounds phases to bf16": Mutation(
        "rotate.py", "part.astype(np.float32) for part", "part.astype(jnp.bfloat16).astype(np.float32) for part"
    ),
    "multiplies position and theta in float32": Mutation(
        "rotate.py", "_FINE * spectrum.theta", "_FINE * spectrum.theta.astype(np.float32).astype(np.float64)"
    ),
    "turns in the activations' dtype": Mutation(
        "rotate.py",
        "first * cos - second * sin, first * sin + second * cos]",
        "(each.astype(x.dtype).astype(jnp.float32) for each in (first * cos, -second * sin))]",
    ),
    "drops the attention factor": Mutation("rotate.py", "m = spectrum.attention_factor", "m = 1.0"),
    "applies the attention factor twice": Mutation("rotate.py", "m = spectrum.attention_factor", "m = spectrum.attention_factor**2"),
    "takes another position's phase outside the table": Mutation("rotate.py", "wrap_negative_indices=False", "wrap_negative_indices=True"),
    "halves head_dim": Mutation("spectrum.py", "dtype=np.float64) / head_dim)", "dtype=np.float64) / (head_dim // 2))"),
    "scales twice": Mutation(
        "pi.py", "inverse_powers(self.base, head_dim) / self.factor", "inverse_powers(self.base, head_dim) / self.factor**2"
    ),
    "counts dimensions where pairs are meant": Mutation(
        "method2.py", "pairs < self.boundary_pair, joined", "pairs < self.boundary_pair // 2, joined"
    ),
    "raises base and factor together": Mutation(
        "ntk.py",
        "inverse_powers(base, head_dim) * factor ** (-2.0 * np.arange(head_dim // 2) / (head_dim - 2))",
        "inverse_powers((base * factor) ** (head_dim / (head_dim - 2)), head_dim)",
    ),
    "scales dynamically below the trained length too": Mutation(
        "dynamic_ntk.py", "max(length, self.trained_length) / self.trained_length", "length / self.trained_length"
    ),
    "ends the ramp of YaRN at half a head": Mutation("yarn.py", "min(high, head_dim - 1)", "min(high, head_dim // 2 - 1)"),
    "turns the front of a partial head in pairs half a head apart": Mutation(
        "partial.py", 'if self.layout == "proportional":', "if self.layout:"
    ),
    "lets xPos queries and keys fade alike": Mutation("xpos.py", "for growth in (fade, -fade)", "for growth in (fade, fade)"),
    "turns queries alone": Mutation("encoding.py", "return rotate(k, *phases)", "return k"),
}


def run_rotary_tests(folder: Path, mutation: Mutation | None, *options: str) -> subprocess.CompletedProcess[str]:
    """The fast rotary tests on a copy of the package in `folder`, up to the first failure."""
    (folder / "rope_lab").mkdir()
    shutil.copy(ROOT / "rope_lab" / "__init__.py", folder / "rope_lab")
    shutil.copytree(ROOT / "rope_lab" / "rotary", folder / "rope_lab" / "rotary", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests").mkdir()
    for name in ("__init__.py", "conftest.py", "typechecker.py", "reference.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    for name in ("golden", "rotary"):
        shutil.copytree(ROOT / "tests" / name, folder / "tests" / name, ignore=shutil.ignore_patterns("__pycache__", "test_mutations.py"))
    if mutation is not None:
        path = folder / "rope_lab" / "rotary" / mutation.file
        source = path.read_text()
        assert source.count(mutation.old) == 1, f"{mutation.file} no longer holds the text to change once: {mutation.old}"
        path.write_text(source.replace(mutation.old, mutation.new))
    quickest_first = [f"tests/rotary/test_{name}.py" for name in ("spectrum", "rotate", "encoding", "xpos")]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, *quickest_first]
    return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_an_untouched_copy_is_green(tmp_path: Path):
    # The copy lacks nothing, so red means what it says. One variant shows it; the others run on the original.
    result = run_rotary_tests(tmp_path, None, "-k", "method2 or test_rotate")
    assert result.returncode == pytest.ExitCode.OK, result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_red(name: str, tmp_path: Path):
    result = run_rotary_tests(tmp_path, MUTATIONS[name])
    # A failed test, not a file that no longer imports.
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    assert "1 failed" in result.stdout
