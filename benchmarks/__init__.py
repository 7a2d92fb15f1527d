"""The benchmarks behind our claims. Each module measures one; `python -m benchmarks` runs them."""
