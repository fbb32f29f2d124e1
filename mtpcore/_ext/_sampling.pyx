"""The sampler of ``c/sampler/sampler.h``, which defines it; checks its arguments.

Compiled modules include ``_sampling.pxd`` and call ``mtp_choose(..., &sampler.settings, ...,
scratch.pointer, ...)`` without the GIL, with a `Scratch` of their own for each thread.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t

import numpy as np

from mtpcore.errors import NoTokenError, SamplingError

NO_TOKEN = MTP_NO_TOKEN

cdef extern from "core/logarithm.h" nogil:
    double mtp_log(double x) noexcept
    double mtp_exp(double x) noexcept

cdef extern from "core/rounding.h" nogil:
    unsigned mtp_round_to_nearest() noexcept
    void mtp_round_as(unsigned before) noexcept

cdef extern from "sampler/philox.h" nogil:
    void mtp_philox(uint32_t *counter, unsigned long long key) noexcept


cdef class Scratch:
    def __cinit__(self, int64_t n_vocab, n_ids=None):
        cdef int64_t ids = n_vocab if n_ids is None else n_ids
        if not (0 < n_vocab < 2**31 and 0 < ids < 2**31):
            raise SamplingError(
                "vocabulary size out of range", where="Scratch", wanted="1 to 2**31 - 1",
                got=f"n_vocab {n_vocab}, n_ids {ids}")
        self.pointer = mtp_sampler_scratch_new(n_vocab, ids)
        if self.pointer == NULL:
            raise MemoryError("no memory for a sampler's scratch")
        self.n_vocab = n_vocab
        self.n_ids = ids

    def __dealloc__(self):
        mtp_sampler_scratch_free(self.pointer)


cdef class Sampler:
    def __cinit__(self, settings, Scratch scratch not None, breakers=()):
        cdef const int32_t[::1] ids
        cdef const float[::1] bias
        pairs = sorted((settings.logit_bias or {}).items())
        self.scratch, self.sampling = scratch, settings
        self.settings.temperature = settings.temperature
        self.settings.top_k = settings.top_k
        self.settings.top_p = settings.top_p
        self.settings.min_p = settings.min_p
        self.settings.top_n_sigma = settings.top_n_sigma
        self.settings.typical_p = settings.typical_p
        self.settings.xtc_probability = settings.xtc_probability
        self.settings.xtc_threshold = settings.xtc_threshold
        self.settings.dynatemp_range = settings.dynatemp_range
        self.settings.dynatemp_exponent = settings.dynatemp_exponent
        self.settings.repetition_penalty = settings.repetition_penalty
        self.settings.frequency_penalty = settings.frequency_penalty
        self.settings.presence_penalty = settings.presence_penalty
        self.settings.penalty_last_n = settings.penalty_last_n
        self.settings.dry.multiplier = settings.dry_multiplier
        self.settings.dry.base = settings.dry_base
        self.settings.dry.allowed_length = settings.dry_allowed_length
        self.settings.dry.last_n = settings.dry_penalty_last_n
        self.settings.seed = settings.seed
        self.settings.stream = settings.stream
        if pairs:
            self.bias_arrays = (np.array([token_id for token_id, _ in pairs], np.int32),
                                np.array([value for _, value in pairs], np.float32))
            ids, bias = self.bias_arrays
            self.settings.bias_ids = &ids[0]
            self.settings.bias = &bias[0]
            self.settings.n_bias = len(pairs)
        if breakers:
            self._take_breakers(breakers)

    cdef int _take_breakers(self, breakers) except -1:
        """Let settings point to the tokens that break repetitions, and to lists of several."""
        cdef const uint32_t[::1] words
        cdef const int32_t[::1] spelled
        n_words = (self.scratch.n_ids + 31) // 32
        alone = np.zeros(32 * n_words, np.uint8)
        alone[[ids[0] for ids in breakers if len(ids) == 1 and ids[0] < len(alone)]] = 1
        lists = [ids for ids in breakers if len(ids) > 1]
        flat = [number for ids in lists for number in (len(ids), *ids)]
        self.breaker_arrays = (np.packbits(alone, bitorder="little").view("<u4").astype(np.uint32),
                               np.array(flat or [0], np.int32))
        words, spelled = self.breaker_arrays
        self.settings.dry.breakers = &words[0]
        self.settings.dry.n_spelled = len(lists)
        self.settings.dry.spelled = &spelled[0]
        return 0

    @property
    def is_gumbel_max(self):
        return mtp_can_fuse(&self.settings)

    def check(self, int64_t n_vocab, int64_t index, const int32_t[::1] token_ids=None):
        self._check(n_vocab, 0, 0, index, token_ids, None)

    def choose(self, const float[::1] logits not None, const int32_t[::1] history not None,
               int64_t n_prompt, int64_t index, const int32_t[::1] token_ids=None,
               const uint32_t[::1] mask=None):
        token_id = self._choose(logits, history, n_prompt, index, token_ids, mask, NULL)
        if token_id == MTP_NO_TOKEN:
            raise NoTokenError(
                "no token is left to choose", where=f"index {index}",
                got="every logit minus infinity, or no number",
                fix="let settings, masks and processors allow one token at least")
        return token_id

    def choose_with_probability(self, const float[::1] logits not None,
                                const int32_t[::1] history not None, int64_t n_prompt,
                                int64_t index, const int32_t[::1] token_ids=None,
                                const uint32_t[::1] mask=None):
        cdef float probability = 0
        token_id = self._choose(logits, history, n_prompt, index, token_ids, mask, &probability)
        return token_id, probability

    def rank(self, const float[::1] logits not None, const int32_t[::1] history not None,
             int64_t n_prompt, int64_t index, int64_t n, const int32_t[::1] token_ids=None):
        cdef int64_t n_vocab = logits.shape[0], n_history = history.shape[0]
        if n < 1:
            raise SamplingError("too few places in a ranking", where="rank", wanted=">= 1", got=n)
        self._check(n_vocab, n_history, n_prompt, index, token_ids, None)
        n = min(n, n_vocab)
        found = np.empty(n, np.int32), np.empty(n, np.float32), np.empty(n)
        cdef int32_t[::1] ids = found[0]
        cdef float[::1] probabilities = found[1]
        cdef double[::1] shares = found[2]
        cdef unsigned before = mtp_round_to_nearest()
        n = mtp_rank(
            &logits[0], n_vocab, &self.settings, &history[0] if n_history else NULL, n_history,
            n_prompt, index, &token_ids[0] if token_ids is not None else NULL,
            self.scratch.pointer, n, &ids[0], &probabilities[0], &shares[0])
        mtp_round_as(before)
        return found[0][:n], found[1][:n], found[2][:n]

    cdef object _choose(self, const float[::1] logits, const int32_t[::1] history,
                        int64_t n_prompt, int64_t index, const int32_t[::1] token_ids,
                        const uint32_t[::1] mask, float *probability):
        cdef int64_t n_vocab = logits.shape[0], n_history = history.shape[0]
        cdef const int32_t *ids = NULL
        self._check(n_vocab, n_history, n_prompt, index, token_ids, mask)
        if token_ids is not None:
            ids = &token_ids[0]
        if mask is not None:
            self.settings.mask = &mask[0]
        cdef unsigned before = mtp_round_to_nearest()
        # The GIL is kept: with _check_scratch it keeps two threads out of one scratch.
        cdef int32_t token_id = mtp_choose(
            &logits[0], n_vocab, &self.settings, &history[0] if n_history else NULL, n_history,
            n_prompt, index, ids, self.scratch.pointer, probability)
        mtp_round_as(before)
        self.settings.mask = NULL
        return token_id

    cdef int _check_scratch(self) except -1:
        if self.scratch.is_taken:
            raise SamplingError("another thread drafts with this scratch", where="Sampler",
                                fix="let one thread at a time use a Cross")
        return 0

    cdef int _check(self, int64_t n_vocab, int64_t n_history, int64_t n_prompt, int64_t index,
                    const int32_t[::1] token_ids, const uint32_t[::1] mask) except -1:
        cdef int64_t n_ids = self.scratch.n_ids, i
        self._check_scratch()
        if not 0 < n_vocab <= self.scratch.n_vocab:
            raise SamplingError("wrong number of logits", where="Sampler", got=n_vocab,
                                wanted=f"1 to {self.scratch.n_vocab}")
        if not 0 <= n_prompt <= n_history:
            raise SamplingError("the prompt is not a part of the history", where="Sampler",
                                wanted=f"n_prompt from 0 to {n_history}", got=n_prompt)
        if not 0 <= index < 2**32:
            raise SamplingError("index of the chosen token out of range", where="Sampler",
                                wanted="0 to 2**32 - 1", got=index)
        if token_ids is None and n_vocab > n_ids:
            raise SamplingError("more logits than token ids", where="Sampler",
                                wanted=f"at most {n_ids}", got=n_vocab)
        if token_ids is not None:
            if token_ids.shape[0] != n_vocab:
                raise SamplingError("token_ids does not fit the logits", where="Sampler",
                                    wanted=f"{n_vocab} ids", got=token_ids.shape[0])
            for i in range(n_vocab):
                if not 0 <= token_ids[i] < n_ids:
                    raise SamplingError("token id out of range", where=f"token_ids[{i}]",
                                        wanted=f"0 to {n_ids - 1}", got=token_ids[i])
        if mask is not None and mask.shape[0] < (n_ids + 31) // 32:
            raise SamplingError("mask too short", where="Sampler", got=mask.shape[0],
                                wanted=f"{(n_ids + 31) // 32} words of 32 token ids")
        return 0


def gumbel(seed, stream, int64_t index, int32_t token_id):
    return mtp_gumbel(seed, stream, index, token_id)


def philox(counter, key):
    cdef uint32_t[4] words = counter
    mtp_philox(words, key)
    return words[0], words[1], words[2], words[3]


def log(const double[::1] x not None):
    result = np.empty(x.shape[0])
    cdef double[::1] out = result
    cdef int64_t i
    for i in range(x.shape[0]):
        out[i] = mtp_log(x[i])
    return result


def exp(const double[::1] x not None):
    result = np.empty(x.shape[0])
    cdef double[::1] out = result
    cdef int64_t i
    for i in range(x.shape[0]):
        out[i] = mtp_exp(x[i])
    return result
