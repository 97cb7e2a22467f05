//!include unit_1
// Dense weights stored as bf16, two a word; a unit is 4 weights along K.
alias Q = vec2u;
const UNPACK = vec4f(1.0);
@group(0) @binding(1) var<storage, read> w: array<vec2u>;

fn load_unit(row: u32, unit: u32, units: u32) -> Q {
    return w[row * units + unit];
}

fn weights_of(q: Q) -> vec4f {
    return bitcast<vec4f>(vec4u(q.x << 16u, q.x & 0xffff0000u, q.y << 16u, q.y & 0xffff0000u));
}

fn meet(row: u32, unit: u32, units: u32, q: Q, u: Unit, total: f32) -> f32 {
    return dot(u[0], weights_of(q));
}
