/* y = kind of the sum over taps of w[c][tap] times a row of the sequence, the oldest first, the row
 * itself last: a chain of fused multiply-adds from zero.
 *
 * Rows before the batch are rows of the log, and before these the rows of a base, oldest first. A
 * CTA makes 256 channels of one row, keeps the row, and writes the base that its advance says; no
 * other CTA reads what it writes. Grid: (rows, channels / 256). Block: 256.
 */
#include "advance.cuh"
#include "functions.cuh"

#define THREADS 256

/* One channel of the rows that there are. */
struct Channel {
    const float *x, *bases, *logs;
    const Advance *advances;
    int n, number, n_held; /* channels, its own, and rows of a base */
};

/* The row `back` rows before that of an advance. */
static __device__ __forceinline__ float look_back(const Channel &channel, int at, int back)
{
    const Advance own = channel.advances[at];
    if (back > own.depth) {
        const int row = channel.n_held - (back - own.depth);
        const size_t of_all = (size_t)own.slot * channel.n_held + row;
        return own.slot < 0 ? 0.0f : channel.bases[of_all * channel.n + channel.number];
    }
    const int row = channel.advances[at - back].row;
    const float *from =
        row < 0 ? channel.logs + (size_t)~row * channel.n : channel.x + (size_t)row * channel.n;
    return from[channel.number];
}

/* The base of a slot: the newest rows, of which the last is `back` rows before that of an advance. */
static __device__ __forceinline__ void write_base(const Channel &channel, float *bases, int slot,
                                                  int at, int back)
{
    float *base = bases + (size_t)slot * channel.n_held * channel.n + channel.number;
    for (int i = 0; i < channel.n_held; i++)
        base[(size_t)i * channel.n] = look_back(channel, at, channel.n_held - 1 - i + back);
}

/* For more than 4 CTAs on a multiprocessor the assembler would spill. */
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    causal_conv(const float *__restrict__ x, const float *__restrict__ w, float *__restrict__ y,
                float *bases, float *logs, const int *__restrict__ walks, int n_seq, int n_rows,
                int n_channels, int n_taps, int is_silu)
{
    const int number = blockIdx.y * THREADS + threadIdx.x, at = walks[2 * n_seq + blockIdx.x];
    if (number >= n_channels || at == NOTHING)
        return;
    const Advance *advances = advances_of(walks, n_seq, n_rows);
    const Advance own = advances[at];
    const Channel channel = {x, bases, logs, advances, n_channels, number, n_taps - 1};

    if (own.before >= 0)
        write_base(channel, bases, own.before, at, 1);
    if (own.after >= 0)
        write_base(channel, bases, own.after, at, 0);
    float total = 0.0f;
    for (int tap = 0; tap < n_taps; tap++)
        total =
            fmaf(w[(size_t)number * n_taps + tap], look_back(channel, at, n_taps - 1 - tap), total);
    y[(size_t)own.row * n_channels + number] = is_silu ? activation(SILU, total) : total;
    if (own.kept >= 0)
        logs[(size_t)own.kept * n_channels + number] = x[(size_t)own.row * n_channels + number];
}
