/* Cosines and sines of a row's angles, to a few units in the last place of a double, times a
 * magnitude. */
/* Coefficients of fdlibm's k_sin.c and k_cos.c (Sun Microsystems, 1993), for |x| <= pi / 4. */
__device__ __forceinline__ double sine(double x)
{
    const double z = x * x;
    double y = 1.58969099521155010221e-10;
    y = fma(y, z, -2.50507602534068634195e-08);
    y = fma(y, z, 2.75573137070700676789e-06);
    y = fma(y, z, -1.98412698298579493134e-04);
    y = fma(y, z, 8.33333333332248946124e-03);
    y = fma(y, z, -1.66666666666666324348e-01);
    return fma(y * z, x, x);
}

__device__ __forceinline__ double cosine(double x)
{
    const double z = x * x;
    double y = -1.13596475577881948265e-11;
    y = fma(y, z, 2.08757232129817482790e-09);
    y = fma(y, z, -2.75573143513906633035e-07);
    y = fma(y, z, 2.48015872894767294178e-05);
    y = fma(y, z, -1.38888888888741095749e-03);
    y = fma(y, z, 4.16666666666666019037e-02);
    return fma(z, fma(y, z, -0.5), 1.0);
}

/* The angle less n quarter turns: pi / 2 in two parts of 53 bits. n is below 2^31 and the first
 * product's lowest bit that of pi / 2, so the first difference is exact. */
__device__ __forceinline__ void cos_sin_of(double angle, double magnitude, float *cos, float *sin)
{
    const double n = rint(angle * 6.36619772367581382433e-01);
    const double rest = fma(n, -6.12323399573676603587e-17, fma(n, -1.57079632679489655800, angle));
    const int quarter = (int)((long long)n & 3);
    const double s = sine(rest), c = cosine(rest);
    const double y = quarter & 1 ? c : s, x = quarter & 1 ? s : c;
    *sin = (float)((quarter & 2 ? -y : y) * magnitude);
    *cos = (float)((quarter == 1 || quarter == 2 ? -x : x) * magnitude);
}
