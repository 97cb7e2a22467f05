// Where the chunks of checkpoint files are kept in the browser: CacheStorage, or nowhere.

import { WeightsError } from "./weights_net.js";

const CACHE = "jird-weights-1";

/** Storage of one file. @returns {Promise<{shelf: CacheShelf | NoShelf, notice: string}>} */
export async function openShelf(store, key) {
    if (store === "none") {
        return { shelf: new NoShelf(), notice: "" };
    }
    if (store !== "cache") {
        throw new WeightsError("fetch_failed", `store ${store} is not known; known: cache, none`);
    }
    try {
        return { shelf: new CacheShelf(await globalThis.caches.open(CACHE), key), notice: "" };
    } catch (error) {
        return { shelf: new NoShelf(), notice: `The browser keeps no files for this page (${error.message}): the model is used without being kept.` };
    }
}

class NoShelf {
    isLasting = false;
    plan = async () => null;
    present = async () => new Set();
    clear = async () => {};
}

class CacheShelf {
    isLasting = true;
    #cache;
    #key;

    constructor(cache, key) {
        this.#cache = cache;
        this.#key = key;
    }

    #address(what) {
        const url = new URL(this.#key);
        url.hash = "";
        url.searchParams.set("jird", what);
        return url.href;
    }

    async plan() {
        const found = await this.#cache.match(this.#address("plan"));
        return found ? found.json() : null;
    }

    setPlan(plan) {
        return this.#cache.put(this.#address("plan"), new Response(JSON.stringify(plan), { headers: { "Content-Type": "application/json" } }));
    }

    /** The chunks of `plan` that are stored. */
    async present(plan) {
        const all = Array.from({ length: chunks(plan) }, (_, i) => i);
        const found = await Promise.all(all.map((i) => this.#cache.match(this.#address(`part-${i}`))));
        return new Set(all.filter((i) => found[i] !== undefined));
    }

    async get(i) {
        const found = await this.#cache.match(this.#address(`part-${i}`));
        return found ? new Uint8Array(await found.arrayBuffer()) : null;
    }

    put(i, bytes) {
        const headers = { "Content-Type": "application/octet-stream", "Content-Length": String(bytes.length) };
        return this.#cache.put(this.#address(`part-${i}`), new Response(bytes, { status: 200, headers }));
    }

    /** Forgets the file: the plan last, so that no chunk outlives the plan it belongs to. */
    async clear() {
        const plan = await this.plan();
        for (let i = 0; plan && i < chunks(plan); i++) {
            await this.#cache.delete(this.#address(`part-${i}`));
        }
        await this.#cache.delete(this.#address("plan"));
    }
}

/** Number of chunks of a file. */
export function chunks(plan) {
    return Math.ceil(plan.size / plan.chunk);
}
