"""How finely a spectrum tells neighbouring positions apart: position interpolation against a larger base.

The image of a vector turns by `theta_i` radians in pair `i` from one position to the next. Their mean is the angle, in
units of the norm, that a vector of equal weight in all pairs moves; position interpolation divides it by the extension
factor, a larger base only by the ratio of the logarithms.

Source: Xiong et al., "Effective Long-Context Scaling of Foundation Models", arXiv:2309.16039, appendix B. The appendix
prints 0.0271 for interpolation by 1/4 and 0.0762 for the base raised 50-fold, from base 10,000: these are the limits of
many dimensions of the mean angle. (With chords, `2 sin(theta / 2)`, for angles the second would be 0.0752.)
"""

import math

import numpy as np

from rope_lab.rotary.spectrum import check_base
from rope_lab.theory.decay import check_theta


def granularity(theta: np.ndarray) -> float:
    """Mean angle between the images of consecutive positions, exactly, at any head dimension.

        (1 / pairs) sum_i |theta_i|

    For `alpha b ** (-2 i / d)` this is the geometric sum `alpha (2 / d) (1 - 1 / b) / (1 - b ** (-2 / d))`.

    Args:
      theta: float64 of shape `(pairs,)`, radians per token.

    Returns:
      Radians per token.

    Raises:
      ValueError: if `theta` is empty or not finite.
    """
    return float(np.abs(check_theta(theta)).mean())


def granularity_limit(base: float, *, alpha: float = 1.0, beta: float = 1.0) -> float:
    """The same for a spectrum `alpha (beta b) ** (-2 i / d)` in the limit of many dimensions.

        alpha * integral_0^1 (beta b) ** (-u) du = alpha (1 - 1 / (beta b)) / ln(beta b)

    Args:
      base: b, dimensionless, before extension.
      alpha: factor on positions, of 0 .. 1: 1/4 is position interpolation to four times the length.
      beta: factor on the base, at least 1: 50 takes 10,000 to 500,000.

    Returns:
      Radians per token: 0.0271 for `base=1e4, alpha=0.25` and 0.0762 for `base=1e4, beta=50`.

    Raises:
      ValueError: if `base` is not above 1, `alpha` not of 0 .. 1 or `beta` below 1.
    """
    check_base(base)
    if not 0 < alpha <= 1:
        raise ValueError(f"{alpha=} must be above 0 and at most 1: position interpolation divides positions by 1 / alpha")
    if not (math.isfinite(beta) and beta >= 1):
        raise ValueError(f"{beta=} must be a finite number of at least 1: the base is multiplied by it")
    return alpha * (1 - 1 / (beta * base)) / math.log(beta * base)
