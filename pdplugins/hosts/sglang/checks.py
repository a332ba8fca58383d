"""What ``pdplugins doctor`` says about the features of SGLang that a config asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pdplugins.config import Config
from pdplugins.hosts.seams import Check
from pdplugins.hosts.sglang.install import wanted


def features(config: Config, found: Iterable[Check]) -> Iterator[Check]:
    """Yield a check for each feature: a server serves it, does not start, or serves stock.

    :param found: the checks of SGLang's seams.
    """
    broken = [check for check in found if check.state != "ok"]
    does = "will not start (sglang.strict holds)" if config.sglang.strict else "serves stock (sglang.strict is off)"
    for feature in wanted(config):
        if not broken:
            yield Check(f"sglang: {feature}", "ok", "the plugin can hook it")
            continue
        first = f"{broken[0].name}: {broken[0].detail}"
        yield Check(f"sglang: {feature}", broken[0].state, f"refused, a server {does}: {first}", broken[0].fix)
