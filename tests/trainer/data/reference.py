#!/usr/bin/env python3
"""Makes bpe/: a small GPT-2 vocabulary, a text with all that is odd, and the ids that transformers' tokenizer
gives it.

    pip install transformers tokenizers
    bible -f gen1:1-rev22:21 | python3 tests/trainer/data/reference.py tests/trainer/data/bpe

Made with transformers 5.23.0 and tokenizers 0.23.3.
"""

import array
import os
import sys

from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Tokenizer

SPACES = "\t\n\x0b\x0c\r\x1c\x1f\x85\xa0\u1680\u180e\u2000\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"

TEXT = (
    "In the beginning God created the heaven and the earth.\n\n"
    "  And the earth  was without form,   and void;\n"
    "I'll we've THEY'RE it's don't I'd I'm 'tis 'sword 'S ''s\t\ttabs \t mixed \n trailing   \n"
    "12345 3.14159 x86_64 \u00bd \u0664\u0662 \u216b 1st 2nd\n"
    "na\u00efve caf\u00e9 e\u0301 \u00e4\u00f6\u00fc\u00df \u0416\u0443\u043a \u6f22\u5b57\u304b\u306a "
    "\ud55c\uae00 \u0e44\u0e17\u0e22 \U0001f600\U0001f468\u200d\U0001f469 \u2192\u221e\n"
    "!!! ??? ... --- ((())) a=b+c; {x:[1,2]} http://a.b/c?d=e&f#g @me #tag $5 50% ^_^ ~`|\\\n"
    + "".join("a" + c + "b" + c + c + "c " + c + "d" for c in SPACES)
    + "\x00\x01\x7f\x80\xff <|endoftext|>  after<|endoftext|><|endoftext|>\n <|endof text|> <|endoftext|"
    + "the" * 40
    + " " * 50
    + "end  "
)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    trainer = ByteLevelBPETokenizer()
    lines = sys.stdin.read().splitlines()
    trainer.train_from_iterator(lines, vocab_size=500, special_tokens=["<|endoftext|>"], show_progress=False)
    trainer.save_model(folder)
    tokenizer = GPT2Tokenizer(vocab=folder + "/vocab.json", merges=folder + "/merges.txt")
    ids = tokenizer(TEXT)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == TEXT
    with open(folder + "/text.txt", "wb") as out:
        out.write(TEXT.encode())
    with open(folder + "/ids.bin", "wb") as out:
        array.array("H", ids).tofile(out)
    print(type(tokenizer), len(TEXT), "characters,", len(ids), "tokens")


if __name__ == "__main__":
    main()
