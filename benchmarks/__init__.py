"""The measured claims: each module measures one of them and says how it came out. `python -m benchmarks`."""
