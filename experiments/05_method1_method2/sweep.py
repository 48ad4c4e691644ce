"""Do two extensions without a new angle differ where one has B_m < 0? The runs; see README.md beside this file."""

from rope_lab.sweep import Run

SEEDS = (0, 1, 2)
START_BASE = 200.0
METHODS = {  # what a model of base 200 and context 128 is continued with at 512
    "method1": ("rotary.variant=method1", "rotary.base=1e5"),
    "method2": ("rotary.variant=method2", f"rotary.base={START_BASE}", "rotary.factor=4", "rotary.boundary_pair=9"),
    "pi": ("rotary.variant=pi", f"rotary.base={START_BASE}", "rotary.factor=4"),
    "unchanged": ("rotary.variant=rope", f"rotary.base={START_BASE}"),
}
DENSITIES = {"sparse": 24, "dense": 48}  # slots for records in a row
# Twice the usual records need more keys; with fewer values the vocabulary still holds them. Guessing scores 1/10.
ALPHABET = ("data.retrieval.num_keys=48", "data.retrieval.num_values=10")
PROBES = ("probes.perplexity.windows_per_document=4", "checkpoint.keep_last=1")


def sweep(scale: str) -> list[Run]:
    """Runs in the order in which they are worth having, seed by seed."""
    return [run for seed in SEEDS for run in (_start(seed), *_continued(seed))] if scale == "tiny" else _paper()


def _start(seed: int) -> Run:
    return Run(
        name=f"start_seed{seed}",
        config="configs/tiny.py",
        overrides=(
            f"rotary.base={START_BASE}",
            "train.curriculum=((32, 300), (64, 300), (128, 400))",
            f"train.seed={seed}",
            f"data.seed={seed}",
            *ALPHABET,
            *PROBES,
        ),
    )


def _continued(seed: int) -> list[Run]:
    return [
        Run(
            name=f"{method}_{density}_seed{seed}",
            config="configs/tiny.py",
            overrides=(
                *rotary,
                "train.curriculum=((512, 300),)",
                f"train.seed={seed}",
                f"data.seed={seed + 1000}",  # fresh text and records
                f"data.retrieval.max_records={records}",
                "probes.every_steps=50",
                *ALPHABET,
                *PROBES,
            ),
            start=f"start_seed{seed}",
        )
        for density, records in DENSITIES.items()
        for method, rotary in METHODS.items()
    ]


def _paper() -> list[Run]:
    """The 2B model of base 1e4 taken from 4,096 to 32,768 tokens, with the settings of Table 4 for the two methods."""
    methods = {
        "method1": ("rotary.variant=method1", "rotary.base=5e6"),
        "method2": ("rotary.variant=method2", "rotary.base=1e4", "rotary.factor=8", "rotary.boundary_pair=44"),
        "pi": ("rotary.variant=pi", "rotary.base=1e4", "rotary.factor=8"),
        "unchanged": ("rotary.variant=rope", "rotary.base=1e4"),
    }
    longer = (
        "train.curriculum=((32768, 500),)",
        "model.attention=blockwise",
        "train.microbatches=2",
        "data.seed=1000",
        "probes.every_steps=100",
    )
    start = Run(name="2b_start", config="configs/llama_2b.py", overrides=("rotary.base=1e4", "model.attention=blockwise"))
    return [
        start,
        *(
            Run(name=f"2b_{method}", config="configs/llama_2b.py", overrides=(*rotary, *longer), start="2b_start")
            for method, rotary in methods.items()
        ),
    ]
