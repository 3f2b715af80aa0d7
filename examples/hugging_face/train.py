"""train.py: Hugging Face's Trainer, as it is: DDP under torchrun, FSDP2 under accelerate with fsdp2.yaml."""

import tiny
import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

tokenizer = tiny.tokenizer()
arguments = TrainingArguments(
    output_dir="/tmp/tiny-qwen", max_steps=6, per_device_train_batch_size=4, learning_rate=1e-2,
    lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
    use_cpu=not torch.cuda.is_available())
trainer = Trainer(model=tiny.model(), args=arguments, train_dataset=[tokenizer(one) for one in tiny.texts()],
                  data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False))
trainer.train()
