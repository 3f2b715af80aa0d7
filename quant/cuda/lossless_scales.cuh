/** The lossless encoder: scales of rows and columns, and classes. lossless_encode.cuh lists all kernels. */
#pragma once

#include "quant/cuda/lossless_rows.cuh"

/* ---- rows and columns ---------------------------------------------------------------------------------- */

template <int TYPE>
struct tw_lossless_kernel_rows {
    using element = tw_lossless_element<TYPE>;

    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cursor cursor = {0, 0, 0};
        for (uint32_t r = tw_entropy_warp(); r < job.n_rows; r += tw_entropy_warps()) {
            tw_lossless_cuda_piece_t &piece = tw_lossless_piece_of_row(job, job.n_pieces, r);
            tw_lossless_row row = tw_lossless_row_at(piece, r - piece.first_row);
            tw_entropy_sum_t sum = 0;
            uint32_t live = 0, any = 0;
            tw_lossless_read_row<element::bytes>(job, row, cursor, [&](uint32_t, uint32_t bits) {
                uint32_t magnitude = tw_lossless_magnitude(element::head(bits));
                sum += magnitude;
                live += magnitude != 0;
                any |= bits;
            });
            sum = tw_entropy_total(sum);
            live = tw_entropy_total(live);
            bool dead = !tw_dev_ballot(any != 0);
            if (tw_entropy_lane() == 0) {
                int64_t scale = tw_lossless_mean((int64_t)sum, live);
                job.rows[r] = dead ? TW_LOSSLESS_DEAD : tw_lossless_row_of(scale);
                if (dead) {
                    atomicOr(&piece.flags, (uint32_t)TW_LOSSLESS_FLAG_ZEROS);
                } else {
                    atomicAdd(&piece.sum, sum);
                    atomicAdd(&piece.live, (tw_entropy_sum_t)live);
                }
            }
        }
    }
};

TW_DEVICE int32_t tw_lossless_piece_scale(const tw_lossless_cuda_piece_t &piece)
{
    return (int32_t)tw_lossless_mean((int64_t)piece.sum, (int64_t)piece.live);
}

TW_DEVICE uint32_t tw_lossless_shift_of(const tw_lossless_cuda_piece_t &piece)
{
    tw_lossless_piece_t sizes = {piece.n_elems, piece.row_elems, 0, 0, 0, 0};
    return tw_lossless_column_shift(&sizes);
}

template <int TYPE>
struct tw_lossless_kernel_columns {
    using element = tw_lossless_element<TYPE>;

    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        uint32_t c = blockIdx.x * TW_ENTROPY_CUDA_THREADS + threadIdx.x;
        if (c >= job.n_columns) {
            return;
        }
        const tw_lossless_cuda_piece_t *pieces = job.pieces;
        const tw_lossless_cuda_piece_t &piece =
            pieces[tw_entropy_last(job.n_pieces, c, [&](uint32_t i) { return pieces[i].first_column; })];
        uint32_t column = c - piece.first_column,
                 step = (piece.n_rows + TW_LOSSLESS_LOOKED_AT - 1) / TW_LOSSLESS_LOOKED_AT;
        int32_t sum = 0, live = 0;
        tw_lossless_cursor cursor = {0, 0, 0};
        for (uint32_t r = 0; r < piece.n_rows; r += step) {
            tw_lossless_row row = tw_lossless_row_at(piece, r);
            uint16_t value = job.rows[piece.first_row + r];
            if (value == TW_LOSSLESS_DEAD || column - row.column >= row.n) {
                continue;
            }
            uint64_t e = row.element + (column - row.column);
            uint16_t head = element::head(tw_lossless_load<element::bytes>(job, e, cursor));
            int32_t magnitude = (int32_t)tw_lossless_magnitude(head);
            sum += magnitude ? magnitude - tw_lossless_scale_of(value) : 0;
            live += magnitude != 0;
        }
        job.columns[c] = tw_lossless_column_of(sum, live, tw_lossless_shift_of(piece));
    }
};

/** The distance of an element from its expectation; 0 if its magnitude is 0. */
TW_DEVICE uint32_t tw_lossless_off(int32_t magnitude, int32_t expected)
{
    int32_t off = magnitude - expected;
    return magnitude ? (uint32_t)(off < 0 ? -off : off) : 0;
}

template <int TYPE>
struct tw_lossless_kernel_deviations {
    using element = tw_lossless_element<TYPE>;

    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cursor cursor = {0, 0, 0};
        const uint32_t n = job.n_pieces * TW_LOSSLESS_TRIED_ON;
        for (uint32_t u = tw_entropy_warp(); u < n; u += tw_entropy_warps()) {
            tw_lossless_cuda_piece_t &piece = job.pieces[u / TW_LOSSLESS_TRIED_ON];
            uint32_t step = (piece.n_rows + TW_LOSSLESS_TRIED_ON - 1) / TW_LOSSLESS_TRIED_ON;
            uint32_t r = u % TW_LOSSLESS_TRIED_ON * step;
            uint16_t value = r < piece.n_rows ? job.rows[piece.first_row + r] : TW_LOSSLESS_DEAD;
            if (value != TW_LOSSLESS_DEAD) {
                tried(job, piece, tw_lossless_row_at(piece, r), tw_lossless_scale_of(value), cursor);
            }
        }
    }

    static TW_DEVICE void tried(const tw_lossless_cuda_job_t &job, tw_lossless_cuda_piece_t &piece,
                                const tw_lossless_row &row, int32_t own, tw_lossless_cursor &cursor)
    {
        tw_entropy_sum_t sums[2][2] = {{0, 0}, {0, 0}};
        int32_t one = tw_lossless_piece_scale(piece);
        const int16_t *columns = piece.with_columns ? job.columns + piece.first_column + row.column : NULL;
        tw_lossless_read_row<element::bytes>(job, row, cursor, [&](uint32_t i, uint32_t bits) {
            int32_t magnitude = (int32_t)tw_lossless_magnitude(element::head(bits));
            int32_t above = columns ? columns[i] : 0;
            sums[0][0] += tw_lossless_off(magnitude, one);
            sums[0][1] += tw_lossless_off(magnitude, one + above);
            sums[1][0] += tw_lossless_off(magnitude, own);
            sums[1][1] += tw_lossless_off(magnitude, own + above);
        });
        TW_UNROLL
        for (int k = 0; k < 4; k++) {
            tw_entropy_add(&piece.deviations[k / 2][k % 2], sums[k / 2][k % 2]);
        }
    }
};

/* ---- what pays ----------------------------------------------------------------------------------------- */

/** One of a piece's lists, by KIND: scales of rows, classes of rows, or scales of columns. */
template <int KIND>
struct tw_lossless_list {
    const tw_lossless_cuda_job_t &job;
    const tw_lossless_cuda_piece_t &piece;
    uint32_t n, shift;
    int32_t centre;

    TW_DEVICE tw_lossless_list(const tw_lossless_cuda_job_t &of_job, const tw_lossless_cuda_piece_t &of_piece)
        : job(of_job), piece(of_piece)
    {
        n = KIND == TW_LOSSLESS_OF_COLUMNS ? piece.row_elems : piece.n_live_rows;
        shift = KIND == TW_LOSSLESS_OF_COLUMNS ? tw_lossless_shift_of(piece) : 0;
        centre = KIND == TW_LOSSLESS_OF_ROWS      ? piece.scale
                 : KIND == TW_LOSSLESS_OF_CLASSES ? (int32_t)piece.row_class
                                                  : 0;
    }

    TW_DEVICE uint16_t &row(uint32_t i) const
    {
        return job.rows[piece.first_row + job.live_rows[piece.first_row + i]];
    }

    /** Value i, folded as it is sent. */
    TW_DEVICE uint32_t folded(uint32_t i) const
    {
        int32_t value = KIND == TW_LOSSLESS_OF_ROWS      ? tw_lossless_scale_of(row(i))
                        : KIND == TW_LOSSLESS_OF_CLASSES ? row(i) >> TW_LOSSLESS_CLASS_SHIFT
                                                         : job.columns[piece.first_column + i];
        return tw_lossless_folded(value, centre, shift);
    }

    /** Choose the list's k, and count its bits. The whole thread block must call it; all get the same
     *  result. */
    TW_DEVICE tw_lossless_cuda_list_t measure() const
    {
        uint64_t sum = 0, all;
        uint32_t bits[2] = {0, 0}, total[2];
        for (uint32_t i = threadIdx.x; i < n; i += TW_ENTROPY_CUDA_THREADS) {
            sum += folded(i);
        }
        tw_dev_block_scan<uint64_t>(sum, &all);
        uint32_t k = tw_lossless_list_k(n, all), other = k ? k - 1 : 0;
        for (uint32_t i = threadIdx.x; i < n; i += TW_ENTROPY_CUDA_THREADS) {
            uint32_t value = folded(i);
            bits[0] += tw_lossless_folded_bits(value, k);
            bits[1] += tw_lossless_folded_bits(value, other);
        }
        tw_dev_block_scan<uint32_t>(bits[0], &total[0]);
        tw_dev_block_scan<uint32_t>(bits[1], &total[1]);
        bool less = total[1] < total[0];
        return {less ? other : k, (less ? total[1] : total[0]) + TW_LOSSLESS_LIST_K_BITS, 0};
    }
};

struct tw_lossless_kernel_scales {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cuda_piece_t &piece = job.pieces[blockIdx.x];
        if (threadIdx.x == 0) {
            piece.scale = tw_lossless_piece_scale(piece);
        }
        tw_lossless_list_live(job, piece);
        tw_lossless_cuda_list_t rows = tw_lossless_list<TW_LOSSLESS_OF_ROWS>(job, piece).measure(),
                                columns = {};
        if (piece.with_columns) {
            columns = tw_lossless_list<TW_LOSSLESS_OF_COLUMNS>(job, piece).measure();
        }
        uint32_t flags = choose(piece, rows.bits, columns.bits);
        for (uint32_t r = threadIdx.x; !(flags & TW_LOSSLESS_FLAG_SCALES) && r < piece.n_rows;
             r += TW_ENTROPY_CUDA_THREADS) {
            uint16_t &row = job.rows[piece.first_row + r];
            row = row == TW_LOSSLESS_DEAD ? row : tw_lossless_row_of(piece.scale);
        }
        if (threadIdx.x == 0) {
            piece.flags |= flags | (piece.first ? TW_LOSSLESS_FLAG_FIRST : 0);
            rows.bits = flags & TW_LOSSLESS_FLAG_SCALES ? rows.bits : 0;
            columns.bits = flags & TW_LOSSLESS_FLAG_COLUMNS ? columns.bits : 0;
            piece.lists[TW_LOSSLESS_OF_ROWS] = rows;
            piece.lists[TW_LOSSLESS_OF_COLUMNS] = columns;
        }
    }

    /** Returns the flags of those scales (of rows, of columns) that save more bits than their lists take. */
    static TW_DEVICE uint32_t choose(const tw_lossless_cuda_piece_t &piece, uint32_t rows_bits,
                                     uint32_t columns_bits)
    {
        uint64_t least = UINT64_MAX;
        uint32_t flags = 0;
        for (uint32_t rows = 0; rows < 2; rows++) {
            for (uint32_t columns = 0; columns <= piece.with_columns; columns++) {
                uint64_t cost = tw_lossless_cost(piece.live, piece.deviations[rows][columns]) +
                                (rows ? rows_bits : 0) + (columns ? columns_bits : 0);
                if (cost < least) {
                    least = cost;
                    flags = (rows ? TW_LOSSLESS_FLAG_SCALES : 0) | (columns ? TW_LOSSLESS_FLAG_COLUMNS : 0);
                }
            }
        }
        return flags;
    }
};

template <int TYPE>
struct tw_lossless_kernel_classes {
    using element = tw_lossless_element<TYPE>;

    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cursor cursor = {0, 0, 0};
        for (uint32_t r = tw_entropy_warp(); r < job.n_rows; r += tw_entropy_warps()) {
            tw_lossless_cuda_piece_t &piece = tw_lossless_piece_of_row(job, job.n_pieces, r);
            uint16_t value = job.rows[r];
            if (value == TW_LOSSLESS_DEAD) {
                continue;
            }
            const tw_lossless_row row = tw_lossless_row_at(piece, r - piece.first_row);
            const int16_t *columns = tw_lossless_columns_of(job, piece, row);
            const int32_t scale = tw_lossless_scale_of(value);
            tw_entropy_sum_t deviation = 0;
            uint32_t live = 0;
            tw_lossless_read_row<element::bytes>(job, row, cursor, [&](uint32_t i, uint32_t bits) {
                int32_t magnitude = (int32_t)tw_lossless_magnitude(element::head(bits));
                deviation += tw_lossless_off(magnitude, scale + (columns ? columns[i] : 0));
                live += magnitude != 0;
            });
            deviation = tw_entropy_total(deviation);
            live = tw_entropy_total(live);
            if (tw_entropy_lane() == 0) {
                found(piece, deviation, live, job.rows[r]);
            }
        }
    }

    static TW_DEVICE void found(tw_lossless_cuda_piece_t &piece, tw_entropy_sum_t deviation, uint32_t live,
                                uint16_t &row)
    {
        uint32_t row_class = tw_lossless_class_of(deviation, live);
        row = tw_lossless_with_class(row, row_class);
        atomicAdd(&piece.own_cost, (tw_entropy_sum_t)tw_lossless_class_cost(live, row_class));
        atomicAdd(&piece.deviation, deviation);
    }
};

/** Choose one class for a piece, or a class for each row, whichever takes fewer bits. */
struct tw_lossless_kernel_pieces {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        tw_lossless_cuda_piece_t &piece = job.pieces[blockIdx.x];
        if (threadIdx.x == 0) {
            piece.row_class = tw_lossless_class_of(piece.deviation, piece.live);
        }
        __syncthreads();
        tw_lossless_cuda_list_t list = tw_lossless_list<TW_LOSSLESS_OF_CLASSES>(job, piece).measure();
        bool pays = tw_lossless_one_class_cost(piece.live, piece.deviation) > piece.own_cost + list.bits;
        for (uint32_t r = threadIdx.x; !pays && r < piece.n_rows; r += TW_ENTROPY_CUDA_THREADS) {
            uint16_t &row = job.rows[piece.first_row + r];
            row = row == TW_LOSSLESS_DEAD ? row : tw_lossless_with_class(row, piece.row_class);
        }
        if (threadIdx.x == 0 && pays) {
            piece.flags |= TW_LOSSLESS_FLAG_CLASSES;
            piece.lists[TW_LOSSLESS_OF_CLASSES] = list;
        }
    }
};

/** Count the coded elements before each piece and in the message. */
struct tw_lossless_kernel_count {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        uint32_t n_live = 0;
        for (uint32_t base = 0; base < job.n_pieces; base += TW_ENTROPY_CUDA_THREADS) {
            uint32_t p = base + threadIdx.x, all;
            uint32_t before = tw_dev_block_scan<uint32_t>(p < job.n_pieces ? job.pieces[p].n_live : 0, &all);
            if (p < job.n_pieces) {
                job.pieces[p].first_live = n_live + before;
            }
            n_live += all;
        }
        if (threadIdx.x == 0) {
            job.state->n_live = n_live;
            job.state->n_blocks = tw_lossless_blocks_of(n_live);
        }
    }
};
