"""Keras 3 on JAX over several processes: `strategy: processes`, and keras.distribution does the rest.

orch tells every process its rank, how many there are, and where rank 0 listens; `keras.distribution.initialize`
wants just that. `--layout data` keeps a whole model on each device and cuts the batch; `--layout model` cuts the
kernels of the dense layers and shows each device the whole batch, for models that are too large for one.

Rank 0 saves, all restore: every task's ORCH_CHECKPOINT_DIR begins with what rank 0 saved last.

    orch up cluster_specs/jax_processes.yaml --follow
    python examples/jax_processes.py --epochs 3      # by hand: one process
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import h5py
import jax
import keras
import numpy as np
from jax.experimental import multihost_utils
from sklearn.datasets import load_digits

RANK = int(os.environ.get("ORCH_RANK", "0"))
WORLD_SIZE = int(os.environ.get("ORCH_WORLD_SIZE", "1"))


def distribution(layout: str):
    """How variables and batches lie on the devices of all processes; each process reads its own data."""
    devices = keras.distribution.list_devices()
    if layout == "data":
        return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    mesh = keras.distribution.DeviceMesh((1, len(devices)), ["batch", "model"], devices)
    cut = keras.distribution.LayoutMap(mesh)
    # Regular expressions of whole paths; a variable that none matches is whole on every device, without a word.
    cut[".*/wide/kernel"] = (None, "model")  # by columns,
    cut[".*/wide/bias"] = ("model",)
    cut[".*/narrow/kernel"] = ("model", None)  # then by rows: between the two nothing has to travel
    return keras.distribution.ModelParallel(layout_map=cut, batch_dim_name="batch", auto_shard_dataset=False)


def build() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu", name="wide"),
            keras.layers.Dense(64, activation="relu", name="narrow"),
            keras.layers.Dense(10, activation="softmax", name="out"),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)
    return model


class Checkpoints(keras.callbacks.Callback):
    """One HDF5 file after each epoch, under its own name at once: a kill in the middle of a save tears nothing."""

    def __init__(self, model: keras.Model, folder: str, keep: int = 2) -> None:
        super().__init__()
        self.folder, self.keep = folder, keep
        self.variables = {v.path: v for v in (*model.variables, *model.optimizer.variables)}

    def saved(self) -> list[str]:
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        found = [name for name in names if name.startswith("step-") and name.endswith(".h5")]
        return [
            os.path.join(self.folder, name)
            for name in sorted(found, key=lambda name: int(name[5:].split(".")[0]))
        ]

    def restore(self) -> None:
        """On every rank: JAX keeps of each variable what belongs on this process's devices."""
        if self.saved():
            with h5py.File(self.saved()[-1]) as file:
                for path, variable in self.variables.items():
                    variable.assign(file[path][()])

    def on_epoch_end(self, _epoch, logs=None):  # noqa: ARG002 - Keras gives `logs` by name
        step = int(self.model.optimizer.iterations)
        # All ranks bring the chunks together, for rank 0 has only its own; one writes.
        whole = {
            path: np.asarray(multihost_utils.process_allgather(variable.value, tiled=True))
            for path, variable in self.variables.items()
        }
        if RANK > 0:
            return
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, f"step-{step}.h5")
        with h5py.File(path + ".tmp", "w") as file:
            for name, value in whole.items():
                file[name] = value
        os.replace(path + ".tmp", path)
        for old in self.saved()[: -self.keep]:
            os.remove(old)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layout", choices=["data", "model"], default="data")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="of all processes together")
    args = parser.parse_args()

    keras.utils.set_random_seed(7)  # the same on all ranks, so that they begin with the same weights
    if WORLD_SIZE > 1:  # before anything else that computes
        keras.distribution.initialize(os.environ["ORCH_COORDINATOR_ADDRESS"], WORLD_SIZE, RANK)
    keras.distribution.set_distribution(distribution(args.layout))

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    steps = len(order) // args.batch
    order = order[: steps * args.batch]
    # Of each batch, a rank reads its part where the batch is cut, and all of it where the model is.
    mine = slice(RANK, None, WORLD_SIZE) if args.layout == "data" else slice(None)
    x, y = (digits.data[order][mine] / 16.0).astype("float32"), digits.target[order][mine].astype("int32")

    model = build()
    checkpoints = Checkpoints(model, os.environ.get("ORCH_CHECKPOINT_DIR", "checkpoints"))
    checkpoints.restore()
    done = int(model.optimizer.iterations)
    kernel = model.get_layer("wide").kernel.value
    print(
        f"rank {RANK} of {WORLD_SIZE}: {len(jax.devices())} devices, {kernel.sharding.shard_shape(kernel.shape)} "
        f"of the kernel {kernel.shape} on each, starts at step {done}",
        flush=True,
    )
    model.fit(
        x,
        y,
        batch_size=len(x) // steps,
        epochs=args.epochs,
        initial_epoch=done // steps,
        shuffle=False,  # or each rank would shuffle by itself
        callbacks=[checkpoints],
        verbose=2 if RANK == 0 else 0,
    )
    print(f"rank {RANK} is done at step {int(model.optimizer.iterations)}", flush=True)


if __name__ == "__main__":
    main()
