"""Token and position embeddings and a transformer block of layers: after keras.io's text classification."""

import keras
import numpy as np
from keras import layers, ops

rng = np.random.default_rng(14)
x = rng.integers(1, 60, (160, 12))
y = (x > 30).sum(1) > 6


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.0):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim // num_heads)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1, self.layernorm2 = (layers.LayerNormalization(epsilon=1e-6) for _ in range(2))

    def call(self, inputs):
        out = self.layernorm1(inputs + self.att(inputs, inputs))
        return self.layernorm2(out + self.ffn(out))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb, self.pos_emb = (
            layers.Embedding(vocab_size, embed_dim),
            layers.Embedding(maxlen, embed_dim),
        )

    def call(self, x):
        return self.token_emb(x) + self.pos_emb(ops.arange(0, ops.shape(x)[-1], 1))


inputs = layers.Input(shape=(12,))
x1 = TransformerBlock(16, 2, 16)(TokenAndPositionEmbedding(12, 60, 16)(inputs))
outputs = layers.Dense(2, activation="softmax")(layers.Dense(10, "relu")(layers.GlobalAveragePooling1D()(x1)))
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    optimizer=keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(x, y.astype("int32"), batch_size=32, epochs=2, validation_split=0.2)
