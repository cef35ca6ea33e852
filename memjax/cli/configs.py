"""The command `memjax configs`, which lists configs and their variants."""

from collections.abc import Mapping
from typing import Any

from memjax.cli.parser import Parser, print_result
from memjax.settings.named_memories import MEMORIES
from memjax.settings.named_methods import METHODS
from memjax.settings.overrides import config_names, describe_config

NAMED: dict[str, tuple[str, Mapping[str, Any]]] = {
    "--memory-kind": ("Memories of a language model, by name.", MEMORIES),
    "--method": ("Methods for tasks that are learned one after the other, by name.", METHODS),
}
"""option that takes a name -> what the names are, and the names"""


def run(arguments: list[str]) -> int:
    """Lists the names that `--config`, `--memory-kind` and `--method` take, each with a description, and those that
    `--variant` takes.
    """
    parser = Parser("configs", run.__doc__, json=": config, --memory-kind or --method -> its description and its names")
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="name of one config (default: all configs)")
    options = parser.read(arguments)
    names = [options.name] if options.name else config_names()
    facts = {}
    for name in names:
        about, variants = describe_config(name)
        facts[name] = {"about": about, "variants": variants}
    if not options.name:
        for option, (about, entries) in NAMED.items():
            facts[option] = {"about": about, "variants": {name: entry.about for name, entry in entries.items()}}
    return print_result(facts, describe_configs, options)


def describe_configs(facts: Mapping[str, Any]) -> str:
    """Formats a line for each config, and below it a line for each of its variants. `facts` maps the name of a config
    to its description and its variants.

    Example:
      >>> print(describe_configs({"tiny": {"about": "A small one.", "variants": {"default": "with a memory"}}}))
      tiny  A small one.
          default  with a memory
    """
    lines = []
    for name, config in facts.items():
        lines.append(f"{name}  {config['about']}")
        width = max(map(len, config["variants"]), default=0)
        lines += [f"    {variant:{width}}  {about}" for variant, about in config["variants"].items()]
    return "\n".join(lines)
