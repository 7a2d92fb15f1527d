"""A small U-Net with a Dice loss and an IoU by function, as most segmentation notebooks have them."""

import keras
import numpy as np
from keras import layers
from keras import ops as K

rng = np.random.default_rng(9)
x = rng.random((128, 16, 16, 1)).astype("float32")
y = (x > 0.3 + 0.6 * rng.random((128, 1, 1, 1))).astype("float32")


def dice_coef(y_true, y_pred, smooth=1.0):
    a, b = K.reshape(y_true, (-1,)), K.reshape(y_pred, (-1,))
    return (2.0 * K.sum(a * b) + smooth) / (K.sum(a) + K.sum(b) + smooth)


def bce_dice_loss(y_true, y_pred):
    return keras.losses.binary_crossentropy(y_true, y_pred) + (1 - dice_coef(y_true, y_pred))


def iou(y_true, y_pred):
    both = K.sum(y_true * y_pred)
    return (both + 1.0) / (K.sum(y_true) + K.sum(y_pred) - both + 1.0)


inputs = keras.Input((16, 16, 1))
one = layers.Conv2D(6, 3, padding="same", activation="relu")(inputs)
two = layers.Conv2D(12, 3, padding="same", activation="relu")(layers.MaxPooling2D()(one))
up = layers.Conv2DTranspose(6, 2, 2, padding="same")(two)
out = layers.Conv2D(1, 1, activation="sigmoid")(
    layers.Conv2D(6, 3, padding="same", activation="relu")(layers.concatenate([up, one]))
)
model = keras.Model(inputs, out)
model.compile(keras.optimizers.Adam(1e-3), bce_dice_loss, metrics=[dice_coef, iou])
best = keras.callbacks.ModelCheckpoint("unet.keras", monitor="val_dice_coef", mode="max", save_best_only=True)
stop = keras.callbacks.EarlyStopping(monitor="val_iou", mode="max", patience=2)
model.fit(
    x,
    y,
    batch_size=16,
    epochs=2,
    validation_split=0.25,
    callbacks=[best, stop, keras.callbacks.CSVLogger("log.csv")],
)
