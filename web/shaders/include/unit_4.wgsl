// Unit: the 16 activations that meet one load of weights (4 vec4f from index `at` of x), spelled out so that no compiler
// keeps them in memory for an index. weigh(v, i) is the prologue's.
alias Unit = array<vec4f, 4>;
const UNIT = 4u;   // vec4f a unit

fn read_unit(at: u32) -> Unit {
    return Unit(x[at], x[at + 1u], x[at + 2u], x[at + 3u]);
}

fn weigh_unit(u: Unit, i: u32) -> Unit {
    return Unit(weigh(u[0], i), weigh(u[1], i + 1u), weigh(u[2], i + 2u), weigh(u[3], i + 3u));
}

fn scale_unit(u: Unit, s: vec4f) -> Unit {
    return Unit(u[0] * s, u[1] * s, u[2] * s, u[3] * s);
}

fn sum_unit(u: Unit) -> f32 {
    let v = u[0] + u[1] + u[2] + u[3];
    return v.x + v.y + v.z + v.w;
}

fn square_unit(u: Unit) -> f32 {
    return dot(u[0], u[0]) + dot(u[1], u[1]) + dot(u[2], u[2]) + dot(u[3], u[3]);
}

fn dot_units(a: Unit, b: Unit) -> f32 {
    return dot(a[0], b[0]) + dot(a[1], b[1]) + dot(a[2], b[2]) + dot(a[3], b[3]);
}
