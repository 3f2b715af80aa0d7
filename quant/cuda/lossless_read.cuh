/** The lossless decoder: reads the head, from untrusted bytes. lossless_decode.cuh lists all kernels. */
#pragma once

#include "quant/cuda/lossless_encode.cuh"

TW_DEVICE bool tw_lossless_is_good(const tw_lossless_cuda_job_t &job)
{
    return job.state->status == TW_OK;
}

/* ---- the header ---------------------------------------------------------------------------------------- */

struct tw_lossless_kernel_open {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        if (threadIdx.x == 0) {
            job.state->status = judge(job);
        }
    }

    /** Check a message's header in the host decoder's order. Returns the status that the host returns. */
    static TW_DEVICE int32_t judge(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cuda_state_t *state = job.state;
        const uint8_t *src = job.src;
        const uint32_t header_bytes = sizeof(tw_lossless_header_t);
        if (job.src_bytes < header_bytes) {
            return TW_ERR_TRUNCATED;
        }
        uint32_t bytes = tw_entropy_get32(src + 4);
        bool known = job.dithered
                         ? src[0] == TW_ECDQ_MAGIC && src[1] == TW_ECDQ_VERSION && src[3] <= TW_ECDQ_CODED
                         : src[0] == TW_LOSSLESS_MAGIC && src[1] == TW_LOSSLESS_VERSION &&
                               src[3] <= TW_LOSSLESS_TAILED;
        if (!known || bytes < header_bytes) {
            return TW_ERR_FORMAT;
        }
        if (bytes > job.src_bytes) {
            return TW_ERR_TRUNCATED;
        }
        if (bytes < job.src_bytes && !job.at_most) {
            return TW_ERR_FORMAT;
        }
        if (src[2] != (uint32_t)job.type || tw_entropy_get32(src + 8) != job.n_elems) {
            return TW_ERR_MISMATCH;
        }
        state->bytes = bytes;
        state->coded = src[3] != TW_LOSSLESS_PLAIN;
        state->tails.tailed = src[3] == TW_LOSSLESS_TAILED;
        if (state->tails.tailed && job.type != TW_TYPE_FP32) {
            return TW_ERR_FORMAT;
        }
        uint32_t body = bytes - header_bytes;
        if (!state->coded) {
            state->head_bytes = body;
            return body == job.bound - header_bytes ? TW_OK : TW_ERR_FORMAT;
        }
        state->head_bytes = body < 4 ? 0 : tw_entropy_get32(src + header_bytes);
        bool good = body >= 4 && state->head_bytes <= body && state->head_bytes % 2 == 0;
        return good ? TW_OK : TW_ERR_FORMAT;
    }
};

struct tw_lossless_kernel_check {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        if (tw_lossless_is_good(job)) {
            uint32_t first = blockIdx.x * TW_ENTROPY_CUDA_THREADS + threadIdx.x;
            tw_entropy_add(&job.state->check,
                           tw_entropy_check_words<true>(job.src + sizeof(tw_lossless_header_t),
                                                        job.state->head_bytes / 2, first,
                                                        gridDim.x * TW_ENTROPY_CUDA_THREADS));
        }
    }
};

/* ---- the head ------------------------------------------------------------------------------------------ */

/** The unread part of the head. All threads of the thread block hold equal copies. */
struct tw_lossless_source {
    const uint8_t *begin, *at, *end;
    bool bad;

    /** Returns whether that many bytes are left. If not, the source stays bad. */
    TW_DEVICE bool has(uint64_t bytes)
    {
        bad = bad || bytes > (uint64_t)(end - at);
        return !bad;
    }

    TW_DEVICE uint32_t byte()
    {
        return has(1) ? *at++ : 0;
    }

    TW_DEVICE uint32_t number()
    {
        uint64_t number = 0;
        for (uint32_t shift = 0; shift < 35; shift += 7) {
            uint32_t next = byte();
            number |= (uint64_t)(next & 0x7f) << shift;
            if (next <= 0x7f) {
                break;
            }
            bad = bad || shift == 28;
        }
        bad = bad || number > UINT32_MAX;
        return bad ? 0 : (uint32_t)number;
    }
};

/** Reads bits of the head, which is aligned to 32 bits. Past its end it reads zeros. */
struct tw_lossless_bit_source {
    const uint32_t *words;
    uint64_t at, end; /* in bits */

    /** Read 32 bits from `from` on. */
    TW_DEVICE uint32_t look(uint64_t from) const
    {
        uint64_t w = from / 32;
        uint32_t n = (uint32_t)(from % 32), low = word(w);
        return n ? low >> n | word(w + 1) << (32 - n) : low;
    }

    /** Read a word; the head's last one may be half a word. */
    TW_DEVICE uint32_t word(uint64_t w) const
    {
        if (32 * w + 32 <= end) {
            return words[w];
        }
        uint32_t bits = 0;
        for (uint32_t b = 0; b < 4 && 32 * w + 8 * b < end; b++) {
            bits |= (uint32_t)((const uint8_t *)(words + w))[b] << 8 * b;
        }
        return bits;
    }
};

struct tw_lossless_kernel_read {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cuda_state_t *state = job.state;
        const uint8_t *head = job.src + sizeof(tw_lossless_header_t);
        if (!tw_lossless_is_good(job)) {
            return;
        }
        const bool spoilt = state->check != tw_entropy_get32(job.src + 12);
        const bool coded = state->coded;
        tw_lossless_source source = {head, head, head + state->head_bytes, spoilt};
        __syncthreads();
        if (coded && !spoilt) {
            read(job, source);
        }
        if (threadIdx.x == 0 && source.bad) {
            state->status = TW_ERR_FORMAT;
        }
    }

    static TW_DEVICE void read(const tw_lossless_cuda_job_t &job, tw_lossless_source &source)
    {
        tw_lossless_cuda_state_t *state = job.state;
        uint32_t n_pieces = 0, own = 0, n_live = 0;
        int32_t window = 0, step = 0;
        if (source.has(tw_lossless_cuda_head_at(&job) + TW_LOSSLESS_HEAD_BYTES)) {
            if (job.dithered) {
                step = (int8_t)source.at[12];
                source.bad = step < TW_ECDQ_STEP_MIN || step > TW_ECDQ_STEP_MAX || source.at[13];
                source.at += TW_ECDQ_HEAD_BYTES;
            }
            window = 4 * (int8_t)source.at[4];
            own = source.at[5];
            source.bad = source.bad || (job.dithered && (window || own));
            source.at += TW_LOSSLESS_HEAD_BYTES;
            pieces(job, source);
            n_pieces = state->n_pieces;
        }
        for (uint32_t p = 0; p < n_pieces && !source.bad; p++) {
            zeros(job, source, job.pieces[p], &n_live);
        }
        if (!source.bad && !job.dithered) {
            tables(job, source, own, window);
        }
        if (!source.bad && state->tails.tailed) {
            tail_tables(job, source);
        }
        if (!source.bad) {
            lists(job, source, n_pieces);
        }
        uint32_t n_blocks = tw_lossless_blocks_of(n_live);
        source.bad = source.bad || (uint64_t)(source.end - source.at) !=
                                       n_blocks * (uint64_t)tw_lossless_entry_bytes(state->tails.tailed);
        if (!source.bad && job.dithered) {
            dithered_blocks(job, source, n_live, n_blocks);
        } else if (!source.bad) {
            blocks(job, source, n_live, n_blocks);
        }
        for (uint32_t r = threadIdx.x; job.dithered && !source.bad && r < state->n_rows;
             r += TW_ENTROPY_CUDA_THREADS) {
            uint16_t &row = job.rows[r];
            row = row == TW_LOSSLESS_DEAD ? row : tw_ecdq_moved_row(row, step);
        }
        if (threadIdx.x == 0) {
            state->n_live = n_live;
            state->n_blocks = n_blocks;
        }
    }

    /** Read the pieces, with one thread. Together they must have all elements. */
    static TW_DEVICE void pieces(const tw_lossless_cuda_job_t &job, tw_lossless_source &source)
    {
        __shared__ uint32_t taken;
        if (threadIdx.x == 0) {
            tw_lossless_source own = source;
            take_pieces(job, own);
            taken = own.bad ? UINT32_MAX : (uint32_t)(own.at - source.at);
        }
        __syncthreads();
        source.bad = taken == UINT32_MAX;
        source.at += source.bad ? 0 : taken;
    }

    static TW_DEVICE void take_pieces(const tw_lossless_cuda_job_t &job, tw_lossless_source &source)
    {
        uint64_t n_elems = 0, n_rows = 0, n_columns = 0;
        uint32_t n = source.number();
        source.bad = source.bad || n > job.n_pieces;
        for (uint32_t p = 0; p < n && !source.bad; p++) {
            tw_lossless_cuda_piece_t piece = {};
            take(source, piece);
            piece.first_elem = (uint32_t)n_elems;
            piece.first_row = (uint32_t)n_rows;
            piece.first_column = (uint32_t)n_columns;
            source.bad = source.bad || piece.n_elems > job.n_elems - n_elems;
            if (!source.bad) {
                uint64_t end = (uint64_t)piece.first + piece.n_elems + piece.row_elems - 1;
                piece.n_rows = (uint32_t)(end / piece.row_elems);
                n_elems += piece.n_elems;
                n_rows += piece.n_rows;
                n_columns += piece.flags & TW_LOSSLESS_FLAG_COLUMNS ? piece.row_elems : 0;
                job.pieces[p] = piece;
            }
        }
        source.bad = source.bad || n_elems != job.n_elems || n_rows > job.n_rows || n_columns > job.n_columns;
        job.state->n_pieces = n;
        job.state->n_rows = (uint32_t)n_rows;
    }

    static TW_DEVICE void take(tw_lossless_source &source, tw_lossless_cuda_piece_t &piece)
    {
        uint32_t flags = source.byte();
        piece.flags = flags & TW_LOSSLESS_FLAGS;
        piece.row_class = flags >> TW_LOSSLESS_FLAG_BITS;
        piece.n_elems = source.number();
        piece.row_elems = source.number();
        piece.first = piece.flags & TW_LOSSLESS_FLAG_FIRST ? source.number() : 0;
        uint32_t low = source.byte();
        piece.scale = (int16_t)(low | source.byte() << 8);
        if (piece.row_elems < TW_LOSSLESS_ROW_MIN) {
            source.bad = true;
            return;
        }
        bool columns_fit = !(piece.flags & TW_LOSSLESS_FLAG_COLUMNS) ||
                           piece.n_elems / piece.row_elems >= TW_LOSSLESS_MATRIX_ROWS;
        source.bad = source.bad || !piece.n_elems || piece.first >= piece.row_elems ||
                     !piece.first != !(piece.flags & TW_LOSSLESS_FLAG_FIRST) || !columns_fit ||
                     piece.scale > TW_LOSSLESS_SCALE_MAX || piece.scale < -TW_LOSSLESS_SCALE_MAX;
    }

    /** Set a piece's rows to the piece's scale and class, and those with a ZEROS bit to DEAD. */
    static TW_DEVICE void zeros(const tw_lossless_cuda_job_t &job, tw_lossless_source &source,
                                tw_lossless_cuda_piece_t &piece, uint32_t *n_live)
    {
        uint32_t bytes = piece.flags & TW_LOSSLESS_FLAG_ZEROS ? (piece.n_rows + 7) / 8 : 0;
        if (!source.has(bytes)) {
            return;
        }
        uint16_t row = tw_lossless_with_class(tw_lossless_row_of(piece.scale), piece.row_class);
        for (uint32_t r = threadIdx.x; r < piece.n_rows; r += TW_ENTROPY_CUDA_THREADS) {
            bool dead = bytes && source.at[r / 8] >> r % 8 & 1;
            job.rows[piece.first_row + r] = dead ? TW_LOSSLESS_DEAD : row;
        }
        source.at += bytes;
        __syncthreads();
        tw_lossless_list_live(job, piece);
        if (threadIdx.x == 0) {
            piece.first_live = *n_live;
        }
        *n_live += piece.n_live;
    }

    /** Read the lists, with one warp: where a value begins depends on the value before. */
    static TW_DEVICE void lists(const tw_lossless_cuda_job_t &job, tw_lossless_source &source,
                                uint32_t n_pieces)
    {
        __shared__ uint32_t taken;
        if (threadIdx.x < 32) {
            tw_lossless_bit_source bits = {(const uint32_t *)source.begin,
                                           8 * (uint64_t)(source.at - source.begin),
                                           8 * (uint64_t)(source.end - source.begin)};
            bool good = true;
            for (uint32_t p = 0; p < n_pieces && good; p++) {
                const tw_lossless_cuda_piece_t &piece = job.pieces[p];
                good =
                    !(piece.flags & TW_LOSSLESS_FLAG_SCALES) || list<TW_LOSSLESS_OF_ROWS>(job, piece, bits);
                good = good && (!(piece.flags & TW_LOSSLESS_FLAG_CLASSES) ||
                                list<TW_LOSSLESS_OF_CLASSES>(job, piece, bits));
                good = good && (!(piece.flags & TW_LOSSLESS_FLAG_COLUMNS) ||
                                list<TW_LOSSLESS_OF_COLUMNS>(job, piece, bits));
            }
            /* skip the rest of the last byte, and the zero byte after an odd number of bytes */
            uint64_t end = bits.at + 15 - (bits.at + 15) % 16;
            good = good && end <= bits.end &&
                   (bits.at == end || !(bits.look(bits.at) << (32 - (end - bits.at))));
            if (threadIdx.x == 0) {
                taken = good ? (uint32_t)(end / 8) : UINT32_MAX;
            }
        }
        __syncthreads();
        source.bad = taken == UINT32_MAX;
        source.at = source.bad ? source.at : source.begin + taken;
    }

    template <int KIND>
    static TW_DEVICE bool list(const tw_lossless_cuda_job_t &job, const tw_lossless_cuda_piece_t &piece,
                               tw_lossless_bit_source &bits)
    {
        const tw_lossless_list<KIND> values(job, piece);
        const uint32_t k = bits.look(bits.at) & ((1u << TW_LOSSLESS_LIST_K_BITS) - 1);
        bits.at += TW_LOSSLESS_LIST_K_BITS;
        bool good = k <= TW_LOSSLESS_LIST_K_MAX && bits.at <= bits.end;
        for (uint32_t first = 0; first < values.n && good; first += TW_LOSSLESS_GROUP) {
            uint32_t left = values.n - first;
            good = group(job, values, first, left < TW_LOSSLESS_GROUP ? left : TW_LOSSLESS_GROUP, k, bits);
        }
        return good;
    }

    /** Read a list's group of 32 values. All lanes read the ones and zeros of all values, because they tell
     *  where the next value begins; then each lane reads the other bits of its own value. */
    template <int KIND>
    static TW_DEVICE bool group(const tw_lossless_cuda_job_t &job, const tw_lossless_list<KIND> &values,
                                uint32_t first, uint32_t n, uint32_t k, tw_lossless_bit_source &bits)
    {
        const uint32_t lane = threadIdx.x, after = TW_LOSSLESS_LONG_AFTER;
        uint32_t high = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t ones = tw_dev_ones(bits.look(bits.at) & ((1u << after) - 1));
            high = i == lane ? ones : high;
            bits.at += ones < after ? ones + 1 : after;
        }
        uint32_t low = bits.look(bits.at + (uint64_t)k * lane) & ((1u << k) - 1);
        bits.at += (uint64_t)k * n;
        uint32_t longs = tw_dev_ballot(lane < n && high >= after);
        if (lane < n && high >= after) {
            uint64_t at = bits.at + TW_LOSSLESS_LONG_BITS * tw_dev_popc(longs & ((1u << lane) - 1));
            high = bits.look(at) & ((1u << TW_LOSSLESS_LONG_BITS) - 1);
        }
        bits.at += TW_LOSSLESS_LONG_BITS * tw_dev_popc(longs);
        bool wrong = lane < n && !value(job, values, first + lane, high << k | low);
        return bits.at <= bits.end && !tw_dev_ballot(wrong);
    }

    template <int KIND>
    static TW_DEVICE bool value(const tw_lossless_cuda_job_t &job, const tw_lossless_list<KIND> &values,
                                uint32_t i, uint32_t folded)
    {
        const bool classes = KIND == TW_LOSSLESS_OF_CLASSES;
        int32_t x = tw_lossless_unfolded(folded, values.centre);
        int32_t least = classes ? 0 : -(TW_LOSSLESS_SCALE_MAX >> values.shift);
        int32_t most = classes ? TW_LOSSLESS_CLASSES - 1 : TW_LOSSLESS_SCALE_MAX >> values.shift;
        if (x < least || x > most) {
            return false;
        }
        if (KIND == TW_LOSSLESS_OF_COLUMNS) {
            job.columns[values.piece.first_column + i] = (int16_t)(x * (1 << values.shift));
            return true;
        }
        uint16_t &row = values.row(i);
        row = classes ? tw_lossless_with_class(row, (uint32_t)x)
                      : (uint16_t)((row & ~(uint32_t)TW_LOSSLESS_SCALE_MASK) | tw_lossless_row_of(x));
        return true;
    }

    /** Read the tables, and fill the decoder's look-up tables. */
    static TW_DEVICE void tables(const tw_lossless_cuda_job_t &job, tw_lossless_source &source, uint32_t own,
                                 int32_t window)
    {
        __shared__ uint16_t freqs[TW_LOSSLESS_CONTEXTS][TW_ENTROPY_SYMBOLS];
        const uint32_t t = threadIdx.x, c = t / TW_LOSSLESS_PHASES;
        if (!source.has(tw_dev_popc(own) * TW_LOSSLESS_TABLE_BYTES)) {
            return;
        }
        if (t < TW_LOSSLESS_CONTEXTS) {
            tw_lossless_table_t table;
            tw_lossless_table_common(c, window, &table);
            const uint32_t before = tw_dev_popc(own & ((1u << c) - 1)) * TW_LOSSLESS_TABLE_BYTES;
            for (uint32_t i = 0; own >> c & 1 && i < TW_LOSSLESS_TABLE_BYTES; i++) {
                ((uint8_t *)&table)[i] = source.at[before + i];
            }
            tw_lossless_freq(&table, t % TW_LOSSLESS_PHASES, freqs[t]);
        }
        source.at += tw_dev_popc(own) * TW_LOSSLESS_TABLE_BYTES;
        __syncthreads();
        tw_entropy_lookup_fill({job.symbols, job.slots}, freqs[0], TW_LOSSLESS_CONTEXTS);
    }

    static TW_DEVICE void tail_tables(const tw_lossless_cuda_job_t &job, tw_lossless_source &source)
    {
        __shared__ uint16_t freqs[TW_LOSSLESS_TAIL_CONTEXTS][TW_ENTROPY_SYMBOLS];
        const uint32_t n = source.byte(), t = threadIdx.x;
        source.bad = source.bad || n > TW_LOSSLESS_TAIL_CONTEXTS;
        if (!source.has(n * TW_LOSSLESS_TAIL_SYMBOLS)) {
            return;
        }
        if (t < n) {
            tw_lossless_tail_table_t table;
            for (uint32_t i = 0; i < TW_LOSSLESS_TAIL_SYMBOLS; i++) {
                table.density[i] = source.at[t * TW_LOSSLESS_TAIL_SYMBOLS + i];
            }
            tw_lossless_tail_freq(&table, freqs[t]);
        }
        source.at += n * TW_LOSSLESS_TAIL_SYMBOLS;
        if (t == 0) {
            job.state->tails.n_tables = n;
        }
        __syncthreads();
        tw_entropy_lookup_fill({job.tail_symbols, job.tail_slots}, freqs[0], n);
    }

    /** Read the blocks' entries and compute the blocks' offsets. */
    static TW_DEVICE void blocks(const tw_lossless_cuda_job_t &job, tw_lossless_source &source,
                                 uint32_t n_live, uint32_t n)
    {
        uint64_t at = sizeof(tw_lossless_header_t) + job.state->head_bytes;
        const tw_lossless_tails_t &tails = job.state->tails;
        at = tw_entropy_place(job.blocks, n, at, [&](uint32_t b) {
            const uint32_t elems = tw_entropy_block_elems(n_live, b);
            const uint8_t *from = source.at + b * tw_lossless_entry_bytes(tails.tailed);
            tw_lossless_entry_t entry = {tw_entropy_get32(from), tw_entropy_get32(from + 4),
                                         tails.tailed ? tw_entropy_get32(from + 8) : TW_LOSSLESS_TAILS_RAW};
            if (!tw_lossless_tails_may_be(&entry, tails.n_tables, elems)) {
                job.state->failed = 1;
                entry.tails = TW_LOSSLESS_TAILS_RAW;
            }
            job.block_tails[b] = entry.tails;
            return tw_entropy_cuda_block_t{entry.sizes, entry.check, 0,
                                           tw_lossless_block_bytes(job, entry.sizes, entry.tails, elems)};
        });
        source.bad = at != job.state->bytes;
    }

    /** Like `blocks`, for ecdq, one block after the other: a block's length depends on its tables. */
    static TW_DEVICE void dithered_blocks(const tw_lossless_cuda_job_t &job, tw_lossless_source &source,
                                          uint32_t n_live, uint32_t n)
    {
        __shared__ uint32_t good;
        const uint64_t end = job.state->bytes;
        if (threadIdx.x == 0) {
            uint64_t at = sizeof(tw_lossless_header_t) + job.state->head_bytes;
            for (uint32_t b = 0; b < n && at < end; b++) {
                const uint8_t *from = source.at + b * sizeof(tw_entropy_entry_t);
                const uint32_t sizes = tw_entropy_get32(from), elems = tw_entropy_block_elems(n_live, b);
                const uint32_t tables =
                    sizes == TW_ENTROPY_RAW ? 0 : table_words(job.src + at, (uint32_t)(end - at) / 2);
                const uint32_t bytes = tw_lossless_block_bytes(job, sizes, tables, elems);
                job.blocks[b] = {sizes, tw_entropy_get32(from + 4), (uint32_t)at, bytes};
                job.block_tails[b] = tables;
                at += bytes;
            }
            good = at == end;
        }
        __syncthreads();
        source.bad = !good;
    }

    /** Count the words that the tables at the beginning of a block take, `most` at most. */
    static TW_DEVICE uint32_t table_words(const uint8_t *at, uint32_t most)
    {
        const uint32_t classes = most ? at[0] : 0;
        uint32_t words = 1;
        for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES && words < most; c++) {
            words += classes >> c & 1 ? 1 + at[2 * words + 1] : 0;
        }
        return words;
    }
};
