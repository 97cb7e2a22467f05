//!include unit_8
//!include int4
// A load of 4 words of int4 weights (32 weights along K).
const WORDS: u32 = 4u;
alias Q = vec4u;
@group(0) @binding(1) var<storage, read> w_q: array<vec4u>;

// sum_k q_k * a_k, u already times UNPACK
fn dot_unit(q: Q, u: Unit) -> f32 {
    return dot_word(q.x, u[0], u[1]) + dot_word(q.y, u[2], u[3]) + dot_word(q.z, u[4], u[5]) + dot_word(q.w, u[6], u[7]);
}
