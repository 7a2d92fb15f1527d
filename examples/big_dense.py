"""Show when more workers make training slower: 41 million parameters, and little work to do with each.

A dense layer does two operations per parameter and sample, and sends four bytes per parameter and step, whatever the
batch. So this model (8000 - 4000 - 2000 - 500 - 300 - 1) sends 165 MB per step. The script measures a step with the
other workers and a step without them, and estimates it for other networks. A ConvNet is the opposite: few parameters,
each used at every position of the image.

    python examples/big_dense.py --batch 32         # one worker, and the estimate for several
"""

import argparse
import time

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()

import keras  # noqa: E402

try:
    from orchestrator import runtime
except ImportError:  # started without orch
    runtime = None

WIDTHS = (8000, 4000, 2000, 500, 300, 1)


def build() -> keras.Model:
    hidden = [keras.layers.Dense(width, activation="relu") for width in WIDTHS[1:-1]]
    return keras.Sequential([keras.Input((WIDTHS[0],)), *hidden, keras.layers.Dense(1)])


def training(strategy, batch):
    """Return a model under this strategy, and a function that trains it for one step on random numbers."""
    with strategy.scope():
        model = build()
        optimizer = keras.optimizers.SGD(1e-3)
        optimizer.build(model.trainable_variables)
    x = tf.random.stateless_normal((batch, WIDTHS[0]), (1, 2))
    y = tf.reduce_mean(x, axis=1, keepdims=True)

    def replica_step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return model, tf.function(lambda: strategy.experimental_local_results(strategy.run(replica_step))[0])


def seconds(action, times):
    """Return the seconds of the fastest of several steps after the first; other work can only slow a step down."""
    action()
    measured = []
    for _ in range(times):
        began = time.monotonic()
        action()
        measured.append(time.monotonic() - began)
    return min(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32, help="of one replica")
    parser.add_argument("--steps", type=int, default=4, help="to measure each thing with")
    parser.add_argument("--gbit", type=float, default=1.0, help="of the network to reckon with, Gbit/s")
    args = parser.parse_args()

    model, step = training(strategy, args.batch)
    _, step_alone = training(
        tf.distribute.get_strategy(), args.batch
    )  # the default strategy, which does nothing
    size = sum(variable.value.shape.num_elements() for variable in model.trainable_variables)
    replicas = strategy.num_replicas_in_sync
    alone = seconds(lambda: float(step_alone()), args.steps)
    together = seconds(lambda: float(step()), args.steps)
    if runtime:
        runtime.report(args.steps + 1, alone_ms=alone * 1e3, together_ms=together * 1e3)
    if strategy.cluster_resolver.task_type not in (None, "chief") and strategy.cluster_resolver.task_id != 0:
        return  # only one worker prints

    print(f"{size / 1e6:.1f} million parameters, {size * 4 / 1e6:.0f} MB of gradients at every step")
    print(f"a step: {alone * 1e3:.0f} ms alone, {together * 1e3:.0f} ms with {replicas} replica(s)")
    if replicas > 1:
        gain = replicas * alone / together
        share = max(0.0, 1 - alone / together)
        print(f"{share:.0%} of a step with {replicas} workers is communication".replace("%", " %", 1))
        print(
            f"{replicas} replicas do the work of {gain:.2f}: {'worth it' if gain > 1 else 'one alone is faster'}"
        )
    for workers in (2, 4, 8):
        # A ring sends each byte around twice, once to add and once to distribute, in as many chunks as workers.
        sending = 2 * (workers - 1) / workers * size * 4 / (args.gbit * 1e9 / 8)
        gain = workers * alone / (alone + sending)
        even = args.batch * sending / alone
        print(
            f"reckoned for {workers} workers at {args.gbit:g} Gbit/s: {sending * 1e3:.0f} ms to send, "
            f"the work of {gain:.2f}; half of the time is work from batch {even:.0f} on"
        )


if __name__ == "__main__":
    main()
