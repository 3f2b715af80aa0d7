"""DeepSpeed's ZeRO-3, and ZeRO++ on top of it."""

NEEDS = ["deepspeed==0.19.8"]
ENTRANTS = {"zero3": {"DS_ACCELERATOR": "cpu"}, "zeropp": {"DS_ACCELERATOR": "cpu"}}
ZEROPP = {"zero_quantized_weights": True, "zero_quantized_gradients": True}


class Steps:
    """DeepSpeed's engine as an optimizer."""

    def __init__(self, engine):
        self.engine, self.backward = engine, engine.backward
        self.step, self.zero_grad = engine.step, engine.zero_grad
        self.param_groups = engine.optimizer.param_groups


def prepare(name, model, make_optimizer):
    import importlib

    import deepspeed

    # It is compiled for minutes, and is for ranks that share memory, which those of nodes do not.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed("gloo")
    # It clips gradients to a norm of 1 unless it is told otherwise; the others do not clip.
    engine, *_ = deepspeed.initialize(model=model, optimizer=make_optimizer(model), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0,
        "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3} | (ZEROPP if name == "zeropp" else {})})
    return engine, Steps(engine)
