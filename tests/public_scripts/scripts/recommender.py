"""Users and films as embeddings whose product is the rating: after keras.io's collaborative filtering."""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.default_rng(21)
pairs = np.stack([rng.integers(0, 20, 240), rng.integers(0, 30, 240)], 1)
ratings = ((pairs.sum(1) % 10) / 9).astype("float32")


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        made = {"embeddings_initializer": "he_normal", "embeddings_regularizer": keras.regularizers.l2(1e-6)}
        self.user_embedding, self.movie_embedding = (
            layers.Embedding(num_users, embedding_size, **made),
            layers.Embedding(num_movies, embedding_size, **made),
        )
        self.user_bias, self.movie_bias = layers.Embedding(num_users, 1), layers.Embedding(num_movies, 1)

    def call(self, inputs):
        users, movies = self.user_embedding(inputs[:, 0]), self.movie_embedding(inputs[:, 1])
        dots = ops.sum(users * movies, axis=1, keepdims=True)
        return ops.nn.sigmoid(dots + self.user_bias(inputs[:, 0]) + self.movie_bias(inputs[:, 1]))


model = RecommenderNet(20, 30, 8)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.001))
model.fit(
    x=pairs[:200],
    y=ratings[:200],
    batch_size=32,
    epochs=2,
    verbose=1,
    validation_data=(pairs[200:], ratings[200:]),
)
