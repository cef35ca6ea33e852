"""The command `memjax doctor`, which shows versions, devices and missing packages."""

from memjax.cli.parser import Parser, print_result


def run(arguments: list[str]) -> int:
    """Prints versions, devices and missing packages, with the pip commands that install them."""
    options = Parser("doctor", run.__doc__, json="").read(arguments)
    from memjax.cli.platforms import only_cpu
    from memjax.doctor import describe, diagnose

    return print_result(diagnose(only_cpu=only_cpu()), describe, options)
