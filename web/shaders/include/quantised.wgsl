//!include pair
// What int4 and int8 share: w = q * s + b is never formed, sum_k w_k a_k = s * sum_k q_k a_k + b * sum_k a_k in each group.
const GROUP: u32 = 32u;   // weights along K that share a pair; a unit never crosses groups

fn load_unit(row: u32, unit: u32, units: u32) -> Q {
    return w_q[row * units + unit];
}

// What unit `unit` of weight row `row` adds to the sum; total = sum_k a_k.
fn meet(row: u32, unit: u32, units: u32, q: Q, u: Unit, total: f32) -> f32 {
    let pair = pair_at((row * units + unit) * (4u * UNIT) / GROUP);
    return pair.x * dot_unit(q, u) + pair.y * total;
}
