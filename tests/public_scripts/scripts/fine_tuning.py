"""A frozen base, then all of it at a lower rate, saved and loaded between: after TensorFlow's transfer learning."""

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(29)
images, labels = rng.random((160, 12, 12, 3)).astype("float32"), rng.integers(0, 2, 160)
base = keras.Sequential(
    [
        keras.Input((12, 12, 3)),
        layers.Conv2D(6, 3, activation="relu"),
        layers.Conv2D(8, 3, 2, activation="relu"),
    ],
    name="base",
)
base.trainable = False
inputs = keras.Input((12, 12, 3))
outputs = layers.Dense(1)(
    layers.GlobalAveragePooling2D()(base(layers.Rescaling(2.0, offset=-1)(inputs), training=False))
)
model = keras.Model(inputs, outputs)
loss, accuracy = (
    keras.losses.BinaryCrossentropy(from_logits=True),
    keras.metrics.BinaryAccuracy(threshold=0.5, name="accuracy"),
)
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss, metrics=[accuracy])
history = model.fit(images, labels, epochs=2, batch_size=32, validation_split=0.2)
model.save("phase1.keras")
model = keras.models.load_model("phase1.keras")
base = model.get_layer("base")
base.trainable = True
for layer in base.layers[:1]:
    layer.trainable = False
model.compile(optimizer=keras.optimizers.RMSprop(learning_rate=1e-3), loss=loss, metrics=["accuracy"])
model.fit(images, labels, epochs=4, initial_epoch=history.epoch[-1], batch_size=32, validation_split=0.2)
model.save("phase2.keras")
