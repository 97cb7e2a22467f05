//!include unit_4
//!include int8
// A load of 4 words of int8 weights: 16 weights along K.
const WORDS: u32 = 4u;
alias Q = vec4u;
@group(0) @binding(1) var<storage, read> w_q: array<vec4u>;

// The codes of a load; activations that meet them carry UNPACK.
fn unpack(q: Q) -> Unit {
    return Unit(codes_at(q.x), codes_at(q.y), codes_at(q.z), codes_at(q.w));
}
