"""A replay buffer whose samples are fitted again and again, with a target network: after public DQN scripts by fit."""

import random
from collections import deque

import keras
import numpy as np
from keras import layers

rng = np.random.default_rng(13)


def network():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(12, "relu"), layers.Dense(2, "linear")])
    model.compile(loss="mse", optimizer=keras.optimizers.Adam(learning_rate=0.005))
    return model


model, target, memory, epsilon = network(), network(), deque(maxlen=200), 1.0
for _episode in range(3):
    state = rng.normal(size=(1, 3)).astype("float32")
    for _ in range(30):
        action = (
            random.randrange(2)
            if random.random() < epsilon
            else int(np.argmax(model.predict(state, verbose=0)[0]))
        )
        following = (0.9 * state + (0.3 if action else -0.3)).astype("float32")
        memory.append((state, action, -float(np.abs(following).sum()), following))
        state = following
    minibatch = random.sample(memory, 24)
    states = np.concatenate([each[0] for each in minibatch])
    wanted = model.predict(states, verbose=0)
    ahead = target.predict(np.concatenate([each[3] for each in minibatch]), verbose=0)
    for row, (_, action, reward, _) in enumerate(minibatch):
        wanted[row, action] = reward + 0.95 * np.amax(ahead[row])
    model.fit(states, wanted, epochs=2, batch_size=8, verbose=0)
    target.set_weights(model.get_weights())
    epsilon = max(0.1, epsilon * 0.9)
