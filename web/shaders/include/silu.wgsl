// x * sigmoid(x); exp is kept from overflowing.
fn silu(x: f32) -> f32 {
    return x / (1.0 + exp(min(-x, 80.0)));
}
