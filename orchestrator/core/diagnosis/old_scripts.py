"""Failures of scripts that were written for an older TensorFlow or Keras. Each row names what replaces the old line.

The texts are those of TensorFlow 2.21 and Keras 3.15. These rows are tried before `signatures`: there, a missing module
is a problem of the host; here, it is one of the script.
"""

from __future__ import annotations

from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis.signatures import Signature


def _row(patterns: tuple[str, ...], means: str, advice: str) -> Signature:
    return Signature(Cause.SCRIPT, patterns, means, advice, in_the_error_only=True)


_FOR_KERAS_2 = "the script is written for Keras 2, and this is Keras 3"
_KERAS_2 = "`keras: 2` under `run:` in the cluster spec, and tf_keras on the hosts, run it unchanged"

_LOADS_WEIGHTS = (
    "load `max(glob.glob(directory + '/*.weights.h5'))`, after `model.optimizer.build(model.trainable_variables)`: "
    "an optimizer without variables would begin anew"
)

_TF1 = (
    "Session|InteractiveSession|ConfigProto|GPUOptions|placeholder|get_default_graph|get_variable|variable_scope|"
    "global_variables|global_variables_initializer|local_variables_initializer|trainable_variables|"
    "enable_eager_execution|disable_v2_behavior|logging|flags|app|layers|losses|gfile|set_random_seed|summary|"
    "get_collection|add_to_collection|assign_add|to_float|to_int32|log|random_uniform|random_normal|name_scope|Print"
)
_TF1_OF_A_MODULE = (
    r"(?:Adam|GradientDescent|Momentum|RMSProp|Adagrad|Ftrl|SyncReplicas)Optimizer|Saver|SessionRunHook|"
    r"MonitoredTrainingSession|MonitoredSession|StopAtStepHook|CheckpointSaverHook|get_or_create_global_step|"
    r"create_global_step|replica_device_setter|Supervisor|resize_images|exponential_decay"
)

OLD_SCRIPTS: tuple[Signature, ...] = (
    _row(
        (r"has no attribute 'multi_gpu_model'", r"cannot import name 'multi_gpu_model'"),
        "Keras has had no `multi_gpu_model` since TensorFlow 2.4",
        "`from orchestrator.keras import multi_gpu_model` is the same call; or remove it, and write "
        "`strategy: mirrored` and `transparent: true` into the cluster spec",
    ),
    _row(
        (r"module 'tensorflow' has no attribute 'contrib'", r"No module named 'tensorflow\.contrib"),
        "`tf.contrib` is gone since TensorFlow 2",
        "`tf.contrib.distribute` is `tf.distribute`, `tf.contrib.layers` is Keras; the rest was moved out or dropped",
    ),
    _row(
        (r"module 'tensorflow' has no attribute 'estimator'", r"No module named 'tensorflow[._]estimator"),
        "Estimators are gone since TensorFlow 2.16",
        "port the script to Keras; or name a Python with TensorFlow 2.15 as `run.python`, under `single` or `mirrored`",
    ),
    _row(
        (
            rf"module 'tensorflow' has no attribute '(?P<name>{_TF1})'",
            rf"module 'tensorflow\._api\.v2\.\w+' has no attribute '(?P<name>{_TF1_OF_A_MODULE})'",
        ),
        "`{name}` is of TensorFlow 1",
        "`import tensorflow.compat.v1 as tf` and `tf.disable_v2_behavior()` run a script of TensorFlow 1; Keras's "
        "`compile` and `fit` replace its sessions and hooks",
    ),
    _row(
        (r"object has no attribute '(?P<name>make_one_shot_iterator|make_initializable_iterator)'",),
        "`{name}` is of TensorFlow 1",
        "`for batch in dataset:`, or give the data set to `fit`",
    ),
    _row(
        (r"object has no attribute 'experimental_run(?:_v2)?'",),
        "`experimental_run_v2` has another name since TensorFlow 2.2",
        "`strategy.run(step, args=(batch,))`",
    ),
    _row(
        (r"KeyError: '(?P<old>(?:val_)?)acc'",),
        "Keras calls that metric by the name that `compile` was given",
        "`history.history['{old}accuracy']` with `metrics=['accuracy']`",
    ),
    _row(
        (r"Argument\(s\) not recognized: \{{1,2}'lr'", r"unexpected keyword argument 'lr'"),
        "optimizers have no argument `lr`",
        "`learning_rate=`",
    ),
    _row(
        (r"object has no attribute '(?P<name>fit|evaluate|predict)_generator'",),
        "`{name}_generator` is gone",
        "`{name}` takes generators, `keras.utils.PyDataset` and `tf.data.Dataset`",
    ),
    _row(
        (r"object has no attribute 'predict_(?:classes|proba)'",),
        "`predict_classes` and `predict_proba` are gone",
        "`model.predict(x).argmax(axis=-1)`; of one sigmoid `model.predict(x) > 0.5`",
    ),
    _row(
        (
            r"(?:must end in|filename must end in) `\.weights\.h5`",
            r"save_weights_only=True` in `ModelCheckpoint`, the filepath provided must end in",
        ),
        "Keras 3 saves weights into files that end in `.weights.h5` only",
        "save `ckpt_{{epoch:04d}}.weights.h5` in $ORCH_CHECKPOINT_DIR; " + _LOADS_WEIGHTS + ". " + _KERAS_2,
    ),
    _row(
        (r"path should be string, bytes, os\.PathLike or integer, not NoneType",),
        "a path is None; `tf.train.latest_checkpoint` returns that where it finds no checkpoint, and it does not know "
        "the `.weights.h5` of Keras 3",
        "load only what is there; " + _LOADS_WEIGHTS,
    ),
    _row(
        (
            r"The filepath provided must end in `\.keras`",
            r"Invalid filepath extension for saving",
            r"File format not supported: filepath=.*Keras 3 only supports",
        ),
        "Keras 3 saves and loads `.keras`, `.h5` and `.weights.h5` files only",
        "`model.save('model.keras')`; `model.export(directory)` for a SavedModel. " + _KERAS_2,
    ),
    # Of Keras 1, and of Keras 2 before 2.13: today's tf_keras has them no more, so `keras: 2` would not help.
    _row(
        (
            r"cannot import name 'np_utils'",
            r"No module named '[\w.]*\.np_utils'",
            r"has no attribute 'np_utils'",
        ),
        "Keras has no `np_utils` any more, nor has tf_keras",
        "`from tensorflow.keras.utils import to_categorical`, and `to_categorical(…)` in the place of "
        "`np_utils.to_categorical(…)`",
    ),
    _row(
        (
            r"has no attribute '(?P<name>(?:set_)?image_dim_)ordering'",
            r"cannot import name '(?P<name>(?:set_)?image_dim_)ordering'",
        ),
        "`{name}ordering` is of Keras 1; neither Keras 3 nor tf_keras has it",
        "`image_data_format()` and `set_image_data_format(…)`: 'channels_last' is what was 'tf', 'channels_first' what "
        "was 'th'",
    ),
    _row(
        (
            r"object has no attribute 'reset_states'",
            r"`keras\.optimizers\.legacy` is not supported in Keras 3",
            r"A KerasTensor cannot be used as input to a TensorFlow function",
            r"fit\(\) got an unexpected keyword argument '(?:workers|use_multiprocessing|max_queue_size)'",
            r"ModelCheckpoint\.__init__\(\) got an unexpected keyword argument 'period'",
            r"keras\.backend' has no attribute '(?:set_session|get_session|set_learning_phase|learning_phase)'",
            r"keras\.layers' has no attribute 'experimental'",
            r"No module named '(?:tensorflow\.)?keras\.layers\.(?:experimental|normalization|core|convolutional)",
            r"keras\.mixed_precision' has no attribute 'experimental'",
        ),
        _FOR_KERAS_2,
        _KERAS_2,
    ),
)
"""Read from above, as `signatures`."""
