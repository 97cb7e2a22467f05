// BIAS: the index at which the bias is bound (it stands last), or none.
@group(0) @binding(4) var<storage, read> bias: array<f32>;   // [rows of w]

fn bias_at(n: u32) -> f32 {
    return bias[n];
}
