// Unit: the 32 activations that meet one load of weights (8 vec4f from index `at` of x), spelled out so that no compiler
// keeps them in memory for an index. weigh(v, i) is the prologue's.
alias Unit = array<vec4f, 8>;
const UNIT = 8u;   // vec4f a unit

fn read_unit(at: u32) -> Unit {
    return Unit(x[at], x[at + 1u], x[at + 2u], x[at + 3u], x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]);
}

fn weigh_unit(u: Unit, i: u32) -> Unit {
    return Unit(weigh(u[0], i), weigh(u[1], i + 1u), weigh(u[2], i + 2u), weigh(u[3], i + 3u), weigh(u[4], i + 4u), weigh(u[5], i + 5u), weigh(u[6], i + 6u), weigh(u[7], i + 7u));
}

fn scale_unit(u: Unit, s: vec4f) -> Unit {
    return Unit(u[0] * s, u[1] * s, u[2] * s, u[3] * s, u[4] * s, u[5] * s, u[6] * s, u[7] * s);
}

fn sum_unit(u: Unit) -> f32 {
    let v = u[0] + u[1] + u[2] + u[3] + u[4] + u[5] + u[6] + u[7];
    return v.x + v.y + v.z + v.w;
}

fn square_unit(u: Unit) -> f32 {
    return dot(u[0], u[0]) + dot(u[1], u[1]) + dot(u[2], u[2]) + dot(u[3], u[3]) + dot(u[4], u[4]) + dot(u[5], u[5]) + dot(u[6], u[6]) + dot(u[7], u[7]);
}

fn dot_units(a: Unit, b: Unit) -> f32 {
    return dot(a[0], b[0]) + dot(a[1], b[1]) + dot(a[2], b[2]) + dot(a[3], b[3]) + dot(a[4], b[4]) + dot(a[5], b[5]) + dot(a[6], b[6]) + dot(a[7], b[7]);
}
