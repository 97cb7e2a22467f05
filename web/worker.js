// The worker: boots Pyodide from this origin, installs jird's wheel, and hands messages to jird.app.<app>.main().
// Nothing here may use eval or run_js: the content policy has no 'unsafe-eval'.

const queued = [];
const keep = (event) => queued.push(event);
self.onmessage = keep; // first of all: messages that arrive before a handler is set are lost

const APPS = ["worker", "kernels_page"];
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

function progress(stage) {
    self.postMessage({ ev: "progress", stage });
}

/** Modules that Python reaches through globalThis: replay.js always, the rest where an app needs it. */
async function loadModules(app) {
    const replay = import("./replay.js");
    if (app === "kernels_page") {
        globalThis.jirdShell = { replay: await replay };
        return;
    }
    const [weights, tokenizers, jinja] = await Promise.all([import("./weights.js"), import("./npm/tokenizers.js"), import("./npm/jinja.js")]);
    globalThis.jirdShell = { replay: await replay, weights };
    globalThis.jirdTokenizers = tokenizers;
    globalThis.jirdJinja = jinja;
}

async function loadPython() {
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

async function boot() {
    const app = new URL(self.location.href).searchParams.get("app") ?? "worker";
    if (!APPS.includes(app)) {
        throw new Error(`worker.js?app=${app}: there is ${APPS.join(" and ")}`);
    }
    progress("starting Python");
    const [pyodide] = await Promise.all([within(BOOT_LIMIT_MS, "Python", loadPython()), loadModules(app)]);
    const module = pyodide.pyimport(`jird.app.${app}`);
    await module.main();
    module.destroy();
    if (self.onmessage === keep) {
        throw new Error(`jird.app.${app}.main() set no onmessage`);
    }
    for (const event of queued.splice(0)) {
        self.onmessage(event);
    }
}

boot().catch((error) => {
    self.onmessage = null;
    self.postMessage({
        ev: "error",
        code: "boot_failed",
        message: `The engine could not start: ${String(error.message || error).trim().split("\n").at(-1)}`,
        hint: "Reload the page; if it stays, the browser is too old or blocks WebAssembly or the page's own files.",
        detail: String(error.stack || error),
    });
});
