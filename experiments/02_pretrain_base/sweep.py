"""Does the rotary base decide how far back a pretrained model looks, whatever its loss says? The runs; see README.md beside this file."""

from rope_lab.sweep import Run

SEEDS = (0, 1, 2)
SCRATCH_BASES = ("1e2", "1e4", "1e6")
CONTINUED_BASES = ("25", "1e2", "3e2", "1e3", "1e4", "1e6")
CURRICULA = {  # by layers: ((context length, steps), ...)
    2: "((32, 300), (64, 300), (256, 600))",
    4: "((32, 500), (64, 300), (256, 400))",
    8: "((32, 400), (64, 160), (256, 260))",
}
PROBES = ("probes.every_steps=100", "probes.perplexity.windows_per_document=4", "checkpoint.keep_last=1")


def sweep(scale: str) -> list[Run]:
    """Runs in the order in which they are worth having: two layers and what continues them first, seed by seed."""
    return _tiny() if scale == "tiny" else _paper()


def _tiny() -> list[Run]:
    shallow = [run for seed in SEEDS for run in (*_scratch(2, seed), *_continued(seed))]
    deep = [run for seed in SEEDS for layers in (4, 8) for run in _scratch(layers, seed)]
    return shallow + deep


def _scratch(layers: int, seed: int) -> list[Run]:
    model = (f"model.num_layers={layers}", f"model.scan_unroll={layers}", f"train.curriculum={CURRICULA[layers]}")
    return [
        Run(
            name=f"layers{layers}_base{base}_seed{seed}",
            config="configs/tiny.py",
            overrides=(f"rotary.base={base}", *model, f"train.seed={seed}", f"data.seed={seed}", *PROBES),
        )
        for base in SCRATCH_BASES
    ]


def _continued(seed: int) -> list[Run]:
    """From one base 1e4 model to every base at twice its context; and from the base 1e2 model to 1e6, beside its control."""

    def run(start: str, base: str, steps: int) -> Run:
        return Run(
            name=f"from{start}_base{base}_seed{seed}",
            config="configs/tiny.py",
            overrides=(
                f"rotary.base={base}",
                f"train.curriculum=((512, {steps}),)",
                f"train.seed={seed}",
                f"data.seed={seed + 1000}",  # fresh text and records
                *PROBES,
            ),
            start=f"layers2_base{start}_seed{seed}",
        )

    return [*(run("1e4", base, 260) for base in CONTINUED_BASES), *(run("1e2", base, 300) for base in ("1e2", "1e6"))]


def _paper() -> list[Run]:
    """The paper's 2B model at 4,096 tokens with base 1e2, 1e4 and 1e6, on RedPajama prepared in `data/redpajama`."""
    return [Run(name=f"2b_base{base}", config="configs/llama_2b.py", overrides=(f"rotary.base={base}",)) for base in SCRATCH_BASES]
