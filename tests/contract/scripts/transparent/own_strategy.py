# ruff: noqa: ANN, B905 - as people write scripts
"""A script that was written for a strategy: transparent must say that there are two."""

import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
print("not reached")
