//!include quantised
// int8 words: 4 unsigned bytes, low one first. Bytes 1 and 3 are masked where they stand and the activations carry the
// power of two (exact).
const UNPACK = vec4f(1.0, 0.00390625, 1.0, 0.00390625);

fn codes_at(q: u32) -> vec4f {
    let halves = vec2u(q, q >> 16u);
    return vec4f(vec4i(halves.xxyy & vec4u(0xffu, 0xff00u, 0xffu, 0xff00u)));
}
