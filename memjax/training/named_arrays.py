"""Trees of arrays as flat mappings from names to arrays, with their checksums and their differences."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from memjax.training.lazy_arrays import LazyArray

SHOWN = 4
"""Number of array names that a message lists for each kind of difference."""


def flatten(tree: Any) -> dict[str, Any]:
    """Flattens a tree to a dictionary of leaves by path, such as `params/layer_00/kernel`. `jax.random` keys become
    their uint32 data.

    Example:
      >>> flatten({"params": {"bias": 1}, "counts": (2, 3)})
      {'counts/0': 2, 'counts/1': 3, 'params/bias': 1}
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    leaves_by_name = {_leaf_name(path): leaf for path, leaf in leaves}
    if len(leaves_by_name) != len(leaves):
        raise ValueError("checkpoint: two leaves have the same name; keep '/' out of the names of modules")
    return {name: _key_data(leaf) if _is_key(leaf) else leaf for name, leaf in leaves_by_name.items()}


def key_kinds(tree: Any) -> dict[str, str]:
    """Returns the random number generator, such as 'threefry2x32', of every `jax.random` key in a tree, by the name of
    the leaf.
    """
    return {name: str(jax.random.key_impl(leaf)) for name, leaf in find_keys(tree)}


def find_keys(tree: Any) -> list[tuple[str, Any]]:
    """Lists `(name, leaf)` of every `jax.random` key in a tree of arrays or shapes."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(_leaf_name(path), leaf) for path, leaf in leaves if _is_key(leaf)]


def generator_name(leaf: Any) -> str:
    """Returns the name of the random number generator of a key or of the shape of a key."""
    kinds = ("threefry2x32", "rbg", "unsafe_rbg")
    dtypes = {jax.eval_shape(functools.partial(jax.random.key, impl=kind), 0).dtype: kind for kind in kinds}
    return dtypes.get(leaf.dtype, str(leaf.dtype))


def unflatten(expected: Any, arrays: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> Any:
    """Rebuilds a tree with the structure of `expected` from a dictionary of leaves, the inverse of `flatten`. `keys`
    are the random number generators of its `jax.random` keys, from `key_kinds`.

    Args:
      expected: Tree with the structure of the result.
      arrays: Leaves by name.
      keys: Random number generators of the `jax.random` keys by name, from `key_kinds` of the flattened tree.
    """

    def pick(path: tuple[Any, ...], leaf: Any) -> Any:
        name = _leaf_name(path)
        return jax.random.wrap_key_data(arrays[name], impl=(keys or {})[name]) if _is_key(leaf) else arrays[name]

    return jax.tree_util.tree_map_with_path(pick, expected)


def describe_array_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Describes in one line how the arrays of a checkpoint (`found`) differ from the expected ones in name, shape or
    dtype. '' if they do not differ.

    Args:
      expected: Expected arrays by name, anything with shape and dtype.
      found: Arrays of the checkpoint by name, as `(dtype, shape, checksum)`. The checksum may be missing.
    """
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    other = []
    for name, leaf in expected.items():
        if name in found:
            dtype, shape = str(jnp.dtype(leaf.dtype)), list(leaf.shape)
            if [dtype, shape] != list(found[name][:2]):
                other.append(f"{name} {found[name][0]}{found[name][1]} instead of {dtype}{shape}")
    kinds = (("lacks", missing), ("has besides", unexpected), ("has", other))
    return "; ".join(f"it {word} {preview_names(names)}" for word, names in kinds if names)


def _leaf_name(path: tuple[Any, ...]) -> str:
    """Returns the name of a leaf from its path in the tree."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def preview_names(names: Iterable[str]) -> str:
    """Joins the first four names with commas and says how many more there are."""
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _is_key(leaf: Any) -> bool:
    """Returns whether a leaf is a `jax.random` key or its shape."""
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    """Returns the uint32 data of a key, or its shape for the shape of a key."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.random.key_data(leaf)
    data = jax.eval_shape(jax.random.key_data, leaf)
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=leaf.sharding)


def describe_arrays(arrays: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Describes arrays, given by name, as a manifest does: `[dtype, shape, checksum]` by name. The arrays may be on the
    host or on devices.

    Example:
      >>> describe_arrays({"bias": np.zeros(2, np.float32)}) == describe_arrays({"bias": jnp.zeros(2)})
      True
    """
    lazy = {name: array for name, array in arrays.items() if isinstance(array, LazyArray)}
    if lazy:  # one after the other, since they may not fit together
        read = {
            key: value
            for name, array in lazy.items()
            for key, value in describe_arrays({name: np.asarray(array)}).items()
        }
        rest = describe_arrays({name: array for name, array in arrays.items() if name not in lazy})
        return {name: {**read, **rest}[name] for name in arrays}
    if not arrays:
        return {}
    sums = jax.device_get(_checksums([_view_as_32_bits(array) for array in arrays.values()]))
    return {
        name: [str(array.dtype), list(array.shape), "".join(f"{int(part):08x}" for part in parts)]
        for (name, array), parts in zip(arrays.items(), sums, strict=True)
    }


def _view_as_32_bits(array: Any) -> Any:
    """Views 64-bit NumPy arrays as uint32, with a last axis of size 2. Other arrays are returned unchanged."""
    # JAX without 64 bits would convert the values. The checksum needs only their bits.
    if isinstance(array, np.ndarray) and array.dtype.itemsize == 8:
        return np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint32)
    return array


@jax.jit
def _checksums(arrays: Sequence[jax.Array]) -> jax.Array:
    """Computes the checksums of several arrays in one program, uint32 `[arrays, 2]`."""
    # One program: if several sums over processes run at once, each may wait for threads that the others hold.
    return jnp.stack([_checksum(array) for array in arrays])


def _checksum(array: jax.Array) -> jax.Array:
    """Computes a checksum of 64 bits, uint32 `[2]`, from every bit of an array and its index.

    It does not depend on the devices of the array.
    """
    # Sums of hashes of (value, index) that are one-to-one in the value: another value at one index always changes them.
    if array.dtype == bool:
        array = array.astype(jnp.uint8)
    bits = lax.bitcast_convert_type(array, jnp.dtype(f"uint{8 * min(array.dtype.itemsize, 4)}")).astype(jnp.uint32)
    place = jnp.zeros(bits.shape, jnp.uint32)
    for axis, size in enumerate(bits.shape):
        place = place * np.uint32(size) + lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    seeds = (np.uint32(0x9E3779B9), np.uint32(0x85EBCA77))
    return jnp.stack([jnp.sum(_hash_32_bits(bits + _hash_32_bits(place ^ seed)), dtype=jnp.uint32) for seed in seeds])


def _hash_32_bits(x: jax.Array) -> jax.Array:
    """Hashes uint32 values one-to-one with the finaliser of MurmurHash3 (Appleby 2011)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
