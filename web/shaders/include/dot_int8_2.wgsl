//!include unit_2
//!include int8
// A load of 2 words of int8 weights: 8 weights along K.
const WORDS: u32 = 2u;
alias Q = vec2u;
@group(0) @binding(1) var<storage, read> w_q: array<vec2u>;

// The codes of a load; activations that meet them carry UNPACK.
fn unpack(q: Q) -> Unit {
    return Unit(codes_at(q.x), codes_at(q.y));
}
