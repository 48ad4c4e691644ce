"""Independent references: plain loops in float64, written from the papers' equations and sharing no line with the package.

`REFERENCE` has one function for each name in `rope_lab.rotary.VARIANTS`; it takes `(head_dim, length, **parameters)` and
returns the angular frequencies (radians per token, one a pair) and the factor on cosine and sine.
"""

import cmath
import math
from collections.abc import Callable

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


def none(head_dim: int, length: int) -> Frequencies:
    """NoPE (2305.19466): nothing turns."""
    return [0.0] * (head_dim // 2), 1.0


REFERENCE: dict[str, Callable[..., Frequencies]] = {
    "rope": rope,
    "pi": pi,
    "ntk": ntk,
    "abf": abf,
    "method1": method1,
    "method2": method2,
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
