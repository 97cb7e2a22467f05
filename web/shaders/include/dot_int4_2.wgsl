//!include unit_4
//!include int4
// A load of 2 words of int4 weights: 16 weights along K.
const WORDS: u32 = 2u;
alias Q = vec2u;
@group(0) @binding(1) var<storage, read> w_q: array<vec2u>;

// The codes of a load; activations that meet them carry UNPACK.
fn unpack(q: Q) -> Unit {
    return Unit(codes_at(q.x), codes_at(q.x >> 16u), codes_at(q.y), codes_at(q.y >> 16u));
}
