#!/usr/bin/env python3
"""Makes chats/: small tokenizers with the tokens of two chat templates, one of them with SentencePiece's
blanks, chats.jsonl, and of each template NAME.ids and NAME.mask: what transformers' apply_chat_template
says of the tokens and of those that are the assistant's.

    pip install transformers jinja2
    python3 tests/trainer/data/chats_reference.py tests/trainer/data/chats tests/trainer/data/bpe

Made with transformers 5.24.0. The templates say what thinwire.chat_style means.
"""

import array
import json
import os
import sys

from transformers import PreTrainedTokenizerFast

TOKENS = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
          "<|eot_id|>"]
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
              "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
              "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}",
    "llama3": "{{ '<|begin_of_text|>' }}{% for m in messages %}"
              "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
              "{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim + '<|eot_id|>' }}"
              "{% endgeneration %}{% else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}",
}
CHATS = [
    [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Who made the heaven?"},
     {"role": "assistant", "content": "God created the heaven and the earth."}],
    [{"role": "user", "content": "  one, two\n"}, {"role": "assistant", "content": "three\n\nfour "},
     {"role": "user", "content": "\u00e4\u20ac \U0001f600?"},
     {"role": "assistant", "content": "\u00fc 12345"}],
    [{"role": "user", "content": "no answer"}],
]


def main():
    folder, vocabularies = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/chats.jsonl", "w", encoding="utf-8") as out:
        for chat in CHATS:
            out.write(json.dumps({"messages": chat}, ensure_ascii=len(chat) == 4) + "\n")
    make(folder, vocabularies + "/qwen.json", "")
    make(folder, vocabularies + "/llama2.json", "blanks_")


def make(folder, vocabulary, kind):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=vocabulary)
    tokenizer.add_tokens(TOKENS, special_tokens=True)
    tokenizer.backend_tokenizer.save(folder + "/" + kind + "tokenizer.json", pretty=False)
    for name, template in TEMPLATES.items():
        ids, mask = array.array("H"), bytearray()
        for chat in CHATS:
            got = tokenizer.apply_chat_template(chat, chat_template=template, return_dict=True,
                                                return_assistant_tokens_mask=True)
            ids.extend(got["input_ids"])
            mask.extend(got["assistant_masks"])
        with open(folder + "/" + kind + name + ".ids", "wb") as out:
            ids.tofile(out)
        with open(folder + "/" + kind + name + ".mask", "wb") as out:
            out.write(mask)
        print(kind + name, len(ids), "ids,", sum(mask), "learned")


if __name__ == "__main__":
    main()
