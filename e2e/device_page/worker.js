// Boots Python as the real worker does and runs checks.py (or ?script=) on the page's GPU.

import { startPython } from "../../python.js";
import * as replay from "../../replay.js";

globalThis.jirdShell = { replay };
try {
    const pyodide = await startPython();
    const script = new URL(self.location.href).searchParams.get("script") ?? "checks.py";
    const source = await (await fetch(script)).text();
    await pyodide.runPythonAsync(source, { filename: script });
    self.postMessage({ ev: "result", done: true });
} catch (error) {
    self.postMessage({ ev: "error", done: true, message: String(error) });
}
