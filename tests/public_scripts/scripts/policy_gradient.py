"""REINFORCE by fit: episodes by predict, normalized returns, several fits: after public CartPole scripts."""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.default_rng(12)


def policy_loss(y_true, y_pred):
    actions, returns = y_true[:, :2], y_true[:, 2]
    advantage = (returns - ops.mean(returns)) / (ops.std(returns) + 1e-8)
    chosen = ops.sum(actions * ops.log(y_pred + 1e-8), axis=1)
    entropy = -ops.sum(y_pred * ops.log(y_pred + 1e-8), axis=1)
    return -ops.mean(chosen * advantage) - 0.01 * ops.mean(entropy)


model = keras.Sequential([keras.Input((4,)), layers.Dense(16, "relu"), layers.Dense(2, "softmax")])
model.compile(keras.optimizers.Adam(0.01), policy_loss)
for _episode in range(3):
    states, rows, state = [], [], rng.normal(size=4)
    for _ in range(40):
        probability = model.predict(state[None].astype("float32"), verbose=0)[0]
        action = int(rng.random() < probability[1])
        states.append(state)
        rows.append([1 - action, action, float(state[0] > 0) * (1 if action else -1)])
        state = 0.8 * state + rng.normal(size=4) * 0.5
    rewards = np.array(rows, "float32")
    rewards[:, 2] = np.cumsum(rewards[::-1, 2])[::-1]
    model.fit(np.array(states, "float32"), rewards, batch_size=20, epochs=2, verbose=0)
