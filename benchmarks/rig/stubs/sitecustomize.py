"""Python imports this first in each process of a server, which starts sooner where it collects less garbage.

SGLang's imports make very many objects that stay, and Python would look through them again and again. In an engine
`sglang_on_cpu.register` goes back to Python's own pace once they are done, so a step costs what it costs elsewhere.
"""

import gc

gc.set_threshold(100_000, 10, 10)
