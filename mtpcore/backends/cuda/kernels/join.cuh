/* The key of a row in latent attention, whose parts are joined where it is stored. */

/* Normalises the latent part of row t to `joined`, and stores that with the key's rotated part after it; a
 * CTA of 256. */
static __device__ __forceinline__ void store_joined(const Norm &norm, const float *latent,
                                                    const float *key, float *joined, size_t t,
                                                    const float *cosines, const float *sines,
                                                    bool are_neighbours, int n_pairs, int type,
                                                    char *rows, int key_width, float *partial)
{
    normalise_row<1>(norm, false, 0, latent, joined, t, partial, partial, [] {});
    __syncthreads(); /* the row is there */
    const int lane = threadIdx.x & 31, width = norm.width + key_width;
    for (int part = threadIdx.x >> 5; part < n_scales(width); part += ALL_WARPS) {
        float value[2];
        for (int i = 0; i < 2; i++) {
            const int d = part * CODES + 2 * lane + i;
            value[i] = d >= width ? 0.0f
                       : d < norm.width
                           ? joined[d]
                           : rotated(cosines, sines, are_neighbours, key, d - norm.width, n_pairs);
        }
        store_part(type, rows, 1, width, 0, part, value);
    }
}
