"""Libraries that train with FSDP2 and DDP, as they are, most of them in examples/: each test is skipped where
its library is not installed. examples/ for clusters: their scripts and manifests start the job on two or
three nodes, as ssh, Slurm, Kubernetes and SkyPilot would, which are stood in for here."""

import atexit
import importlib.util
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
import ranks
import yaml
from thinwire import autoload

HERE = pathlib.Path(__file__).parent
LIMIT_SEC = 150
os.environ["HF_HUB_OFFLINE"] = "1"  # libraries look at it when they are imported
CONFIG = "examples/hugging_face/fsdp2.yaml"
LOSS = re.compile(r"\bloss'?:? '?([0-9]+\.[0-9]+)")


def preload(modules):
    """Import them before ranks are forked: each rank would do so by itself, which is most of its time."""
    missing = [name for name in modules if importlib.util.find_spec(name.split(".")[0]) is None]
    if missing:
        pytest.skip("not installed: " + ", ".join(missing))
    for name in modules:
        importlib.import_module(name)


def run(job, folder, **environment):
    """(losses, what was said on stderr) of two ranks, each a node of its own: an example, or a job of
    client_job.py."""
    folder.mkdir(exist_ok=True)
    script = job.split() if "/" in job else [str(HERE / "client_job.py"), job, str(folder)]

    def run_script(rank):
        sys.stdout, sys.stderr = (open(folder / (name + str(rank)), "w") for name in ("out", "err"))
        autoload.run()  # the parent's torch was imported without TW_FSDP
        sys.argv, sys.path = script, [os.path.dirname(script[0]), *sys.path]
        runpy.run_path(script[0], run_name="__main__")
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()

    # as torchrun sets them
    settings = {"TORCHELASTIC_RUN_ID": "clients", "GROUP_WORLD_SIZE": "1",
                "MASTER_PORT": str(ranks.free_port()),
                "CUDA_VISIBLE_DEVICES": ""} | environment
    ranks.run(2, run_script, backend=None, limit_sec=LIMIT_SEC, **settings)
    said = {name: "".join((folder / (name + str(rank))).read_text() for rank in range(2))
            for name in ("out", "err")}
    return [float(one) for one in LOSS.findall(said["out"])], said["err"]


def of_config(path):
    """The variables that `accelerate launch --config_file` sets for its jobs."""
    from accelerate.commands import launch

    given = launch.launch_command_parser().parse_args(["--config_file", path, "job.py"])
    arguments, _, _ = launch._validate_launch_command(given)
    made = launch.prepare_multi_gpu_env(arguments)
    return {name: value for name, value in made.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


# (job, modules that it needs, what it says)
FSDP2, DDP = "FSDP2 over thinwire: weights delta", "DDP over thinwire: gradients lossless"
# Gloo of torch 2.15 does not take their sums, which are scaled (PREMUL_SUM). They are compared with plain.
REFUSED_BY_GLOO = ("titan",)
PLAIN = {"TW_FSDP": "1", "TW_WEIGHTS": "plain", "TW_GRADS": "plain"}
# It shards on accelerators alone, and is told that there are some.
ON_CPUS = "tests/plugin/torch/accelerate_on_cpus.py "
TRAINER = ["transformers.trainer", "transformers.models.qwen3.modeling_qwen3", "accelerate"]
JOBS = [
    ("dcp", [], FSDP2),
    ("examples/fsdp2/train.py", [], FSDP2),
    (ON_CPUS + "examples/hugging_face/train.py", TRAINER, FSDP2),
    ("lora", ["transformers.models.llama.modeling_llama", "peft"], FSDP2),
    ("examples/lightning/train.py", ["lightning"], FSDP2),
    ("titan", ["torchtitan.distributed.fsdp"], FSDP2),
    ("qlora", ["torchao.quantization"], FSDP2),
    ("examples/hugging_face/train.py", TRAINER, DDP),
    ("examples/hugging_face/sft_lora.py", [*TRAINER, "trl.trainer.sft_trainer", "datasets", "peft"], DDP),
]


def test_a_library_with_collectives_of_its_own(tmp_path):
    """It trains as it does without us, and the report says what takes its collectives."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("not installed: deepspeed")
    losses, said = run("deepspeed", tmp_path, TW_FSDP="1", DS_ACCELERATOR="cpu")
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert said.count("nothing went over thinwire to other nodes, because of DeepSpeed: "
                      "it calls collectives of its own; under NCCL: LD_PRELOAD=libthinwire-nccl.so") == 1


# {TW_WEIGHTS: the most of what plain takes that its gathers may send}
FLOAT8 = {"plain": 1.0, "delta": 0.3}


def test_float8_gathers(tmp_path):
    """Gloo's bytes and ours, over 20 steps, bit for bit."""
    preload(["torchao.float8"])
    expected, _ = run("float8", tmp_path / "base")
    assert len(expected) == 20 and expected[-1] < expected[0] - 0.2
    for weights, most in FLOAT8.items():
        losses, said = run("float8", tmp_path / weights, TW_COLL_MODEL="inter:beta=1mbit", TW_FSDP="1",
                           TW_WEIGHTS=weights)
        assert losses == expected, weights
        assert "not over thinwire" not in said
        (share,) = re.findall(r"all-gather: .* plain .* MB \(([0-9.]+)\)", said)
        assert float(share) <= most, said


@pytest.mark.parametrize("job, needs, says", JOBS, ids=[job for job, _, _ in JOBS])
def test_a_library_as_it_is(job, needs, says, tmp_path):
    """The default loses nothing: on two ranks the losses are gloo's, to the last bit."""
    preload(needs)
    config = of_config(CONFIG) if job.startswith(ON_CPUS) else {}
    expected, _ = run(job, tmp_path / "base", **config, **(PLAIN if job in REFUSED_BY_GLOO else {}))
    # on a fast link what is so small goes plain
    losses, said = run(job, tmp_path / "ours", TW_COLL_MODEL="inter:beta=1mbit", **config,
                       **{"TW_FSDP" if says == FSDP2 else "TW_DDP": "1"})
    assert losses == expected
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.2
    assert said.count(says) == 1 and said.count("MB sent to other nodes, as counted: ") == 1
    assert re.search(r"as counted: [0-9.]+ MB saved", said) and "not over thinwire" not in said


ROOT = pathlib.Path("examples")
JOB = "examples/fsdp2/train.py"
TOKEN = "9" * 64
# Programs by their names: nodes are processes here, and what is said to be on one has its name.
PROGRAMS = {
    "torchrun": 'exec "$PYTHON" -m torch.distributed.run "$@"',
    "openssl": "echo " + TOKEN,
    "ssh": 'export TW_NODE_ID=$1; shift; exec env -u TW_FSDP -u TW_COLL_MODEL "$@"',
    "scontrol": "printf 'localhost\\nother\\n'",
    "srun": 'for i in 1 2; do TW_NODE_ID=$i "$@" & done; wait %1 && wait %2',
    "pip": "exit 1",
}


@pytest.fixture
def start(tmp_path):
    """start(COMMAND, VARIABLE=value...): begins a command of a shell, with those programs on its PATH."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text("#!/bin/bash\n%s\n" % text)
        (tmp_path / name).chmod(0o755)
    base = os.environ | ranks.SLOW | {
        "PATH": "%s:%s" % (tmp_path, os.environ["PATH"]), "PYTHON": sys.executable, "TW_NET_DEVICES": "lo",
        "CUDA_VISIBLE_DEVICES": "", "MASTER_PORT": str(ranks.free_port())}

    def begin(command, **environment):
        return subprocess.Popen(["bash", "-c", command], env=base | environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    return begin


def check(processes, nodes):
    """They train together, over Thinwire."""
    said = ""
    for one in processes:
        said += one.communicate(timeout=ranks.LIMIT_SEC)[0]
    assert [one.returncode for one in processes] == [0] * len(processes), said
    assert "rank 0: %d ranks on %d nodes" % (nodes, nodes) in said
    assert len(re.findall(r"^step \d: loss", said, re.M)) == 6, said
    assert re.search(r"as counted: [0-9.]+ MB saved", said)


def test_readmes_name_what_is_there():
    readmes = list(ROOT.glob("*/README.md"))
    assert len(readmes) == len([one for one in ROOT.iterdir() if one.is_dir()]) >= 9
    for readme in readmes:
        text = readme.read_text()
        assert len(text.splitlines()) <= 12, readme
        for path in re.findall(r"\b(?:examples|tests)/[\w/]+\.[a-z]+", text):
            assert pathlib.Path(path).exists() or path.startswith("tests/"), (readme, path)


def test_home_lab(start):
    """Three hosts; settings of the caller go along, as ssh passes on no variables."""
    check([start("examples/home_lab/run.sh localhost box2 box3 -- " + JOB, TW_FSDP="1")], 3)


def test_home_lab_says_that_a_host_has_failed(start):
    failed = start("examples/home_lab/run.sh localhost -- nowhere.py")
    said, _ = failed.communicate(timeout=ranks.LIMIT_SEC)
    assert failed.returncode == 1 and "nowhere.py" in said


def test_slurm(start):
    check([start("bash examples/slurm/train.sbatch " + JOB, SLURM_JOB_NODELIST="n[1-2]", SLURM_NNODES="2",
                 SLURM_JOB_ID="7")], 2)


def environment_of(container):
    """{variable: value} of a pod's container, whose token comes from the secret."""
    variables = {one["name"]: one for one in container["env"]}
    assert variables.pop("TW_JOB_TOKEN")["valueFrom"]["secretKeyRef"] == {"name": "thinwire", "key": "token"}
    return {name: one["value"] for name, one in variables.items()} | {"TW_JOB_TOKEN": TOKEN}


def in_words(words, port):
    """A container's command for a shell, for the job and a port that are here."""
    text = " ".join("'%s'" % one for one in words)
    return text.replace("29500", str(port)).replace("train.py", JOB)


def test_jobset(start):
    made = yaml.safe_load((ROOT / "kubernetes/jobset.yaml").read_text())
    (job,) = made["spec"]["replicatedJobs"]
    pods = job["template"]["spec"]
    assert pods["parallelism"] == pods["completions"] == 2 and "replicas" not in job
    (container,) = pods["template"]["spec"]["containers"]
    assert container["ports"] == [{"containerPort": 29500}]
    # SET-JOB-REPLICA-POD.SET: where the first pod is, in the set's service
    name = "%s-%s-0-0.%s" % (made["metadata"]["name"], job["name"], made["metadata"]["name"])
    command = in_words(container["command"], ranks.free_port()).replace(name, "localhost")
    assert "--master-addr localhost " in command and "--nnodes 2 " in command
    check([start(command, JOB_COMPLETION_INDEX=str(index), TW_NODE_ID="pod%d" % index,
                 **environment_of(container)) for index in range(2)], 2)


def test_pytorchjob(start):
    made = yaml.safe_load((ROOT / "kubernetes/pytorchjob.yaml").read_text())["spec"]
    specs = made["pytorchReplicaSpecs"]
    assert specs["Master"]["replicas"] == specs["Worker"]["replicas"] == 1
    (container,) = specs["Worker"]["template"]["spec"]["containers"]
    # the operator looks for these names
    assert container["name"] == "pytorch"
    assert container["ports"] == [{"name": "pytorchjob-port", "containerPort": 23456}]
    port = str(ranks.free_port())
    started = []
    for index in range(2):  # what the operator sets
        told = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": made["nprocPerNode"], "PET_NODE_RANK": str(index),
                "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": port, "TW_NODE_ID": "pod%d" % index}
        started.append(start(in_words(container["command"], port), **told, **environment_of(container)))
    check(started, 2)


def test_skypilot(start):
    task = yaml.safe_load((ROOT / "skypilot/task.yaml").read_text())
    assert task["num_nodes"] == 2 and task["setup"] == 'pip install "$THINWIRE"'
    told = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2"}
    envs = {name: value for name, value in task["envs"].items()} | {"TW_JOB_TOKEN": TOKEN}
    run = task["run"].replace("29500", str(ranks.free_port()))
    check([start(run, SKYPILOT_NODE_RANK=str(index), TW_NODE_ID="node%d" % index, **told, **envs)
           for index in range(2)], 2)


def test_skypilot_in_two_regions(start):
    """Two tasks of a node each, which are told where they meet."""
    task = yaml.safe_load((ROOT / "skypilot/task.yaml").read_text())
    told = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_IPS": "192.0.2.1", "SKYPILOT_NODE_RANK": "0",
            "PYTHON": "echo", "NODES": "2", "NODE": "1", "HEAD": "10.0.0.1"}
    said, _ = start(task["run"], **task["envs"] | told).communicate()
    assert said.split() == (
        "-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank 1 --master-port 29500 "
        "--master-addr 10.0.0.1 examples/fsdp2/train.py").split()
