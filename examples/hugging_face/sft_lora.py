"""sft_lora.py: TRL's SFTTrainer with peft's LoRA, as it is: DDP under torchrun."""

import tiny
import torch
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

arguments = SFTConfig(
    output_dir="/tmp/tiny-qwen", max_steps=6, per_device_train_batch_size=4, learning_rate=1e-2,
    lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(), max_length=64)
trainer = SFTTrainer(model=tiny.model(), args=arguments, processing_class=tiny.tokenizer(),
                     train_dataset=Dataset.from_dict({"text": tiny.texts()}),
                     peft_config=LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
trainer.train()
