"""Numbers and words through preprocessing layers: after keras.io's structured data with Keras layers."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(20)
age, income = rng.uniform(18, 80, (160, 1)).astype("float32"), rng.normal(50, 10, (160, 1)).astype("float32")
job = rng.choice(["nurse", "cook", "clerk", "smith"], (160, 1))
y = ((age > 40) ^ (job == "cook")).astype("float32")
inputs = {"age": keras.Input((1,)), "income": keras.Input((1,)), "job": keras.Input((1,), dtype="string")}
normal = {"age": layers.Normalization(), "income": layers.Normalization()}
normal["age"].adapt(age)
normal["income"].adapt(income)
lookup = layers.StringLookup(vocabulary=["nurse", "cook", "clerk", "smith"], output_mode="int")
words = layers.Flatten()(layers.Embedding(5, 4)(lookup(inputs["job"])))
buckets = layers.Discretization(bin_boundaries=[30, 45, 60], output_mode="one_hot")(inputs["age"])
wide = layers.Concatenate()([buckets, words])
deep = layers.Dense(8, "relu")(
    layers.Concatenate()([normal["age"](inputs["age"]), normal["income"](inputs["income"]), words])
)
out = layers.Dense(1, "sigmoid")(layers.Concatenate()([wide, deep]))
model = keras.Model(inputs, out)
model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
data = tf.data.Dataset.from_tensor_slices(({"age": age, "income": income, "job": job}, y)).shuffle(
    160, seed=1
)
model.fit(
    data.take(120).batch(32),
    validation_data=data.skip(120).batch(32),
    epochs=2,
    class_weight={0: 1.0, 1: 2.0},
)
