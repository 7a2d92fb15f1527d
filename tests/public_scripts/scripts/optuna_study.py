"""A study in a database that goes on where it ended, and the best model trained again: after Optuna's Keras example."""

import keras
import numpy as np
import optuna

x = np.random.default_rng(17).random((160, 8), dtype="float32")
y = (x[:, :4].sum(1) > 2).astype("int32")


def objective(trial):
    keras.backend.clear_session()
    model = keras.Sequential([keras.Input((8,))])
    model.add(keras.layers.Dense(trial.suggest_categorical("units", [4, 8, 16]), activation="relu"))
    model.add(keras.layers.Dense(2, activation="softmax"))
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)
    model.compile(
        loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.RMSprop(rate), metrics=["accuracy"]
    )
    model.fit(x[:128], y[:128], batch_size=32, epochs=2, verbose=0)
    return model.evaluate(x[128:], y[128:], verbose=0)[0]


study = optuna.create_study(
    study_name="keras",
    storage="sqlite:///study.db",
    load_if_exists=True,
    sampler=optuna.samplers.TPESampler(seed=3),
)
done = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
study.optimize(objective, n_trials=max(0, 3 - len(done)))
print("RESULT", study.best_trial.params, round(study.best_value, 5))
