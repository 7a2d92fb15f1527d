"""orch: TensorFlow training over plain SSH hosts."""

__version__ = "0.1.0"
