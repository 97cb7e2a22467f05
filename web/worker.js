// The worker: boots Pyodide from this origin, installs jird's wheel, and hands messages to jird.app.<app>.main().
// Nothing here may use eval or run_js: the content policy has no 'unsafe-eval'.

const queued = [];
const keep = (event) => queued.push(event);
self.onmessage = keep; // first of all: messages that arrive before a handler is set are lost

const APPS = ["worker", "kernels_page"];

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

async function boot() {
    const app = new URL(self.location.href).searchParams.get("app") ?? "worker";
    if (!APPS.includes(app)) {
        throw new Error(`worker.js?app=${app}: there is ${APPS.join(" and ")}`);
    }
    progress("starting Python");
    const { startPython } = await import("./python.js");
    const [pyodide] = await Promise.all([startPython(), loadModules(app)]);
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
