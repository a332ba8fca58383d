"""The entry points of ``pdplugins`` and ``dynamo``: Ctrl-C ends them quietly also while they load."""

import sys


def main() -> None:
    """Run ``pdplugins``."""
    try:
        from pdplugins import cli  # noqa: PLC0415 - what takes half a second to load

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


def dynamo_main() -> None:
    """Run ``dynamo``."""
    try:
        from pdplugins import cli  # noqa: PLC0415 - what takes half a second to load

        cli.dynamo_main()
    except KeyboardInterrupt:
        sys.exit(130)
