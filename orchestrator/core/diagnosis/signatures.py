"""What dying processes print, what it means, and what a person can do: a table, read from above.

Each text is one that TensorFlow, Keras, CUDA, NCCL or Python prints; the tests hold one for each row. To teach `orch`
another: a row here, and its text there. The module is as long as its table: to split it would hide the order, in
which the first row that is found wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from orchestrator.core.causes import Cause


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@dataclass(frozen=True, slots=True)
class Signature:
    """One row."""

    cause: Cause
    patterns: tuple[str, ...]
    """Regular expressions; one of them is found. Named groups fill the braces in `means` and `advice`."""
    means: str
    advice: str
    kind: str = ""
    """Of an error of our own runtime: its kind in `Exit.error_kind`, in the place of patterns."""
    in_the_error_only: bool = False
    """Not looked for in the lines around the error: processes that live print it too."""

    def found_in(self, text: str) -> re.Match[str] | None:
        """Return the match of the first pattern that is found."""
        return next(filter(None, (_compiled(pattern).search(text) for pattern in self.patterns)), None)


_SAME_PROGRAM = (
    "all workers must build the same model and take the same steps. Usual reasons: a trial or a random choice drawn "
    "without a seed that all share, a file (a checkpoint, a cache) that only some hosts have, a callback that stops by "
    "the clock or by a worker's own metric, a branch on the task's index"
)

_NCCL = (
    "NCCL could not set up or use the connections between the GPUs",
    "run once with env NCCL_DEBUG=INFO; usual causes: a wrong interface (NCCL_SOCKET_IFNAME), InfiniBand without "
    "locked memory (`ulimit -l`), a small /dev/shm. `communication: ring` does without NCCL",
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        Cause.PORT,
        ("Could not start gRPC server",),
        "another process took the task's port before TensorFlow could bind it",
        "nothing: the next generation has other ports. If it comes back, keep `ports:` out of the range of outgoing "
        "connections (`sysctl net.ipv4.ip_local_port_range`)",
    ),
    Signature(
        Cause.PORT,
        ("Address already in use", "EADDRINUSE"),
        "a port that the process wanted belongs to another",
        "if the script opens a port of its own (a metrics page, a profiler), give each task its own",
    ),
    Signature(
        Cause.DEVICES,
        (),
        "there is no TPU here that TensorFlow can use",
        "see that {host} is a TPU VM with TensorFlow's TPU build, and that nobody else holds the TPU",
        kind="no-local-tpu",
    ),
    Signature(
        Cause.DEVICES,
        (),
        "TensorFlow did not reach the TPU",
        "see that it is READY in the project and zone of {host}, and its port 8470 open from there; on a TPU VM write "
        "`tpu: local`",
        kind="no-tpu",
    ),
    Signature(
        Cause.NETWORK,
        (),
        "the ranks of Horovod cannot reach rank 0",
        "see that no firewall between the hosts is in the way: the rendezvous uses the `ports` of the spec, and gloo "
        "whatever is free",
        kind="no-rendezvous",
    ),
    Signature(
        Cause.UNSUPPORTED,
        (),
        "the script does what this strategy cannot do; another start would fail in the same way",
        "the message names the place in the script, and the way out",
        kind="unsupported",
    ),
    Signature(
        Cause.BEGAN_APART,
        (),
        "the workers restored different states of one training, and compared them before their first new step",
        "see that all workers get the same checkpoint: `orch doctor FILE` says whether all hosts see the checkpoint "
        "directory, and `orch ckpt ls` which one was taken",
        kind="began-apart",
    ),
    Signature(
        Cause.UNSUPPORTED,
        (),
        "the script's model was changed since the checkpoint was saved; another start would fail in the same way",
        "give the model its old shapes, or begin from scratch with `orch up --again`, which keeps the checkpoint",
        kind="other-shapes",
    ),
    # Before the rows of followers: each worker prints these within "Collective ops is aborted by".
    Signature(
        Cause.DIFFERENT,
        (
            r"Shape mismatch in the collective instance (?P<n>\d+)\..*?expected shape (?P<a>\[[^\]]*\]) but another "
            r"member in the group expected shape (?P<b>\[[^\]]*\])",
        ),
        "the workers ran different programs: they parted before collective {n}, where one had a tensor of shape {a} "
        "and another one of {b}",
        _SAME_PROGRAM,
    ),
    Signature(
        Cause.DIFFERENT,
        (
            r"Collective instance (?P<n>\d+) expected type (?P<a>.+?),? but got type (?P<b>.+?)(?:$|[.;\n]| The error)",
        ),
        "the workers ran different programs: they parted before collective {n}, for which one had type {a} and "
        "another {b}",
        _SAME_PROGRAM,
    ),
    Signature(
        Cause.DIFFERENT,
        ("Shape mismatch in the collective instance", r"Collective instance \d+ expected type"),
        "the workers ran different programs: their collectives do not fit together",
        _SAME_PROGRAM,
    ),
    Signature(
        Cause.NCCL,
        (r"Collective ops is aborted by: .*?NCCL.*?(?:unhandled \w+ error|invalid usage|internal error)",),
        *_NCCL,
    ),
    Signature(
        Cause.DEVICES,
        (r"is joining a group with size ?(?P<a>\d+), but that group has size ?(?P<b>\d+)",),
        "a collective was joined as one of {a} replicas and as one of {b}: the tasks do not have the same number of "
        "devices, or a process has two strategies of different sizes",
        "give every task the same `gpus:`; make one strategy in a process, or let orch run the script, which keeps "
        "several MirroredStrategies apart",
    ),
    # A follower may repeat its peer's error, but the task that failed first never prints this line.
    Signature(
        Cause.FOLLOWER,
        (
            "Collective ops is aborted by",
            "Restart your program to reset",
            "has been set to ERROR in coordination service",
            "The remote task has failed|remote task has failed, got preempted, or crashed",
            "tried to connect with a different incarnation",
            "Terminating process because the .*distributed service detected fatal errors",
        ),
        "TensorFlow ended it because a peer was gone",
        "check the peer that ended first; if none did, check the network between the hosts",
    ),
    Signature(
        Cause.DEVICES,
        (r"has group_size (?P<a>\d+) and group_key ?\d+ but that group has size (?P<b>\d+)",),
        "the tasks do not have the same number of GPUs: {a} replicas on one side, {b} on the other",
        "give every task the same `gpus:`; hide the others' GPUs, or leave the smaller host out",
    ),
    Signature(
        Cause.DEVICES,
        ("is joining a group with incompatible device type",),
        "one task trains on GPUs and another on CPUs: its TensorFlow sees no GPU",
        "compare `tf.config.list_physical_devices('GPU')` on the hosts; a driver or CUDA is missing on one",
    ),
    Signature(
        Cause.DISK,
        (
            r"/dev/shm\b.*(?:No space left|\(28\)|Bus error)",
            r"(?:No space left|Bus error).*(?:/dev/shm\b|shared memory)",
        ),
        "/dev/shm on {host}, the memory that processes share, is full",
        "`df -h /dev/shm` on {host}: remove what dead processes have left there, or make it larger (`mount -o "
        "remount,size=…`; of a container `--shm-size`; of a pod `shm` of `kubernetes:`)",
    ),
    Signature(
        Cause.DISK,
        (r"No locks available", r"\[Errno 37\]", r"unable to lock file, errno = 37"),
        "the file system takes no locks: an NFS mount without a lock daemon, or with `nolock` on its server",
        'start rpc.statd there and on the server, or mount it by NFS 4; or set `HDF5_USE_FILE_LOCKING: "FALSE"` under '
        "`env`, where one process alone writes each file",
    ),
    Signature(
        Cause.DISK,
        ("No space left on device", r"\bENOSPC\b", r"\[Errno 28\]", r"errno = 28\b"),
        "the disk it writes to is full, or has no inodes left for another file; the last verified checkpoint is "
        "untouched",
        "make room where the checkpoints or the script's files go (`df -h` and `df -i` there), or keep fewer "
        "(`checkpoint: keep`)",
    ),
    Signature(
        Cause.DISK,
        ("No usable temporary directory found",),
        "{host} has no directory for temporary files in which one can be made: the disk is full, or has no inodes left",
        "`df -h /tmp` and `df -i /tmp` on {host}; or name another directory as `TMPDIR` under `env`",
    ),
    Signature(
        Cause.DISK,
        ("Disk quota exceeded", r"errno = 122\b"),
        "the user's quota on that file system is used up",
        "`quota -s` on the host; remove what is not needed, or have the quota raised",
    ),
    Signature(
        Cause.CHECKPOINT,
        (r"unable to lock file, errno = 11", r"BlockingIOError: \[Errno 11\] Unable to"),
        "two processes write one HDF5 file: its lock is held by another",
        "save into $ORCH_CHECKPOINT_DIR, which is each task's own, and not into one path from all workers",
    ),
    Signature(
        Cause.DATA,
        (
            r"corrupted record at \d+|DataLossError.*(?:inflate\(\) failed|IteratorGetNext)",
            "Unknown image file format|Invalid JPEG data|Invalid PNG (?:data|header)",
        ),
        "a file of the data set is damaged, cut short, or not of the format as which it is read",
        "find it by reading the files one by one without a model; `tf.data.Dataset.ignore_errors()` passes over such",
    ),
    Signature(
        Cause.CHECKPOINT,
        (
            "DataLossError",
            "DATA_LOSS:",
            "Read less bytes than requested",
            "too short to be an sstable",
            "truncated block read",
            "Checksum does not match",
            r"Unable to (?:synchronously )?open (?:file|object) \((?:truncated file|file signature not found|bad )",
        ),
        "a file that it read is damaged or cut short",
        "if it is a checkpoint of your own, restore from $ORCH_CHECKPOINT_DIR, which holds only what was read whole; "
        "if it is data, look at that file",
    ),
    Signature(
        Cause.CHECKPOINT,
        (
            r"Received incompatible tensor with shape .* when attempting to restore",
            r"Tensor name .* not found in checkpoint files",
            r"Layer '?\S+'? expected \d+ variables, but received \d+",
            r"Shape mismatch in layer",
            r"axes don't match array|The shape of the target variable and the shape of the target value",
        ),
        "the checkpoint was saved by another model: shapes or names differ",
        "if the model was changed on purpose, start over with `orch up --from-scratch` or another checkpoint directory",
    ),
    Signature(
        Cause.GPU_OOM,
        (
            "CUDA_ERROR_OUT_OF_MEMORY",
            r"OOM when allocating tensor(?s:.)*?(?:device:GPU|GPU_\d+_bfc)",
            r"Allocator \(GPU_\d+_bfc\) ran out of memory trying to allocate \S+ \(rounded",
            r"Out of memory (?:while trying to allocate|allocating) \d+ bytes",
            r"device:GPU:\d+\}\} failed to allocate memory",
            "Status: out of memory|NCCL communicator: Out of memory|Dst tensor is not initialized",
            "CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED",
        ),
        "a GPU has not enough memory for it",
        "a smaller batch per replica or a smaller model; `nvidia-smi` shows whether another process holds the memory",
    ),
    Signature(
        Cause.OOM,
        (
            "OOM when allocating tensor",
            r"\bMemoryError\b",
            r"std::bad_alloc",
            r"Cannot allocate memory",
            r"Unable to allocate .* for an array",
        ),
        "the host has not enough memory for it",
        "a smaller batch, shuffle buffer or `cache()`; fewer tasks on this host",
    ),
    Signature(
        Cause.GPU,
        (
            "CUDA_ERROR_ECC_UNCORRECTABLE|uncorrectable ECC error",
            r"\bXid\b.*\d+",
            "fallen off the bus",
            "CUDA_ERROR_HARDWARE_STACK_ERROR|CUDA_ERROR_NVLINK_UNCORRECTABLE",
        ),
        "a GPU failed: its hardware, its power or its cooling",
        "`nvidia-smi -q` and `dmesg | grep Xid` on {host}; reset it or reboot, and take the host out if it comes back",
    ),
    Signature(
        Cause.DEVICES,
        (
            "CUDA driver version is insufficient for CUDA runtime version|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "kernel version .* does not match DSO version",
            "CUDNN_STATUS_VERSION_MISMATCH|Loaded runtime CuDNN library: .* but source was compiled with",
        ),
        "TensorFlow's CUDA and the host's driver do not fit together",
        "compare `nvidia-smi` on the hosts; after an upgrade of the driver the host must be rebooted",
        in_the_error_only=True,
    ),
    Signature(
        Cause.DEVICES,
        (
            "DNN library (?:is not found|initialization failed)|Failed to get convolution algorithm",
            "without BLAS support|Blas GEMM launch failed|CU(?:DNN|BLAS)_STATUS_NOT_INITIALIZED",
        ),
        "TensorFlow could not set up cuDNN or cuBLAS on a GPU: the library is missing or does not fit, or the GPU's "
        "memory is taken",
        "the log above it may name a version; `nvidia-smi` on {host} shows whether another process holds the memory. "
        'Where processes share a GPU: TF_FORCE_GPU_ALLOW_GROWTH: "true" under `env`',
    ),
    Signature(
        Cause.DEVICES,
        ("libdevice not found at|Couldn't find a suitable ptxas|ptxas exited with non-zero",),
        "XLA did not find CUDA's libdevice or ptxas on {host}, or could not use it",
        "install CUDA's nvcc there, for example the package nvidia-cuda-nvcc-cu12 for {python}; or name CUDA's "
        "directory: XLA_FLAGS: --xla_gpu_cuda_data_dir=/usr/local/cuda under `env`. `jit_compile=False` does without",
    ),
    Signature(
        Cause.DEVICES,
        ("Cannot assign a device for operation",),
        "the script places an operation on a device that the task does not have",
        "look for `tf.device(…)` in the script; `nvidia-smi` on {host} shows the GPUs",
        in_the_error_only=True,
    ),
    Signature(
        Cause.CRASH,
        (r"compiled to use .* instructions, but these aren't available",),
        "TensorFlow is built for instructions that the processor of {host} does not have",
        "`lscpu` there; use another host, or a TensorFlow that is built for its processor",
    ),
    Signature(
        Cause.CRASH,
        (r"creation via pthread_create\(\) failed",),
        "no thread could be made on {host}: a limit on processes is reached",
        "`ulimit -u` and the `pids.max` of its control group there; fewer tasks on this host",
    ),
    Signature(
        Cause.DEVICES,
        ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE", "[Ff]ailed call to cuInit"),
        "TensorFlow finds no GPU that it can use",
        "`nvidia-smi` on {host}: is the driver loaded, and are the GPUs of the spec there?",
        in_the_error_only=True,  # any process on a host without GPUs prints it, and trains on
    ),
    Signature(
        Cause.GPU,
        (
            r"CUDA_ERROR_(?P<name>[A-Z_]+)",
            "GPU sync failed",
            "Unexpected Event status: 1",
            "CUDNN_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)|CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
        ),
        "a GPU kernel failed",
        "always on this host: suspect its GPU (`dmesg | grep Xid`); everywhere: an operation of the script's, or "
        "versions of CUDA and cuDNN that do not fit",
    ),
    Signature(
        Cause.FOLLOWER,
        (
            "remote process exited or there was a network error|ncclRemoteError",
            r"NCCL.*[Cc]onnection closed by remote peer",
        ),
        "NCCL lost its connection to a peer",
        "check the peer that ended first; if none did, check the network between the hosts",
    ),
    Signature(
        Cause.NCCL,
        (
            r"ncclSystemError|(?i:nccl).*unhandled system error|Call to ibv_\w+ failed",
            r"ncclUnhandledCudaError|(?i:nccl).*unhandled cuda error",
            r"ncclInternalError|ncclInvalidUsage|(?i:nccl).*(?:internal error|invalid usage)",
            r"NCCL WARN (?!NET/Plugin)",
        ),
        *_NCCL,
    ),
    Signature(
        Cause.FOLLOWER,
        ("HorovodInternalError", "Horovod has been shut down"),
        "Horovod ended it because a rank had gone",
        "check the rank that ended first; if none did, check the network between the hosts",
    ),
    Signature(
        Cause.FOLLOWER,
        (
            "UnavailableError",
            "UNAVAILABLE:",
            "DeadlineExceededError",
            "DEADLINE_EXCEEDED:",
            "Barrier timed out",
            "heartbeat timeout",
            "AbortedError",
            "ConnectionResetError",
            "Connection reset by peer",
            "Socket closed",
        ),
        "it lost the connection to a peer",
        "check the peer that ended first; if none did, check the network between the hosts",
    ),
    Signature(
        Cause.SCRIPT,
        ("CERTIFICATE_VERIFY_FAILED",),
        "the certificate of a server that it asked is not trusted on {host}",
        "install the authorities there (ca-certificates), or the one of a proxy that opens TLS, and see that its clock "
        "is right; or put the data where the hosts can read it",
        in_the_error_only=True,
    ),
    Signature(
        Cause.NETWORK,
        (
            "No route to host",
            "Network is unreachable",
            "Connection refused",
            "Temporary failure in name resolution|Name or service not known|getaddrinfo failed",
            "Connection timed out|TimeoutError: \\[Errno 110\\]",
            "URLError|Max retries exceeded with url|ConnectionError:|couldn't connect to '",
        ),
        "it could not reach another machine",
        "hosts often have no way to the internet: put data where the hosts can read it. Between the hosts: does a "
        "firewall let the ports of the spec through?",
        in_the_error_only=True,
    ),
    Signature(
        Cause.IMPORT,
        (r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)",),
        "the Python on {host} has no module {module}",
        "install it there for that Python ({python} -m pip …), or add it to the workdir, whose files are pushed",
    ),
    Signature(
        Cause.IMPORT,
        (
            r"numpy\.\w*\.?multiarray failed to import|_ARRAY_API not found|numpy\.dtype size changed",
            r"compiled against (?:API|ABI) version 0x|compiled using NumPy 1\.x cannot be run",
        ),
        "a module on {host} was built for another NumPy than the one there",
        "install a newer version of that module, or the NumPy that it was built for ({python} -m pip install "
        "'numpy<2', if it is of NumPy 1)",
        in_the_error_only=True,  # NumPy prints it too where the import is optional
    ),
    Signature(
        Cause.IMPORT,
        (
            "Descriptors cannot (?:not )?be created directly|incompatible Protobuf Gencode/Runtime",
            "'MessageFactory' object has no attribute 'GetPrototype'|cannot import name '\\w+' from 'google.protobuf",
        ),
        "the protobuf on {host} is of another version than what TensorFlow, or another module, was made for",
        "`{python} -m pip check` there names what does not fit; install all of it together, as where it works",
    ),
    Signature(
        Cause.IMPORT,
        (r"requires h5py|h5py is not available",),
        "the Python on {host} has no module h5py, which reads and writes HDF5",
        "install it there ({python} -m pip install h5py)",
    ),
    Signature(
        Cause.IMPORT,
        (r"ImportError: cannot import name '?(?P<name>\w+)'? from '?(?P<module>[\w.]+)",),
        "{module} on {host} is there in a version without {name}",
        "compare `pip freeze` of the hosts with the machine where the script works",
    ),
    Signature(
        Cause.IMPORT,
        (
            r"requires? .*tf[_-]keras|install (?:the )?`?tf[_-]keras`?",
            "Keras cannot be imported|module 'keras' has no attribute|module 'tf_keras' has no attribute",
            r"module 'tensorflow(?:\.[\w.]+)?' has no attribute '(?:_api|compat|__internal__)",
        ),
        "TensorFlow, Keras and tf_keras on {host} are of versions that do not fit together",
        "install the tf_keras of TensorFlow's own minor version (TensorFlow 2.18: tf_keras 2.18), or none of it",
    ),
    Signature(
        Cause.IMPORT,
        (
            r"ImportError: (?P<file>[\w.+-]+\.so[\w.]*): cannot open shared object",
            r"ImportError: .*(?:undefined symbol|version `\w+_[\d.]+' not found)",
        ),
        "a library that a module needs is missing on {host}, or is of another version",
        "install what the module is built for, or the module for what is there",
    ),
    Signature(
        Cause.SCRIPT,
        ("attempted relative import with no known parent package",),
        "a file that is run as a script lies in no package, so it cannot import from one with a dot",
        "name it as a module, in the place of `script`: `module: pkg.train` runs pkg/train.py as `python -m` does",
    ),
    Signature(
        Cause.IMPORT,
        (r"\bImportError\b",),
        "a module cannot be imported on {host}",
        "try it there: `{python} -c 'import …'`",
    ),
    Signature(
        Cause.DATA,
        (
            r"Could not apply FILE based sharding",
            r"There aren't enough elements in this dataset for each shard",
            "[Ff]ound an unshardable source dataset",
        ),
        "the data set is to be split by files, and has not one for each worker",
        "set `options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA`, or write "
        "at least one file per worker",
        in_the_error_only=True,
    ),
    Signature(
        Cause.DATA,
        ("OUT_OF_RANGE: End of sequence|OutOfRangeError|ran out of data",),
        "its data ended before the others': the workers' shares differ",
        "`repeat()` the data set and give `steps_per_epoch`, or split it evenly",
        in_the_error_only=True,
    ),
    Signature(
        Cause.DATA,
        (r"CancelledError\b.*(?:function is cancelled|GetNext|Iterator|RemoteExecuteNode)",),
        "under a parameter server a step of another worker failed, mostly since that worker's data had ended, and this "
        "one was cancelled",
        "`Start cancelling closures due to error` in the chief's log names the first error; where data ran out "
        "`repeat()` the data set that each worker makes, and let `steps_per_epoch` say where an epoch ends",
        in_the_error_only=True,
    ),
    Signature(
        Cause.SCRIPT,
        ("Collective ops must be configured at program startup",),
        "the strategy was made after TensorFlow had run something",
        "make the strategy in the first lines of the script, before any tensor, data set, model or "
        "`tf.config.list_logical_devices`; `transparent: true` does that for a script without a strategy",
    ),
    Signature(
        Cause.SCRIPT,
        (r"Attempt to convert a value \(PerReplica",),
        "Keras 3 does not work under MultiWorkerMirroredStrategy by itself, and the runtime's patch was not in place",
        "leave `runtime: on`, and let the script import Keras itself, in the main process; or install tf_keras and "
        "write `keras: 2` under `run:`",
    ),
    Signature(
        Cause.SCRIPT,
        ("`merge_call` called while defining a new graph or a tf.function",),
        "gradients are reduced within a condition, which TensorFlow's strategies refuse: Keras 3 writes one for "
        "`gradient_accumulation_steps`, LossScaleOptimizer and mixed_float16 under CentralStorageStrategy",
        "`transparent: true` under `mirrored` or `multi_worker_mirrored` trains the same script",
    ),
    Signature(
        Cause.SCRIPT,
        (r"You must feed a value for placeholder tensor '[^']*cond/[^']*Placeholder\w*' with dtype int32",),
        "a step that reduces gradients lies in a condition, since variables are made in the first step",
        "in the strategy's scope and before `fit`: `optimizer.build(variables)` for each optimizer of the model's own",
    ),
    Signature(
        Cause.SCRIPT,
        (
            r"Trying to access resource .+ located in device \S+ from device",
            "Collectives are not yet implemented for CPU devices",
        ),
        "XLA does not compile a step that several CPU replicas take together",
        "`jit_compile=False`, which `compile` takes",
    ),
    Signature(
        Cause.SCRIPT,
        (r"\[Errno 27\]", r"\[Errno 24\]", "can't start new thread", "Too many open files", "File too large"),
        "a limit of its user is reached: the size of a file (`ulimit -f`), open files (`-n`) or processes (`-u`)",
        "`ulimit -a` on {host} shows them; rc files and /etc/security/limits.conf there set them",
        in_the_error_only=True,
    ),
    Signature(
        Cause.SCRIPT,
        (r"\[Errno (?:5|30|107|116)\]", "Read-only file system|Stale file handle"),
        "the file system of that path on {host} failed, is gone (a mount that broke), or may only be read",
        "`findmnt -T` of the path and `dmesg` on {host}",
        in_the_error_only=True,
    ),
    Signature(
        Cause.SCRIPT,
        (r"Nan in summary histogram for: (?P<name>\S+)", "Tensor had (?P<name>NaN|Inf)"),
        "weights or gradients are NaN or infinite ({name}): the training has diverged",
        "a smaller learning rate, clipped gradients, or a look at the data. A metric that is NaN is seen by "
        "`on_nonfinite`, which can go back to a checkpoint",
        in_the_error_only=True,
    ),
    Signature(
        Cause.SCRIPT,
        (
            r"(?m)^\S+: error: (?P<said>(?:unrecognized arguments|the following arguments are|argument \S+:).*)",
            r"FATAL Flags parsing error:\s*(?P<said>.*)",
        ),
        "the script does not take its arguments: {said}",
        "compare `args` under `run:` with what the script reads",
    ),
    Signature(
        Cause.SCRIPT,
        ("PermissionError", r"\[Errno 13\]", r"errno = 13\b", "PermissionDeniedError", "PERMISSION_DENIED:"),
        "the user of the task may not read or write that path",
        "`ls -ld` it on {host} as the user of `ssh:`; hosts may have other user ids on a shared file system",
        in_the_error_only=True,
    ),
    Signature(
        Cause.SCRIPT,
        (
            r"FileNotFoundError: .*?(?P<path>'[^']+')",
            r"NotFoundError: .*?(?P<path>/\S+?);? No such file or directory",
            r"name = (?P<path>'[^']+'), errno = 2\b",
            r"File not found: filepath=(?P<path>\S+?)\. ",
            r"SavedModel file does not exist at: (?P<path>[^{]+)",
            r"No file or directory found at (?P<path>\S+)",
            r"(?:No files matched pattern|[Mm]atching files): (?P<path>[^\s'\"]+)",
        ),
        "{path} is not on {host}",
        "put it on every host, or into the workdir, whose files are pushed; paths of the head node mean nothing there",
        in_the_error_only=True,
    ),
    Signature(
        Cause.SCRIPT,
        (r"KeyError: 'ORCH_CHECKPOINT_DIR'",),
        "the spec names no checkpoint directory, so there is no ORCH_CHECKPOINT_DIR",
        "write `checkpoint:` with a `dir:` under `run:`, on a file system that all hosts share",
        in_the_error_only=True,
    ),
    Signature(
        Cause.SCRIPT,
        ("SyntaxError|IndentationError",),
        "the script is not valid for the Python on {host}",
        "try it there: `{python} -m py_compile SCRIPT`",
        in_the_error_only=True,
    ),
)

WARNINGS: tuple[Signature, ...] = (
    Signature(
        Cause.CHECKPOINT,
        (r"Skipping variable loading for optimizer '(?P<name>[^']*)'",),
        "the model or the optimizer was changed, or not built before it was loaded: Keras loaded the weights, and left "
        "out the state of optimizer {name} with its count of steps, since the number of variables differs",
        "if it was changed on purpose, start over with `orch up --from-scratch` or another checkpoint directory; if "
        "not, `model.optimizer.build(model.trainable_variables)` before the weights are loaded",
    ),
)
"""What a process prints and goes on. It decides only where a script did not go on from its checkpoint."""
