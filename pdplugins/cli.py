"""The command lines ``pdplugins`` and ``dynamo``."""


def main() -> None:
    """Run ``pdplugins``."""


def dynamo_main() -> None:
    """Run ``dynamo``."""
