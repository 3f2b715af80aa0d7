"""Encodes text with Hugging Face's tokenizers. encode.c contains this source, and runs it by python3 -c with

  OUT TOKENIZER MERGES KIND [SOURCE TYPE [STYLE END]]

MERGES is empty if TOKENIZER is a tokenizer.json, not a vocab.json. What is written to OUT depends on KIND:

  vocabulary  each token's text: the largest id + 1, where the bytes of each id end (all uint64), the bytes
  text        SOURCE's tokens; TYPE is their type code in Python's module array
  chats       the tokens of SOURCE's lines of JSON; OUT with .mask for .bin has a byte per token, 1 if learned

Errors are a line on stdout and an exit status. Progress goes to stderr."""

from __future__ import annotations

import array
import bisect
import contextlib
import fcntl
import itertools
import json
import os
import re
import sys
import tempfile
import time
import typing

PIECE = 1 << 16  # characters that are encoded at once
OVERLAP = 1 << 11  # characters that a piece shares with the next one
SAME = 8  # equal tokens that both pieces must have on each side of a seam
AT_ONCE = 32  # pieces, or lines
MOST_TOKENS = 1 << 20
END_OF_TEXT = "<|endoftext|>"
BLANK = "\u2581"  # how SentencePiece writes a blank
# How messages are written: the texts before all messages, before a role, after a role, after a content, and
# after a message (not learned); characters to strip off contents. What templates add of their own is missing.
STYLES = {"chatml": ("", "<|im_start|>", "\n", "<|im_end|>", "\n", ""),
          "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "",
                     " \t\n\v\f\r")}

Run = typing.Tuple[bool, str]  # a text, and whether it is learned


class Wrong(Exception):
    """An error in a file, with the file's name."""


def load(path: str, merges: str) -> typing.Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if path.endswith(".model"):
        raise Wrong("%s: SentencePiece's own file is not read here: transformers writes tokenizer.json "
                    "beside it (AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER))" % path)
    try:
        if not merges:
            made = Tokenizer.from_file(path)
        else:
            made = Tokenizer(models.BPE.from_file(path, merges))
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            made.decoder = decoders.ByteLevel()
            if made.token_to_id(END_OF_TEXT) is not None:
                made.add_special_tokens([END_OF_TEXT])
    except Exception as error:  # the library has no exception class of its own
        raise Wrong("%s: %s" % (" with ".join(filter(None, (path, merges))), error)) from None
    made.no_truncation()
    made.no_padding()
    if getattr(made.model, "dropout", None):
        made.model.dropout = None
    return made


# ---- what tokens stand for -----------------------------------------------------------------------------


def texts_of(tokenizer: typing.Any, path: str) -> dict[int, bytes]:
    """Returns the bytes that each token stands for. In the names of byte-level tokens, a printable byte is
    that character. Other bytes are characters from 256 on."""
    parts, vocab = json.loads(tokenizer.to_str()), tokenizer.get_vocab()
    is_bytes = '"ByteLevel"' in json.dumps([parts["pre_tokenizer"], parts["normalizer"], parts["decoder"]])
    inner = parts["model"].get("continuing_subword_prefix") or ""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    bytes_by_name = {chr(one): bytes([one]) for one in printable}
    bytes_by_name |= {chr(256 + i): bytes([one]) for i, one in enumerate(others)}

    def text_of(name: str) -> bytes:
        byte = re.fullmatch("<0x([0-9A-F]{2})>", name)
        if is_bytes:
            return b"".join(bytes_by_name.get(one) or one.encode() for one in name)
        if inner:
            name = name[len(inner):] if name.startswith(inner) else BLANK + name
        return bytes.fromhex(byte[1]) if byte else name.replace(BLANK, " ").encode()

    lacking = [name for name in bytes_by_name if is_bytes and name not in vocab]
    if lacking:
        raise Wrong("%s: no token for the byte that is written %s" % (path, lacking[0]))
    texts = {token: text_of(name) for name, token in vocab.items()}
    return texts | {one["id"]: one["content"].encode() for one in parts["added_tokens"]}


def write_vocabulary(tokenizer: typing.Any, path: str, out: typing.Any) -> None:
    texts = texts_of(tokenizer, path)
    n = max(texts, default=-1) + 1
    if not 0 < n <= MOST_TOKENS:
        raise Wrong("%s: its largest id is %d, but must be from 0 to %d" % (path, n - 1, MOST_TOKENS - 1))
    all_texts = [texts.get(token, b"") for token in range(n)]
    array.array("Q", [n, *itertools.accumulate(map(len, all_texts))]).tofile(out)
    out.writelines(all_texts)


# ---- text ----------------------------------------------------------------------------------------------


def seam(before: typing.Any, after: typing.Any, first: int) -> tuple[int, int] | None:
    """Finds a place where two pieces have the same tokens, far from the ends where they were cut. Returns the
    index of the token there in each. `after` begins with character `first` of `before`."""
    ids = before.ids, after.ids
    for place in range(OVERLAP // 2, OVERLAP * 3 // 4):
        own, other = before.char_to_token(first + place), after.char_to_token(place)
        if own is None or other is None or min(own, other) < SAME:
            continue
        begins = before.token_to_chars(own)[0] - first, after.token_to_chars(other)[0]
        around = ids[0][own - SAME:own + SAME], ids[1][other - SAME:other + SAME]
        if begins == (place, place) and around[0] == around[1] and len(around[0]) == 2 * SAME:
            return own, other
    return None


def encoded_pieces(tokenizer: typing.Any, path: str) -> typing.Iterator[tuple[str, typing.Any]]:
    """Yields overlapping pieces of a text, each with its encoding."""
    said = time.monotonic()
    with open(path, encoding="utf-8", newline="") as file:
        reads = itertools.chain([file.read(PIECE)], iter(lambda: file.read(PIECE - OVERLAP), ""))
        pieces = itertools.accumulate(reads, lambda text, more: text[-OVERLAP:] + more)
        while some := list(itertools.islice(pieces, AT_ONCE)):
            yield from zip(some, tokenizer.encode_batch(some, add_special_tokens=False))
            if time.monotonic() > said + 10:
                said = time.monotonic()
                done, all_bytes = os.lseek(file.fileno(), 0, os.SEEK_CUR), os.stat(path).st_size
                print("%s: %d of %d MB are encoded" % (path, done >> 20, all_bytes >> 20), file=sys.stderr)


def ids_of_text(tokenizer: typing.Any, path: str) -> typing.Iterator[list[int]]:
    """Yields the tokens of a text as if it were encoded whole. Only the tokenizer knows where a text may be
    cut. So pieces overlap, and are joined at a place where both have the same tokens."""
    held: typing.Any = None
    held_text, begin = "", 0
    for text, encoding in encoded_pieces(tokenizer, path):
        tokens = held and seam(held, encoding, len(held_text) - OVERLAP)
        if tokens:
            yield held.ids[begin:tokens[0]]
            begin = tokens[1]
        elif held:  # no seam, perhaps in a very long word: encode both as one piece
            text = held_text + text[OVERLAP:]
            encoding = tokenizer.encode(text, add_special_tokens=False)
        held, held_text = encoding, text
    if held:
        yield held.ids[begin:]


# ---- examples ------------------------------------------------------------------------------------------


def message_runs(messages: typing.Any, style: str) -> typing.Iterator[Run]:
    if style not in STYLES:
        raise Wrong("messages, but thinwire.chat_style does not say how they are written")
    if not messages:
        raise Wrong("there is no message")
    _, before, after, end, following, stripped = STYLES[style]
    for one in messages:
        role, content = (one.get(key) if isinstance(one, dict) else None for key in ("role", "content"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise Wrong("a message has a role and a content, both texts")
        yield False, before + role + after
        yield role == "assistant", (content.strip(stripped) if stripped else content) + end
        yield False, following


def example_runs(example: typing.Any, style: str, end: str) -> typing.Iterator[Run]:
    if not isinstance(example, dict):
        raise Wrong("no object")
    messages, prompt, completion, text = map(example.get, ("messages", "prompt", "completion", "text"))
    if isinstance(messages, list) or (isinstance(prompt, list) and isinstance(completion, list)):
        yield False, STYLES[style][0] if style in STYLES else ""
        for some in [messages] if isinstance(messages, list) else [prompt, completion]:
            yield from message_runs(some, style)
    elif isinstance(prompt, str) and isinstance(completion, str):
        yield False, prompt
        yield True, completion + end
    elif isinstance(text, str):
        yield True, text + end
    else:
        raise Wrong("neither messages, nor a prompt with its completion, nor a text")


def examples_of(path: str, style: str, end: str) -> typing.Iterator[list[Run]]:
    """Yields the runs of each line; learned ones and others alternate."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                runs = example_runs(json.loads(line.decode()), style, end) if line.strip() else iter(())
                groups = itertools.groupby(runs, lambda run: run[0])
                joined = [(is_learned, "".join(text for _, text in some)) for is_learned, some in groups]
                "".join(text for _, text in joined).encode()  # fails on half of a surrogate pair
            except (Wrong, ValueError) as error:
                raise Wrong("%s: line %d: %s" % (path, number, error)) from None
            yield [run for run in joined if run[1]]


def ids_of_chats(tokenizer: typing.Any, *source: str) -> typing.Iterator[tuple[list[int], bytes]]:
    """Yields tokens and their mask. No token has both learned and other text. The exception: if the tokenizer
    puts a blank before each text, an example is encoded whole, and a token is learned if any part is."""
    first = tokenizer.encode("a", add_special_tokens=False).tokens[:1]
    is_whole = bool(first) and first[0][0] in BLANK + "\u0120"
    all_runs = examples_of(*source)
    while some := list(itertools.islice(all_runs, AT_ONCE)):
        if not is_whole:
            some = [[run] for runs in some for run in runs]
        texts = ["".join(text for _, text in runs) for runs in some]
        for runs, encoding in zip(some, tokenizer.encode_batch(texts, add_special_tokens=False)):
            ends = list(itertools.accumulate(len(text) for _, text in runs[:-1]))
            places = [(begin, max(begin, end - 1)) for begin, end in encoding.offsets]
            learned = bytes(any(runs[bisect.bisect(ends, at)][0] for at in place) for place in places)
            yield encoding.ids, learned


# ---- from first to last --------------------------------------------------------------------------------


@contextlib.contextmanager
def whole_file(path: str) -> typing.Iterator[typing.Any]:
    """A file that gets the name `path` when it is complete."""
    folder, name = os.path.split(path)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=name + ".", delete=False) as file:
        try:
            yield file
            file.close()
            os.rename(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def write(out: str, paths: list[str], kind: str, source: str, code: str = "", *how: str) -> None:
    tokenizer = load(*paths)
    with whole_file(out) as file, contextlib.ExitStack() as stack:
        if kind == "vocabulary":
            write_vocabulary(tokenizer, paths[0], file)
        elif kind == "text":
            for ids in ids_of_text(tokenizer, source):
                array.array(code, ids).tofile(file)
        else:  # the mask gets its name first, so whoever sees the tokens also finds the mask
            masks = stack.enter_context(whole_file(out.removesuffix(".bin") + ".mask"))
            for ids, mask in ids_of_chats(tokenizer, source, *how):
                array.array(code, ids).tofile(file)
                masks.write(mask)


def main() -> int:
    out, tokenizer, merges, kind, *arguments = sys.argv[1:]
    arguments = arguments or [tokenizer]
    try:
        with open(arguments[0], "rb") as lock:
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(lock, fcntl.LOCK_EX)  # one of a node's ranks does it for all
            if not os.path.exists(out):
                write(out, [tokenizer, merges], kind, *arguments)
    except ImportError as error:
        print("%s: what reads it, Python's package tokenizers, is not there (%s): %s -m pip install "
              "tokenizers, or name another Python in TW_PYTHON" % (tokenizer, error, sys.executable))
        return 3
    except OSError as error:
        print("%s: %s" % (error.filename or out, error.strerror))
        return 2
    except (Wrong, UnicodeDecodeError) as error:
        print(error if isinstance(error, Wrong) else "%s: %s" % (arguments[0], error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
