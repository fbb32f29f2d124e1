/* The part of emulator.h that is the same for every kernel: whose turn it is, and who sees what. */
#include "emulator.h"

#include <cstdlib>
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

/* Keeps on the stack what a function must not change, tells where the stack ends then, and goes on
 * where another one was left. */
extern "C" __attribute__((visibility("hidden"))) void change_stack(char **top, char *other);
asm(".text\n.type change_stack, %function\nchange_stack:\n"
#if defined(__x86_64__)
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
#elif defined(__aarch64__)
    "stp x19, x20, [sp, #-160]!\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
    "stp d14, d15, [sp, #144]\nmov x2, sp\nstr x2, [x0]\nmov sp, x1\n"
    "ldp d14, d15, [sp, #144]\nldp d12, d13, [sp, #128]\nldp d10, d11, [sp, #112]\n"
    "ldp d8, d9, [sp, #96]\nldp x29, x30, [sp, #80]\nldp x27, x28, [sp, #64]\n"
    "ldp x25, x26, [sp, #48]\nldp x23, x24, [sp, #32]\nldp x21, x22, [sp, #16]\n"
    "ldp x19, x20, [sp], #160\nret\n"
#else
#error "which registers a function must not change is not written down for this processor"
#endif
);
#ifdef __x86_64__
static const size_t WORDS = 8, GOES_ON = 6; /* kept, and one more for alignment; which is where to go */
#else
static const size_t WORDS = 20, GOES_ON = 11;
#endif

/* Where threads' stacks end while others run: NULL before a thread begins and after it has ended. A
 * stack runs one thread after the other, so that those that meet nobody need but one. */
static char *tops[MOST_THREADS], *scheduler;
static const size_t STACK_BYTES = 64 << 10;
static std::vector<char *> stacks, idle; /* all, and where those end that have no thread */
static Launch launch;
static Sharing sharing;
static unsigned launches;
static unsigned n_threads, left;   /* of a CTA, and those of them that have not ended */
static unsigned at_cta, at_before; /* that wait for all others, and for the launch before */

/* Threads in this launch's order, warp by warp, and whose place it is. Of each warp a bit for each
 * place: threads that have not ended, and those of them that wait for nobody. */
static unsigned order[MOST_THREADS + 1], n_warps, place;
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

static void run_threads();

/* Let a stack begin anew; return where it ends. */
static char *clear(char *stack)
{
    char **top = (char **)(stack + STACK_BYTES) - WORDS;
    top[GOES_ON] = (char *)run_threads;
    return (char *)top;
}

/* The stack that was used last, which is still in the cache, or a new one. */
static char *take_stack()
{
    if (idle.empty()) {
        const size_t apart = 448; /* tops share no lines of a cache */
        stacks.push_back((char *)aligned_alloc(64, STACK_BYTES + apart));
        return clear(stacks.back());
    }
    char *top = idle.back();
    idle.pop_back();
    return top;
}

/* Forget the threads that wait for each other forever. */
static void abandon_threads()
{
    memset(tops, 0, sizeof tops);
    idle.clear();
    for (char *stack : stacks)
        idle.push_back(clear(stack));
}

/* The stack of the thread whose place it is; the one after it will be read soon, too. */
static char *stack_of_next()
{
    current = order[place];
    const char *soon = tops[order[place + 1]];
    for (int line = 0; line < 5; line++)
        __builtin_prefetch(soon + 64 * line);
    return tops[current] ? tops[current] : take_stack();
}

/* Let others run until this thread is ready again. */
static void leave()
{
    ready[place / WARP] &= ~(1u << place % WARP);
    char **top = &tops[current];
    change_stack(top, find_next() ? stack_of_next() : scheduler);
}

/* What a stack does as long as it lives. */
static void run_threads()
{
    for (;;) {
        launch.run_thread(launch.kernel);
        tops[current] = nullptr;
        alive[place / WARP] &= ~(1u << place % WARP);
        ready[place / WARP] &= alive[place / WARP];
        left--;
        char *next = scheduler;
        if (find_next()) {
            current = order[place];
            if (!tops[current])
                continue;
            next = tops[current];
        }
        idle.push_back(nullptr);
        change_stack(&idle.back(), next);
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
static void go_round()
{
    place = WARP - 1; /* the first one is next */
    if (find_next())
        change_stack(&scheduler, stack_of_next());
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
        const bool is_there = thread < n_threads;
        copying[thread] = {};
        warps[thread / WARP].size += is_there;
        alive[i / WARP] |= (unsigned)is_there << i % WARP;
    }
    for (;;) {
        wake_all();
        go_round();
        if (!left) {
            sharing.end_cta();
            return true;
        }
        if (!launch.before || at_before != left) { /* a meeting that some threads never join */
            abandon_threads();
            return false;
        }
        launch.before();
        launch.before = nullptr;
        sharing.watch(launch.arrays, launch.n_arrays);
    }
}

bool run(const dim3 &grid, unsigned threads, const Launch &given)
{
    launch = given;
    launches++;
    const unsigned n_ctas = grid.x * grid.y * grid.z;
    if (n_ctas == 1)
        launch.n_arrays = 0; /* nobody to share with */
    sharing.watch(launch.arrays, launch.n_arrays);
    grid_size = grid;
    n_threads = threads;
    n_warps = (threads + WARP - 1) / WARP;
    for (unsigned i = 0; i < n_warps * WARP; i++)
        order[i] = in_turn(i / WARP, n_warps) * WARP + in_turn(i % WARP, WARP);
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
