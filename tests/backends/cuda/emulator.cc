/* The part of emulator.h that is the same for every kernel: whose turn it is, and who sees what. */
#include "emulator.h"

#include <cstdlib>
#include <ucontext.h>
#include <utility>
#include <vector>

extern "C" char __start_shared[] __attribute__((weak)), __stop_shared[] __attribute__((weak));

namespace emulator {

unsigned current;
dim3 block_index, grid_size;
Warp warps[MOST_THREADS / WARP];
Copy copies[MOST_THREADS][MOST_COPIES];
Copying copying[MOST_THREADS];

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
    bool begun = false, done = true;
    char *stack = nullptr;
};

static void *scheduler[5];
static Fiber fibers[MOST_THREADS];
static Launch launch;
static Sharing sharing;
static unsigned launches;
static unsigned n_threads, left;   /* of a CTA, and those of them that have not ended */
static unsigned at_cta, at_before; /* that wait for all others, and for the launch before */

/* Threads in this launch's order, warp by warp, and whose place it is. Of each warp a bit for each
 * place: threads that have not ended, and those of them that wait for nobody. */
static unsigned order[MOST_THREADS], n_warps, place;
static unsigned alive[MOST_THREADS / WARP], ready[MOST_THREADS / WARP];

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

/* Find a thread that can go on: the next one of the warp that runs, or else one of the first warp. */
static bool find_next()
{
    unsigned warp = place / WARP, waiting = ready[warp];
    if (const unsigned later = waiting & ~1u << place % WARP)
        waiting = later;
    if (!waiting)
        for (warp = 0; warp < n_warps && !(waiting = ready[warp]); warp++)
            ;
    if (waiting)
        place = warp * WARP + (unsigned)__builtin_ctz(waiting);
    return waiting;
}

static void start();

[[noreturn]] static __attribute__((noinline)) void jump(void **at) { __builtin_longjmp(at, 1); }

[[noreturn]] static __attribute__((noinline)) void go_on()
{
    current = order[place];
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
    abort();
}

/* Let others run until this thread is ready again. */
static __attribute__((noinline)) void leave()
{
    ready[place / WARP] &= ~(1u << place % WARP);
    if (__builtin_setjmp(fibers[current].at))
        return;
    if (find_next())
        go_on();
    jump(scheduler);
}

static void start() /* lives as long as the fiber, for one CTA after the other */
{
    for (;;) {
        launch.run_thread(launch.kernel);
        fibers[current].done = true;
        alive[place / WARP] &= ~(1u << place % WARP);
        left--;
        leave();
    }
}

static void wake_all() { memcpy(ready, alive, n_warps * sizeof *ready); }

void meet_cta()
{
    if (++at_cta < n_threads)
        return leave();
    at_cta = 0;
    wake_all();
}

void meet_warp()
{
    Warp &mine = warp();
    if (++mine.arrived < mine.size)
        return leave();
    mine.arrived = 0;
    mine.turn ^= 1;
    ready[place / WARP] = alive[place / WARP];
}

void meet_launch_before()
{
    if (launch.before) {
        at_before++;
        leave();
    }
}

void fence() { sharing.fence(current); }

void count() { sharing.count(current); }

/* Run threads until none can go on. */
static __attribute__((noinline)) void go_round()
{
    place = WARP - 1; /* the first one is next */
    if (!__builtin_setjmp(scheduler) && find_next())
        go_on();
}

static bool run_cta()
{
    memset(__start_shared, 0xff, __stop_shared - __start_shared); /* NaN, and -1 */
    sharing.begin_cta();
    left = n_threads;
    at_cta = at_before = 0;
    for (unsigned warp = 0; warp < n_warps; warp++) {
        warps[warp].size = warps[warp].arrived = warps[warp].turn = 0;
        alive[warp] = 0;
    }
    for (unsigned i = 0; i < n_warps * WARP; i++) {
        const unsigned thread = order[i];
        Fiber &fiber = fibers[thread];
        fiber.begun &= fiber.done; /* or a launch has failed within it */
        fiber.done = thread >= n_threads;
        copying[thread] = {};
        warps[thread / WARP].size += !fiber.done;
        alive[i / WARP] |= (unsigned)!fiber.done << i % WARP;
    }
    for (;;) {
        wake_all();
        go_round();
        if (!left) {
            sharing.end_cta();
            return true;
        }
        if (!launch.before || at_before != left)
            return false; /* a meeting that some threads never join */
        launch.before();
        launch.before = nullptr;
        sharing.watch(launch.arrays, launch.n_arrays);
    }
}

bool run(const dim3 &grid, unsigned threads, const Launch &given)
{
    launch = given;
    launches++;
    sharing.watch(launch.arrays, launch.n_arrays);
    grid_size = grid;
    n_threads = threads;
    n_warps = (threads + WARP - 1) / WARP;
    for (unsigned i = 0; i < n_warps * WARP; i++)
        order[i] = in_turn(i / WARP, n_warps) * WARP + in_turn(i % WARP, WARP);
    const unsigned n_ctas = grid.x * grid.y * grid.z;
    for (unsigned i = 0; i < n_ctas; i++) {
        const unsigned block = in_turn(i, n_ctas);
        block_index = {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
        if (!run_cta())
            return false;
    }
    sharing.end_launch();
    return !launch.before;
}

} // namespace emulator
