/* Of each of n kinds of kept rows, which ones are not finite; and which were made at all. */
struct Marks {
    const int *marks;
    int n, n_rows, kinds; /* kinds: those that count, a bit each */

    __device__ __forceinline__ bool is_finite(int row) const
    {
        bool is = true;
        for (int kind = 0; kind < n; kind++)
            is = is && !(kinds >> kind & 1 && marks[kind * n_rows + row]);
        return is;
    }
};
