"""DeepSpeed's ZeRO-3, without and with ZeRO++."""

NEEDS = ["deepspeed==0.19.8"]
ENTRANTS = {"zero3": {"DS_ACCELERATOR": "cpu"}, "zeropp": {"DS_ACCELERATOR": "cpu"}}
ZEROPP = {"zero_quantized_weights": True, "zero_quantized_gradients": True}


class Steps:
    """Gives DeepSpeed's engine the interface of an optimizer."""

    def __init__(self, engine):
        self.engine, self.backward = engine, engine.backward
        self.step, self.zero_grad = engine.step, engine.zero_grad
        self.param_groups = engine.optimizer.param_groups


def prepare(name, model, make_optimizer):
    import importlib

    import deepspeed

    # Do not build DeepSpeed's shared-memory collectives: that takes minutes, and ranks here share no memory.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed("gloo")
    # DeepSpeed clips gradients to a norm of 1 by default; the other entrants do not clip.
    engine, *_ = deepspeed.initialize(model=model, optimizer=make_optimizer(model), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0,
        "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3} | (ZEROPP if name == "zeropp" else {})})
    return engine, Steps(engine)
