"""What holds for every test: eight CPU devices, no silent promotion of dtypes, annotations checked as the code runs."""

import os

# JAX reads both when it is first imported, so they come before every other import.
os.environ["JAX_PLATFORMS"] = "cpu"
# Tests compile far more than they compute: without LLVM's optimisations the suite takes half the time.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0".strip()
)

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

import tests.typechecker

# From here on each module of the package has its annotations checked, array shapes included; users never pay for it.
install_import_hook("rope_lab", f"{tests.typechecker.__name__}.checked")

jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compilation makes the first example of a test slow, and a shared machine makes any of them slow.
hypothesis.settings.register_profile("rope_lab", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("rope_lab")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: a worker for each core that is ours, hyperthreads included; eight of them hold about 6 GB."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
