"""Every row of the table of patterns, by a text as it is really printed."""

from __future__ import annotations

import ast
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core import notes
from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause, matching
from orchestrator.core.diagnosis.old_scripts import OLD_SCRIPTS
from orchestrator.core.diagnosis.signatures import SIGNATURES
from orchestrator.core.ends import Exit
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import restart
from orchestrator.core.plan import RestartPolicy
from orchestrator.core.state.budget import Budget
from orchestrator.core.state.run import new_run
from tests.unit.core.transcript import make_plan

ROOT = Path(__file__).parents[3] / "orchestrator"

NODE = "{{function_node __wrapped__SaveV2_dtypes_3_device_/job:localhost/replica:0/task:0/device:CPU:0}}"
ERRORS = "tensorflow.python.framework.errors_impl"
CUDA = "2024-03-05 10:00:01.000001: E tensorflow/compiler/xla/stream_executor/cuda/cuda_driver.cc:1011]"

TEXTS: list[tuple[str, Cause, str]] = [
    (
        "RuntimeError: Exception encountered when calling Cond.call(). \x1b[1m`merge_call` called while defining a new "
        "graph or a tf.function. This can often happen if the function `fn` passed to `strategy.run()` contains",
        Cause.SCRIPT,
        "gradient_accumulation_steps",
    ),
    (
        f"{ERRORS}.InvalidArgumentError: Graph execution error: 2 root error(s) found. (0) INVALID_ARGUMENT:  You must "
        "feed a value for placeholder tensor 'StatefulPartitionedCall/cond/else/_37/cond/Placeholder_1' with dtype "
        "int32",
        Cause.SCRIPT,
        "variables are made in the first step",
    ),
    (
        f"{ERRORS}.UnimplementedError: Graph execution error: Collectives are not yet implemented for CPU devices when "
        "compiling with XLA. Attempted to compile a collective running on/job:worker/replica:0/task:0/device:CPU:0.",
        Cause.SCRIPT,
        "XLA does not compile",
    ),
    (
        f"{ERRORS}.InvalidArgumentError: Graph execution error: Trying to access resource kernel/replica_1/27 located "
        "in device /job:localhost/task:0/device:CPU:1 from device /job:localhost/task:0/device:CPU:0",
        Cause.SCRIPT,
        "XLA does not compile",
    ),
    (  # as TensorFlow 2.21 raised it on both workers
        f"{ERRORS}.InvalidArgumentError: Graph execution error: Collective ops is aborted by: Shape mismatch in the "
        "collective instance 104. Op at device /job:worker/replica:0/task:1/device:CPU:0 expected shape [6] but "
        "another member in the group expected shape [5]. This is likely due to different input shapes at different "
        "members of the collective op. The error could be from a previous operation. Restart your program to reset.",
        Cause.DIFFERENT,
        "parted before collective 104, where one had a tensor of shape [6] and another one of [5]",
    ),
    (
        f"{ERRORS}.InternalError: Collective ops is aborted by: Collective instance 100 expected type 0 and data_type "
        "1 but got type 3 and data_type 1. The error could be from a previous operation. Restart your program to "
        "reset.",
        Cause.DIFFERENT,
        "parted before collective 100, for which one had type 0 and data_type 1 and another 3 and data_type 1",
    ),
    (
        f"{ERRORS}.InternalError: Shape mismatch in the collective instance",
        Cause.DIFFERENT,
        "their collectives do not fit together",
    ),
    (
        "RuntimeError: Collective ops must be configured at program startup",
        Cause.SCRIPT,
        "the strategy was made after TensorFlow had run something",
    ),
    (
        f"{ERRORS}.CancelledError: RemoteExecuteNode::RunAsync [Op:__inference_train_function_567]",
        Cause.DATA,
        "mostly since that worker's data had ended",
    ),
    (
        f"{ERRORS}.CancelledError: The corresponding function is cancelled. Please reschedule the function.",
        Cause.DATA,
        "mostly since that worker's data had ended",
    ),
    (
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/w']",
        Cause.DISK,
        "has no inodes left",
    ),
    ("OSError: [Errno 28] No space left on device: '/w/model.keras'", Cause.DISK, "no inodes left"),
    (f"{ERRORS}.UnknownError: Could not start gRPC server", Cause.PORT, "took the task's port"),
    (
        "Error while creating shared memory segment /dev/shm/nccl-a (size 96), error: No space left on device (28)",
        Cause.DISK,
        "/dev/shm on gpu-a",
    ),
    (
        "RuntimeError: unable to write to file </torch_1_2>: No space left on device (28): shared memory",
        Cause.DISK,
        "/dev/shm",
    ),
    (
        "BlockingIOError: [Errno 37] Unable to synchronously open file (unable to lock file, errno = 37, error "
        "message = 'No locks available')",
        Cause.DISK,
        "takes no locks",
    ),
    (
        f"{ERRORS}.InternalError: Graph execution error: Collective ops is aborted by: Device /job:localhost/replica:0/"
        "task:0/device:CPU:1 is joining a group with size4, but that group has size 2 (group_key=1)",
        Cause.DEVICES,
        "as one of 4 replicas and as one of 2",
    ),
    ("OSError: [Errno 98] Address already in use", Cause.PORT, "belongs to another"),
    (
        f"{ERRORS}.UnknownError: Graph execution error: Horovod has been shut down. This was caused by an exception "
        "on one of the ranks",
        Cause.FOLLOWER,
        "a rank had gone",
    ),
    (
        f"{ERRORS}.UnavailableError: Graph execution error: Collective ops is aborted by: OOM when allocating tensor "
        "with shape[8] on /job:worker/replica:0/task:1/device:GPU:0 by allocator GPU_0_bfc "
        "The error could be from a previous operation. Restart your program to reset.",
        Cause.FOLLOWER,
        "a peer was gone",
    ),
    (
        f"{ERRORS}.UnavailableError: {NODE} Collective ops is aborted by: Error reported from /job:worker/task:1: The "
        "following tasks are unhealthy (stopped sending heartbeats): /job:worker/replica:0/task:1 The tasks have "
        "crashed. The error could be from a previous operation. Restart your program to reset. [Op:CollectiveReduceV2]",
        Cause.FOLLOWER,
        "a peer was gone",
    ),
    (
        "E0000 coordination_service.cc:954] /job:worker/replica:0/task:1 has been set to ERROR in coordination "
        "service: UNAVAILABLE: Task /job:worker/replica:0/task:1 heartbeat timeout.",
        Cause.FOLLOWER,
        "a peer was gone",
    ),
    (
        f"{ERRORS}.InternalError: Collective Op has group_size 8 and group_key 1 but that group has size 4",
        Cause.DEVICES,
        "8 replicas on one side, 4 on the other",
    ),
    (
        f"{ERRORS}.InternalError: Device /job:worker/replica:0/task:1/device:GPU:0 is joining a group with "
        "incompatible device typeCPU (group_key=3)",
        Cause.DEVICES,
        "sees no GPU",
    ),
    (
        f"{ERRORS}.ResourceExhaustedError: {NODE} ck/x-1_temp/part-00000-of-00001.data-00000-of-00001.tempstate72; "
        "No space left on device [Op:SaveV2]",
        Cause.DISK,
        "is full",
    ),
    (
        "OSError: [Errno 28] Can't synchronously write data (file write failed: time = Sat Nov 21 10:00:19 2026 , "
        "filename = 'x.weights.h5', file descriptor = 3, errno = 28, error message = 'No space left on device')",
        Cause.DISK,
        "is full",
    ),
    ("OSError: [Errno 122] Disk quota exceeded: 'model.keras'", Cause.DISK, "quota"),
    (
        "BlockingIOError: [Errno 11] Unable to synchronously create file (unable to lock file, errno = 11, error "
        "message = 'Resource temporarily unavailable')",
        Cause.CHECKPOINT,
        "two processes write one HDF5 file",
    ),
    (f"{ERRORS}.OpError: file is too short to be an sstable", Cause.CHECKPOINT, "cut short"),
    ("IndexError: Read less bytes than requested", Cause.CHECKPOINT, "cut short"),
    (
        "ValueError: Received incompatible tensor with shape (10,) when attempting to restore variable with shape "
        "(11,) and name Variable:0.",
        Cause.CHECKPOINT,
        "another model",
    ),
    (
        f"{ERRORS}.ResourceExhaustedError: OOM when allocating tensor with shape[128,3,8,128,8,128] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        Cause.GPU_OOM,
        "a GPU has not enough memory",
    ),
    (
        f"{CUDA} failed to allocate 10.76G from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        Cause.GPU_OOM,
        "a GPU has not enough memory",
    ),
    (
        f"{ERRORS}.ResourceExhaustedError: OOM when allocating tensor with shape[1048576,4194304] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu [Op:Fill]",
        Cause.OOM,
        "the host has not enough memory",
    ),
    (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 29.1 TiB for an array with shape (4000000,)",
        Cause.OOM,
        "the host has not enough memory",
    ),
    (
        f"{ERRORS}.InternalError: failed initializing StreamExecutor for CUDA device ordinal 0: failed call to "
        "cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
        Cause.GPU,
        "its hardware",
    ),
    ("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.", Cause.GPU, "its hardware"),
    (
        f"{ERRORS}.InternalError: cudaGetDevice() failed. Status: CUDA driver version is insufficient for CUDA runtime "
        "version",
        Cause.DEVICES,
        "do not fit together",
    ),
    ("RuntimeError: failed call to cuInit: CUDA_ERROR_NO_DEVICE", Cause.DEVICES, "finds no GPU"),
    (
        f"{CUDA} could not synchronize on CUDA context: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was "
        "encountered ::",
        Cause.GPU,
        "a GPU kernel failed",
    ),
    (
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        Cause.FOLLOWER,
        "NCCL lost its connection",
    ),
    (
        "E tensorflow/distribute/nccl/nccl_collective.cc:461] NCCL communication aborted: unhandled system error",
        Cause.NCCL,
        "could not set up",
    ),
    (
        "gpu-a:376586:377443 [4] ibvwrap.c:130 NCCL WARN Call to ibv_create_qp failed",
        Cause.NCCL,
        "could not set up",
    ),
    (f"{ERRORS}.UnavailableError: Connection reset by peer", Cause.FOLLOWER, "lost the connection to a peer"),
    (
        f"{ERRORS}.DeadlineExceededError: Barrier timed out. Barrier_id: WaitForAllTasks::3409563941431950927",
        Cause.FOLLOWER,
        "lost the connection to a peer",
    ),
    (
        "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
        Cause.NETWORK,
        "could not reach another machine",
    ),
    (
        "ConnectionRefusedError: [Errno 111] Connection refused",
        Cause.NETWORK,
        "could not reach another machine",
    ),
    (
        "ModuleNotFoundError: No module named 'einops'",
        Cause.IMPORT,
        "the Python on gpu-a has no module einops",
    ),
    (
        "ImportError: cannot import name 'LayerNormalization' from 'keras.layers' (/opt/tf/keras/layers.py)",
        Cause.IMPORT,
        "without LayerNormalization",
    ),
    (
        "AttributeError: module 'tensorflow' has no attribute '__internal__'",
        Cause.IMPORT,
        "versions that do not fit together",
    ),
    (
        "ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
        Cause.IMPORT,
        "a library that a module needs is missing",
    ),
    (
        "ImportError: attempted relative import with no known parent package",
        Cause.SCRIPT,
        "lies in no package",
    ),
    ("ImportError: this Python was built without it", Cause.IMPORT, "cannot be imported on gpu-a"),
    (
        f"{ERRORS}.InvalidArgumentError: Could not apply FILE based sharding: the dataset only has 1 file(s), which is "
        "not enough for the required 4 shards/workers.",
        Cause.DATA,
        "has not one for each worker",
    ),
    (
        f"{ERRORS}.OutOfRangeError: End of sequence [Op:IteratorGetNext]",
        Cause.DATA,
        "ended before the others'",
    ),
    (
        "ValueError: Attempt to convert a value (PerReplica:{0: <tf.Tensor: shape=(), dtype=float32>}) with an "
        "unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.",
        Cause.SCRIPT,
        "Keras 3 does not work under MultiWorkerMirroredStrategy",
    ),
    ("OSError: [Errno 27] File too large", Cause.SCRIPT, "the size of a file (`ulimit -f`)"),
    ("RuntimeError: can't start new thread", Cause.SCRIPT, "processes (`-u`)"),
    ("PermissionError: [Errno 13] Permission denied: '/data/train'", Cause.SCRIPT, "may not read or write"),
    (
        f"{ERRORS}.NotFoundError: {NODE} /data/x.tfrecord; No such file or directory [Op:ReadFile]",
        Cause.SCRIPT,
        "/data/x.tfrecord is not on gpu-a",
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.csv'",
        Cause.SCRIPT,
        "'train.csv' is not on gpu-a",
    ),
    ("SyntaxError: invalid syntax (train.py, line 3)", Cause.SCRIPT, "not valid for the Python"),
    (
        f"{ERRORS}.InternalError: Collective ops is aborted by: NCCL: unhandled cuda error, NCCL version 2.16.5. The "
        "error could be from a previous operation. Restart your program to reset.",
        Cause.NCCL,
        "could not set up",
    ),
    (
        f"{ERRORS}.InvalidArgumentError: /job:worker/replica:0/task:1 unexpectedly tried to connect with a different "
        "incarnation. It has likely restarted.",
        Cause.FOLLOWER,
        "a peer was gone",
    ),
    (
        f"{ERRORS}.ResourceExhaustedError: {{{{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0/"
        "device:GPU:0}} failed to allocate memory [Op:AddV2]",
        Cause.GPU_OOM,
        "a GPU has not enough memory",
    ),
    (
        f"{ERRORS}.InternalError: CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory",
        Cause.GPU_OOM,
        "a GPU has not enough memory",
    ),
    (
        f"{ERRORS}.FailedPreconditionError: DNN library initialization failed. Look at the errors above.",
        Cause.DEVICES,
        "cuDNN",
    ),
    (
        f"{ERRORS}.InternalError: libdevice not found at ./libdevice.10.bc [Op:__inference_train_function_1234]",
        Cause.DEVICES,
        "libdevice",
    ),
    (
        f"{ERRORS}.InvalidArgumentError: Cannot assign a device for operation dense/kernel: was explicitly assigned to "
        "/device:GPU:3 but available devices are [ /device:CPU:0 ].",
        Cause.DEVICES,
        "a device that the task does not have",
    ),
    (
        "F tensorflow/core/platform/cpu_feature_guard.cc:37] The TensorFlow library was compiled to use AVX "
        "instructions, but these aren't available on your machine.",
        Cause.CRASH,
        "the processor of gpu-a",
    ),
    (
        "F tsl/platform/default/env.cc:74] Check failed: ret == 0 (11 vs. 0)Thread tf_Compute creation via "
        "pthread_create() failed.",
        Cause.CRASH,
        "no thread could be made",
    ),
    (f"{ERRORS}.DataLossError: corrupted record at 12 [Op:IteratorGetNext]", Cause.DATA, "of the data set"),
    (
        f"{ERRORS}.InvalidArgumentError: Unknown image file format. One of JPEG, PNG, GIF, BMP required.",
        Cause.DATA,
        "not of the format",
    ),
    (
        "urllib.error.URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed>",
        Cause.SCRIPT,
        "is not trusted on gpu-a",
    ),
    (
        "ImportError: /lib/libc.so.6: version `GLIBC_2.28' not found (required by x.so)",
        Cause.IMPORT,
        "a library",
    ),
    ("ImportError: numpy.core.multiarray failed to import", Cause.IMPORT, "another NumPy"),
    ("AttributeError: _ARRAY_API not found", Cause.IMPORT, "another NumPy"),
    ("TypeError: Descriptors cannot be created directly.", Cause.IMPORT, "the protobuf on gpu-a"),
    (
        "ImportError: `load_weights` requires h5py when loading weights from HDF5.",
        Cause.IMPORT,
        "no module h5py",
    ),
    ("OSError: [Errno 116] Stale file handle: '/nfs/x'", Cause.SCRIPT, "the file system of that path"),
    (
        f"{ERRORS}.InvalidArgumentError: Nan in summary histogram for: dense/kernel_0 [Op:WriteHistogramSummary]",
        Cause.SCRIPT,
        "are NaN or infinite (dense/kernel_0)",
    ),
    ("KeyError: 'ORCH_CHECKPOINT_DIR'", Cause.SCRIPT, "the spec names no checkpoint directory"),
    ("train.py: error: unrecognized arguments: --epoch 3", Cause.SCRIPT, "unrecognized arguments: --epoch 3"),
    (
        "OSError: Unable to open file (unable to open file: name = 'w.h5', errno = 2, error message = 'No such file')",
        Cause.SCRIPT,
        "'w.h5' is not on gpu-a",
    ),
]


RULE = "the rule .gitignore:12 leaves it out"
ELSEWHERE = "put it on every host, or into the workdir, whose files are pushed"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'", f"data/ of: {RULE}"),
        ("FileNotFoundError: [Errno 2] No such file or directory: './data/train.csv'", f"data/ of: {RULE}"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/h/runs/t-1/tasks/worker-0/work/my/key.pem'",
            "my/key.pem of: it looks like a secret",
        ),
        (
            "ModuleNotFoundError: No module named 'lib.gen'",
            "lib/gen.py of: the rule a/.gitignore:1 leaves it out",
        ),
        ("ModuleNotFoundError: No module named 'data.deep'", f"data/ of: {RULE}"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'other/data/x'", ELSEWHERE),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'", ELSEWHERE),
        (
            "ModuleNotFoundError: No module named 'gen'",
            "lib/gen.py of: the rule a/.gitignore:1 leaves it out",
        ),
        (
            "ModuleNotFoundError: No module named 'en'",
            "install it there for that Python (python3 -m pip …), or add",
        ),
    ],
)
def test_what_a_rule_left_out_is_named_with_the_rule(error: str, advice: str) -> None:
    not_pushed = (
        ("data/", RULE),
        ("my/key.pem", "it looks like a secret"),
        ("lib/gen.py", "the rule a/.gitignore:1 leaves it out"),
    )
    run = new_run("t-1", make_plan(["a"], checkpoint=False), epoch=1, at=0.0, left_out=not_pushed)
    ended = cause.classify(Exit(Cause.SCRIPT, code=1, error=error))
    run = replace(run, tasks=(replace(run.tasks[0], exit=ended),))
    told = cause.first_cause_of(run, run.tasks[0])
    assert told is not None
    path, is_left_out, why = advice.partition(" of: ")
    way = f"{path} of the workdir is not pushed: {why}; `!{path}` in .orchignore pushes it"
    assert told.advice == way if is_left_out else told.advice.startswith(advice)


@pytest.mark.parametrize(
    ("number", "means"), [(signal.SIGILL, "refused an instruction"), (signal.SIGBUS, "/dev/shm")]
)
def test_what_a_crash_without_words_mostly_means(number: int, means: str) -> None:
    ended = cause.classify(Exit(Cause.SIGNAL, signal=number, last_lines=("step 3",)))
    assert ended.cause is Cause.CRASH
    assert means in matching.explained(ended, host="gpu-a", python="python3")[0]


@pytest.mark.parametrize(("text", "expected", "means"), TEXTS)
@pytest.mark.parametrize("known", [True, False], ids=["the runtime told", "from the lines"])
def test_each_text(text: str, expected: Cause, means: str, known: bool) -> None:
    lines = ("Traceback (most recent call last):", text)
    ended = cause.classify(Exit(Cause.SCRIPT, code=1, error=text if known else None, last_lines=lines))
    told, advice = matching.explained(ended, host="gpu-a", python="/opt/tf/bin/python")
    assert (ended.cause, means in told) == (expected, True), (ended.cause, told)
    assert advice
    assert "{" not in told + advice


OLD: list[tuple[str, str]] = [
    ("AttributeError: module 'keras.utils' has no attribute 'multi_gpu_model'", "orchestrator.keras"),
    (
        "ImportError: cannot import name 'multi_gpu_model' from 'tensorflow.keras.utils' (/opt/tf/keras/__init__.py)",
        "orchestrator.keras",
    ),
    ("AttributeError: module 'tensorflow' has no attribute 'contrib'", "`tf.distribute`"),
    ("ModuleNotFoundError: No module named 'tensorflow.contrib'", "`tf.distribute`"),
    ("AttributeError: module 'tensorflow' has no attribute 'estimator'", "TensorFlow 2.15"),
    ("AttributeError: module 'tensorflow' has no attribute 'Session'", "tensorflow.compat.v1"),
    (
        "AttributeError: module 'tensorflow._api.v2.train' has no attribute 'AdamOptimizer'",
        "tensorflow.compat.v1",
    ),
    (
        "AttributeError: '_RangeDataset' object has no attribute 'make_one_shot_iterator'",
        "for batch in dataset",
    ),
    (
        "AttributeError: '_DefaultDistributionStrategy' object has no attribute 'experimental_run_v2'",
        "strategy.run(",
    ),
    ("KeyError: 'val_acc'", "history.history['val_accuracy']"),
    ("KeyError: 'acc'", "history.history['accuracy']"),
    ("ValueError: Argument(s) not recognized: {'lr': 0.1}", "`learning_rate=`"),
    ("AttributeError: 'Sequential' object has no attribute 'fit_generator'", "`fit` takes generators"),
    ("AttributeError: 'Functional' object has no attribute 'predict_classes'", "argmax"),
    (
        "ValueError: The filename must end in `.weights.h5`. Received: filepath=/tmp/cp.ckpt",
        "ckpt_{epoch:04d}.weights.h5",
    ),
    (
        "ValueError: When using `save_weights_only=True` in `ModelCheckpoint`, the filepath provided must end in "
        "`.weights.h5` (Keras weights format). Received: filepath=ckpt_{epoch}",
        "ckpt_{epoch:04d}.weights.h5",
    ),
    (
        "TypeError: stat: path should be string, bytes, os.PathLike or integer, not NoneType",
        "max(glob.glob(directory + '/*.weights.h5'))",
    ),
    (
        "ValueError: The filepath provided must end in `.keras` (Keras model format). Received: filepath=ckpt",
        "model.keras",
    ),
    (
        "ValueError: Invalid filepath extension for saving. Please add either a `.keras` extension for the native",
        "model.keras",
    ),
    (
        "ValueError: File format not supported: filepath=/tmp/cp.ckpt. Keras 3 only supports V3 `.keras` files, ",
        "`keras: 2`",
    ),
    ("AttributeError: 'Mean' object has no attribute 'reset_states'", "`keras: 2`"),
    (
        "ImportError: `keras.optimizers.legacy` is not supported in Keras 3. When using `tf.keras`",
        "`keras: 2`",
    ),
    (
        "ValueError: A KerasTensor cannot be used as input to a TensorFlow function. A KerasTensor is a symbolic "
        "placeholder for a shape and dtype",
        "`keras: 2`",
    ),
    ("TypeError: TensorFlowTrainer.fit() got an unexpected keyword argument 'workers'", "`keras: 2`"),
    ("TypeError: ModelCheckpoint.__init__() got an unexpected keyword argument 'period'", "`keras: 2`"),
    ("AttributeError: module 'keras._tf_keras.keras.backend' has no attribute 'set_session'", "`keras: 2`"),
    ("AttributeError: module 'keras._tf_keras.keras.layers' has no attribute 'experimental'", "`keras: 2`"),
    ("ModuleNotFoundError: No module named 'tensorflow.keras.layers.experimental'", "`keras: 2`"),
    ("AttributeError: module 'keras.mixed_precision' has no attribute 'experimental'", "`keras: 2`"),
    (
        "ImportError: cannot import name 'np_utils' from 'keras.utils' (/opt/tf/keras/__init__.py)",
        "import to_categorical",
    ),
    ("ModuleNotFoundError: No module named 'keras.utils.np_utils'", "import to_categorical"),
    ("AttributeError: module 'keras.backend' has no attribute 'image_dim_ordering'", "image_data_format()"),
    (
        "AttributeError: module 'tf_keras.api._v2.keras.backend' has no attribute 'set_image_dim_ordering'",
        "set_image_data_format",
    ),
]
"""As TensorFlow 2.21 and Keras 3.15 print them; each with a part of the line of today."""


@pytest.mark.parametrize(("text", "today"), OLD)
def test_a_script_of_another_time_is_told_the_line_of_today(text: str, today: str) -> None:
    ended = cause.classify(Exit(Cause.SCRIPT, code=1, error=text))
    means, advice = matching.explained(ended, host="gpu-a", python="python")
    assert (ended.cause, today in advice) == (Cause.SCRIPT, True), advice
    assert means


def test_each_row_of_old_scripts_has_its_text() -> None:
    shown = [matching.signature_of(Exit(Cause.SCRIPT, code=1, error=text)) for text, _ in OLD]
    rows = [found[0] for found in shown if found]
    assert [sign.means for sign in OLD_SCRIPTS if sign not in rows] == []


@pytest.mark.parametrize(
    "text", ["KeyError: 'accuracy'", "AttributeError: 'Net' object has no attribute 'fitt'"]
)
def test_an_error_of_today_is_not_taken_for_an_old_one(text: str) -> None:
    assert matching.signature_of(Exit(Cause.SCRIPT, code=1, error=text)) is None


KINDS = [
    ("no-local-tpu", "no TPU local: TPUs not found in the cluster.", Cause.DEVICES, "no TPU here"),
    (
        "no-tpu",
        "no TPU v4-8: <urlopen error [Errno -2] Name or service not known>",
        Cause.DEVICES,
        "reach the TPU",
    ),
    ("began-apart", "worker:1 differs from worker:0 in the weights", Cause.BEGAN_APART, "different states"),
    ("no-rendezvous", "does not answer: Connection refused", Cause.NETWORK, "cannot reach rank 0"),
    (
        "unsupported",
        "train.py makes a MirroredStrategy of its own",
        Cause.UNSUPPORTED,
        "another start would fail in the same way",
    ),
    (
        "other-shapes",
        "the model has other shapes than the checkpoint (conv1: 3x3x1x16, was 8): `orch up --again` begins",
        Cause.UNSUPPORTED,
        "the script's model was changed since the checkpoint was saved",
    ),
]
"""Errors of our own runtime. Their words are for people: other rows may look like them."""


@pytest.mark.parametrize(("kind", "text", "expected", "means"), KINDS)
def test_each_kind(kind: str, text: str, expected: Cause, means: str) -> None:
    ended = cause.classify(Exit(Cause.SCRIPT, code=1, error=text, error_kind=kind))
    told, advice = matching.explained(ended, host="gpu-a", python="python")
    assert (ended.cause, means in told) == (expected, True), (ended.cause, told)
    assert advice


@pytest.mark.parametrize("kind", ["unsupported", "other-shapes"])
def test_what_the_runtime_refuses_is_not_started_again(kind: str) -> None:
    ended = cause.classify(Exit(Cause.SCRIPT, code=1, error="it cannot", error_kind=kind))
    decided = restart.verdict(
        Budget(), RestartPolicy(), ended.cause, verified_step=None, failure=None, identity="run"
    )
    assert isinstance(decided, restart.GiveUp)


def test_the_kinds_are_those_of_the_runtime_and_no_row_reads_its_sentences() -> None:
    said = set()
    for path in (ROOT / "task").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and (
                    node.value.startswith("no-")
                    or node.value in ("unsupported", "began-apart", "other-shapes")
                )
                and notes.kind_of(node.value) is None
            ):
                said.add(node.value)
    said -= {kind.value for kind in NoteKind}
    assert said == {kind for kind, _, _, _ in KINDS} == {sign.kind for sign in SIGNATURES if sign.kind}
    assert [sign.means for sign in SIGNATURES if bool(sign.kind) == bool(sign.patterns)] == []


def test_each_row_has_its_text() -> None:
    shown = [matching.signature_of(Exit(Cause.SCRIPT, code=1, error=text)) for text, _, _ in TEXTS]
    rows = [found[0] for found in shown if found]
    assert [sign.means for sign in SIGNATURES if sign not in rows and not sign.kind] == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        # printed by every TensorFlow on a host without a GPU, which then trains
        (
            "KeyError: 'label'",
            "E0000 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN (303)",
        ),
        (None, "E0000 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR (303)"),
        # a warning of AUTO sharding, which then splits by elements
        (
            None,
            "W auto_shard.cc:776] AUTO sharding policy will apply DATA: Found an unshardable source dataset: name",
        ),
        # a Python error is what it says, whatever stands above it
        ("ValueError: bad", "UNAVAILABLE: Connection reset by peer"),
        ("ValueError: bad", "NCCL WARN Call to ibv_create_qp failed"),
        (None, "all is well"),
    ],
)
def test_what_is_no_sign(error: str | None, line: str) -> None:
    ended = Exit(Cause.SCRIPT, code=1, error=error, last_lines=(line, error or ""))
    assert cause.classify(ended).cause is Cause.SCRIPT


def test_tensorflow_hides_its_causes_above() -> None:
    error = f"{ERRORS}.InternalError: Graph execution error:"
    lines = (f"{CUDA} CUDA_ERROR_OUT_OF_MEMORY: out of memory", error)
    assert cause.classify(Exit(Cause.SCRIPT, code=1, error=error, last_lines=lines)).cause is Cause.GPU_OOM


@pytest.mark.parametrize(
    ("signal", "line", "expected", "how"),
    [
        (
            6,
            "F tensorflow/gpu_event_mgr.cc:274] Unexpected Event status: 1",
            Cause.GPU,
            "crashed (SIGABRT): F tens",
        ),
        (
            6,
            "terminate called after throwing an instance of 'std::bad_alloc'",
            Cause.OOM,
            "ran out of memory: term",
        ),
        (11, "Fatal Python error: Segmentation fault", Cause.CRASH, "crashed (SIGSEGV): Fatal Python error"),
        (9, "CUDA_ERROR_OUT_OF_MEMORY", Cause.SIGNAL, "was killed by SIGKILL"),
        (15, "UNAVAILABLE: x", Cause.SIGNAL, "was killed by SIGTERM"),
    ],
)
def test_a_signal_of_its_own_making_is_told_from_one_that_was_sent(
    signal: int, line: str, expected: Cause, how: str
) -> None:
    ended = cause.classify(Exit(Cause.SIGNAL, signal=signal, last_lines=(line,)))
    assert ended.cause is expected
    assert cause.how(ended).startswith(how)


SKIPPED = (
    "/opt/tf/keras/src/saving/saving_lib.py:802: UserWarning: Skipping variable loading for optimizer 'adam', because "
    "it has 12 variables whereas the saved optimizer has 2 variables. "
)


def test_a_warning_is_no_failure_but_tells_why_a_script_did_not_resume() -> None:
    lines = (SKIPPED, "  saveable.load_own_variables(weights_store.get(inner_path))", "Epoch 1/3")
    failed = Exit(Cause.SCRIPT, code=1, error=f"{ERRORS}.InvalidArgumentError: no", last_lines=lines)
    assert cause.classify(failed).cause is Cause.SCRIPT
    told = matching.why_not_resumed(Exit(Cause.ORDERED, last_lines=lines))
    assert told is not None
    assert "left out the state of optimizer adam" in told[0]
    assert "--from-scratch" in told[1]
    shapes = ("ValueError: axes don't match array",)
    assert (
        "shapes or names differ"
        in (matching.why_not_resumed(Exit(Cause.ORDERED, last_lines=shapes)) or ("",))[0]
    )
    assert matching.why_not_resumed(Exit(Cause.ORDERED, last_lines=("Epoch 1/3",))) is None


def test_a_process_that_ended_itself_is_not_explained_by_what_it_printed_last() -> None:
    ended = cause.classify(Exit(Cause.SCRIPT, code=3, last_lines=("Epoch 1/3", "all is well")))
    means, advice = matching.explained(ended, host="gpu-a", python="python3")
    assert "ended the process itself (`os._exit`" in means
    assert "os._exit" in advice
    raised = Exit(Cause.SCRIPT, code=1, error="KeyError: 'x'")
    assert matching.explained(cause.classify(raised), host="gpu-a", python="python3") == ("", "")
