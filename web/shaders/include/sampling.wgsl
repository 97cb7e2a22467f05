// What a slot samples by (py/jird/kernels/core.py SAMPLING_DTYPE), written at admission, and a row's result (OUT_DTYPE).
struct Sampling {
    scale: f32,            // 65536 * log2(e) / temperature: depth below the maximum in 1/65536 octaves; 0 = take the maximum
    top_p: f32,            // smallest set of at least this mass; 1 = off
    min_p: f32,            // least probability, as a share of the greatest; 0 = off
    top_k: u32,            // 0 = off
    penalty: f32,          // a logit <= 0 of a seen id is multiplied by this; 1 = off
    inverse_penalty: f32,  // a logit > 0 by this
    window: u32,           // last tokens that count as seen; 0 = all
    seed_lo: u32,
    seed_hi: u32,
    stop: array<u32, 8>,   // unused ones are NO_TOKEN
    flags: u32,            // HAS_MASK
    n_bias: u32,           // pairs in use in the slot's bias
    vocab: u32,            // ids from here on are padding and never chosen; 0 = none is
}
struct OutRow {
    token: u32,
    kv_len: u32,
    flags: u32,
    logprob: f32,
}
const HAS_MASK = 1u;
const NO_TOKEN = 0xffffffffu;
// A logit at or below this counts as absent (Tint refuses a constant -inf).
const ABSENT = -3.4e38;

// How many of `width` logits are ids that may be chosen.
fn choices(vocab: u32, width: u32) -> u32 {
    return select(min(vocab, width), width, vocab == 0u);
}
