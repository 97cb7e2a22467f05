//!include unit_4
//!include int4
// A load of 2 words of int4 weights (16 weights along K).
const WORDS: u32 = 2u;
alias Q = vec2u;
@group(0) @binding(1) var<storage, read> w_q: array<vec2u>;

// sum_k q_k * a_k, u already times UNPACK
fn dot_unit(q: Q, u: Unit) -> f32 {
    return dot_word(q.x, u[0], u[1]) + dot_word(q.y, u[2], u[3]);
}
