#!/usr/bin/env python3
"""A step on a GPU, on paper: what each feature costs the device, beside what it saves on the wire.

    docs/gpu_step.py             # writes bench/results/gpu-step.jsonl
    docs/gpu_step.py tables      # prints the tables of docs/gpu.md

Floors, not measured on a GPU. What a GPU has are the constants below; what kernels do are counts of
bench/results/gpu-counts.jsonl, which `//tests/gpu/ptx:counts` writes; what processors code is in
bench/results/delta.jsonl."""

import dataclasses
import json
import math
import pathlib
import sys

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "bench" / "results"
GB = 1e9


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Bytes a second are each way. A multiprocessor starts four instructions of a warp a cycle."""

    name: str
    memory: float
    processors: int
    clock: float
    bus: float  # between it and the host; 0: one memory
    node: float  # between it and the node's others
    host: float  # the host's memory, of all sockets
    flops: float = 0  # of bf16 with sums in fp32; 0: not published


# H100 SXM: NVIDIA's data sheet (3.35 TB/s, 900 GB/s of NVLink and 128 GB/s of PCIe, both ways together) and
# white paper (132 multiprocessors; 989.4 TFLOP/s of bf16, which are 1.83 GHz). A100 SXM 80 GB: data sheet
# (2,039 GB/s, 600 GB/s, 64 GB/s) and white paper (108; 1.41 GHz; 312 TFLOP/s). RTX 4090: NVIDIA's Ada white
# paper (1,008 GB/s, 128; 2.52 GHz, 165.2 TFLOP/s, PCIe 4.0; nothing but that between GPUs). GB10: NVIDIA's
# page of DGX Spark (273 GB/s, 6,144 cores, which are 48) and its talk at Hot Chips 2025 (31 TFLOP/s of fp32,
# which are 2.52 GHz). Hosts: two sockets of eight channels of DDR5-4800, or of DDR4-3200 beside PCIe 4.0.
H100 = Gpu("H100", 3350 * GB, 132, 1.83e9, 64 * GB, 450 * GB, 614 * GB, 989.4e12)
A100 = Gpu("A100", 2039 * GB, 108, 1.41e9, 32 * GB, 300 * GB, 410 * GB, 312e12)
ADA = Gpu("4090", 1008 * GB, 128, 2.52e9, 32 * GB, 32 * GB, 410 * GB, 165.2e12)
GB10 = Gpu("GB10", 273 * GB, 48, 2.52e9, 0, 0, 273 * GB)

LAUNCH_SEC = 5e-6  # of a kernel: what a host without graphs takes to enqueue one
CYCLES = 4  # from an instruction of a warp to one that needs it: Volta and later (arXiv 1804.06826)
DELTA_BITS = 3  # a parameter, as the planner has it
BLOCK_ELEMS = 65536  # of an entropy coder, for a warp
MODELS = {"7B": (6.74e9, 32), "70B": (68.98e9, 80)}  # Llama 2's: parameters, layers


@dataclasses.dataclass(frozen=True)
class Cluster:
    gpu: Gpu
    nodes: int
    local: int
    gbits: int

    @property
    def world(self) -> int:
        return self.nodes * self.local

    def wire_sec(self, n_bytes: float) -> float:
        """Of a gather or a reduction of so many bytes, through a node's link."""
        return n_bytes * (self.nodes - 1) / self.nodes / (self.gbits * GB / 8)


CLUSTERS = [Cluster(gpu, 4, 8, gbits) for gpu in (H100, A100, ADA) for gbits in (10, 25, 100)]
CLUSTERS += [Cluster(GB10, 2, 1, gbits) for gbits in (1, 10)]


def lines_of(name: str) -> list[dict]:
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


COUNTS = {(one["op"], one["codec"], one["type"], one["segments"]): one for one in lines_of("gpu-counts.jsonl")
          if one["table"] == "gpu_counts"}


def host_delta_sec(op: str, n_bytes: float) -> float:
    """Of one thread."""
    one = next(line for line in lines_of("delta.jsonl") if line["op"] == op and line["contexts"] == 2
               and line["backend"] == "avx512")
    return n_bytes / (one["GBps"] * GB)


@dataclasses.dataclass
class Cost:
    """Seconds of a step on one GPU."""

    device_sec: float = 0  # its kernels: bytes or instructions, whichever takes longer
    chain_sec: float = 0  # of those, what a warp does step by step
    launches: float = 0
    bus_sec: float = 0
    host_sec: float = 0

    def kernel(self, gpu: Gpu, op: str, codec: str, n_elems: float, of: str = "bf16") -> None:
        count = COUNTS[op, codec, of, 1]
        by_bytes = n_elems * count["moved_bytes_per_elem"] / gpu.memory
        by_instructions = n_elems * count["instructions_per_elem"] / 32 / (gpu.processors * 4 * gpu.clock)
        self.device_sec += max(by_bytes, by_instructions)

    def chains(self, gpu: Gpu, op: str, codec: str, n_messages: float) -> None:
        """Of messages one after the other, each of no more blocks than there are warps."""
        count = COUNTS[op, codec, "bf16", 1]
        self.chain_sec += n_messages * count["longest_warp"] * CYCLES / gpu.clock
        self.launches += n_messages * count["launches"]

    @property
    def total_sec(self) -> float:
        kernels = max(self.device_sec, self.chain_sec) + self.launches * LAUNCH_SEC
        return kernels + self.bus_sec + self.host_sec


def rounds(at: Cluster, message_bytes: float, least: float) -> tuple[float, float]:
    """collectives/gpu/shape.c's: bytes of a chunk's message, and how many a shard has."""
    chunk = max(min(message_bytes / (at.world * 8), (16 << 20) / at.world), least)
    return chunk, math.ceil(message_bytes / at.world / chunk)


def ratio(codec: str, op: str = "encode") -> float:
    count = COUNTS[op, codec, "bf16", 1]
    return count["message_bytes"] / (2 * count["elems"])


def weights(at: Cluster, params: float, units: int) -> tuple[Cost, float]:
    """int8, both gathers."""
    cost = Cost()
    for _ in range(2):
        cost.kernel(at.gpu, "encode", "int8", params / at.world)
        cost.kernel(at.gpu, "decode", "int8", params)
        cost.launches += 2 * units * rounds(at, 2 * params / units * ratio("int8"), 256 << 10)[1]
    return cost, 2 * at.wire_sec(2 * params * (1 - ratio("int8")))


def gradients(at: Cluster, params: float, units: int) -> tuple[Cost, float]:
    """int4, sums inside nodes first."""
    cost = Cost()
    cost.kernel(at.gpu, "encode", "int4", params / at.local, "fp32" if at.local > 1 else "bf16")
    cost.kernel(at.gpu, "reduce_decode", "int4", params / at.world)
    cost.launches += 3 * units * rounds(at, 2 * params / units * ratio("int4"), 256 << 10)[1]
    return cost, at.wire_sec(2 * params * (1 - ratio("int4")))


def copied(at: Cluster, cost: Cost, n_bytes: float) -> None:
    """Every GPU of a node reads so many bytes of the host's memory."""
    if at.gpu.bus:
        cost.bus_sec += max(n_bytes / at.gpu.bus, at.local * n_bytes / at.gpu.host)
    else:
        cost.bus_sec += 2 * n_bytes / at.gpu.memory


def node_copy(at: Cluster, params: float, _units: int) -> tuple[Cost, float]:
    """hpZ in the host's memory: the second gather comes from there."""
    cost = Cost()
    copied(at, cost, 2 * params)
    return cost, at.wire_sec(2 * params)


def delta_saved(at: Cluster, params: float) -> float:
    return at.wire_sec(4 * params) - at.wire_sec(params * DELTA_BITS / 8)


def delta_host(at: Cluster, params: float, _units: int) -> tuple[Cost, float]:
    """Coded by a thread for each GPU, as in PyTorch: shards to the host, the whole back twice."""
    cost = Cost()
    copied(at, cost, 2 * params / at.world)
    copied(at, cost, 4 * params)
    cost.host_sec += host_delta_sec("encode", 2 * params / at.world)
    cost.host_sec += host_delta_sec("decode", 2 * params / at.local * (at.nodes - 1) / at.nodes)
    return cost, delta_saved(at, params)


def delta_device(at: Cluster, params: float, units: int) -> tuple[Cost, float]:
    """Coded on the device, as in the trainer with replicas there: one message of a unit to all, and one of
    each other node."""
    cost, others = Cost(), at.nodes - 1
    cost.kernel(at.gpu, "lossless delta encode", "delta", params / at.world)
    cost.kernel(at.gpu, "lossless delta decode", "delta", params / at.local * others / at.nodes)
    cost.chains(at.gpu, "lossless delta encode", "delta", units)
    cost.chains(at.gpu, "lossless delta decode", "delta", units * others)
    return cost, delta_saved(at, params)


def packed(at: Cluster, params: float, units: int, least: float) -> tuple[Cost, float]:
    cost, others = Cost(), at.nodes - 1
    for op in ("lossless encode", "lossless decode"):
        cost.kernel(at.gpu, op, "lossless", params / at.local * others / at.nodes)
        cost.chains(at.gpu, op, "lossless", units * others * rounds(at, 2 * params / units, least)[1])
    return cost, at.wire_sec(2 * params * (1 - ratio("lossless", "lossless encode")))


def lossless_short(at: Cluster, params: float, units: int) -> tuple[Cost, float]:
    """Messages of 256 KB, which is what they were."""
    return packed(at, params, units, 256 << 10)


def lossless(at: Cluster, params: float, units: int) -> tuple[Cost, float]:
    """Messages of 2 MB."""
    return packed(at, params, units, 2 << 20)


FEATURES = {
    "int8 weights": weights,
    "int4 gradients": gradients,
    "hpZ, host": node_copy,
    "delta, host": delta_host,
    "delta, device": delta_device,
    "lossless gradients, 256 KB": lossless_short,
    "lossless gradients": lossless,
}
DECIDES = ("int8 weights", "int4 gradients", "lossless gradients")  # by a rule for GPU memory


def policy_of(feature: str, at: Cluster, params: float, units: int) -> str:
    """What collectives/gpu/shape.c, and PyTorch's fsdp/replicas.py, do when TW_COLL_MODEL names the link. The
    latter counts on PCIe 4.0, whatever the GPU has."""
    if feature == "delta, host":
        cost, saved = delta_host(dataclasses.replace(at, gpu=A100), params, units)
        return "declines" if cost.total_sec > saved else "takes it"
    if feature not in DECIDES:
        return "as asked"
    if feature != "lossless gradients":
        return "takes it"
    unit, others = 2 * params / units, at.nodes - 1
    packing = 1.9e-3 * others * math.ceil(unit / at.world / rounds(at, unit, 2 << 20)[0])
    return "declines" if packing > 0.35 * at.wire_sec(unit) else "takes it"


def rows() -> list[dict]:
    made = []
    for at in CLUSTERS:
        for model, (params, units) in MODELS.items():
            for feature, of in FEATURES.items():
                cost, saved = of(at, params, units)
                made.append({
                    "table": "gpu_step", "gpu": at.gpu.name, "nodes": at.nodes, "ranks_per_node": at.local,
                    "link": "%d Gb/s" % at.gbits, "model": model, "feature": feature,
                    "device_sec": cost.device_sec, "chain_sec": cost.chain_sec, "launches": cost.launches,
                    "launch_sec": cost.launches * LAUNCH_SEC, "bus_sec": cost.bus_sec,
                    "host_sec": cost.host_sec, "cost_sec": cost.total_sec, "saved_sec": saved,
                    "plain_sec": 3 * at.wire_sec(2 * params),
                    "is_worth": "yes" if cost.total_sec < saved else "no",
                    "policy": policy_of(feature, at, params, units),
                    "note": "floor, not measured on a GPU"})
    return made


def call_rows() -> list[dict]:
    """What a step of FSDP2 with the defaults asks of CUDA in collectives/staging.py: each layer is gathered
    twice and reduced, the root gathered once. Of each of these tests/plugin/torch/test_staging.py counts two
    copies, two events, two streams that wait (three of a reduction) and two memory operations."""
    made = []
    for model, (_, layers) in MODELS.items():
        gathers, reductions = 2 * layers + 1, layers + 1
        n = gathers + reductions
        made.append({"table": "gpu_step_calls", "model": model, "gathers": gathers, "reductions": reductions,
                     "kernels": 0, "copies": 2 * n, "events": 2 * n, "waits": 2 * n + reductions,
                     "memory_operations": 2 * n, "host_sec": (8 * n + reductions) * LAUNCH_SEC,
                     "note": "counted on simulated streams; 5 us each, not measured"})
    return made


# Of a step of the trainer with the shape of Qwen3, by tests/trainer/device/test_training.cc: without layers,
# and for each. The first of each five are kernels, then cuBLASLt's products, copies, events, waits for one.
TRAINER = {"host": ([12, 3, 15, 14, 9], [30, 21, 13, 10, 9])}  # on the device copies depend on what has come


def trainer_rows() -> list[dict]:
    made = []
    for replicas, (without, layer) in TRAINER.items():
        calls = [one + 32 * each for one, each in zip(without, layer)]
        made.append({"table": "gpu_trainer_calls", "replicas": replicas, "layers": 32,
                     **dict(zip(("kernels", "products", "copies", "events", "waits"), calls)),
                     "host_sec": sum(calls) * LAUNCH_SEC,
                     "note": "counted on an emulated device; 5 us each, not measured"})
    return made


def coder_rows() -> list[dict]:
    """Billions of symbols a second: of a warp, whose instructions wait for each other, of all that a GPU
    starts, and of its memory."""
    return [{"table": "gpu_coder", "gpu": gpu.name, "op": op,
             "warp_gsymbols_per_sec": BLOCK_ELEMS / (count["longest_warp"] * CYCLES / gpu.clock) / GB,
             "gpu_gsymbols_per_sec": 128 * gpu.processors * gpu.clock / count["instructions_per_elem"] / GB,
             "memory_gsymbols_per_sec": gpu.memory / count["floor_bytes_per_elem"] / GB,
             "note": "floor, not measured on a GPU"}
            for gpu in (H100, A100, ADA, GB10)
            for (op, codec, _, _), count in COUNTS.items() if codec in ("lossless", "ecdq", "delta")]


def attention_rows() -> list[dict]:
    """What is started, or what tensor cores take, beside the least products: two forwards, five backwards, of
    pairs of tokens that see each other; of 16 x 8 x 16, so many cycles of a scheduler each."""
    made = []
    for (op, codec, of, _), count in COUNTS.items():
        if not op.startswith("attention") or of != "bf16":
            continue
        least = count["elems"] * int(codec[2:]) * (2 if op.endswith("forward") else 5) / (16 * 8 * 16)
        for gpu in (H100, A100, ADA):
            cycles = 2 * 16 * 8 * 16 / (gpu.flops / gpu.processors / 4 / gpu.clock)
            made.append({
                "table": "gpu_attention", "gpu": gpu.name, "op": op, "width": codec,
                "products_over_floor": count["products"] / least,
                "instructions_per_product": count["warp_instructions"] / count["products"],
                "cycles_per_product": cycles,
                "over_floor": max(count["warp_instructions"], count["products"] * cycles) / (least * cycles),
                "note": "floor, not measured on a GPU"})
    return made


def cell(one: dict) -> str:
    text = "%.2f / %.2f" % (one["saved_sec"], one["cost_sec"])
    if one["policy"] == "declines":
        return text + " no"
    return text if one["is_worth"] == "yes" else "**%s**" % text


def print_tables() -> None:
    shown = [name for name in FEATURES if "KB" not in name]
    print("| GPUs | link | model | %s |\n%s|" % (" | ".join(shown), "|---" * (3 + len(shown))))
    for at in CLUSTERS:
        of = {one["feature"]: one for one in rows()
              if (one["gpu"], one["link"], one["model"]) == (at.gpu.name, "%d Gb/s" % at.gbits, "7B")}
        cells = " | ".join(cell(of[name]) for name in shown)
        print("| %s | %d Gb/s | 7B | %s |" % (at.gpu.name, at.gbits, cells))
    print("\n| model | gathers | reductions | copies | events | waits | memory operations | host |\n%s|"
          % ("|---" * 8))
    for one in call_rows():
        print("| %s | %d | %d | %d | %d | %d | %d | %.1f ms |"
              % (*list(one.values())[1:4], *list(one.values())[5:9], 1e3 * one["host_sec"]))
    print("\n| replicas | kernels | products | copies | events | waits | host |\n%s|" % ("|---" * 7))
    for one in trainer_rows():
        print("| %s | %d | %d | %d | %d | %d | %.1f ms |"
              % (one["replicas"], *list(one.values())[3:8], 1e3 * one["host_sec"]))
    print("\n| GPU | operation | a warp | all it starts | by its memory |\n|---|---|---|---|---|")
    for one in coder_rows():
        print("| %s | %s | %.3f | %.0f | %.0f |"
              % (one["gpu"], one["op"], one["warp_gsymbols_per_sec"], one["gpu_gsymbols_per_sec"],
                 one["memory_gsymbols_per_sec"]))
    print("\n| GPU | operation | width | products | instructions a product | over the floor |\n%s|"
          % ("|---" * 6))
    for one in attention_rows():
        print("| %s | %s | %s | %.2f | %.1f | %.2f |"
              % (one["gpu"], one["op"], one["width"], one["products_over_floor"],
                 one["instructions_per_product"], one["over_floor"]))


def main() -> None:
    if sys.argv[1:] == ["tables"]:
        print_tables()
        return
    with open(RESULTS / "gpu-step.jsonl", "w", encoding="utf-8") as out:
        for one in rows() + call_rows() + trainer_rows() + coder_rows() + attention_rows():
            out.write(json.dumps(one) + "\n")


if __name__ == "__main__":
    main()
