"""Independent references: plain loops in float64, written from the papers' equations and sharing no line with the package.

`REFERENCE` has one function for each name in `rope_lab.rotary.VARIANTS`; it takes `(head_dim, length, **parameters)` and
returns the angular frequencies (radians per token, one a pair) and the factor on cosine and sine.
"""

import cmath
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

Frequencies = tuple[list[float], float]


def rope(head_dim: int, length: int, *, base: float) -> Frequencies:
    """RoFormer (2104.09864), section 3.2.2: theta_i = 10000^(-2 (i - 1) / d), i = 1 .. d/2, with any base for 10000."""
    return [1.0 / math.pow(base, 2 * (i - 1) / head_dim) for i in range(1, head_dim // 2 + 1)], 1.0


def pi(head_dim: int, length: int, *, factor: float, base: float) -> Frequencies:
    """Position Interpolation (2306.15595), Eq. 4: f'(x, m) = f(x, m L / L'), so one token turns by L / L' of an angle."""
    return [(1.0 / factor) * math.pow(base, -2 * i / head_dim) for i in range(head_dim // 2)], 1.0


def ntk(head_dim: int, length: int, *, factor: float, base: float) -> Frequencies:
    """YaRN (2309.00071), section 3.1: b' = b s^(D / (D - 2)). Written out, pair i is divided by s^(2 i / (D - 2))."""
    return [math.pow(base, -2 * i / head_dim) / math.pow(factor, 2 * i / (head_dim - 2)) for i in range(head_dim // 2)], 1.0


def dynamic_ntk(head_dim: int, length: int, *, factor: float, trained_length: int, base: float) -> Frequencies:
    """NTK whose scale is 1 up to the trained length and grows by `factor` for each trained length more (Dynamically Scaled RoPE)."""
    excess = max(0.0, length / trained_length - 1)
    return ntk(head_dim, length, factor=1 + factor * excess, base=base)


def ntk_by_parts(
    head_dim: int, length: int, *, factor: float, trained_length: int, beta_fast: float, beta_slow: float, base: float
) -> Frequencies:
    """YaRN (2309.00071), section 3.2: the ratio r of trained length to wavelength decides, with alpha = beta_slow, beta = beta_fast."""
    theta = []
    for i in range(head_dim // 2):
        wavelength = 2 * math.pi * math.pow(base, 2 * i / head_dim)
        ratio = trained_length / wavelength
        if ratio < beta_slow:
            gamma = 0.0
        elif ratio > beta_fast:
            gamma = 1.0
        else:
            gamma = (ratio - beta_slow) / (beta_fast - beta_slow)
        theta.append(2 * math.pi / wavelength * ((1 - gamma) / factor + gamma))
    return theta, 1.0


def yarn(
    head_dim: int,
    length: int,
    *,
    factor: float,
    trained_length: int,
    beta_fast: float,
    beta_slow: float,
    truncate: bool,
    attention_factor: float | None,
    mscale: float | None,
    mscale_all_dim: float | None,
    base: float,
) -> Frequencies:
    """The authors' code: the pair at which r = beta is real-valued; pairs are ramped by their index between the two such pairs."""
    first = math.log(trained_length / (2 * math.pi * beta_fast), base) * head_dim / 2
    last = math.log(trained_length / (2 * math.pi * beta_slow), base) * head_dim / 2
    if truncate:
        first, last = float(math.floor(first)), float(math.ceil(last))
    first = 0.0 if first < 0 else first
    last = head_dim - 1.0 if last > head_dim - 1 else last
    width = last - first if last - first > 0.001 else 0.001
    theta = []
    for i in range(head_dim // 2):
        interpolated = 0.0 if i <= first else 1.0 if i >= first + width else (i - first) / width
        plain = math.pow(base, -2 * i / head_dim)
        theta.append(plain * (1 - interpolated) + plain / factor * interpolated)
    if attention_factor is not None:
        return theta, attention_factor
    if mscale is not None and mscale_all_dim is not None:
        return theta, (1 + mscale * math.log(factor) / 10) / (1 + mscale_all_dim * math.log(factor) / 10)
    return theta, 1 + math.log(factor) / 10


def llama3(
    head_dim: int, length: int, *, factor: float, trained_length: int, low_freq_factor: float, high_freq_factor: float, base: float
) -> Frequencies:
    """Meta's code for Llama 3.1: three bands by wavelength."""
    theta = []
    for i in range(head_dim // 2):
        plain = math.pow(base, -2 * i / head_dim)
        wavelength = 2 * math.pi / plain
        if wavelength < trained_length / high_freq_factor:
            theta.append(plain)
        elif wavelength > trained_length / low_freq_factor:
            theta.append(plain / factor)
        else:
            smooth = (trained_length / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
            theta.append((1 - smooth) * plain / factor + smooth * plain)
    return theta, 1.0


def longrope(
    head_dim: int,
    length: int,
    *,
    short_factor: tuple[float, ...],
    long_factor: tuple[float, ...],
    factor: float,
    trained_length: int,
    attention_factor: float | None,
    base: float,
) -> Frequencies:
    """LongRoPE (2402.13753) as Phi-3 has it: a divisor for each pair; the attention factor is 1 where nothing is extended."""
    theta = []
    for i in range(head_dim // 2):
        divisor = short_factor[i] if length <= trained_length else long_factor[i]
        theta.append(1 / (divisor * math.pow(base, 2 * i / head_dim)))
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(factor, trained_length)) if factor > 1 else 1.0
    return theta, attention_factor


def abf(head_dim: int, length: int, *, base: float) -> Frequencies:
    """Effective Long-Context Scaling (2309.16039), section 2.2: plain RoPE, its base raised."""
    return [math.exp(-2 * i * math.log(base) / head_dim) for i in range(head_dim // 2)], 1.0


def method1(head_dim: int, length: int, *, base: float) -> Frequencies:
    """Base of RoPE Bounds Context Length (2405.14591), Method 1: plain RoPE on a base above the bound."""
    return [math.pow(base, -2 * i / head_dim) for i in range(head_dim // 2)], 1.0


def method2(head_dim: int, length: int, *, factor: float, boundary_pair: int, base: float) -> Frequencies:
    """The same paper's Method 2: interpolate from the boundary pair on; below it, a ladder from 1 that meets it there."""
    ladder_base = base * math.pow(factor, head_dim / (2 * boundary_pair))
    theta = []
    for i in range(head_dim // 2):
        if i >= boundary_pair:
            theta.append(math.pow(base, -2 * i / head_dim) / factor)
        else:
            theta.append(math.pow(ladder_base, -2 * i / head_dim))
    return theta, 1.0


def partial(head_dim: int, length: int, *, fraction: float, layout: str, base: float) -> Frequencies:
    """GPT-NeoX's ladder over the turned dimensions, or p-RoPE's (2410.06205) over all of them; the other pairs stand still."""
    turned_dimensions = round(head_dim * fraction)
    over = {"rotated": turned_dimensions, "proportional": head_dim}[layout]
    return [math.pow(base, -2 * i / over) if 2 * i < turned_dimensions else 0.0 for i in range(head_dim // 2)], 1.0


def resonance(head_dim: int, length: int, *, base: float) -> Frequencies:
    """Resonance RoPE (2403.00071): wavelengths to the nearest whole number."""
    return [2 * math.pi / round(2 * math.pi * math.pow(base, 2 * i / head_dim)) for i in range(head_dim // 2)], 1.0


def custom(head_dim: int, length: int, *, path: str) -> Frequencies:
    """The file says it."""
    return [float(each) for each in json.loads(Path(path).read_text())], 1.0


def xpos(head_dim: int, length: int, *, scale_base: float, base: float) -> Frequencies:
    """A Length-Extrapolatable Transformer (2212.10554): RoPE's angles; its decay is `xpos_decay`."""
    return rope(head_dim, length, base=base)


def xpos_decay(head_dim: int, distance: float, *, scale_base: float) -> list[float]:
    """The same paper: what distance does to the share of each pair in a score, with gamma = 0.4."""
    return [math.pow((i / (head_dim / 2) + 0.4) / 1.4, distance / scale_base) for i in range(head_dim // 2)]


def none(head_dim: int, length: int) -> Frequencies:
    """NoPE (2305.19466): nothing turns."""
    return [0.0] * (head_dim // 2), 1.0


REFERENCE: dict[str, Callable[..., Frequencies]] = {
    "rope": rope,
    "pi": pi,
    "ntk": ntk,
    "dynamic_ntk": dynamic_ntk,
    "ntk_by_parts": ntk_by_parts,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
    "abf": abf,
    "method1": method1,
    "method2": method2,
    "partial": partial,
    "resonance": resonance,
    "custom": custom,
    "xpos": xpos,
    "none": none,
}


def turned(x: np.ndarray, positions: np.ndarray, theta: list[float], attention_factor: float = 1.0) -> np.ndarray:
    """RoFormer's Eq. 12 with complex numbers: pair i is x[i] + 1j x[i + D/2], times exp(1j position theta_i).

    Args:
      x: shape `(B, H, T, D)`.
      positions: integers of shape `(B, T)`.
      theta: `D / 2` frequencies.
      attention_factor: multiplies the result.

    Returns:
      complex128-exact float64 of the shape of `x`.
    """
    batch, heads, length, head_dim = x.shape
    half = head_dim // 2
    out = np.zeros(x.shape, np.float64)
    for b in range(batch):
        for t in range(length):
            for i in range(half):
                turn = attention_factor * cmath.exp(1j * int(positions[b, t]) * theta[i])
                for h in range(heads):
                    z = complex(float(x[b, h, t, i]), float(x[b, h, t, i + half])) * turn
                    out[b, h, t, i], out[b, h, t, i + half] = z.real, z.imag
    return out


def query_scale(
    position: int, *, log_n_length: int | None = None, temperature_length: int | None = None, temperature_scale: float | None = None
) -> float:
    """Log-n scaling (2310.05209: never under 1) times Llama 4's temperature, at one position."""
    scale = 1.0
    if log_n_length is not None and position + 1 > log_n_length:
        scale *= math.log(position + 1, log_n_length)
    if temperature_length is not None and temperature_scale is not None:
        scale *= 1 + temperature_scale * math.log(1 + (position + 1) // temperature_length)
    return scale


def encoded(name: str, q: np.ndarray, k: np.ndarray, positions: np.ndarray, length: int, parameters: dict) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys as attention should get them; for xPos its powers are taken about position 0."""
    head_dim = q.shape[-1]
    theta, attention_factor = REFERENCE[name](head_dim, length, **parameters)
    if name == "partial" and parameters["layout"] == "rotated":
        r = round(head_dim * parameters["fraction"])
        heads = [turned(x[..., :r], positions, theta[: r // 2]) for x in (q, k)]
        return np.concatenate([heads[0], q[..., r:]], axis=-1), np.concatenate([heads[1], k[..., r:]], axis=-1)
    turned_q, turned_k = (turned(x, positions, theta, attention_factor) for x in (q, k))
    if name == "xpos":
        for b, t in np.ndindex(positions.shape):
            decay = np.tile(xpos_decay(head_dim, int(positions[b, t]), scale_base=parameters["scale_base"]), 2)
            turned_q[b, :, t] *= decay
            turned_k[b, :, t] /= decay
    return turned_q, turned_k
