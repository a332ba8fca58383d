"""Real SGLang servers on a CPU, a gateway before them, and faults: what benchmarks and tests of servers run on."""
