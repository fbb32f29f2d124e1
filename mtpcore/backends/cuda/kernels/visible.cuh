/* Where a sequence's keys and values lie, and which of them a row sees.
 *
 * A row sees the numbers [begin, end). Number m below `base` is the place m of its sequence; those
 * from there on are its path through the batch's tree, itself the last, whose places differ from
 * their numbers. Places lie in pages of 64, as the sequence's table says.
 */
#define PAGE 64
#define RANGE 256 /* numbers whose sums are made in one go */

struct Visible {
    int begin, end, base, own; /* distances count from `own` */
};

/* The slot of a place, counted through all pages. */
__device__ __forceinline__ size_t slot_of_place(const int *table, int place)
{
    return (size_t)table[place / PAGE] * PAGE + place % PAGE;
}

/* The slot of a number that the row sees. */
__device__ __forceinline__ size_t slot_of_number(const int *table, const int *places,
                                                 const int *parents, const Visible &visible,
                                                 int row, int number)
{
    if (number < visible.base)
        return slot_of_place(table, number);
    for (int above = visible.end - 1; above > number; above--)
        row = parents[row];
    return slot_of_place(table, places[row]);
}
