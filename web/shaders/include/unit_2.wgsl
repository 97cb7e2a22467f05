// Unit: the 8 activations that meet one load of weights (2 vec4f from index `at` of x), spelled out so that no compiler
// keeps them in memory for an index. weigh(v, i) is the prologue's.
alias Unit = array<vec4f, 2>;
const UNIT = 2u;   // vec4f a unit

fn read_unit(at: u32) -> Unit {
    return Unit(x[at], x[at + 1u]);
}

fn weigh_unit(u: Unit, i: u32) -> Unit {
    return Unit(weigh(u[0], i), weigh(u[1], i + 1u));
}

fn scale_unit(u: Unit, s: vec4f) -> Unit {
    return Unit(u[0] * s, u[1] * s);
}

fn sum_unit(u: Unit) -> f32 {
    let v = u[0] + u[1];
    return v.x + v.y + v.z + v.w;
}

fn square_unit(u: Unit) -> f32 {
    return dot(u[0], u[0]) + dot(u[1], u[1]);
}

fn dot_units(a: Unit, b: Unit) -> f32 {
    return dot(a[0], b[0]) + dot(a[1], b[1]);
}
