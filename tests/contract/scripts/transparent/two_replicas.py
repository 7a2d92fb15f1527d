"""A loop over two replicas of one worker, of which one fails before its all-reduce: what is held then?"""

import json
import os
import socket
import time

import numpy as np

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{probe.getsockname()[1]}"
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}}
)

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy

from orchestrator.task.strategies import devices
from orchestrator.task.transparent import rescue
from orchestrator.task.transparent.atomic import Atomic, NotAtomic
from orchestrator.task.transparent.shares import Shares


class Link:
    """Hears what the runtime says."""

    def say(self, *said):
        """Leave it."""


patches = devices.patches({"replicas_on_cpu": 2}, Link())
patches["tensorflow"](tf)
patches[devices.MIRRORED_WORKERS](collective_all_reduce_strategy)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
examples = np.random.default_rng(5).normal(size=(16, 4)).astype("float32")
failing = []


def fails(value, place):
    """Fail in one of the replicas, after the other one has had time for all that waits for nothing."""
    if failing and place == 1:
        time.sleep(0.3)
        raise ConnectionError("a peer is gone")
    return value


def trained(count, make=None):
    """Return the variables after so many steps, and the steps; `make` makes a replica's step atomic."""
    with strategy.scope():
        weights, speed = (tf.Variable(tf.ones((4, 1)), trainable=each) for each in (True, False))
        step = tf.Variable(
            0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        moving = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )
        counted = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    model = type("Model", (), {"trainable_variables": [weights]})()
    shares = Shares(strategy, lambda: None, lambda: [counted])
    atomic = Atomic(model, step, shares)

    def once(batch):
        if make:
            rows = shares.sum_of(tf.constant(8.0), tf.distribute.get_replica_context())
            batch = tf.ensure_shape(tf.where(rows == 16.0, batch, 0.0), batch.shape)
        step.assign_add(1)
        place = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        moving.assign(moving + 1.0 + place)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ weights * (1.0 + place)) ** 2)
        gradient = tape.gradient(loss, weights)
        gradient = tf.ensure_shape(tf.numpy_function(fails, [gradient, place], tf.float32), gradient.shape)
        gradient = tf.distribute.get_replica_context().all_reduce("mean", gradient)
        speed.assign(0.9 * speed + gradient)
        weights.assign_sub(0.01 * speed)
        counted.assign_add(1.0 + place)
        return loss

    one = rescue._whole(atomic, once) if make else once
    train = tf.function(lambda batch: strategy.run(one, args=(batch,)))
    for _ in range(count):
        train(tf.constant(examples))
    return (
        {"weights": weights, "speed": speed, "moving": moving, "step": step, "counted": counted},
        atomic,
        train,
    )


def held(variables):
    """Return what each replica of this process has."""
    local = strategy.experimental_local_results
    return {name: [np.ravel(each.numpy()).tolist() for each in local(one)] for name, one in variables.items()}


plain, _, _ = trained(3)
variables, atomic, train = trained(3, make=True)
found = {"plain": held(plain), "atomic": held(variables), "refusal": atomic.refusal, "steps": atomic.steps()}
found["told"] = [atomic.shares.told.numpy().tolist()]
failing.append(True)
try:
    train(tf.constant(examples))
    found["failed"] = False
except Exception:
    found["failed"] = True
found["after"] = held(variables)
found["told"].append(atomic.shares.told.numpy().tolist())
found["steps after"] = atomic.steps()
atomic.put_back()
found["put back"] = held(variables)
try:
    atomic.check_put_back()
except NotAtomic as e:
    found["check"] = str(e)
print(json.dumps(found))
