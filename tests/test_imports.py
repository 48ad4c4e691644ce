"""Imports between the parts of the package point one way; the table is here, and every file's syntax tree is held against it."""

import ast
from pathlib import Path

import pytest

import rope_lab

PACKAGE = Path(rope_lab.__file__).parent
EVERYTHING = None

# Part -> what it may import from rope_lab besides itself.
MAY_IMPORT: dict[str, set[str] | None] = {
    "rotary": set(),
    "theory": {"rotary"},
    "model": {"rotary"},
    "data": set(),
    "metrics": set(),
    "train": {"model", "data", "metrics"},
    "probes": {"theory", "rotary", "model", "data", "train.loss"},
    "interop": {"rotary", "model"},
    "plan": {"model", "train"},
    "plotting": {"theory", "rotary"},
    "config": {"rotary", "model", "data", "train", "probes"},
    "runs": {"config", "metrics", "rotary"},
    "assembly": {"runs", "config", "rotary", "model", "data", "train", "probes"},
    "tables": {"runs"},
    "sweep": {"runs", "assembly", "config", "data"},
    "commands": EVERYTHING,
    "__main__": EVERYTHING,
}
OUTSIDE = {"configs", "experiments", "notebooks", "tests"}


def imported_names(tree: ast.Module, package: str) -> set[str]:
    """Dotted names a module imports; `from a import b` counts as `a.b`, which may be a module or something in one."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                names |= {".".join([*parents, *([node.module] if node.module else []), alias.name]) for alias in node.names}
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"), args=[ast.Constant(str(name)), *_]
            ):
                names.add(name)
    return names


def violations(source: str, part: str, package: str = "rope_lab") -> list[str]:
    """What a file of `part` imports against the table."""
    assert part in MAY_IMPORT, f"rope_lab/{part} is new: give it a line in the import table of tests/test_imports.py and CONTRIBUTING.md"
    allowed = MAY_IMPORT[part]

    def permitted(inside: str) -> bool:
        return allowed is EVERYTHING or any(f"{inside}.".startswith(f"{a}.") for a in {*allowed, part, "__version__"})

    found = []
    for name in sorted(imported_names(ast.parse(source), package)):
        root, _, inside = name.partition(".")
        if root in OUTSIDE:
            found.append(f"{part} imports {name}: the package never imports {root}")
        elif root == "rope_lab" and inside and not permitted(inside):
            found.append(f"{part} imports {name}: it may import {sorted(allowed or ()) or 'nothing'} and itself")
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_table(path: Path):
    relative = path.relative_to(PACKAGE)
    if relative == Path("__init__.py"):
        part_violations = sorted(name for name in imported_names(ast.parse(path.read_text()), "rope_lab") if name.startswith("rope_lab"))
    else:
        package = ".".join(("rope_lab", *relative.parts[:-1]))
        part_violations = violations(path.read_text(), relative.parts[0].removesuffix(".py"), package)
    assert part_violations == []


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("rotary", "import rope_lab.model"),
        ("rotary", "from rope_lab import theory"),
        ("rotary", "from ..model import llama"),
        ("data", "from rope_lab.rotary import RoPE"),
        ("train", "from rope_lab.probes.kv_by_distance import build"),
        ("train", "def late():\n    from rope_lab import probes"),
        ("train", "import importlib\nimportlib.import_module('rope_lab.probes')"),
        ("probes", "from rope_lab.train.step import train_step"),
        ("probes", "from rope_lab.train import step"),
        ("model", "from rope_lab.modeling import x"),
        ("__main__", "from configs import tiny"),
        ("commands", "import experiments.demo"),
    ],
)
def test_the_checker_flags_what_breaks_the_table(part: str, source: str):
    assert len(violations(source, part, f"rope_lab.{part}")) == 1


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("rotary", "import numpy\nfrom rope_lab.rotary.spectrum import Spectrum\nfrom .spectrum import Spectrum"),
        ("probes", "from rope_lab.train.loss import nats\nfrom rope_lab.train import loss"),
        ("__main__", "from rope_lab import train, probes"),
    ],
)
def test_the_checker_passes_what_keeps_it(part: str, source: str):
    assert violations(source, part, f"rope_lab.{part}") == []
