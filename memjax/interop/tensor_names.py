"""Translation of the names of a state dict's tensors, which classes and wrappers of PyTorch write differently."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

_DATA_PARALLEL, _COMPILED = "module.", "_orig_mod."


class Names(NamedTuple):
    """A mapping from the names of the tensors in a file to their names in a family's tables, and the prefixes that the
    names in the file have.

    Attributes:
      plain: Name in the file -> name in the tables.
      outer: Prefix of every name in the file.
      body: Prefix of the names of the model without its head.
    """

    plain: Mapping[str, str]
    outer: str
    body: str

    def write(self, plain: str, prefix: str) -> str:
        """Returns the name in the file of a tensor whose name in the tables is `plain`. `prefix` is the prefix of the
        tables for the model without its head.

        Args:
          plain: Its name in the tables.
          prefix: Prefix of the tables for the names of the model without its head.
        """
        inner = plain.removeprefix(prefix)
        return (self.outer if inner == plain else self.body) + inner


def read_names(names: Iterable[str], family: str, prefix: str, layer: str, head_parts: tuple[str, ...]) -> Names:
    """Matches the names of a state dict to the names in a family's tables, by the place of the first layer, and finds
    the prefixes that wrappers have added.

    Args:
      names: Names of the tensors in the file.
      family: Name of the architecture in messages.
      prefix: Prefix of the tables for the names of the model without its head.
      layer: Start of the names of the first layer, after the prefix.
      head_parts: Starts of the names of heads.

    Raises:
      ValueError: There are no layers of this family, layers of several models, or a tensor twice.
    """
    shorter = {name: _shorter(name) for name in names}
    places = {name: f".{name}".find(f".{layer}") for name in shorter.values()}
    bodies = {name[:place] for name, place in places.items() if place >= 0}
    if len(bodies) != 1:
        several = f"several models ({', '.join(map(repr, sorted(bodies)))})"
        problem = several if bodies else f"no layers of a {family}"
        raise ValueError(f"weights: {problem}, allowed: the state dict of one {family}")
    body = bodies.pop()
    outer = body.removesuffix(prefix) if body.endswith(prefix) else body[: body[:-1].rfind(".") + 1]
    plain: dict[str, str] = {}
    for name, short in shorter.items():
        inner = short.removeprefix(body if short.startswith(body) else outer)
        in_body = short.startswith(body) and not inner.startswith(head_parts)
        plain[name] = prefix + inner if in_body else inner
    if len(set(plain.values())) < len(plain):
        seen: dict[str, str] = {}
        twice = next((seen[table], name) for name, table in plain.items() if seen.setdefault(table, name) != name)
        raise ValueError(f"weights: given {twice[0]!r} and {twice[1]!r}, allowed: every tensor once")
    return Names(plain, outer, body)


def _shorter(name: str) -> str:
    """Returns a name without the prefixes of compiled and wrapped modules, and with today's names of norms."""
    name = name.replace(_COMPILED, "")
    while name.startswith(_DATA_PARALLEL):
        name = name.removeprefix(_DATA_PARALLEL)
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name
