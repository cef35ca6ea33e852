"""How the programs of tests are compiled. Most of the suite's time was spent in LLVM.

A program of a test is tiny and runs a few times, so tests compile it fast, which changes the instructions and not the
computation: the passes over HLO are the same. Where the users' program is what a test is about, it asks for it:
`jax.jit(f, compiler_options=AS_USERS_DO)`, or `python -m pytest --optimized` for all.
"""

import importlib.metadata

# The flag went with XLA's other emitters; an unknown flag ends the process.
VERSION = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
EMITTERS = {"xla_cpu_use_fusion_emitters": (False, True)} if VERSION < (0, 11) else {}
# Option -> (fast to compile, XLA's default)
OPTIONS = {
    "xla_backend_optimization_level": (0, 3),
    "xla_llvm_disable_expensive_passes": (True, False),
    "xla_cpu_parallel_codegen_split_count": (1, 32),
    **EMITTERS,
}

FAST_FLAGS = " ".join(f"--{name}={str(fast).lower()}" for name, (fast, _) in OPTIONS.items())
AS_USERS_DO = {name: default for name, (_, default) in OPTIONS.items()}
