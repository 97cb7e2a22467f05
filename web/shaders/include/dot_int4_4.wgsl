//!include unit_8
//!include int4
// A load of 4 words of int4 weights: 32 weights along K.
const WORDS: u32 = 4u;
alias Q = vec4u;
@group(0) @binding(1) var<storage, read> w_q: array<vec4u>;

// The codes of a load; activations that meet them carry UNPACK.
fn unpack(q: Q) -> Unit {
    return Unit(codes_at(q.x), codes_at(q.x >> 16u), codes_at(q.y), codes_at(q.y >> 16u), codes_at(q.z), codes_at(q.z >> 16u), codes_at(q.w), codes_at(q.w >> 16u));
}
