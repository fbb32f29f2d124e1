"""The sampler for other compiled modules: settings, working memory and the choice, without GIL."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t


cdef extern from "sampler/sampler.h" nogil:
    ctypedef struct mtp_dry:
        double multiplier
        double base
        int64_t allowed_length
        int64_t last_n
        const uint32_t *breakers
        int64_t n_spelled
        const int32_t *spelled

    ctypedef struct mtp_sampling:
        double temperature
        int64_t top_k
        double top_p
        double min_p
        double top_n_sigma
        double typical_p
        double xtc_probability
        double xtc_threshold
        double dynatemp_range
        double dynatemp_exponent
        double repetition_penalty
        double frequency_penalty
        double presence_penalty
        int64_t penalty_last_n
        mtp_dry dry
        int64_t n_bias
        const int32_t *bias_ids
        const float *bias
        uint64_t seed
        uint64_t stream
        const uint32_t *mask

    ctypedef struct mtp_sampler_scratch:
        pass

    ctypedef struct mtp_winner:
        pass

    enum: MTP_NO_TOKEN

    bint mtp_can_fuse(const mtp_sampling *sampling) noexcept
    mtp_sampler_scratch *mtp_sampler_scratch_new(int64_t n_vocab, int64_t n_ids) noexcept
    void mtp_sampler_scratch_free(mtp_sampler_scratch *scratch) noexcept
    int32_t mtp_choose(
        const float *logits, int64_t n_vocab, const mtp_sampling *sampling,
        const int32_t *history, int64_t n_history, int64_t n_prompt, int64_t index,
        const int32_t *token_ids, mtp_sampler_scratch *scratch, float *probability) noexcept
    int64_t mtp_rank(
        const float *logits, int64_t n_vocab, const mtp_sampling *sampling,
        const int32_t *history, int64_t n_history, int64_t n_prompt, int64_t index,
        const int32_t *token_ids, mtp_sampler_scratch *scratch, int64_t n, int32_t *ids,
        float *probabilities, double *shares) noexcept
    double mtp_gumbel(uint64_t seed, uint64_t stream, int64_t index, int32_t token_id) noexcept


cdef class Scratch:
    cdef mtp_sampler_scratch *pointer
    cdef bint is_taken  # by a draft loop, which runs without the GIL
    cdef readonly int64_t n_vocab
    cdef readonly int64_t n_ids


cdef class Sampler:
    cdef mtp_sampling settings  # its mask is NULL between calls
    cdef readonly Scratch scratch
    cdef readonly object sampling
    cdef object bias_arrays, breaker_arrays  # settings points into them
    cdef int _take_breakers(self, breakers) except -1
    cdef object _choose(
        self, const float[::1] logits, const int32_t[::1] history, int64_t n_prompt,
        int64_t index, const int32_t[::1] token_ids, const uint32_t[::1] mask,
        float *probability)
    cdef int _check_scratch(self) except -1
    cdef int _check(
        self, int64_t n_vocab, int64_t n_history, int64_t n_prompt, int64_t index,
        const int32_t[::1] token_ids, const uint32_t[::1] mask) except -1
