// RMS norm in front of a linear: activations are met as x * norm, the finished sum is multiplied by
// rsqrt(mean(x^2) + eps), with sum x^2 gathered in the same loop.
const NORMED = true;

fn weigh(v: vec4f, i: u32) -> vec4f {
    return v * norm[i];
}

fn norm_scale(squares: f32) -> f32 {
    return inverseSqrt(squares / f32(params.K) + params.eps);
}
