/* What is read next, on its way into a cache: some lines at each step of the work at hand, so that
 * memory and arithmetic do not wait for each other.
 *
 * It goes into the first-level cache where that has room for it beside as much at hand, and for what
 * else is worked on; else into the second, as it would push out what is at hand. */
#ifndef MTPCORE_UPCOMING_H
#define MTPCORE_UPCOMING_H

#include "core/cpu.h"
#include "core/lanes.h"

typedef struct {
    const char *first, *second;   /* two stretches of lines */
    int64_t first_lines, n_lines; /* of the first; of both */
    int64_t n_fetched, of_step;
    int is_near; /* whether there is room in the first-level cache */
} mtp_upcoming;

INLINE mtp_upcoming mtp_upcoming_of(const char *first, int64_t first_bytes, const char *second,
                                    int64_t second_bytes, int64_t n_steps)
{
    const int64_t first_lines = first_bytes / MTP_LINE;
    const int64_t n_lines = first_lines + second_bytes / MTP_LINE;
    const int is_near = 2 * n_lines * MTP_LINE <= mtp_first_level_bytes() / 4 * 3;
    return (mtp_upcoming){
        first, second, first_lines, n_lines, 0, (n_lines + n_steps - 1) / n_steps, is_near};
}

INLINE void mtp_fetch_line(const char *line, const int is_near)
{
    if (is_near)
        __builtin_prefetch(line, 0, 3);
    else
        __builtin_prefetch(line, 0, 2);
}

/* A step. */
INLINE void mtp_fetch_some(mtp_upcoming *next)
{
    if (next == NULL)
        return;
    int64_t line = next->n_fetched;
    const int64_t end = line + next->of_step;
    const int64_t second_end = end < next->n_lines ? end : next->n_lines;
    for (; line < end && line < next->first_lines; line++)
        mtp_fetch_line(next->first + line * MTP_LINE, next->is_near);
    for (; line < second_end; line++)
        mtp_fetch_line(next->second + (line - next->first_lines) * MTP_LINE, next->is_near);
    next->n_fetched = line;
}

#endif
