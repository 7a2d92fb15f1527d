"""Cross-validation by scikit-learn with a model for each fold, kept as files: after many public notebooks."""

import keras
import numpy as np
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

x = np.random.default_rng(18).normal(3, 2, size=(150, 7)).astype("float32")
y = (x[:, 0] > x[:, 1]).astype("int32")
scores, out_of_fold = [], np.zeros(len(y))
for fold, (train, test) in enumerate(StratifiedKFold(3, shuffle=True, random_state=42).split(x, y)):
    keras.utils.set_random_seed(fold)
    scaler = StandardScaler().fit(x[train])
    model = keras.Sequential(
        [keras.Input((7,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["AUC"])
    keep = keras.callbacks.ModelCheckpoint(f"fold{fold}.keras", monitor="val_loss", save_best_only=True)
    held = (scaler.transform(x[test]), y[test])
    model.fit(
        scaler.transform(x[train]),
        y[train],
        batch_size=32,
        epochs=2,
        validation_data=held,
        callbacks=[keep],
        verbose=0,
    )
    scores.append(model.evaluate(*held, verbose=0)[0])
    out_of_fold[test] = keras.models.load_model(f"fold{fold}.keras").predict(held[0], verbose=0)[:, 0]
np.save("oof.npy", out_of_fold)
print("RESULT", [round(score, 5) for score in scores], round(float(out_of_fold.mean()), 5))
