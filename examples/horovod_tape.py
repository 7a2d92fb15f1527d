"""A loop of one's own with Horovod: DistributedGradientTape, a scaled learning rate, and its warm-up.

With N ranks the batch is N times as large, so the usual rule makes the learning rate N times as large too. For the
first steps that would be too much, so it grows from that of one rank.

    python examples/horovod_tape.py --steps 200        # without orch: one rank
"""

import argparse
import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

try:
    from orchestrator import runtime
except ImportError:  # started without orch
    runtime = None


def rate_at(step: int, base: float, ranks: int, warmup: int) -> float:
    """Return the learning rate: that of one rank at first, and that of all ranks after the warm-up."""
    return base * (1.0 + (ranks - 1) * min(1.0, step / warmup))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warmup", type=int, default=50, metavar="STEPS")
    parser.add_argument("--rate", type=float, default=0.05, help="of one rank")
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:  # a rank sees all GPUs of the run on its host, and uses one
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    random = np.random.default_rng(0)
    points = random.normal(size=(4096, 8)).astype("float32")
    labels = (points.sum(1, keepdims=True) > 0).astype("float32")
    weights, bias = tf.Variable(tf.zeros((8, 1))), tf.Variable(tf.zeros(1))
    step, variables = tf.Variable(0, dtype=tf.int64), [weights, bias]

    manager = None
    if hvd.rank() == 0:
        checkpoint = tf.train.Checkpoint(weights=weights, bias=bias, global_step=step)
        directory = os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints")
        manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
        checkpoint.restore(manager.latest_checkpoint)
    # All ranks get what rank 0 has restored, or its initial values.
    hvd.broadcast_variables([step, *variables], root_rank=0)
    start = int(step.numpy())
    print(f"rank {hvd.rank()} of {hvd.size()} starts at step {start}", flush=True)

    loss, rate = None, 0.0
    for at in range(start + 1, args.steps + 1):
        mine = np.random.default_rng((at, hvd.rank())).integers(0, len(points), args.batch)
        with tf.GradientTape() as tape:
            logits = tf.constant(points[mine]) @ weights + bias
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.constant(labels[mine]), logits=logits)
            )
        tape = hvd.DistributedGradientTape(tape)  # averages the gradients over the ranks
        rate = rate_at(at, args.rate, hvd.size(), args.warmup)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(rate * gradient)
        step.assign(at)
        if runtime:
            runtime.report(at, loss=loss, learning_rate=rate)
        if manager and at % args.save_every == 0:
            manager.save(checkpoint_number=at)
    told = "-" if loss is None else f"{float(loss):.3f}"
    total = float(tf.reduce_sum(tf.abs(weights)))
    print(
        f"rank {hvd.rank()} is done at step {int(step.numpy())}, loss {told}, rate {rate:g}, weights {total:.5f}"
    )


if __name__ == "__main__":
    main()
