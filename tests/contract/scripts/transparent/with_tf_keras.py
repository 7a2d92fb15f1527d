"""Runs a script of this directory with tf_keras in the place of Keras: python with_tf_keras.py ARGUMENTS SCRIPT."""

import runpy
import sys
from pathlib import Path

import tf_keras

sys.modules["keras"] = tf_keras
runpy.run_path(str(Path(__file__).with_name(sys.argv.pop())))
