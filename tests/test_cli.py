"""The command line as a user meets it: what comes back on bad input, and what the exit code says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rope_lab.assembly
import rope_lab.commands.train
from rope_lab.__main__ import COMMANDS, main
from rope_lab.assembly import checkpoint_steps
from rope_lab.data.store import write_store
from rope_lab.data.tokenizer import load_tokenizer
from rope_lab.metrics import read_metrics
from rope_lab.probes.suite import PROBES, RETRIEVAL
from rope_lab.rotary import VARIANTS

REPO = Path(__file__).parents[1]

SMALL = {
    "model.num_layers": "1",
    "model.hidden_size": "16",
    "model.mlp_size": "16",
    "model.head_dim": "8",
    "model.scan_unroll": "1",
    "train.curriculum": "((64, 2),)",
    "train.tokens_per_step": "512",
    "optimizer.warmup_steps": "1",
    "probes.perplexity.windows_per_document": "1",
    "probes.kv_by_distance.rows": "8",
}

# B_m = cos(m) + cos(m / 10) + cos(m / 100) + cos(m / 1000), the spectrum of head_dim 8 and base 1e4
VERDICT = "theory: holds: L_theta = 90 covers 64 tokens; least B_m 0.05584 at distance 28\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of random bytes: `train` and `eval`, one source each; and `words`, in another tokenizer."""
    folder = tmp_path_factory.mktemp("data")
    numbers = np.random.default_rng(0)
    for split, name in (("train", "bytes"), ("eval", "bytes"), ("words", "bpe_8k")):
        documents = [numbers.integers(0, 256, 1000) for _ in range(4)]
        write_store(folder / split / "book", documents, source="book", tokenizer=load_tokenizer(name))
    return folder


def small(data: Path, **overrides: str) -> list[str]:
    """Flags of a run of seconds; `a__b` overrides a field."""
    fields = SMALL | {"data.path": f"{data}/train", "probes.path": f"{data}/eval"}
    fields |= {name.replace("__", "."): value for name, value in overrides.items()}
    return ["--config=configs/tiny.py", *(f"--config.{name}={value}" for name, value in fields.items())]


def in_a_process(folder: Path, *arguments: str, code: str | None = None) -> subprocess.CompletedProcess:
    """`python -m rope_lab ARGUMENTS` in `folder`, on one device."""
    environment = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "PYTHONPATH")}
    environment |= {"PYTHONPATH": str(REPO), "XLA_FLAGS": "--xla_backend_optimization_level=0"}  # as in conftest: compile quickly
    command = [sys.executable, *(("-m", "rope_lab") if code is None else ("-c", code)), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def everything_in(folder: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime for path in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, trained by the command itself from a folder that is not the repository's, with a relative workdir."""
    folder = tmp_path_factory.mktemp("elsewhere")
    done = in_a_process(folder, "train", "--workdir=runs/first", *small(data))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{VERDICT}done: runs/first\n"
    return folder / "runs" / "first"


# --- in processes of their own -------------------------------------------------------------------------------------------------------


def test_a_finished_run_exits_with_0_and_holds_what_it_promises(run: Path):
    assert [record["step"] for record in read_metrics(run) if "train/loss_nats" in record] == [1, 2]
    assert checkpoint_steps(run) == [2]
    assert {path.name for path in run.iterdir()} == {
        *("config.json", "spectrum.json", "versions.json", "metrics.jsonl", "tensorboard", "checkpoints", "probes")
    }
    assert sorted(str(path.relative_to(run)) for path in run.rglob("*.npz")) == [
        "probes/kv_by_distance/step_00000002.npz",
        "probes/perplexity/step_00000002.npz",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], f"rope-lab: unknown command 'trian'; one of {', '.join(COMMANDS)}"),
        (
            ["train", "--config=configs/tiny.py", "--workdir=new", "--config.rotary.variant=ropee"],
            f"rope-lab train: rotary.variant='ropee' is unknown (did you mean 'rope'?); one of {', '.join(VARIANTS)}",
        ),
        (
            ["train", "--config=broken.py", "--workdir=new"],
            "rope-lab train: config file '{folder}/broken.py', line 2: NameError: name 'bass' is not defined",
        ),
    ],
)
def test_a_process_given_bad_input_says_one_line_and_exits_with_2(tmp_path: Path, arguments: list[str], message: str):
    (tmp_path / "broken.py").write_text("def get_config():\n    return bass\n")
    before = everything_in(tmp_path)
    done = in_a_process(tmp_path, *arguments)
    assert (done.stdout, done.stderr) == ("", message.format(folder=tmp_path) + "\n")
    assert done.returncode == 2
    assert {key for key in everything_in(tmp_path) if "__pycache__" not in key} == set(before)


def test_a_value_error_of_our_own_is_a_traceback_and_exits_with_1(tmp_path: Path, data: Path):
    broken = """
import sys
import rope_lab.commands.train as command
from rope_lab.__main__ import main
def train(*args, **kwargs):
    raise ValueError("shapes do not match")
command.train = train
sys.exit(main(sys.argv[1:]))
"""
    done = in_a_process(tmp_path, "train", "--workdir=new", *small(data), code=broken)
    assert done.returncode == 1
    assert "ValueError: shapes do not match" in done.stderr
    assert done.stderr.rstrip().splitlines()[-1] == f"RuntimeError: training in {tmp_path}/new failed"


# --- bad input, exactly ----------------------------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture, folder: Path, arguments: list[str], message: str) -> None:
    """The command exits with 2 and says just this; `folder` stays as it was."""
    before = everything_in(folder)
    code = main(arguments)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", message + "\n")
    assert code == 2
    assert everything_in(folder) == before


UNDERSTOOD = "overrides look like --config.rotary.base=1e6"
SEED = "must lie in 0 .. 2**32 - 1"

OVERRIDES = [
    # names
    ("rotary.bse=3", "unknown config key rotary.bse; did you mean 'rotary.base'?"),
    ("model.hidden=3", "unknown config key model.hidden; did you mean 'model.hidden_size'?"),
    (
        "modl.x=3",
        "unknown config key modl.x; one of checkpoint, data, init, mesh, model, optimizer, probes, rotary, theory, train",
    ),
    (
        "mesh=3",
        "unknown config key mesh; did you mean 'mesh.fsdp'?",
    ),
    ("rotary.base", f"'--config.rotary.base' is not understood; {UNDERSTOOD}"),
    # types
    ("rotary.base=abc", "rotary.base=abc must be of type float"),
    ("rotary.base=(1,)", "rotary.base=(1,) must be of type float"),
    ("model.num_layers=2.5", "model.num_layers=2.5 must be of type int"),
    ("model.num_layers=(1, 2)", "model.num_layers=(1, 2) must be of type int"),
    ("model.num_layers=True", "model.num_layers=True must be of type int"),
    ("model.num_layers=", "model.num_layers= must be of type int"),
    ("model.tie_embeddings=maybe", "model.tie_embeddings=maybe must be true or false"),
    ("model.tie_embeddings=1", "model.tie_embeddings=1 must be true or false"),
    ("train.curriculum=((64, 2)", "train.curriculum=((64, 2) must be of type tuple"),
    ("train.curriculum=5", "train.curriculum=5 must be a tuple, such as '(1, 2)', and '(1,)' where it has one entry"),
    ("train.curriculum=((64, 2))", "train.curriculum[0]=64 must be of type tuple[int, int]"),
    ("train.curriculum=((64, 2.5),)", "train.curriculum[0][1]=2.5 must be of type int"),
    ("train.curriculum=((64,),)", "train.curriculum[0]=(64,) must have 2 entries: int, int"),
    ("data.weights=('book', 1.0)", "data.weights[0]='book' must be of type tuple[str, float]"),
    (
        "model.num_heads=None",
        "model.num_heads is not set; it needs a value of type int, e.g. --config.model.num_heads=...",
    ),
    # position encodings
    ("rotary.variant=pi", "rotary.factor is not set; variant 'pi' needs it: --config.rotary.factor=..."),
    (
        "rotary.factor=2",
        "rotary.factor=2.0 means nothing to variant 'rope'; unset it (--config.rotary.factor=None), or choose variant pi or ntk or "
        "dynamic_ntk or ntk_by_parts or yarn or llama3 or longrope or method2",
    ),
    (
        "rotary.variant=none",
        "rotary.base=10000.0 means nothing to variant 'none'; unset it (--config.rotary.base=None), "
        f"or choose variant {' or '.join(name for name in VARIANTS if name not in ('custom', 'none'))}",
    ),
    ("rotary.base=1", "base=1.0 must be a finite number above 1 (10000 in the original RoPE)"),
    ("rotary.base=nan", "base=nan must be a finite number above 1 (10000 in the original RoPE)"),
    # model
    ("model.head_dim=7", "model.head_dim=7 must be even: rotary embeddings turn dimensions in pairs"),
    ("model.num_layers=0", "model.num_layers=0 must be at least 1"),
    ("model.num_kv_heads=3", "model.num_heads=2 must be a multiple of model.num_kv_heads=3"),
    ("model.compute_dtype=float16", "model.compute_dtype='float16' must be 'bfloat16' or 'float32'"),
    ("model.attention=flash", "model.attention='flash' must be one of reference, blockwise"),
    ("model.remat=some", "model.remat='some' must be one of none, dots, full"),
    (
        "model.vocab_size=300",
        "model.vocab_size=300 is too small: the data uses 817 ids (tokenizer 'bytes' and the retrieval surface); "
        "set --config.model.vocab_size=817 or more",
    ),
    # training
    ("train.curriculum=()", "train.curriculum=() must name at least one (context length, steps) stage"),
    ("train.curriculum=((64, 0),)", "train.curriculum stage (64, 0) must be (context length of at least 2, at least 1 step)"),
    ("train.tokens_per_step=500", "train.tokens_per_step=500 must be a multiple of the context length 64"),
    ("train.tokens_per_step=0", "train.tokens_per_step=0 must be at least 1"),
    ("train.microbatches=0", "train.microbatches=0 must be at least 1"),
    ("train.loss_chunk_tokens=0", "train.loss_chunk_tokens=0 must be at least 1"),
    ("train.microbatches=3", "train.microbatches=3 must divide the 8 rows of a step at context length 64"),
    ("train.seed=-1", f"train.seed=-1 {SEED}"),
    ("data.seed=4294967296", f"data.seed=4294967296 {SEED}"),
    ("probes.kv_by_distance.seed=-1", f"probes.kv_by_distance.seed=-1 {SEED}"),
    ("optimizer.schedule=linear", "optimizer.schedule='linear' must be one of cosine, constant, wsd"),
    (
        "optimizer.schedule=wsd",
        "optimizer.schedule='wsd' with optimizer.decay_steps=None: 'wsd' needs decay_steps, the others none",
    ),
    (
        "optimizer.decay_steps=5",
        "optimizer.schedule='cosine' with optimizer.decay_steps=5: 'wsd' needs decay_steps, the others none",
    ),
    ("optimizer.peak_learning_rate=0", "optimizer.peak_learning_rate=0.0 must be above 0"),
    ("optimizer.warmup_steps=3", "optimizer: warm-up and decay take 3 steps, more than the run's 2 (train.curriculum)"),
    # devices
    ("mesh.fsdp=3", "mesh.data=-1 x mesh.fsdp=3 x mesh.tensor=1 must equal the 8 devices here"),
    ("mesh.data=0", "mesh.data=0 must be at least 1 (mesh.data may be -1: what is left)"),
    (
        "train.tokens_per_step=256",
        "train.tokens_per_step=256 gives 4 rows at context length 64, which mesh.data x mesh.fsdp x train.microbatches = 8 does not divide",
    ),
    # data
    ("data.path=nowhere", "folder='nowhere' holds no token store; prepare one: rope-lab prepare FILES --out nowhere"),
    ("data.weights=(('bok', 1),)", "data.weights names bok, but the data folder has book"),
    ("data.weights=(('book', -1),)", "data.weights=(('book', -1.0),) must be non-negative shares with a positive sum"),
    (
        "data.retrieval.max_records=40",
        "data.retrieval.max_records=40 must not exceed num_keys=32: a key is used once a row",
    ),
    # checkpoints and probes
    ("checkpoint.every_steps=0", "checkpoint.every_steps=0 must be at least 1"),
    ("checkpoint.keep_last=0", "checkpoint.keep_last=0 must be at least 1"),
    ("checkpoint.keep_every_steps=7", "checkpoint.keep_every_steps=7 must be a multiple of every_steps=200"),
    ("checkpoint.keep_best=-1", "checkpoint.keep_best=-1 must be at least 0"),
    (
        "checkpoint.keep_best=2",  # configs/tiny.py saves every 200 steps and probes every 250
        "checkpoint.keep_best=2 needs checkpoints at steps that are probed: checkpoint.every_steps=200 (102,400 tokens) and "
        "probes.every_steps=250 (128,000 tokens) must be multiples, one of the other",
    ),
    ("probes.every_steps=0", "probes.every_steps=0 must be at least 1"),
    ("probes.every_tokens=0", "probes.every_tokens=0 must be at least 1"),
    (
        "probes.every_tokens=511",
        "probes.every_tokens=511 must be at least train.tokens_per_step=512: probes run between steps",
    ),
    ("probes.length=4", "probes.length=4 must be at least 16 tokens"),
    (
        "probes.length=5000",
        "no held-out document has 5001 tokens; set probes.length lower, or probes.path to longer documents",
    ),
    ("probes.path=nowhere", "folder='nowhere' holds no token store; prepare one: rope-lab prepare FILES --out nowhere"),
    ("probes.perplexity.windows_per_document=0", "probes.perplexity.windows_per_document=0 must be at least 1"),
    ("probes.kv_by_distance.rows=0", "probes.kv_by_distance.rows=0 must be at least 1"),
    ("probes.kv_by_distance.threshold=2", "probes.kv_by_distance.threshold=2.0 must lie in (0, 1]: it is an accuracy"),
    ("probes.kv_by_distance.edges=(32, 16)", "probes.kv_by_distance.edges=(32, 16) must increase"),
    ("probes.kv_by_distance.edges=(16, 64, 99)", "probes.kv_by_distance.edges=(16, 64, 99) must lie within the distances 1 .. 63"),
    # forks
    ("init.step=3", "init.step=3 needs init.from, the run folder it is a step of"),
    (
        "init.from=nowhere",
        "workdir 'nowhere' holds no run (no config.json); `rope-lab train --workdir=nowhere` makes one",
    ),
]


@pytest.mark.parametrize(("override", "message"), OVERRIDES, ids=[override for override, _ in OVERRIDES])
def test_an_override_that_cannot_be(
    override: str, message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--workdir=new", *small(data), f"--config.{override}"]
    refused(capsys, tmp_path, arguments, f"rope-lab train: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trian"], f"rope-lab: unknown command '--trian'; one of {', '.join(COMMANDS)}"),
        (["train"], "rope-lab train: the following arguments are required: --config, --workdir; see rope-lab train --help"),
        (["train", "--config=tiny.py"], "rope-lab train: the following arguments are required: --workdir; see rope-lab train --help"),
        (
            ["train", "--config=tiny.py", "--workdir"],
            "rope-lab train: argument --workdir: expected one argument; see rope-lab train --help",
        ),
        (["train", "--config=tiny.py", "--workdir=new", "junk"], f"rope-lab train: 'junk' is not understood; {UNDERSTOOD}"),
        (["train", "--config=tiny.py", "--workdir=new", "--foo=1"], f"rope-lab train: '--foo=1' is not understood; {UNDERSTOOD}"),
        (
            ["train", "--config=tiny.py", "--workdir=new", "--confg.rotary.base=1"],
            f"rope-lab train: '--confg.rotary.base=1' is not understood; {UNDERSTOOD}",
        ),
        (
            ["train", "--config=tiny.py", "--workdir=new", "--distributed=here"],
            "rope-lab train: --distributed='here' must be 'auto' or HOST:PORT,NUMBER_OF_PROCESSES,INDEX_OF_THIS_ONE",
        ),
        (
            ["train", "--config=missing.py", "--workdir=new"],
            "rope-lab train: config file 'missing.py' does not exist; rope_lab comes with configs/llama_2b.py, configs/llama_350m.py, "
            "configs/llama_60m.py, configs/llama_7b.py, configs/tiny.py",
        ),
        (["probe"], "rope-lab probe: the following arguments are required: --workdir; see rope-lab probe --help"),
        (
            ["probe", "--workdir=new", "--step=last"],
            "rope-lab probe: argument --step: invalid int value: 'last'; see rope-lab probe --help",
        ),
        (
            ["probe", "--workdir=new", "--step=1", "--steps=1:2"],
            "rope-lab probe: argument --steps: not allowed with argument --step; see rope-lab probe --help",
        ),
        (
            ["probe", "--workdir=new"],
            "rope-lab probe: workdir 'new' holds no run (no config.json); `rope-lab train --workdir=new` makes one",
        ),
        (["prepare", "a.jsonl"], "rope-lab prepare: the following arguments are required: --out; see rope-lab prepare --help"),
        (["prepare", "--out=new", "--foo"], "rope-lab prepare: '--foo' is not understood; see rope-lab prepare --help"),
        (
            ["prepare", "--out=new", "--workers=two"],
            "rope-lab prepare: argument --workers: invalid int value: 'two'; see rope-lab prepare --help",
        ),
        (
            ["prepare", "--out=new", "--source=book"],
            "rope-lab prepare: source='book' means nothing for the shipped sample: give INPUTS, or leave it out",
        ),
        (
            ["prepare", "missing.jsonl", "--out=new"],
            "rope-lab prepare: input='missing.jsonl' names no file: "
            "give files, globs or folders of .jsonl, .jsonl.gz, .jsonl.zst, .json.gz",
        ),
    ],
)
def test_arguments_that_no_command_knows(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    refused(capsys, tmp_path, arguments, message)


@pytest.mark.parametrize(
    ("workdir", "reason"),
    [
        ("notes", "is not empty and holds no run (no config.json)"),
        ("file", "cannot be made (File exists)"),
        ("file/run", "cannot be made (Not a directory)"),
    ],
)
def test_a_workdir_that_cannot_be_a_run_folder(
    workdir: str, reason: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "today.txt").write_text("mine")
    refused(
        capsys,
        tmp_path,
        ["train", f"--workdir={workdir}", *small(data)],
        f"rope-lab train: workdir {workdir!r} {reason}; choose another folder",
    )


def test_a_workdir_of_another_config_names_what_differs(run: Path, data: Path, capsys: pytest.CaptureFixture):
    flags = small(data, rotary__base="100", optimizer__b1="0.8", checkpoint__keep_every_steps="400")
    refused(
        capsys,
        run.parent,
        ["train", f"--workdir={run}", *flags],
        f"rope-lab train: workdir {str(run)!r} holds a run with another config: checkpoint.keep_every_steps is None there, 400 here; "
        "optimizer.b1 is 0.9 there, 0.8 here; rotary.base is 10000.0 there, 100.0 here; choose another --workdir, or the same config",
    )


def test_data_and_probes_in_different_tokenizers(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    refused(
        capsys,
        tmp_path,
        ["train", f"--workdir={tmp_path}/new", *small(data, probes__path=f"{data}/words")],
        f"rope-lab train: probes.path='{data}/words' was prepared with tokenizer 'bpe_8k', the training data with 'bytes'",
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model.num_layers": "2", "model.mlp_size": "32"},
            "holds another model: model.num_layers is 1 there, 2 here; model.mlp_size is 16 there, 32 here; set them alike",
        ),
        ({"init.step": "1"}, "with init.step=1: choose one of the steps it has: [2]"),
    ],
)
def test_a_fork_of_what_is_not_there(
    overrides: dict[str, str], message: str, run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    flags = [f"--config.{name}={value}" for name, value in overrides.items()]
    refused(
        capsys,
        tmp_path,
        ["train", f"--workdir={tmp_path}/new", *small(data), f"--config.init.from={run}", *flags],
        f"rope-lab train: init.from={str(run)!r} {message}",
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--step=1"], "{run} has no checkpoint of step 1; steps it has: [2]"),
        (["--steps=3:9"], "--steps=3:9 has no checkpoint of {run} in it; steps it has: [2]"),
        (["--steps=2:1"], "--steps=2:1 has no checkpoint of {run} in it; steps it has: [2]"),
        (
            ["--steps=2"],
            "--steps=2 must be FIRST:LAST, two steps of which either may be left out, such as 1000:5000 or 1000:",
        ),
        (["--probes=perplexity,nedle"], "--probes=perplexity,nedle names the unknown probe 'nedle'; did you mean 'needle'?"),
        (["--probes=x"], f"--probes=x names the unknown probe 'x'; one of {', '.join(PROBES)}"),
        (["--probes="], f"--probes= names the unknown probe ''; one of {', '.join(PROBES)}"),
        (["junk"], "'junk' is not understood; overrides look like --config.probes.FIELD=VALUE"),
        (["--config.probes.needle.sample=2"], "unknown config key probes.needle.sample; did you mean 'probes.needle.samples'?"),
        (["--config.probes.needle.samples=0"], "probes.needle.samples=0 must be at least 1"),
        (
            ["--config.rotary.base=2"],
            "'--config.rotary.base=2' is not for here: of a finished run only --config.probes.* may be set, the rest is as it was",
        ),
        (
            ["--config.probes.names=()"],
            f"the run's config names no probe (probes.names=()); choose some with --probes, of {', '.join(PROBES)}",
        ),
        (
            ["--config.probes.length=5000"],
            "no held-out document has 5001 tokens; set probes.length lower, or probes.path to longer documents",
        ),
    ],
)
def test_a_probing_that_cannot_be(flags: list[str], message: str, run: Path, capsys: pytest.CaptureFixture):
    refused(capsys, run, ["probe", f"--workdir={run}", *flags], f"rope-lab probe: {message.format(run=run)}")


UNMEASURED = "with checkpoint.keep_best is measured by no probe of this run"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"checkpoint__best_metric": "probe/kv_by_distance/efective_length_tokens"},
            f"checkpoint.best_metric='probe/kv_by_distance/efective_length_tokens' {UNMEASURED}; "
            "did you mean 'probe/kv_by_distance/effective_length_tokens'?",
        ),
        (
            {"probes__names": "('perplexity',)"},
            f"checkpoint.best_metric='probe/kv_by_distance/effective_length_tokens' {UNMEASURED}; "
            f"probes.names must have one of {', '.join(RETRIEVAL)}",
        ),
        (
            {"checkpoint__every_steps": "250", "probes__every_tokens": "100_000"},
            "checkpoint.keep_best=1 needs checkpoints at steps that are probed: checkpoint.every_steps=250 (128,000 tokens) and "
            "probes.every_tokens=100000 (100,000 tokens) must be multiples, one of the other",
        ),
    ],
)
def test_a_best_that_is_never_known(overrides: dict[str, str], message: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    flags = small(data, checkpoint__keep_best="1", **overrides)
    refused(capsys, tmp_path, ["train", f"--workdir={tmp_path}/new", *flags], f"rope-lab train: {message}")


def test_a_run_below_the_bound_is_told_so_and_refused_where_the_config_says(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    below = "below the bound: L_theta = 8, 64 tokens are asked for; B_m < 0 at 22 distances, least -2.114 at 28"
    enough = "the smallest valid base of plain RoPE at head_dim 8 and 64 tokens is about 3,888; from 60,571 up every base is valid"
    arguments = ["train", f"--workdir={tmp_path}/new", *small(data, rotary__base="100")]
    message = f"rope-lab train: theory.require_bound=True, but RoPE(base=100.0) is {below}; {enough}"
    refused(capsys, tmp_path, [*arguments, "--config.theory.require_bound=true"], message)
    none = ["--config.rotary.variant=none", "--config.rotary.base=None"]
    nothing = "NoPE() is not described by frequencies alone: the theory does not apply"
    message = f"rope-lab train: theory.require_bound=True, but {nothing}; set --config.theory.require_bound=False"
    refused(capsys, tmp_path, [*arguments, *none, "--config.theory.require_bound=true"], message)

    monkeypatch.setattr(rope_lab.commands.train, "train", lambda *_, **__: None)
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"theory: {below}\ntheory: {enough}\ndone: {tmp_path}/new\n"
    arguments[1] = f"--workdir={tmp_path}/nope"
    assert main([*arguments, *none]) == 0
    assert capsys.readouterr().out == f"theory: {nothing}\ndone: {tmp_path}/nope\n"


# --- exit codes ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_names_every_command_and_exits_with_0(arguments: list[str], capsys: pytest.CaptureFixture):
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert tuple(line.split()[0] for line in told.out.splitlines()[2:]) == COMMANDS
    commands = {path.stem for path in (REPO / "rope_lab" / "commands").glob("*.py") if "def add_arguments" in path.read_text()}
    assert set(COMMANDS) == commands


def copied(run: Path, folder: Path) -> Path:
    """The run with two checkpoints more, and nothing probed."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("probes"))
    for step in ("1", "4"):
        shutil.copytree(folder / "checkpoints" / "2", folder / "checkpoints" / step)
    return folder


def table(told: str, title: str) -> list[list[str]]:
    """The rows of the printed table with this title, cell by cell."""
    lines = told.partition(title)[2].splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which no table is cut."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.usefixtures("wide")
def test_probing_a_checkpoint_exits_with_0_and_prints_every_metric(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    trained = {name: value for record in read_metrics(run) for name, value in record.items() if name.startswith("probe/")}
    assert main(["probe", f"--workdir={run}"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(
        "perplexity at step 2: already there with these settings\nkv_by_distance at step 2: already there with these settings\n"
    )
    folder = copied(run, tmp_path / "run")
    assert main(["probe", f"--workdir={folder}", "--step=2"]) == 0
    anew = capsys.readouterr().out
    assert "already there" not in anew
    assert table(anew, "step 2") == table(told, "step 2")  # the checkpoint's parameters, not fresh ones
    shown = {f"probe/{probe}/{metric}": value for probe, metric, value in table(told, "step 2")[: len(trained) - 2]}
    assert shown == {name: f"{value:,.4g}" for name, value in trained.items() if not name.endswith("/seconds")}


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts stand-ins in place of all probes, and returns the list of those that ran. Each finds one more token every time."""
    ran: list[str] = []

    def stand_in(name: str):
        def probe(params: dict):
            assert params["layers"]
            ran.append(name)
            if name == "passkey":
                raise ValueError("shapes do not match")
            found = {"effective_length_tokens": len(ran), "longest_passing_length_tokens": 64}
            return found | {"effective_length_low_tokens": 0, "effective_length_high_tokens": 32}, {"accuracy": np.ones(2)}

        return probe

    monkeypatch.setattr(rope_lab.assembly, "make_probes", lambda bench, names: {name: stand_in(name) for name in names})
    return ran


BOUNDS = ["90", "1,571"]  # L_theta as in VERDICT; the slowest pair turns by 1 / 1000 a token: pi / 2 * 1000


@pytest.mark.usefixtures("wide")
def test_what_is_there_with_the_same_settings_is_not_probed_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    folder, ran = copied(run, tmp_path / "run"), counting(monkeypatch)
    probe = ["probe", f"--workdir={folder}"]
    assert main([*probe, "--probes=needle,kv_by_distance", "--steps=1:2"]) == 0
    assert ran == ["needle", "kv_by_distance"] * 2
    rows = [
        ["kv_by_distance", "1", "2", "0 .. 32", "64", *BOUNDS],
        ["kv_by_distance", "2", "4", "0 .. 32", "64", *BOUNDS],
        ["needle", "1", "1", "0 .. 32", "64", *BOUNDS],
        ["needle", "2", "3", "0 .. 32", "64", *BOUNDS],
    ]
    assert table(capsys.readouterr().out, "Effective context length") == rows
    assert main([*probe, "--probes=needle", "--steps=:"]) == 0
    assert ran[4:] == ["needle"]  # at step 4 alone
    told = capsys.readouterr().out
    assert told.startswith("needle at step 1: already there with these settings\nneedle at step 2: already there with these settings\n")
    assert table(told, "Effective context length") == [*rows[2:], ["needle", "4", "5", "0 .. 32", "64", *BOUNDS]]
    assert main([*probe, "--probes=needle", "--step=1", "--config.probes.needle.samples=2"]) == 0
    assert main([*probe, "--probes=needle", "--step=1", "--config.probes.length=32"]) == 0
    assert main([*probe, "--probes=needle", "--step=1", "--config.probes.length=32"]) == 0
    assert main([*probe, "--probes=needle", "--step=1", "--config.probes.length=32", "--config.probes.kv_by_distance.rows=4"]) == 0
    assert len(ran) == 7  # anew for each change of its own settings; another probe's are none of its business


def test_one_probe_that_fails_does_not_stop_the_others_and_exits_with_1(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    folder, ran = copied(run, tmp_path / "run"), counting(monkeypatch)
    assert main(["probe", f"--workdir={folder}", "--probes=passkey,needle", "--steps=1:2"]) == 1
    assert ran == ["passkey", "needle"] * 2
    told = capsys.readouterr()
    assert "Traceback (most recent call last)" in told.err
    for step in (1, 2):
        assert f"rope-lab probe: passkey failed at step {step}: ValueError: shapes do not match" in told.err
    assert sorted(str(path.relative_to(folder)) for path in folder.glob("probes/**/*.json")) == [
        "probes/needle/step_00000001.json",
        "probes/needle/step_00000002.json",
    ]
    assert "needle" in told.out


def test_a_loss_that_is_no_number_exits_with_1_and_saves_nothing_more(data: Path, tmp_path: Path):
    overrides = {"optimizer__peak_learning_rate": "1e30", "optimizer__warmup_steps": "0", "checkpoint__every_steps": "1"}
    done = in_a_process(tmp_path, "train", "--workdir=run", *small(data, train__curriculum="((64, 8),)", **overrides))
    assert done.returncode == 1
    step = 1 + max(record["step"] for record in read_metrics(tmp_path / "run"))
    assert 1 < step < 8
    assert done.stderr.splitlines()[-1] == (
        f"rope-lab train: train/gradient_norm=nan at step {step}: stopped, nothing saved since the last checkpoint; "
        "lower optimizer.peak_learning_rate or look at the batch"
    )
    assert "Traceback" not in done.stderr  # the save that was under way is finished, not torn down
    assert checkpoint_steps(tmp_path / "run")[-1] == step - 1


@pytest.mark.parametrize("fault", [ValueError("shapes do not match"), FileNotFoundError("checkpoint part"), KeyError("name")])
def test_a_fault_inside_training_is_never_told_as_bad_input(fault: Exception, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments, **settings):
        raise fault

    monkeypatch.setattr(rope_lab.commands.train, "train", broken)
    with pytest.raises((RuntimeError, KeyError)) as told:
        main(["train", f"--workdir={tmp_path}/new", *small(data)])
    assert fault in (told.value, told.value.__cause__)


def test_a_fork_starts_from_the_other_runs_parameters_and_outlives_it(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "config.json").write_bytes((run / "config.json").read_bytes())
    arguments = ["train", f"--workdir={tmp_path}/new", *small(data), f"--config.init.from={origin}"]
    refused(
        capsys,
        tmp_path,
        arguments,
        f"rope-lab train: init.from={str(origin)!r} with init.step=None: choose one of the steps it has: none yet",
    )
    (origin / "checkpoints").symlink_to(run / "checkpoints")
    monkeypatch.setattr(rope_lab.commands.train, "train", lambda *_, first_state, **__: first_state())
    assert main(arguments) == 0
    assert json.loads((tmp_path / "new" / "config.json").read_text())["init"]["from"] == str(origin)
