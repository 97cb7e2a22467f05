//!include pair
// What int4 and int8 share: w = q * s + b is never formed, sum_k w_k a_k = s * sum_k q_k a_k + b * sum_k a_k in each group.
const GROUP: u32 = 32u;   // weights along K that share a pair; a unit never crosses groups

fn load_unit(row: u32, unit: u32, units: u32) -> Q {
    return w_q[row * units + unit];
}

// The (scale, bias) pair of unit `unit` of weight row `row`.
fn pair_of(row: u32, unit: u32, units: u32) -> vec2f {
    return pair_at((row * units + unit) / (GROUP / (4u * UNIT)));
}

// What a unit adds to the sum of one row of x; total = sum_k a_k.
fn meet(pair: vec2f, codes: Unit, u: Unit, total: f32) -> f32 {
    return pair.x * dot_units(codes, u) + pair.y * total;
}
