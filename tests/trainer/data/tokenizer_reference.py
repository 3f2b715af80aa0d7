#!/usr/bin/env python3
"""Makes bpe/NAME.json: small tokenizers as Llama 3, Qwen and GPT-2, and with SentencePiece's blanks Llama 2
and Mistral have theirs, more.txt, and NAME.ids: its ids by each.

    pip install tokenizers
    bible -f gen1:1-rev22:21 | python3 tests/trainer/data/tokenizer_reference.py tests/trainer/data/bpe

Made with tokenizers 0.23.3.
"""

import array
import json
import sys

from reference import TEXT
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

WORDS = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|%s| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
         "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
MORE = (
    TEXT
    + " 1 12 123 1234567 \u0661\u0662\u0663\u0664 x1y22z333\r\n\r\n  \r\n\t\n ??\n!!\r\n (a)_b -c .d "
      "'S 'RE 'Ll '\u017f \u212a"
    + " e\u0301 o\u0308\u0323 \u1100\u1161\u11a8 \u2126 \ufb01 \u0958 <|end|><|end|> <|en<|end|>|> "
      "God God created"
)


def split(digits):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS % digits), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


CASES = {
    "llama3": (None, split("\\p{N}{1,3}")),
    "qwen": (normalizers.NFC(), split("\\p{N}")),
    "gpt2": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
}


BLANK = "\u2581"
BLANKS = {
    "llama2": {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": BLANK},
        {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]}},
    "mistral": {"pre_tokenizer": {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "first",
                                  "split": False}},
}


def save(folder, name, text):
    """The file, and the ids of MORE by it."""
    with open(folder + "/" + name + ".json", "w", encoding="utf-8") as out:
        json.dump(text, out, ensure_ascii=False)
    saved = Tokenizer.from_file(folder + "/" + name + ".json")
    ids = saved.encode(MORE, add_special_tokens=False).ids
    with open(folder + "/" + name + ".ids", "wb") as out:
        array.array("H", ids).tofile(out)
    print(name, len(ids), "ids")


def make_blanks(folder, lines):
    """Characters that the vocabulary lacks are bytes; runs of blanks have tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=350, show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    first = ["<unk>", "<|endoftext|>", "<|end|>"] + ["<0x%02X>" % byte for byte in range(256)]
    words = sorted(model["vocab"], key=model["vocab"].get) + [BLANK * 2, BLANK * 4]
    model["vocab"] = {word: i for i, word in enumerate(first + words)}
    model["merges"] += [[BLANK, BLANK], [BLANK * 2, BLANK * 2]]
    model.update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    for name, blanks in BLANKS.items():
        save(folder, name, {
            "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, "model": model,
            "added_tokens": [{"id": i, "content": first[i], "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": True} for i in range(3)],
            **blanks})


def main():
    lines = sys.stdin.read().splitlines()
    with open(sys.argv[1] + "/more.txt", "wb") as out:
        out.write(MORE.encode())
    for name, (normalizer, pre_tokenizer) in CASES.items():
        tokenizer = Tokenizer(models.BPE())
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                      show_progress=False)
        tokenizer.train_from_iterator(lines, trainer)
        tokenizer.add_special_tokens(
            [AddedToken(text, normalized=False) for text in ("<|endoftext|>", "<|end|>")])
        text = json.loads(tokenizer.to_str())
        if name == "llama3":
            # a word that no merge makes
            text["model"]["ignore_merges"] = True
            text["model"]["merges"] = text["model"]["merges"][:-30]
        save(sys.argv[1], name, text)
    make_blanks(sys.argv[1], lines)


if __name__ == "__main__":
    main()
