"""The fuzzer: every decoder, guided by the coverage of our code."""
