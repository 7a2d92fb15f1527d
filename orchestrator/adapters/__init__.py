"""The code that touches the outside world, with one module for each thing that it touches."""
