"""AdamW and its learning-rate schedules."""

from dataclasses import dataclass

import jax
import optax

SCHEDULES = ("cosine", "constant", "wsd")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with warm-up, a schedule, decoupled weight decay and clipping by global norm.

    Attributes:
      peak_learning_rate: reached after the warm-up.
      warmup_steps: linear from 0.
      schedule: "cosine" (to `final_fraction` of the peak at the last step), "constant", or "wsd" (warm-up, stable, then linear decay to
        `final_fraction` over the last `decay_steps`).
      final_fraction: learning rate at the end over the peak.
      decay_steps: length of the last phase of "wsd".
      b1, b2, epsilon: Adam's.
      weight_decay: applied to matrices, not to norms and biases.
      clip_norm: global gradient norm above which gradients are scaled down.
    """

    peak_learning_rate: float = 3e-4
    warmup_steps: int = 100
    schedule: str = "cosine"
    final_fraction: float = 0.1
    decay_steps: int | None = None
    b1: float = 0.9
    b2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"optimizer.schedule={self.schedule!r} must be one of {', '.join(SCHEDULES)}")
        if (self.schedule == "wsd") != (self.decay_steps is not None):
            raise ValueError(
                f"optimizer.schedule={self.schedule!r} with optimizer.decay_steps={self.decay_steps}: "
                "'wsd' needs decay_steps, the others none"
            )
        for name in ("peak_learning_rate", "clip_norm", "epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"optimizer.{name}={getattr(self, name)} must be above 0")
        for name in ("warmup_steps", "final_fraction", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"optimizer.{name}={getattr(self, name)} must not be negative")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optimizer.{name}={getattr(self, name)} must lie in [0, 1)")


def learning_rate(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """The learning rate as a function of the step, over a run of `total_steps`.

    Raises:
      ValueError: if warm-up (and decay) do not fit the run.
    """
    peak, end = config.peak_learning_rate, config.peak_learning_rate * config.final_fraction
    needed = config.warmup_steps + (config.decay_steps or 0)
    if needed > total_steps:
        raise ValueError(f"optimizer: warm-up and decay take {needed} steps, more than the run's {total_steps} (train.curriculum)")
    rest = total_steps - config.warmup_steps
    if config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, max(rest, 1), config.final_fraction)
    elif config.schedule == "constant":
        after = optax.constant_schedule(peak)
    else:
        assert config.decay_steps is not None
        decay = optax.linear_schedule(peak, end, config.decay_steps)
        after = optax.join_schedules([optax.constant_schedule(peak), decay], [rest - config.decay_steps])
    warmup = optax.linear_schedule(0.0, peak, config.warmup_steps)
    return optax.join_schedules([warmup, after], [config.warmup_steps])


def make_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Clipping, then AdamW with decay on matrices only."""

    def decayed(params: dict) -> dict:
        return jax.tree_util.tree_map_with_path(lambda path, _: not path[-1].key.endswith(("scale", "bias")), params)

    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate(config, total_steps), config.b1, config.b2, config.epsilon, weight_decay=config.weight_decay, mask=decayed
        ),
    )
