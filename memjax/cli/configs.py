"""The command `memjax configs`, which lists configs and their variants."""

from collections.abc import Mapping
from typing import Any

from memjax.cli.lone_words import NAMED
from memjax.cli.parser import Parser, print_result
from memjax.settings.overrides import config_names, describe_config


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
        for table in NAMED:
            facts[table.option] = {"about": table.about, "variants": {name: kind.about for name, kind in table.items()}}
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
