"""A script that was written for parameter servers: transparent must say that there are two strategies."""

import tensorflow as tf

strategy = tf.distribute.ParameterServerStrategy(None)
print("not reached")
