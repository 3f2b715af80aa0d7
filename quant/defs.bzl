"""What others include, and what depends on the processor."""

PUBLIC_HEADERS = [
    "quant.h",
    "block_codec.h",
    "codec.h",
    "convert.h",
    "delta_codec.h",
    "lossless_codec.h",
    "message_codec.h",
    "streams.h",
]

AVX512 = ["-mavx512" + part for part in ["f", "bw", "vl", "dq"]]

def for_cpu(x86_64 = [], aarch64 = []):
    """A list that depends on the processor that is compiled for."""
    return select({
        "@platforms//cpu:x86_64": x86_64,
        "@platforms//cpu:aarch64": aarch64,
        "//conditions:default": [],
    })

def coders(codec):
    """Libraries of a codec's steps for each processor's vectors."""
    return for_cpu(
        x86_64 = [":%s_%s" % (codec, vectors) for vectors in ["avx2", "avx512"]],
        aarch64 = [":%s_neon" % codec],
    )
