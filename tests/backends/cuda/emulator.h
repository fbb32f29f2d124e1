/* Runs a CUDA kernel's own source on the CPU, one CTA after the other; for tests.
 *
 * Each thread of a CTA is a fiber, switched where threads meet: __syncthreads, shuffles and matrix
 * products. Products' fragments follow the PTX ISA (mma.m16n8k32 and k16, 8-bit integers). CTAs, and
 * threads between two meetings, take turns in another order in every launch, and warps run ahead of
 * each other as far as they can, so that a barrier that is missing shows; vector types must lie where
 * a GPU wants them (-fsanitize=alignment). A CTA finds noise in its shared memory. What is copied
 * there beside a thread lands when the thread waits for it, and not before; until then there is
 * noise. The launch before one that begins early runs when all threads of the first CTA wait for it:
 * what they read before is what was there before it. Where CTAs count which of them ends last, what one
 * writes is there for another only behind the fences of both.
 */
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define MTPCORE_EMULATED
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static __attribute__((section("shared")))
#define ARENA __shared__ uint4 arena[SHARED / 16]
#define __restrict__
#define __launch_bounds__(...)
#define __maxnreg__(...)

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct dim3 { unsigned x, y, z; };

#pragma GCC visibility push(hidden) /* each kernel is linked with an emulator of its own */
namespace emulator {

const unsigned WARP = 32, MOST_THREADS = 1024, MOST_COPIES = 64, MOST_VALUES = 32;

/* What lanes show each other at a meeting, in turns: whoever writes one of the two a second time has
 * met those who read it. */
struct Warp {
    unsigned size, arrived, turn; /* lanes, those who wait for the others, and 0 or 1 */
    uint64_t word[2][WARP];
    float values[2][WARP][MOST_VALUES];
    alignas(16) int8_t left[2][16][32], right[2][8][32]; /* a product's sides, by row and column */
};

/* Sixteen bytes that a thread copies, or four, in which of its groups. */
struct Copy {
    void *to;
    const void *from;
    int group;
    unsigned size;
};

/* How many copies of a thread are under way, and groups of them begun. */
struct Copying {
    unsigned n;
    int groups;
};

/* An array that a launch writes to. */
struct Array {
    unsigned char *at;
    size_t size;
};

/* A launch: its kernel with arguments, and the arrays of one whose CTAs count each other. */
struct Launch {
    void (*run_thread)(const void *kernel);
    const void *kernel;
    void (*before)(); /* runs the launch before, which has not been waited for; or NULL */
    const Array *arrays;
    unsigned n_arrays;
};

extern unsigned current; /* thread that runs */
extern dim3 block_index, grid_size;
extern Warp warps[MOST_THREADS / WARP];
extern Copy copies[MOST_THREADS][MOST_COPIES];
extern Copying copying[MOST_THREADS];

/* Run all CTAs; false if threads wait for each other forever, or never for the launch before. */
bool run(const dim3 &grid, unsigned threads, const Launch &launch);

void meet_cta();
void meet_warp();
void meet_launch_before();
void fence();
void count();

template <class Kernel>
static bool run(const dim3 &grid, unsigned threads, const Kernel &kernel, void (*before)(),
                const Array *arrays, unsigned n_arrays)
{
    const auto run_thread = [](const void *given) { (*(const Kernel *)given)(); };
    return run(grid, threads, {run_thread, &kernel, before, arrays, n_arrays});
}

static Warp &warp() { return warps[current / WARP]; }

} // namespace emulator
#pragma GCC visibility pop

#define threadIdx (dim3{emulator::current, 0, 0})
#define blockIdx (emulator::block_index)
#define gridDim (emulator::grid_size)

static void wait_for_launches() { emulator::meet_launch_before(); }

static void let_next_begin() {}

static void prefetch(const void *) {}

static void __syncthreads() { emulator::meet_cta(); }

static void __syncwarp() { emulator::meet_warp(); }

template <class T> static T __shfl_xor_sync(unsigned, T value, int mask)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move words, and pairs of them");
    emulator::Warp &warp = emulator::warp();
    const unsigned lane = emulator::current % 32, turn = warp.turn;
    memcpy(&warp.word[turn][lane], &value, sizeof value);
    emulator::meet_warp();
    memcpy(&value, &warp.word[turn][lane ^ mask], sizeof value);
    return value;
}

template <int N> static void exchange(float (&values)[N], int bit)
{
    static_assert(N <= emulator::MOST_VALUES);
    emulator::Warp &warp = emulator::warp();
    const unsigned lane = emulator::current % 32, turn = warp.turn;
    memcpy(warp.values[turn][lane], values, sizeof values);
    emulator::meet_warp();
    memcpy(values, warp.values[turn][lane ^ bit], sizeof values);
}

/* Which lanes have the same value. */
static unsigned __match_any_sync(unsigned, int value)
{
    emulator::Warp &warp = emulator::warp();
    const unsigned lane = emulator::current % 32, turn = warp.turn;
    warp.word[turn][lane] = (unsigned)value;
    emulator::meet_warp();
    unsigned alike = 0;
    for (int i = 0; i < 32; i++)
        alike |= (unsigned)(warp.word[turn][i] == (unsigned)value) << i;
    return alike;
}

static int __popc(unsigned bits) { return __builtin_popcount(bits); }

static float __uint_as_float(unsigned bits) { float v; memcpy(&v, &bits, 4); return v; }
static unsigned __float_as_uint(float value) { unsigned v; memcpy(&v, &value, 4); return v; }
static double __longlong_as_double(long long bits) { double v; memcpy(&v, &bits, 8); return v; }
static long long __double_as_longlong(double value)
{
    long long bits;
    memcpy(&bits, &value, 8);
    return bits;
}
static int __ffs(int bits) { return __builtin_ffs(bits); }

/* A condition's handle is where its value is. */
extern "C" inline void cudaGraphSetConditional(unsigned long long handle, unsigned value)
{
    *(unsigned *)handle = value;
}

template <class T> static T atomicAdd(T *at, T value) /* threads take turns at meetings alone */
{
    const T before = *at;
    *at += value;
    return before;
}

/* Counts from 0 to `most`, and from there on again. */
static unsigned atomicInc(unsigned *at, unsigned most)
{
    emulator::count();
    const unsigned before = *at;
    *at = before >= most ? 0 : before + 1;
    return before;
}

static void __threadfence() { emulator::fence(); }

static float __fadd_rn(float a, float b) { return a + b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fdiv_rn(float a, float b) { return a / b; }
static float __fsqrt_rn(float a) { return sqrtf(a); }
static int __float2int_rn(float a) { return (int)nearbyintf(a); }

/* The sum plus the products of four signed bytes each. */
static int __dp4a(int a, int b, int sum)
{
    for (int i = 0; i < 32; i += 8)
        sum += (int8_t)(a >> i) * (int8_t)(b >> i);
    return sum;
}

/* Four of the eight bytes of low and high; a selector's lowest three bits of four say which. */
static unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    const uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned chosen = 0;
    for (int i = 0; i < 4; i++)
        chosen |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return chosen;
}

static float widen(unsigned short half)
{
    const bool is_finite = (half >> 10 & 31) != 31;
    const float magnitude = is_finite     ? __uint_as_float((half & 0x7fffu) << 13) * 0x1p112f
                            : half & 1023 ? NAN
                                          : INFINITY;
    return half >> 15 ? -magnitude : magnitude;
}

static unsigned short narrow(float value)
{
    const _Float16 half = (_Float16)value;
    unsigned short bits;
    memcpy(&bits, &half, 2);
    return bits;
}

template <class T> static void copy_beside(void *to, const void *from, const T &noise)
{
    emulator::Copying &thread = emulator::copying[emulator::current];
    if (thread.n == emulator::MOST_COPIES)
        __builtin_trap();
    *(T *)to = noise;
    emulator::copies[emulator::current][thread.n++] = {to, from, thread.groups, sizeof(T)};
}

static void copy_later(void *to, const void *from)
{
    copy_beside(to, from, uint4{~0u, ~0u, ~0u, ~0u});
}

static void copy_word_later(void *to, const void *from) { copy_beside(to, from, ~0u); }

static void end_group() { emulator::copying[emulator::current].groups++; }

template <int N> static void wait_for_groups()
{
    emulator::Copying &thread = emulator::copying[emulator::current];
    emulator::Copy *copies = emulator::copies[emulator::current];
    unsigned n_left = 0;
    for (unsigned i = 0; i < thread.n; i++)
        if (copies[i].group >= thread.groups - N)
            copies[n_left++] = copies[i];
        else if (copies[i].size == sizeof(uint4))
            *(uint4 *)copies[i].to = *(const uint4 *)copies[i].from;
        else
            *(unsigned *)copies[i].to = *(const unsigned *)copies[i].from;
    thread.n = n_left;
}

/* The sum of K products; the one loop that is worth vectors. */
template <int K>
static __attribute__((noinline, optimize("O3"))) int dot(const int8_t *a, const int8_t *b)
{
    int sum = 0;
    for (int k = 0; k < K; k++)
        sum += a[k] * b[k];
    return sum;
}

/* The sum of `from` and K columns' products: lanes hold `a` and `b` as products.cuh says. */
template <int K>
static void multiply_columns(int (&to)[4], const unsigned *a, const unsigned *b,
                             const int (&from)[4])
{
    emulator::Warp &warp = emulator::warp();
    const unsigned lane = emulator::current % 32, turn = warp.turn;
    for (int i = 0; i < K / 8; i++)
        memcpy(&warp.left[turn][lane / 4 + i % 2 * 8][i / 2 * 16 + lane % 4 * 4], &a[i], 4);
    for (int i = 0; i < K / 16; i++)
        memcpy(&warp.right[turn][lane / 4][i * 16 + lane % 4 * 4], &b[i], 4);
    emulator::meet_warp();
    for (int i = 0; i < 4; i++) {
        const int8_t *row = warp.left[turn][lane / 4 + i / 2 * 8];
        const int8_t *column = warp.right[turn][lane % 4 * 2 + i % 2];
        to[i] = (int)((unsigned)from[i] + (unsigned)dot<K>(row, column));
    }
}

static void multiply(int (&to)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                     const int (&from)[4])
{
    const unsigned b[2] = {b0, b1};
    multiply_columns<32>(to, a, b, from);
}

static void multiply_half(int (&to)[4], unsigned a0, unsigned a1, unsigned b, const int (&from)[4])
{
    const unsigned a[2] = {a0, a1};
    multiply_columns<16>(to, a, &b, from);
}
