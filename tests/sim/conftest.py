"""The tests look inside the engine, which compiled code does not allow; one test compares the compiled engine."""

import os

os.environ["PDPLUGINS_SIM_PURE"] = "1"
