"""A script that was written for a strategy: transparent must say that there are two."""

import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
print("not reached")
