"""Frequencies from a file."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rope_lab.rotary.encoding import Variant
from rope_lab.rotary.spectrum import Spectrum, inverse_powers


@dataclass(frozen=True, kw_only=True)
class Custom(Variant):
    """The user's own spectrum: `theta_i` is the i-th number of a file.

    Attributes:
      path: a `.json` file with one list of numbers, or a `.npy` file with one array; d / 2 frequencies in radians per token, of the pairs
        `(i, i + d / 2)`, finite and at least 0 (a pair at 0 stands still).
    """

    path: str

    def spectrum(self, head_dim: int, length: int) -> Spectrum:
        pairs = len(inverse_powers(2.0, head_dim))  # rejects an odd head_dim
        theta = _read(self.path)
        if theta.shape != (pairs,):
            raise ValueError(f"{self.path!r} holds frequencies of shape {theta.shape}, but {head_dim=} needs ({pairs},): one for each pair")
        for i in np.flatnonzero(~(np.isfinite(theta) & (theta >= 0)))[:1]:
            raise ValueError(
                f"{self.path!r} holds theta[{i}]={theta[i]}; a frequency must be a finite number of at least 0, radians per token"
            )
        return Spectrum(theta)


def _read(name: str) -> np.ndarray:
    path = Path(name)
    if path.suffix not in (".json", ".npy") or not path.is_file():
        raise ValueError(f"path={name!r} must be an existing .json or .npy file of frequencies in radians per token")
    try:
        # A pickle in a .npy file could run any code when it is opened.
        theta = np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.array(json.loads(path.read_text()))
        if theta.dtype.kind not in "iuf":
            raise ValueError(f"it holds {theta.dtype}")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{name!r} must hold one list of numbers: {str(error).splitlines()[0]}") from error
    return theta.astype(np.float64)
