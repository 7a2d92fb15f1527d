"""Train with Keras 3 on JAX in several processes: `strategy: processes` and keras.distribution.

orch gives every process its rank, the number of ranks, and the address of rank 0, which is what
`keras.distribution.initialize` needs. `--layout data` keeps the whole model on each device and splits the batch.
`--layout model` splits the kernels of the dense layers and gives each device the whole batch, for models that are too
large for one device. `--layout both` does both, on a mesh of two rows of devices: the batch is split over the rows, and
the kernels over the devices of each.

Rank 0 saves, and all ranks restore: every task's ORCH_CHECKPOINT_DIR starts with what rank 0 saved last.

    orch up cluster_specs/jax_processes.yaml --follow
    python examples/jax_processes.py --epochs 3      # without orch: one process
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
    """Return how variables and batches are split over the devices of all processes. Each process reads its own data."""
    devices = keras.distribution.list_devices()
    if layout == "data":
        return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    rows = 2 if layout == "both" else 1
    mesh = keras.distribution.DeviceMesh((rows, len(devices) // rows), ["batch", "model"], devices)
    cut = keras.distribution.LayoutMap(mesh)
    # Regular expressions for whole paths. A variable that none matches is not split, and there is no warning.
    cut[".*/wide/kernel"] = (None, "model")  # by columns,
    cut[".*/wide/bias"] = ("model",)
    cut[".*/narrow/kernel"] = ("model", None)  # then by rows: nothing is sent between the two
    return keras.distribution.ModelParallel(layout_map=cut, batch_dim_name="batch", auto_shard_dataset=False)


def my_rows(examples: int) -> list[int]:
    """Return the examples of the rows of the mesh in which this process has devices; the rows take turns."""
    local, columns = jax.local_device_count(), max(1, jax.device_count() // 2)
    rows = {(RANK * local + device) // columns for device in range(local)}
    return [i for i in range(examples) if i % 2 in rows]


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
    """Save one HDF5 file after each epoch, and rename it when it is complete: a kill during a save breaks nothing."""

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
        """Restore on every rank. JAX keeps the part of each variable that belongs to this process's devices."""
        if self.saved():
            with h5py.File(self.saved()[-1]) as file:
                for path, variable in self.variables.items():
                    variable.assign(file[path][()])

    def on_epoch_end(self, _epoch, logs=None):  # noqa: ARG002 - Keras passes `logs` by name
        step = int(self.model.optimizer.iterations)
        # All ranks gather the variables, because rank 0 has only its own part; one rank writes.
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
    parser.add_argument("--layout", choices=["data", "model", "both"], default="data")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="of all processes together")
    args = parser.parse_args()

    keras.utils.set_random_seed(7)  # the same on all ranks, so that they start with the same weights
    if WORLD_SIZE > 1:  # before anything else that computes
        keras.distribution.initialize(os.environ["ORCH_COORDINATOR_ADDRESS"], WORLD_SIZE, RANK)
    keras.distribution.set_distribution(distribution(args.layout))

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    steps = len(order) // args.batch
    order = order[: steps * args.batch]
    # A rank reads its part of each batch if the batch is split, and all of it if the model is split.
    mine = {"data": slice(RANK, None, WORLD_SIZE), "model": slice(None), "both": my_rows(len(order))}[
        args.layout
    ]
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
        shuffle=False,  # otherwise each rank would shuffle in its own order
        callbacks=[checkpoints],
        verbose=2 if RANK == 0 else 0,
    )
    print(f"rank {RANK} is done at step {int(model.optimizer.iterations)}", flush=True)


if __name__ == "__main__":
    main()
