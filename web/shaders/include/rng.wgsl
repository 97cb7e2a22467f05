// 64-bit integers as vec2u(low, high), and the counter generator Philox 4x32-10 (Salmon et al. 2011).

fn mul_wide(a: u32, b: u32) -> vec2u {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let ll = al * bl;
    let middle = ah * bl + (ll >> 16u);
    let other = al * bh + (middle & 0xffffu);
    return vec2u((other << 16u) | (ll & 0xffffu), ah * bh + (middle >> 16u) + (other >> 16u));
}

fn add64(a: vec2u, b: vec2u) -> vec2u {
    let low = a.x + b.x;
    return vec2u(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn sub64(a: vec2u, b: vec2u) -> vec2u {
    return vec2u(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn less64(a: vec2u, b: vec2u) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// floor(a * share / 2^32)
fn share64(a: vec2u, share: u32) -> vec2u {
    return add64(mul_wide(a.y, share), vec2u(mul_wide(a.x, share).y, 0u));
}

fn philox(key: vec2u, counter: vec4u) -> vec4u {
    var k = key;
    var c = counter;
    for (var round = 0u; round < 10u; round++) {
        let p = mul_wide(0xd2511f53u, c.x);
        let q = mul_wide(0xcd9e8d57u, c.z);
        c = vec4u(q.y ^ c.y ^ k.x, q.x, p.y ^ c.w ^ k.y, p.x);
        k += vec2u(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}
