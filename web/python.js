// Pyodide from this origin with numpy and jird's wheel. Used by worker.js and by the test pages.

const BOOT_LIMIT_MS = 120_000; // loadPyodide hangs for ever when wasm is refused or a fetch is blocked

/** A promise with a time limit; the error names what did not come. */
function within(ms, what, promise) {
    let timer;
    const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`${what} did not finish in ${ms / 1000} s`)), ms);
    });
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** The bytes or JSON of a file of this origin. */
async function get(path, kind) {
    const response = await fetch(new URL(path, import.meta.url));
    if (!response.ok) {
        throw new Error(`${path} answered ${response.status}`);
    }
    return response[kind]();
}

async function load() {
    const wheel = get("./manifest.json", "json").then((manifest) => get(`./${manifest.wheel}`, "arrayBuffer"));
    wheel.catch(() => {}); // reported below, where it is awaited
    const { loadPyodide } = await import("./pyodide/pyodide.mjs");
    const pyodide = await loadPyodide({
        indexURL: new URL("./pyodide/", import.meta.url).href,
        packages: ["numpy"],
        enableRunUntilComplete: false,
        stdout: (line) => console.log(line),
        stderr: (line) => console.warn(line),
    });
    pyodide.unpackArchive(await wheel, "wheel");
    return pyodide;
}

/**
 * Starts Python. Call it once in a worker.
 * @returns {Promise<object>} the Pyodide module, with `import jird` ready
 * @throws {Error} naming what did not come
 */
export function startPython() {
    return within(BOOT_LIMIT_MS, "Python", load());
}
