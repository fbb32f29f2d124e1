/* Entry d of a head whose first pairs are rotated; pairs are (i, i + n_pairs), or (2i, 2i + 1) where they
 * are neighbours. */
__device__ __forceinline__ float rotated(const float *cosines, const float *sines,
                                         bool are_neighbours, const float *head, int d, int n_pairs)
{
    if (d >= 2 * n_pairs)
        return head[d];
    const int pair = are_neighbours ? d / 2 : d % n_pairs;
    const int first = are_neighbours ? 2 * pair : pair;
    const int second = are_neighbours ? 2 * pair + 1 : n_pairs + pair;
    const float a = head[first], b = head[second], cos = cosines[pair], sin = sines[pair];
    return d == second ? fmaf(a, sin, b * cos) : fmaf(a, cos, (0.0f - b) * sin);
}
