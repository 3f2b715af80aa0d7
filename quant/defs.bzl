"""What others include."""

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
