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
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define MTPCORE_EMULATED
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static __attribute__((section("shared")))
#define __restrict__
#define __launch_bounds__(...)

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct dim3 { unsigned x, y, z; };

extern "C" char __start_shared[] __attribute__((weak)), __stop_shared[] __attribute__((weak));

namespace emulator {

const unsigned WARP = 32, MOST_THREADS = 1024, MOST_COPIES = 64, MOST_VALUES = 32;

struct Meeting { /* where `size` threads wait for each other */
    int size = 0, arrived = 0;
    long round = 0;
};

/* What lanes show each other at a meeting, in turns: whoever writes one of the two a second time has
 * met those who read it. */
struct Warp {
    Meeting meeting;
    uint64_t word[2][WARP];
    float values[2][WARP][MOST_VALUES];
    alignas(16) int8_t left[2][16][32], right[2][8][32]; /* a product's sides, by row and column */
};

/* Sixteen bytes that a thread copies, or four, in which of its groups. */
struct Copy {
    void *to;
    const void *from;
    int group, size;
};

/* An array that a launch writes to. */
struct Array {
    unsigned char *at;
    size_t size;
};

/* What CTAs of a launch see of each other's writes, where they count who ends last. Each one finds the
 * arrays as they were before the launch. What it has written when a thread fences is there for others
 * once that thread has counted; and what others have shown like that is there for the CTA once a
 * thread that has counted fences. When the launch ends all writes are there. */
class Sharing {
  public:
    void watch(const Array *arrays, unsigned n_arrays)
    {
        chunks_.clear();
        size_t size = 0;
        for (unsigned i = 0; i < n_arrays; i++)
            size += arrays[i].size;
        for (Bytes *bytes : {&before_, &shown_, &made_})
            bytes->resize(size);
        size_t from = 0;
        for (unsigned i = 0; i < n_arrays; i++)
            for (size_t at = 0; at < arrays[i].size; at += CHUNK) {
                const size_t left = arrays[i].size - at, n = left < CHUNK ? left : CHUNK;
                chunks_.push_back({arrays[i].at + at, &before_[from], &shown_[from], &made_[from], n});
                for (unsigned char *copy : {&before_[from], &shown_[from], &made_[from]})
                    memcpy(copy, arrays[i].at + at, n);
                from += n;
            }
    }

    void begin_cta() { fenced_by_ = counted_by_ = NOBODY; }

    void end_cta()
    {
        for (Chunk *chunk : changed()) {
            add(chunk->made, chunk->at, *chunk);
            memcpy(chunk->at, chunk->before, chunk->size);
        }
    }

    void end_launch()
    {
        for (Chunk &chunk : chunks_)
            memcpy(chunk.at, chunk.made, chunk.size);
    }

    void fence(unsigned thread)
    {
        if (counted_by_ == thread)
            for (Chunk &chunk : chunks_)
                if (chunk.is_shown) {
                    Bytes all(chunk.shown, chunk.shown + chunk.size);
                    add(all.data(), chunk.at, chunk);
                    memcpy(chunk.at, all.data(), chunk.size);
                }
        fenced_.clear();
        for (Chunk *chunk : changed())
            fenced_.push_back({chunk, Bytes(chunk->at, chunk->at + chunk->size)});
        fenced_by_ = thread;
    }

    void count(unsigned thread)
    {
        if (fenced_by_ == thread)
            for (const auto &[chunk, bytes] : fenced_) {
                add(chunk->shown, bytes.data(), *chunk);
                chunk->is_shown = true;
            }
        counted_by_ = thread;
    }

  private:
    typedef std::vector<unsigned char> Bytes;

    static const size_t CHUNK = 4096;
    static const unsigned NOBODY = ~0u;

    struct Chunk { /* of an array, and what is known of it */
        unsigned char *at, *before, *shown, *made;
        size_t size;
        bool is_shown = false;
    };

    /* What the CTA has written, or was shown. */
    std::vector<Chunk *> changed()
    {
        std::vector<Chunk *> found;
        for (Chunk &chunk : chunks_)
            if (memcmp(chunk.at, chunk.before, chunk.size))
                found.push_back(&chunk);
        return found;
    }

    /* Adds what differs from what was there before the launch. */
    static __attribute__((noinline, optimize("O3"))) void
    add(unsigned char *to, const unsigned char *from, const Chunk &chunk)
    {
        for (size_t i = 0; i < chunk.size; i++)
            to[i] = from[i] != chunk.before[i] ? from[i] : to[i];
    }

    std::vector<Chunk> chunks_;
    std::vector<std::pair<Chunk *, Bytes>> fenced_;
    unsigned fenced_by_ = NOBODY, counted_by_ = NOBODY;
    Bytes before_, shown_, made_;
};

/* A thread. Its first switch is one of contexts, which asks the kernel for the signal mask; all
 * others are GCC's own jumps from one thread to the next, much quicker than setjmp's. */
struct Fiber {
    void *at[5]; /* where it goes on */

    const Meeting *meeting = nullptr; /* where it waits for the end of a round */
    long round = 0;
    bool begun = false, done = true;
    int groups = 0;
    unsigned n_copies = 0; /* under way */
    char *stack = nullptr;

    bool can_go_on() const { return !done && !(meeting && meeting->round == round); }
};

static void *scheduler[5];
static Fiber fibers[MOST_THREADS];
static Copy copies[MOST_THREADS][MOST_COPIES];
static Warp warps[MOST_THREADS / WARP];
static Meeting cta, early;
static Sharing sharing;
static const Array *arrays; /* of a launch whose CTAs count each other */
static unsigned n_arrays;
static void (*before)(); /* runs the launch before, which has not been waited for */
static void (*run_thread)(const void *kernel);
static const void *body;
static unsigned launches, current;
static unsigned left; /* threads of the CTA that have not ended */

static unsigned order[MOST_THREADS], n_places, turn; /* warp by warp; whose place it is */

static dim3 block_index, grid_size;

/* The i-th of n in this launch's order: forwards, backwards, or with strides. */
static unsigned in_turn(unsigned i, unsigned n)
{
    const unsigned strides[] = {1, n - 1, 37, 11};
    unsigned stride = strides[launches % 4], a = stride % n, b = n;
    while (b) {
        const unsigned rest = a % b;
        a = b, b = rest;
    }
    if (a != 1)
        stride = n - 1; /* all numbers, each once */
    return (unsigned)(((uint64_t)i * stride + launches) % n);
}

static bool find(unsigned begin, unsigned end)
{
    for (unsigned place = begin; place < end; place++)
        if (fibers[order[place]].can_go_on()) {
            turn = place;
            return true;
        }
    return false;
}

/* Find a thread that can go on: of the warp that runs, or else of the first one. */
static bool find_next()
{
    const unsigned begin = turn / WARP * WARP, end = begin + WARP;
    return find(turn + 1, end) || find(begin, turn + 1) || find(0, n_places);
}

static void start();

[[noreturn]] static __attribute__((noinline)) void jump(void **at) { __builtin_longjmp(at, 1); }

static __attribute__((noinline)) void go_on()
{
    current = order[turn];
    Fiber &fiber = fibers[current];
    if (fiber.begun)
        jump(fiber.at);
    fiber.begun = true;
    const size_t size = 64 << 10, apart = 448; /* tops share no lines of a cache */
    if (!fiber.stack)
        fiber.stack = (char *)malloc(size + apart);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack = {fiber.stack, 0, size};
    makecontext(&context, start, 0);
    setcontext(&context);
}

static __attribute__((noinline)) void leave()
{
    if (__builtin_setjmp(fibers[current].at))
        return;
    if (find_next())
        go_on();
    jump(scheduler);
}

static void start() /* lives as long as the fiber, for one CTA after the other */
{
    for (;;) {
        run_thread(body);
        fibers[current].done = true;
        left--;
        leave();
    }
}

static void meet(Meeting &meeting)
{
    fibers[current].meeting = &meeting;
    fibers[current].round = meeting.round;
    if (++meeting.arrived == meeting.size) {
        meeting.arrived = 0;
        meeting.round++;
    } else {
        leave();
    }
}

/* Run threads until none can go on. */
static __attribute__((noinline)) void go_round()
{
    if (!__builtin_setjmp(scheduler) && find(0, n_places))
        go_on();
}

static bool run_cta(unsigned threads)
{
    memset(__start_shared, 0xff, __stop_shared - __start_shared); /* NaN, and -1 */
    sharing.begin_cta();
    for (unsigned warp = 0; warp < n_places / WARP; warp++)
        warps[warp].meeting = Meeting();
    cta = early = Meeting();
    cta.size = early.size = (int)(left = threads);
    for (unsigned i = 0; i < n_places; i++) {
        Fiber &fiber = fibers[i];
        fiber.begun &= fiber.done; /* or a launch has failed within it */
        fiber.done = i >= threads;
        fiber.meeting = nullptr;
        fiber.n_copies = fiber.groups = 0;
        warps[i / WARP].meeting.size += !fiber.done;
    }
    for (;;) {
        go_round();
        if (!left) {
            sharing.end_cta();
            return true;
        }
        if (!before || early.arrived != (int)left)
            return false; /* a meeting that some threads never join */
        before();
        before = nullptr;
        sharing.watch(arrays, n_arrays);
        early.round++;
    }
}

template <class Kernel>
static bool run(const dim3 &grid, unsigned threads, const Kernel &kernel)
{
    grid_size = grid;
    run_thread = [](const void *given) { (*(const Kernel *)given)(); };
    body = &kernel;
    launches++;
    sharing.watch(arrays, n_arrays);
    const unsigned n_warps = (threads + WARP - 1) / WARP, n_ctas = grid.x * grid.y * grid.z;
    n_places = n_warps * WARP;
    for (unsigned i = 0; i < n_places; i++)
        order[i] = in_turn(i / WARP, n_warps) * WARP + in_turn(i % WARP, WARP);
    for (unsigned i = 0; i < n_ctas; i++) {
        const unsigned block = in_turn(i, n_ctas);
        block_index = {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
        if (!run_cta(threads))
            return false;
    }
    sharing.end_launch();
    return true;
}

static void wait_for_launches()
{
    if (before) {
        fibers[current].meeting = &early;
        fibers[current].round = early.round;
        early.arrived++;
        leave();
    }
}

static Warp &warp() { return warps[current / WARP]; }

} // namespace emulator

#define threadIdx (dim3{emulator::current, 0, 0})
#define blockIdx (emulator::block_index)
#define gridDim (emulator::grid_size)

static void wait_for_launches() { emulator::wait_for_launches(); }

static void let_next_begin() {}

static void prefetch(const void *) {}

static void __syncthreads() { emulator::meet(emulator::cta); }

static void __syncwarp() { emulator::meet(emulator::warp().meeting); }

template <class T> static T __shfl_xor_sync(unsigned, T value, int mask)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move words, and pairs of them");
    emulator::Warp &warp = emulator::warp();
    const unsigned lane = emulator::current % 32, turn = warp.meeting.round % 2;
    memcpy(&warp.word[turn][lane], &value, sizeof value);
    emulator::meet(warp.meeting);
    memcpy(&value, &warp.word[turn][lane ^ mask], sizeof value);
    return value;
}

template <int N> static void exchange(float (&values)[N], int bit)
{
    static_assert(N <= emulator::MOST_VALUES);
    emulator::Warp &warp = emulator::warp();
    const unsigned lane = emulator::current % 32, turn = warp.meeting.round % 2;
    memcpy(warp.values[turn][lane], values, sizeof values);
    emulator::meet(warp.meeting);
    memcpy(values, warp.values[turn][lane ^ bit], sizeof values);
}

/* Which lanes have the same value. */
static unsigned __match_any_sync(unsigned, int value)
{
    emulator::Warp &warp = emulator::warp();
    const unsigned lane = emulator::current % 32, turn = warp.meeting.round % 2;
    warp.word[turn][lane] = (unsigned)value;
    emulator::meet(warp.meeting);
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
    emulator::sharing.count(emulator::current);
    const unsigned before = *at;
    *at = before >= most ? 0 : before + 1;
    return before;
}

static void __threadfence() { emulator::sharing.fence(emulator::current); }

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

static void copy_later(void *to, const void *from)
{
    emulator::Fiber &fiber = emulator::fibers[emulator::current];
    if (fiber.n_copies == emulator::MOST_COPIES)
        __builtin_trap();
    *(uint4 *)to = {~0u, ~0u, ~0u, ~0u};
    emulator::copies[emulator::current][fiber.n_copies++] = {to, from, fiber.groups, 16};
}

static void copy_word_later(void *to, const void *from)
{
    emulator::Fiber &fiber = emulator::fibers[emulator::current];
    if (fiber.n_copies == emulator::MOST_COPIES)
        __builtin_trap();
    *(unsigned *)to = ~0u;
    emulator::copies[emulator::current][fiber.n_copies++] = {to, from, fiber.groups, 4};
}

static void end_group() { emulator::fibers[emulator::current].groups++; }

template <int N> static void wait_for_groups()
{
    emulator::Fiber &fiber = emulator::fibers[emulator::current];
    emulator::Copy *copies = emulator::copies[emulator::current];
    unsigned n_left = 0;
    for (unsigned i = 0; i < fiber.n_copies; i++)
        if (copies[i].group >= fiber.groups - N)
            copies[n_left++] = copies[i];
        else if (copies[i].size == 16)
            *(uint4 *)copies[i].to = *(const uint4 *)copies[i].from;
        else
            *(unsigned *)copies[i].to = *(const unsigned *)copies[i].from;
    fiber.n_copies = n_left;
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
    const unsigned lane = emulator::current % 32, turn = warp.meeting.round % 2;
    for (int i = 0; i < K / 8; i++)
        memcpy(&warp.left[turn][lane / 4 + i % 2 * 8][i / 2 * 16 + lane % 4 * 4], &a[i], 4);
    for (int i = 0; i < K / 16; i++)
        memcpy(&warp.right[turn][lane / 4][i * 16 + lane % 4 * 4], &b[i], 4);
    emulator::meet(warp.meeting);
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
