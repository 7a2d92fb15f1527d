"""A student that learns from a teacher by compute_loss: after keras.io's knowledge distillation."""

import keras
import numpy as np
from keras import layers, ops

x = np.random.default_rng(23).normal(size=(160, 8)).astype("float32")
y = np.argmax(x[:, :3], 1)


def network(units):
    return keras.Sequential([keras.Input((8,)), layers.Dense(units, "relu"), layers.Dense(3)])


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher, self.student = teacher, student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn, self.distillation_loss_fn = student_loss_fn, distillation_loss_fn
        self.alpha, self.temperature = alpha, temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        teacher = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        soft = self.distillation_loss_fn(
            ops.softmax(teacher / self.temperature, axis=1), ops.softmax(y_pred / self.temperature, axis=1)
        )
        return self.alpha * student_loss + (1 - self.alpha) * soft * self.temperature**2

    def call(self, x):
        return self.student(x)


teacher, student = network(24), network(6)
teacher.compile(
    keras.optimizers.SGD(0.1),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["sparse_categorical_accuracy"],
)
teacher.fit(x, y, epochs=2, batch_size=32)
distiller = Distiller(student=student, teacher=teacher)
distiller.compile(
    optimizer=keras.optimizers.SGD(0.1),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    distillation_loss_fn=keras.losses.KLDivergence(),
)
distiller.fit(x, y, epochs=2, batch_size=32)
